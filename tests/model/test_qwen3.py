"""The forwards of one model agree, see only what they may see, and refuse what they cannot do."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minvenus.config import MODELS, ModelConfig
from minvenus.model import qwen3
from minvenus.model.qwen3 import Qwen3, RMSNorm, frequencies, rotate, rotation

TINY = ModelConfig(24, 40, 2, 4, 2, head_dim=8, vocab_size=61, max_position_embeddings=64)
close = {"rtol": 1e-5, "atol": 1e-5}


def lively(config):
    """A random model whose attention is far from uniform and whose norms are not 1: a wrong scale,
    norm or angle shows."""
    model = Qwen3(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0, 0.3, generator=generator)
            else:
                parameter.mul_(10.0)
    return model.requires_grad_(False)


def random_tokens(config, count):
    return torch.randint(config.vocab_size, (count,), generator=torch.Generator().manual_seed(0))


def bounds(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


@st.composite
def configs(draw):
    """Hidden sizes from 8: the norm of one channel is nearly its sign, so rounding grows where a
    sum cancels."""
    kv_heads = draw(st.integers(1, 3))
    return ModelConfig(
        draw(st.integers(8, 33)),
        draw(st.integers(1, 41)),
        draw(st.integers(1, 3)),
        kv_heads * draw(st.sampled_from([1, 2, 4])),
        kv_heads,
        head_dim=2 * draw(st.integers(1, 9)),
        vocab_size=draw(st.integers(2, 101)),
        tie_word_embeddings=draw(st.booleans()),
        rope_theta=draw(st.sampled_from([100.0, 1e6, 5e6])),
        max_position_embeddings=64,
    )


some = settings(max_examples=max(5, settings.default.max_examples // 2))


# -------------------------------------------------------------------------------- worked by hand


def test_rms_norm_worked_by_hand():
    norm = RMSNorm(2, eps=0.5)
    norm.weight.data = torch.tensor([1.0, 2.0])
    root = math.sqrt(13)
    assert norm(torch.tensor([3.0, 4.0])).tolist() == pytest.approx([3 / root, 8 / root], rel=1e-6)


def test_rms_norm_of_bfloat16_is_computed_in_float32_and_rounded_before_the_weight():
    x, weight = torch.randn(8, 256, generator=torch.Generator().manual_seed(0)).bfloat16().split(7)
    norm = RMSNorm(256, eps=1e-6)
    norm.weight.data = weight[0]
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert torch.equal(norm(x), norm.weight * exact.bfloat16())


def test_a_norm_is_computed_without_autocast(monkeypatch):
    """CUDA's would leave the result in float32, and the engine, which has none, rounds it."""
    seen = []

    def rms_norm(x, *_, **__):
        seen.append(torch.is_autocast_enabled("cpu"))
        return x

    monkeypatch.setattr(qwen3.F, "rms_norm", rms_norm)
    with torch.autocast("cpu", torch.bfloat16):
        RMSNorm(4, eps=1e-6)(torch.ones(4))
    assert seen == [False]


def test_an_mlp_in_parts_is_the_mlp_of_all_tokens_and_so_are_its_gradients(monkeypatch):
    results = []
    for tokens in (2**15, 3):  # 7 tokens at once; 3, 3 and 1
        monkeypatch.setattr(qwen3, "MLP_TOKENS", tokens)
        mlp = lively(MODELS["tiny"]).requires_grad_().model.layers[0].mlp
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(7, MODELS["tiny"].hidden_size, generator=generator).requires_grad_()
        out = mlp(x)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *mlp.parameters()])])
    for whole, parts in zip(*results, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5 * float(whole.abs().max()))


def test_rope_turns_the_first_half_with_the_last_half_worked_by_hand():
    cos, sin = rotation(torch.tensor([3]), frequencies(4, 100.0))  # angles 3 and 3 / 100^(1/2)
    turned = rotate(torch.tensor([[[1.0, 10.0, 0.0, 0.0]]]), cos, sin)[0, 0]
    expected = [math.cos(3), 10 * math.cos(0.3), math.sin(3), 10 * math.sin(0.3)]
    assert turned.tolist() == pytest.approx(expected, rel=1e-6)


def test_a_cast_to_bfloat16_leaves_the_angles_alone():
    assert list(Qwen3(TINY).bfloat16().buffers()) == []
    x = torch.ones(2, 1, 2, dtype=torch.bfloat16)
    turned = rotate(x, *rotation(torch.tensor([262_142, 262_143]), frequencies(2, 1e6)))
    exact = [[math.cos(p) - math.sin(p), math.cos(p) + math.sin(p)] for p in (262_142, 262_143)]
    assert torch.equal(turned[:, 0], torch.tensor(exact).bfloat16())


# ---------------------------------------------------------------------------------- the forwards


def test_positions_restart_at_each_packed_sequence():
    """Seen from inside: rope looks at distances only, so positions that run on would give the same
    output, until they end."""
    model, seen = lively(TINY), []
    model.model.register_forward_pre_hook(lambda module, args: seen.append(args[1].tolist()))
    model.packed(random_tokens(TINY, 6), bounds([3, 1, 2]))
    model(random_tokens(TINY, 6).view(2, 3))
    assert seen == [[0, 1, 2, 0, 0, 1], [0, 1, 2, 0, 1, 2]]


@some
@given(configs(), st.lists(st.integers(1, 9), min_size=1, max_size=4), st.data())
def test_packed_sequences_of_any_lengths_equal_the_plain_forward_of_each(config, lengths, data):
    model, tokens = lively(config), random_tokens(config, sum(lengths))
    hidden = model.packed(tokens, bounds(lengths))
    alone = torch.cat([model(row[None])[0] for row in tokens.split(lengths)])
    torch.testing.assert_close(model.logits(hidden), alone, **close)
    rows = data.draw(st.lists(st.sampled_from(range(len(tokens))), unique=True, min_size=1))
    some_hidden = model.packed(tokens, bounds(lengths), torch.tensor(rows))
    torch.testing.assert_close(some_hidden, hidden[rows], **close)


@some
@given(configs(), st.integers(2, 20), st.data())
def test_changing_a_later_token_leaves_earlier_logits_bit_identical(config, length, data):
    model, tokens = lively(config), random_tokens(config, length)
    place = data.draw(st.integers(1, length - 1))
    other = tokens.clone()
    other[place] = (tokens[place] + 1) % config.vocab_size
    before, after = model(tokens[None])[0], model(other[None])[0]
    assert torch.equal(before[:place], after[:place])
    assert not torch.equal(before[place], after[place])


def test_log_probs_are_those_of_the_token_after_each_source():
    model, tokens, sources = lively(TINY), random_tokens(TINY, 9), torch.tensor([0, 2, 5, 7])
    logits = torch.cat([model(row[None])[0] for row in tokens.split([4, 5])])
    expected = (logits / 0.7).log_softmax(-1)[sources]
    logp, entropy = model.logprobs(tokens, bounds([4, 5]), sources, 0.7, entropy=True)
    torch.testing.assert_close(logp, expected.gather(1, tokens[sources + 1, None])[:, 0], **close)
    torch.testing.assert_close(entropy, -(expected.exp() * expected).sum(-1), **close)


# ---------------------------------------------------------------------------- shapes and weights


# parameters and tensors of every preset, as published
SIZES = {
    "tiny": (492_288, 24),
    "smollm2-135m": (134_515_008, 272),
    "qwen3-0.6b": (596_049_920, 310),
    "qwen3-1.7b": (1_720_574_976, 310),
    "qwen3-4b": (4_022_468_096, 398),
    "qwen3-4b-thinking-2507": (4_022_468_096, 398),
    "qwen3-8b": (8_190_735_360, 399),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_checkpoint_of_every_preset_has_the_published_number_of_parameters(name):
    with torch.device("meta"):
        tensors = Qwen3(MODELS[name]).state_dict().values()
    assert (sum(tensor.numel() for tensor in tensors), len(tensors)) == SIZES[name]
    assert all(tensor.is_meta for tensor in tensors)


def test_weights_follow_from_the_seed_alone_and_leave_the_global_generator_untouched():
    before = torch.get_rng_state()
    one, same, other = Qwen3(TINY, 3), Qwen3(TINY, 3), Qwen3(TINY, 4)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.head_weight, other.head_weight)


def test_fresh_norms_are_one_biases_zero_and_matrices_have_deviation_two_hundredths():
    model = Qwen3(replace(MODELS["tiny"], qkv_bias=True))
    matrices = torch.cat([p.detach().flatten() for p in model.parameters() if p.dim() == 2])
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert {*parameter.tolist()} == {0.0 if name.endswith("bias") else 1.0}
    assert float(matrices.std()) == pytest.approx(0.02, rel=0.01)
    assert abs(float(matrices.mean())) < 1e-4


# -------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "tokens, cu_seqlens, message",
    [
        (torch.tensor([0, 61]), [0, 2], "0 to 60, got 0 to 61"),
        (torch.tensor([-1, 0]), [0, 2], "got -1 to 0"),
        (torch.zeros(67).long(), [0, 1, 67], "66 tokens.*max_position_embeddings 64"),
        (torch.zeros(1, 4).long(), [0, 4], r"flat.*got \[1, 4\]"),
        (torch.zeros(0).long(), [0], r"got \[0\] and \[0\]"),
        (torch.zeros(4).long(), [0, 3], r"rise from 0 to N; got \[4\] and \[0, 3\]"),
        (torch.zeros(3).long(), [1, 4], r"got \[3\] and \[1, 4\]"),
        (torch.zeros(4).long(), [0, 2, 2, 4], r"got \[4\] and \[0, 2, 2, 4\]"),
    ],
)
def test_impossible_input_is_refused_with_the_numbers(tokens, cu_seqlens, message):
    with pytest.raises(ValueError, match=message):
        Qwen3(TINY).packed(tokens, torch.tensor(cu_seqlens))


def test_the_last_token_id_and_the_last_position_are_accepted():
    assert Qwen3(TINY)(torch.full((1, 64), 60)).shape == (1, 64, 61)
