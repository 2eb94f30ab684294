"""The three forwards of one model agree, see only what they may see, and refuse what they cannot do."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from minvenus.config import MODELS, ModelConfig
from minvenus.model.qwen3 import Qwen3, RMSNorm, frequencies, rotate, rotation

TINY = ModelConfig(24, 40, 2, 4, 2, head_dim=8, vocab_size=61, max_position_embeddings=64)


def lively(config, seed=0):
    """A random model whose attention is far from uniform and whose norms are not 1: a wrong scale, norm or
    angle shows."""
    model = Qwen3(config, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0, 0.3, generator=generator)
            else:
                parameter.mul_(10.0)
    return model.requires_grad_(False)


def random_tokens(config, count, seed=0):
    return torch.randint(config.vocab_size, (count,), generator=torch.Generator().manual_seed(seed))


def bounds(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


class ContiguousCache:
    """The simplest attend: all keys and values of one sequence in a row, an explicit mask."""

    def __init__(self, layers):
        self.keys, self.values = [[] for _ in range(layers)], [[] for _ in range(layers)]

    def attend(self, layer, q, k, v):
        self.keys[layer].append(k)
        self.values[layer].append(v)
        keys, values = torch.cat(self.keys[layer]), torch.cat(self.values[layer])
        seen = (
            torch.arange(len(keys)) <= torch.arange(len(keys) - len(q), len(keys))[:, None]
        )  # [N, all]
        q, keys, values = (x.transpose(0, 1)[None] for x in (q, keys, values))
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen, enable_gqa=True)[
            0
        ].transpose(0, 1)


def paged_in_chunks(model, tokens, chunks):
    cache, hidden, start = ContiguousCache(model.config.num_hidden_layers), [], 0
    for size in chunks:
        positions = torch.arange(start, start + size)
        hidden.append(model.paged(tokens[start : start + size], positions, cache.attend))
        start += size
    return torch.cat(hidden)


@st.composite
def configs(draw):
    """Hidden sizes from 8: the norm of one channel is nearly its sign, so rounding grows where a sum cancels."""
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


# ----------------------------------------------------------------------------------------------------- worked by hand


def test_rms_norm_worked_by_hand():
    norm = RMSNorm(2, eps=0.5)
    norm.weight.data = torch.tensor([1.0, 2.0])
    assert norm(torch.tensor([3.0, 4.0])).tolist() == pytest.approx(
        [3 / math.sqrt(13), 8 / math.sqrt(13)], rel=1e-6
    )


def test_rms_norm_of_bfloat16_is_computed_in_float32_and_rounded_before_the_weight():
    x = torch.randn(7, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    norm = RMSNorm(256, eps=1e-6).bfloat16()
    norm.weight.data = torch.randn(256, generator=torch.Generator().manual_seed(1)).bfloat16()
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert torch.equal(norm(x), norm.weight * exact.bfloat16())


def test_rope_turns_the_first_half_with_the_last_half_worked_by_hand():
    cos, sin = rotation(torch.tensor([3]), frequencies(4, 100.0))  # angles 3 and 3 / 100^(1/2)
    turned = rotate(torch.tensor([[[1.0, 10.0, 0.0, 0.0]]]), cos, sin)[0, 0]
    wanted = [math.cos(3), 10 * math.cos(0.3), math.sin(3), 10 * math.sin(0.3)]
    assert turned.tolist() == pytest.approx(wanted, rel=1e-6)


# --------------------------------------------------------------------------------------------------------------- rope


def test_positions_up_to_the_longest_context_are_exact_and_distinct():
    positions = torch.tensor([0, 1, 131_071, 262_142, 262_143])
    cos, sin = rotation(positions, frequencies(128, 5e6))
    for p, c, s in zip(
        positions.tolist(), cos[:, 0, 64], sin[:, 0, 64], strict=True
    ):  # pair 0: angle = position
        assert (float(c), float(s)) == pytest.approx((math.cos(p), math.sin(p)), abs=1e-6)
    assert cos.dtype == torch.float32 and len({tuple(row) for row in cos[:, 0].tolist()}) == 5


def test_a_cast_to_bfloat16_leaves_the_angles_alone():
    assert list(Qwen3(TINY).bfloat16().buffers()) == []
    x = torch.ones(2, 1, 2, dtype=torch.bfloat16)
    turned = rotate(x, *rotation(torch.tensor([262_142, 262_143]), frequencies(2, 1e6)))
    exact = [[math.cos(p) - math.sin(p), math.cos(p) + math.sin(p)] for p in (262_142, 262_143)]
    assert torch.equal(turned[:, 0], torch.tensor(exact).bfloat16())


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_scores_depend_on_the_distance_of_two_positions_only(p, q, shift):
    x = torch.randn(2, 1, 16, generator=torch.Generator().manual_seed(p))
    near = rotate(x, *rotation(torch.tensor([p, q]), frequencies(16, 1e6)))
    far = rotate(x, *rotation(torch.tensor([p + shift, q + shift]), frequencies(16, 1e6)))
    torch.testing.assert_close(
        near[0] @ near[1].T, far[0] @ far[1].T, rtol=0, atol=5e-3
    )  # float32 angles near 2000


# ------------------------------------------------------------------------------------------------- the three forwards


def test_positions_restart_at_each_packed_sequence():
    """Seen from inside: rope looks at distances only, so positions that run on would give the same output,
    until they end."""
    model, seen = lively(TINY), []
    model.model.register_forward_pre_hook(lambda module, args: seen.append(args[1].tolist()))
    model.packed(random_tokens(TINY, 6), bounds([3, 1, 2]))
    model(random_tokens(TINY, 6).view(2, 3))
    assert seen == [[0, 1, 2, 0, 0, 1], [0, 1, 2, 0, 1, 2]]


@some
@given(configs(), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_packed_sequences_of_any_lengths_equal_the_plain_forward_of_each(config, lengths):
    model, tokens = lively(config), random_tokens(config, sum(lengths))
    together = model.logits(model.packed(tokens, bounds(lengths)))
    alone = torch.cat([model(row[None])[0] for row in tokens.split(lengths)])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@some
@given(configs(), st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_paged_in_chunks_of_any_sizes_equals_packed(config, chunks):
    model, tokens = lively(config), random_tokens(config, sum(chunks))
    expected = model.packed(tokens, bounds([len(tokens)]))
    torch.testing.assert_close(
        paged_in_chunks(model, tokens, chunks), expected, rtol=1e-5, atol=1e-5
    )


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


# ------------------------------------------------------------------------------------------------- shapes and weights


# parameters and tensors of every preset, as published
SIZES = {
    "tiny": (492_288, 24),
    "qwen3-0.6b": (596_049_920, 310),
    "qwen3-1.7b": (1_720_574_976, 310),
    "qwen3-4b": (4_022_468_096, 398),
    "qwen3-4b-thinking-2507": (4_022_468_096, 398),
    "qwen3-8b": (8_190_735_360, 399),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_checkpoint_of_every_preset_has_the_published_number_of_parameters(name):
    with torch.device("meta"):
        state = Qwen3(MODELS[name]).state_dict()
    assert (sum(tensor.numel() for tensor in state.values()), len(state)) == SIZES[name]
    assert all(tensor.is_meta for tensor in state.values())


def test_weights_follow_from_the_seed_alone_and_leave_the_global_generator_untouched():
    before = torch.get_rng_state()
    one, same, other = Qwen3(TINY, 3), Qwen3(TINY, 3), Qwen3(TINY, 4)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.head_weight, other.head_weight)


def test_fresh_norms_are_one_and_fresh_matrices_have_deviation_two_hundredths():
    model = Qwen3(MODELS["tiny"])
    matrices = torch.cat([p.flatten() for p in model.parameters() if p.dim() == 2]).detach()
    assert all(bool((p == 1).all()) for p in model.parameters() if p.dim() == 1)
    assert (
        float(matrices.std()) == pytest.approx(0.02, rel=0.01)
        and abs(float(matrices.mean())) < 1e-4
    )


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "tokens, cu_seqlens, message",
    [
        (torch.tensor([0, 61]), bounds([2]), "0 to 60, got 0 to 61"),
        (torch.tensor([-1, 0]), bounds([2]), "got -1 to 0"),
        (torch.zeros(67).long(), bounds([1, 66]), "66 tokens.*max_position_embeddings 64"),
        (torch.zeros(1, 4).long(), bounds([4]), r"flat.*got \[1, 4\]"),
        (torch.zeros(0).long(), torch.tensor([0]), r"got \[0\] and \[0\]"),
        (torch.zeros(4).long(), bounds([3]), r"rise from 0 to N; got \[4\] and \[0, 3\]"),
        (torch.zeros(4).long(), torch.tensor([1, 4]), r"got \[4\] and \[1, 4\]"),
        (torch.zeros(4).long(), torch.tensor([0, 2, 2, 4]), r"got \[4\] and \[0, 2, 2, 4\]"),
    ],
)
def test_impossible_input_is_refused_with_the_numbers(tokens, cu_seqlens, message):
    with pytest.raises(ValueError, match=message):
        Qwen3(TINY).packed(tokens, cu_seqlens)


def test_the_last_token_id_and_the_last_position_are_accepted():
    model = Qwen3(TINY)
    assert model(torch.full((1, 64), 60)).shape == (1, 64, 61)
    assert model.paged(torch.tensor([60]), torch.tensor([63]), lambda layer, q, k, v: q).shape == (
        1,
        24,
    )
