"""Chunked log-probs: the definition, its gradients, and the memory that they must not use."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minvenus.kernels.logprob import token_logprobs, token_logprobs_reference
from tests.kernels.memory import peak_above


def problem(n, d, vocabulary, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, d, generator=g, dtype=torch.float64).to(dtype)
    weight = torch.randn(vocabulary, d, generator=g, dtype=torch.float64).to(dtype)
    return hidden, weight, torch.randint(0, vocabulary, (n,), generator=g)


def with_gradients(function, hidden, weight, targets, **options):
    """Outputs and the gradients of a random weighting of the log-probs.

    Equal weights would hide a missing factor.
    """
    h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    out = function(h, w, targets, **options)
    logp, *rest = out if isinstance(out, tuple) else (out,)
    factor = torch.randn(logp.shape, generator=torch.Generator().manual_seed(7)).to(logp.dtype)
    (logp * factor).sum().backward()
    return [logp.detach(), *rest, h.grad, w.grad]


def test_two_words_worked_by_hand():
    hidden, weight = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [math.log(3.0)]])
    targets = torch.tensor([1, 0])
    logp, entropy = token_logprobs(hidden, weight, targets, entropy=True)  # odds 3 : 1, then 9 : 1
    assert logp.tolist() == pytest.approx([math.log(3 / 4), math.log(1 / 10)], abs=1e-6)
    entropies = [-sum(p * math.log(p) for p in pair) for pair in ((0.75, 0.25), (0.9, 0.1))]
    assert entropy.tolist() == pytest.approx(entropies, abs=1e-6)
    cooler = token_logprobs(hidden, weight, targets, temperature=2.0)
    assert cooler[1].item() == pytest.approx(math.log(1 / 4), abs=1e-6)  # 9 : 1 becomes 3 : 1


@given(
    st.tuples(st.integers(0, 40), st.integers(1, 12), st.integers(1, 50), st.integers(0, 2**16)),
    st.integers(1, 45),
    st.sampled_from([0.3, 1.0, 1.7]),
    st.booleans(),
)
def test_chunks_of_any_size_give_the_definition_and_its_gradients(
    sizes, chunk, temperature, entropy
):
    inputs = problem(*sizes, dtype=torch.float64)
    options = {"temperature": temperature, "entropy": entropy}
    ours = with_gradients(token_logprobs, *inputs, chunk=chunk, **options)
    theirs = with_gradients(token_logprobs_reference, *inputs, **options)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
        assert not a.requires_grad, "the entropy has no gradient"


def test_bfloat16_inputs_are_added_up_in_float32():
    hidden, weight, targets = problem(64, 256, 2000, dtype=torch.bfloat16)
    logp, _, d_weight = with_gradients(token_logprobs, hidden, weight, targets, chunk=8)
    exact = with_gradients(token_logprobs_reference, hidden.double(), weight.double(), targets)
    assert logp.dtype == torch.float32 and d_weight.dtype == torch.bfloat16
    # logits in bfloat16 would miss this by 100 times
    torch.testing.assert_close(logp.double(), exact[0], rtol=1e-5, atol=1e-4)
    # rounded to bfloat16 once, not per chunk
    torch.testing.assert_close(d_weight.double(), exact[2], rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_weight_or_hidden_gets_no_gradient_and_the_other_is_unchanged(frozen):
    hidden, weight, targets = problem(20, 8, 30)
    both = with_gradients(token_logprobs, hidden, weight, targets)
    factor = torch.randn(20, generator=torch.Generator().manual_seed(7))
    inputs = [hidden, weight]
    inputs[1 - frozen].requires_grad_()
    (token_logprobs(*inputs, targets) * factor).sum().backward()
    assert inputs[frozen].grad is None
    assert torch.equal(inputs[1 - frozen].grad, both[2 - frozen])


def test_huge_logits_stay_finite():
    hidden, weight, targets = problem(4, 8, 16)
    for x in with_gradients(token_logprobs, hidden * 1e3, weight * 1e3, targets, entropy=True):
        assert torch.isfinite(x).all()


def test_wrong_arguments_are_refused_with_the_numbers():
    hidden, weight, targets = problem(4, 8, 16)
    for inputs, message in (
        ((hidden, weight[:, :7], targets), r"\[4, 8\].*\[16, 7\]"),
        ((hidden, weight, targets[:3]), r"targets \[N\] int64; got .*\[3\]"),
        ((hidden, weight, targets.int()), "torch.int32"),
        ((hidden, weight.double(), targets), "of one dtype.*torch.float64"),
        ((hidden, weight, targets, 0), "temperature must be > 0, got 0"),
        ((hidden, weight, targets, math.nan), "temperature must be > 0, got nan"),
    ):
        with pytest.raises(ValueError, match=message):
            token_logprobs(*inputs)
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        token_logprobs(hidden, weight, targets + 16)


def test_4096_positions_of_a_152k_vocabulary_need_less_than_450_megabytes():
    setup = """
import torch
from minvenus.kernels.logprob import token_logprobs
hidden = torch.randn(4096, 16).requires_grad_()
weight = (torch.randn(151936, 16) * 0.05).requires_grad_()
targets = torch.randint(0, 151936, (4096,))
token_logprobs(hidden[:8], weight[:64], targets[:8] % 64).sum().backward()
hidden.grad = weight.grad = None
"""
    above = peak_above(setup, "token_logprobs(hidden, weight, targets).sum().backward()")
    assert 2**28 < above < 4.5e8  # at least its one tile; all logits would be 2,489 MB
