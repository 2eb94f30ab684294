"""Packs: every trained token once with its own context, however sequences are packed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.sft.dataset import Example
from minvenus.train.pack import fill_packs, make_packs


def example(*trained, prompt=3):
    """A made-up trajectory: a prompt, then turns of so many tokens with one observation token
    between them."""
    sampled = [False] * prompt
    for turn in trained:
        sampled += [True] * turn + [False]
    sampled.pop()
    return Example(torch.arange(len(sampled), dtype=torch.int32), torch.tensor(sampled))


examples = st.lists(
    st.builds(
        lambda turns, prompt: example(*turns, prompt=prompt),
        st.lists(st.integers(1, 6), min_size=1, max_size=4),
        st.integers(1, 5),
    ),
    min_size=1,
    max_size=12,
)


def test_two_trajectories_worked_by_hand():
    [pack] = make_packs([example(2, prompt=1), example(1, 3, prompt=2)], budget=100)
    assert pack.rows == [0, 1] and pack.cu_seqlens.tolist() == [0, 3, 10]
    assert pack.tokens.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 6]
    assert pack.sources.tolist() == [0, 1, 4, 6, 7, 8]
    assert pack.segments.tolist() == [0, 0, 1, 1, 1, 1]
    numbers = (pack.tokens, pack.sources, pack.segments)
    assert {tensor.dtype for tensor in numbers} == {torch.int64}
    assert pack.cu_seqlens.dtype == torch.int32


def trained_on(pack, batch):
    """(the tokens of the trajectory before it, the token, its trajectory) of each trained token."""
    bounds = pack.cu_seqlens.tolist()
    for source, segment in zip(pack.sources, pack.segments, strict=True):
        *before, token = pack.tokens[bounds[segment] : source + 2].tolist()
        yield before, token, id(batch[pack.rows[segment]])


@given(examples, st.integers(0, 40), st.randoms(use_true_random=False))
def test_the_same_tokens_of_the_same_trajectories_are_trained_however_they_are_packed(
    batch, room, dice
):
    expected = []
    for one in batch:
        positions = one.sampled.nonzero()[:, 0].tolist()
        expected += [(one.tokens[:k].tolist(), int(one.tokens[k]), id(one)) for k in positions]
    longest = max(map(len, batch))
    for budget in (longest, longest + room, 10_000):
        order = dice.sample(batch, len(batch))
        packs = make_packs(order, budget)
        assert sorted(x for pack in packs for x in trained_on(pack, order)) == sorted(expected)
        assert all(len(pack.tokens) == pack.cu_seqlens[-1] <= budget for pack in packs)


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(50, 120))
def test_packs_hold_every_trajectory_once_within_the_budget_and_waste_little(lengths, budget):
    packs = fill_packs(lengths, budget)
    assert sorted(i for pack in packs for i in pack) == list(range(len(lengths)))
    assert packs == fill_packs(lengths, budget)
    used = [sum(lengths[i] for i in pack) for pack in packs]
    assert all(0 < size <= budget for size in used)
    half_empty = sum(2 * size <= budget for size in used)
    assert half_empty <= 1, "two packs that are half empty would have been one"


def test_a_pack_can_be_full_to_the_last_token_and_a_longer_trajectory_is_an_error():
    assert fill_packs([4, 6, 3, 7], 10) == [[2, 3], [0, 1]]
    with pytest.raises(ConfigError, match="7 tokens does not fit into a pack of 6"):
        make_packs([example(4)], budget=6)
