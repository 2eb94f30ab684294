"""Packed causal attention, the torch path: the definition, its gradients, memory, no triton."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minvenus.kernels.attention import attention, attention_reference, attention_triton
from tests.kernels.cases import packed
from tests.kernels.memory import peak_above

sizes = st.sampled_from([0, 1, 2, 16, 17]) | st.integers(0, 40)
lengths = st.lists(sizes, min_size=1, max_size=4).filter(sum)
heads = st.sampled_from([(1, 1), (2, 1), (4, 2), (4, 1), (8, 1), (6, 2)])


def with_gradients(function, q, k, v, cu_seqlens):
    """Output and gradients of a random weighting of it."""
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = function(*leaves, cu_seqlens)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), leaves)]


def test_two_sequences_worked_by_hand():
    root = math.sqrt(2)  # takes out 1 / sqrt(D)
    q = torch.tensor([[[root, 0.0]], [[root, 0.0]], [[5.0, 5.0]]])
    k = torch.tensor([[[0.0, 9.0]], [[math.log(4.0), 0.0]], [[1.0, 1.0]]])
    v = torch.tensor([[[4.0, 0.0]], [[0.0, 8.0]], [[1.0, 2.0]]])
    # weights 1; 1/5 and 4/5; 1: the third is alone
    expected = torch.tensor([[[4.0, 0.0]], [[0.8, 6.4]], [[1.0, 2.0]]])
    for function in (attention_reference, attention):
        torch.testing.assert_close(function(q, k, v, torch.tensor([0, 2, 3])), expected)


def test_query_heads_read_the_kv_head_of_their_group():
    q, k, v, cu = packed([3], 4, 2, 16)
    v[:, 0], v[:, 1] = 1.0, 2.0
    expected = torch.tensor([1.0, 1.0, 2.0, 2.0]).expand(3, 4)
    for function in (attention_reference, attention):
        torch.testing.assert_close(function(q, k, v, cu)[..., 0], expected)


@given(lengths, heads, st.sampled_from([16, 20, 32]), st.integers(0, 2**16))
def test_the_torch_path_is_the_definition_and_so_are_its_gradients(lengths, heads, channels, seed):
    case = packed(lengths, *heads, channels, seed)
    definition = with_gradients(attention_reference, *case)
    for ours, theirs in zip(with_gradients(attention, *case), definition, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_wrong_arguments_are_refused_with_the_numbers():
    q, k, v, cu = packed([5], 4, 2, 16)
    for wrong, message in (
        ((q, k[:, :1].expand(5, 3, 16), v, cu), r"got \[\[5, 4, 16\], \[5, 3, 16\]"),
        ((q, k[:4], v[:4], cu), r"\[5, 4, 16\], \[4, 2, 16\]"),
        ((q, k, v[:, :1], cu), r"\[5, 2, 16\], \[5, 1, 16\]"),
        ((q, k[..., :8], v[..., :8], cu), r"\[5, 4, 16\], \[5, 2, 8\]"),
        ((q, k, v, cu[None]), r"\[1, 2\]\]"),
    ):
        with pytest.raises(ValueError, match=message):
            attention(*wrong)
    for channels in (15, 129):
        with pytest.raises(ValueError, match=f"head_dim from 16 to 128, got {channels}"):
            attention_triton(*packed([5], 4, 2, channels))


def test_the_torch_paths_never_import_triton():
    script = """
import sys
sys.modules["triton"] = None  # any import of it now raises
import torch
from minvenus.kernels import attention, logprob, paged
q, k = torch.randn(3, 2, 16), torch.randn(3, 1, 16)
zero, three, bounds = torch.tensor([[0]]), torch.tensor([3]), torch.tensor([0, 3])
attention.attention(q, k, k, bounds)
paged.paged_attention(q, k[None], k[None], zero, three, bounds)
logprob.token_logprobs(q[:, 0], k[:, 0], torch.tensor([0, 1, 2]))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_16384_tokens_of_one_head_need_less_than_ten_times_their_inputs():
    setup = """
import torch
from minvenus.kernels.attention import attention
q, k, v = (torch.randn(16384, 1, 32).requires_grad_() for _ in range(3))
attention(*(x[:600] for x in (q, k, v)), torch.tensor([0, 600])).sum().backward()
q.grad = k.grad = v.grad = None
"""
    above = peak_above(setup, "attention(q, k, v, torch.tensor([0, 16384])).sum().backward()")
    inputs = 3 * 16384 * 32 * 4
    # at least the gradients; the scores would be 170 times the inputs
    assert inputs < above < 9 * inputs
