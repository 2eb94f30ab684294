"""Token streams and packs: what is trained, trajectories that are too long, packing that changes nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.sft.dataset import (
    Example,
    encode,
    encode_pieces,
    fill_packs,
    load,
    read_records,
    step_packs,
)
from minvenus.text.tokenizer import Tokenizer
from tests.sft.conversations import conversation, of_turns

TINY = Tokenizer.tiny()


def example(*trained, prompt=3):
    """A made-up trajectory: a prompt, then turns of so many tokens with one observation token between them."""
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


# -------------------------------------------------------------------------------------------------------------- streams


def test_what_is_trained_is_the_agents_text_and_nothing_else():
    one = encode(of_turns(2), TINY)
    trained = TINY.decode(one.tokens[one.sampled].tolist())
    call = '<tool_call>\n{"name": "search", "arguments": {"query": ["Where? 0"]}}\n</tool_call><|im_end|>'
    assert (
        trained
        == "I look.\n</think>\n\n"
        + call
        + "Enough.\n</think>\n\n<answer>\nRome\n</answer><|im_end|>"
    )
    context = TINY.decode(one.tokens[~one.sampled].tolist())
    assert "something" in context and "Where?" in context and "Rome" not in context


def test_the_flags_of_pieces_become_those_of_their_tokens():
    e = encode_pieces([("page Bob own", False), (" cat", True), (".\n", False)], TINY)
    assert TINY.decode(e.tokens.tolist()) == "page Bob own cat.\n"
    assert [
        TINY.decode([i])
        for i, flag in zip(e.tokens.tolist(), e.sampled.tolist(), strict=True)
        if flag
    ] == [" cat"]


def test_a_record_that_is_not_clean_is_refused_with_what_to_do():
    with pytest.raises(
        ConfigError, match=r"trajectory 1 is not clean, run python -m minvenus\.sft"
    ):
        load([of_turns(1), conversation("Where?", "no thought")], TINY, 1000)
    with pytest.raises(ConfigError, match="trajectory 0 is not clean"):
        load([{"messages": None}], TINY, 1000)


def test_lines_are_read_one_by_one_and_a_broken_one_is_named(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n\n{"b"\n')
    lines = read_records(path)
    assert next(lines) == {"a": 1}
    with pytest.raises(ConfigError, match="line 3 is no record: not JSON"):
        next(lines)


def test_the_too_long_are_dropped_whole_and_counted():
    rows = [of_turns(n) for n in (1, 6, 2)]
    lengths = [len(encode(row, TINY)) for row in rows]
    rows[1]["messages"][0]["content"] = "?"
    prompts = set()
    kept, dropped = load(rows, TINY, max_tokens=lengths[2], prompts=prompts)
    assert prompts == {rows[0]["messages"][0]["content"]}, (
        "what is dropped is not learned, nor its prompt"
    )
    assert [len(one) for one in kept] == [lengths[0], lengths[2]] and dropped == 1
    with pytest.raises(
        ConfigError,
        match=f"all 3 .* than 5 tokens, the shortest has {lengths[0]}: raise --max-tokens",
    ):
        load(rows, TINY, max_tokens=5)
    assert load([], TINY, max_tokens=5) == ([], 0)


@pytest.mark.parametrize("sampled", [[True, True], [False, False]])
def test_an_example_needs_something_to_learn_and_something_before_it(sampled):
    with pytest.raises(ValueError, match="first token"):
        Example(torch.zeros(2, dtype=torch.int32), torch.tensor(sampled))


# ---------------------------------------------------------------------------------------------------------------- packs


def test_two_trajectories_worked_by_hand():
    packs = step_packs([example(2, prompt=1), example(1, 3, prompt=2)], budget=100)
    assert len(packs) == 1
    pack = packs[0]
    assert pack.tokens.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 6]
    assert pack.cu_seqlens.tolist() == [0, 3, 10]
    assert pack.sources.tolist() == [0, 1, 4, 6, 7, 8] and pack.targets.tolist() == [
        1,
        2,
        2,
        4,
        5,
        6,
    ]
    assert pack.weights.tolist() == [
        0.25,
        0.25,
        0.125,
        0.125,
        0.125,
        0.125,
    ]  # 1/2 of 1/2, 1/2 of 1/4
    assert pack.tokens.dtype == pack.targets.dtype == pack.sources.dtype == torch.int64
    assert pack.cu_seqlens.dtype == torch.int32
    by_token = step_packs([example(2), example(1, 3)], 100, reduction="token-mean")[0]
    assert by_token.weights.tolist() == pytest.approx([1 / 6] * 6)


def trained_on(pack):
    """(the tokens of the trajectory before it, the token, its weight) of each trained token."""
    bounds = pack.cu_seqlens.tolist()
    for source, target, weight in zip(
        pack.sources.tolist(), pack.targets.tolist(), pack.weights.tolist(), strict=True
    ):
        start = max(bound for bound in bounds if bound <= source)
        yield pack.tokens[start : source + 1].tolist(), target, weight


@given(examples, st.integers(0, 40), st.randoms(use_true_random=False))
def test_the_same_tokens_are_trained_with_the_same_weights_however_they_are_packed(
    batch, room, dice
):
    rows = sorted(
        (one.tokens[:k].tolist(), int(one.tokens[k]), 1 / (len(batch) * one.trained))
        for one in batch
        for k in range(len(one))
        if one.sampled[k]
    )
    expected = [(before, token, pytest.approx(weight, rel=1e-6)) for before, token, weight in rows]
    longest = max(map(len, batch))
    for budget in (longest, longest + room, 10_000):
        packs = step_packs(dice.sample(batch, len(batch)), budget)
        assert sorted(row for pack in packs for row in trained_on(pack)) == expected
        assert sum(len(pack.cu_seqlens) - 1 for pack in packs) == len(batch)
        assert all(len(pack.tokens) == pack.cu_seqlens[-1] <= budget for pack in packs)


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(50, 120))
def test_packs_hold_every_trajectory_once_within_the_budget_and_waste_little(lengths, budget):
    rows = fill_packs(lengths, budget)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    assert rows == fill_packs(lengths, budget)
    used = [sum(lengths[i] for i in row) for row in rows]
    assert all(0 < size <= budget for size in used)
    assert sum(2 * size <= budget for size in used) <= 1, (
        "two packs that are half empty would have been one"
    )


def test_a_pack_can_be_full_to_the_last_token_and_a_longer_trajectory_is_an_error():
    assert fill_packs([4, 6, 3, 7], 10) == [[2, 3], [0, 1]]
    with pytest.raises(ConfigError, match="7 tokens does not fit into a pack of 6"):
        step_packs([example(4)], budget=6)
