"""What a step trains on: the order of the data, what is held out, which rollouts count, and the
numbers about them."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.evaluation.questions import batch_indices
from minvenus.igpo.credit import assign_credit
from minvenus.igpo.recipes import Recipe
from minvenus.sft.dataset import Example
from minvenus.train.batch import failed, fingerprint, health, hold_out, make_batch
from minvenus.types import Question, Rollout, Sample, Turn

PAPER = Recipe.paper()


def rollout(*kinds, question="q0", malformed=(), termination="answered", blank=False) -> Rollout:
    """A prompt of 2 tokens, turns of 2; what comes back is 1 token."""
    tokens, sampled, turns = [1, 2], [False] * 2, []
    for t, kind in enumerate(kinds):
        last = t == len(kinds) - 1
        seen = None if last else "seen"
        turns.append(
            Turn(kind, len(tokens), len(tokens) + 2, "", observation=seen, malformed=t in malformed)
        )
        tokens += [5, 6]
        sampled += [not (last and blank)] * 2
        if not last:
            tokens, sampled = [*tokens, 9], [*sampled, False]
    logprobs = [-1.0 if s else None for s in sampled]
    return Rollout(
        Question(question, "where?", ["here"]), tokens, sampled, logprobs, turns, termination
    )


def beliefs(r, *values):
    """Log-probs of an answer of one token before the turns; None where nothing is asked."""
    return [None if v is None else [v] for v in values] + [None] * (len(r.turns) - len(values))


def batch_of(rollouts, outcomes, group_size=2, logprobs=None):
    samples, graded = [], []
    for i, (played, scores) in enumerate(
        zip(rollouts, logprobs or map(beliefs, rollouts), strict=True)
    ):
        samples.append(Sample(played, scores, None, i // group_size, i % group_size))
        if not failed(played):
            graded.append(replace(samples[-1], outcome=outcomes[i]))
    return make_batch(samples, graded)


# --------------------------------------------------------------------------------------- who counts


def test_failed_unknown_and_lonely_rollouts_are_dropped_and_counted():
    """Groups of three. One rollout of the first failed, one of the second is unknown, of the third
    one has written nothing and one is unknown. A rollout that reached its last turn without an
    answer counts."""
    terminations = {0: "max_steps", 1: "error"}
    rollouts = [
        rollout(
            "answer",
            question=f"q{i // 3}-{i}",
            termination=terminations.get(i, "answered"),
            blank=i == 6,
        )
        for i in range(9)
    ]
    batch = batch_of(rollouts, [None if i in (4, 8) else 1.0 for i in range(9)], 3)
    assert [r.question.id for r in batch.rollouts] == ["q0-0", "q0-2", "q1-3", "q1-5"]
    assert [m.group for m in batch.samples] == [0, 0, 1, 1] and batch.groups == 3
    assert batch.dropped == Counter(failed=2, judge_unknown=2, alone=1)


def drawn_rollout(data, i):
    kinds = data.draw(st.lists(st.sampled_from(("search", "visit")), max_size=3))
    bad = data.draw(st.sampled_from((False, False, True)))
    return rollout(*kinds, "answer", question=f"q{i}", malformed=(0,) if bad else ())


@given(st.data())
def test_what_is_dropped_changes_nothing_for_the_others(data):
    """The credit of those that count is what it would be had the others never been there."""
    size, groups = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 3))
    rollouts = [drawn_rollout(data, i) for i in range(size * groups)]
    logprobs = [[[-data.draw(st.floats(0.0, 4.0))] for _ in r.turns] for r in rollouts]
    outcomes = [data.draw(st.sampled_from((0.0, 1.0, None))) for _ in rollouts]
    broken = [data.draw(st.sampled_from((False, False, False, True))) for _ in rollouts]
    played = [
        replace(r, termination="error") if b else r for r, b in zip(rollouts, broken, strict=True)
    ]
    batch = batch_of(played, outcomes, size, logprobs)
    known = [i for i in range(len(rollouts)) if outcomes[i] is not None and not broken[i]]
    kept = [i for i in known if sum(j // size == i // size for j in known) > 1]
    assert [r.question.id for r in batch.rollouts] == [f"q{i}" for i in kept]
    assert sum(batch.dropped.values()) == len(rollouts) - len(kept)
    assert [m.outcome for m in batch.samples] == [outcomes[i] for i in kept], (
        "what was graded, never made up"
    )
    assert [m.truth_logprobs for m in batch.samples] == [logprobs[i] for i in kept]


# -------------------------------------------------------------------------------------- the numbers


def test_the_numbers_of_a_step_worked_by_hand():
    """Two questions of two right pages each. The first is answered right once: gains +1 (right
    page) and -0.5 (wrong page); the second not at all, without a visit, one of three turns
    malformed: its lonely penalty has z = 0. Of the seven turns before the last ones five have a
    gain or its copy."""
    a, b = rollout("search", "visit", "visit", "answer"), rollout("search", "visit", "answer")
    c, d = rollout("search", "none", "answer", malformed=(1,)), rollout("answer")
    logprobs = [
        beliefs(a, -2.0, None, -1.0, -1.0),
        beliefs(b, -2.0, None, -2.5),
        beliefs(c),
        beliefs(d),
    ]
    batch = batch_of([a, b, c, d], [1.0, 0.0, 0.0, 0.0], logprobs=logprobs)
    labels = [[[], ["right"], ["repeated"], []], [[], ["wrong"], []], [[], [], []], [[]]]
    numbers = health(batch, assign_credit(batch.samples, PAPER), labels, [2, 2, 2, 2])
    expected = {
        "outcome": 0.25,
        "gain_mean": (1.0 + 0.0 - 0.5) / 3,
        "gain_positive": 1 / 3,
        "gain_right": 1.0,
        "gain_wrong": -0.5,
        "turns": (4 + 3 + 3 + 1) / 4,
        "malformed": 1 / 11,
        "right_pages": 1 / 8,
        "browse_correct": 2 / 3,
        "browse_wrong": (1 / 2 + 0 / 1) / 2,
        "groups_without_outcome_signal": 0.5,
        "groups_without_any_signal": 0.5,
        "turns_with_gain": 5 / 7,
        "turns_penalised": 1 / 7,
        "failed": 0,
        "judge_unknown": 0,
        "alone": 0,
    }
    assert {name: numbers[name] for name in expected} == pytest.approx(expected)
    assert all(isinstance(numbers[name], int) for name in ("failed", "judge_unknown", "alone"))


def test_a_mean_of_nothing_is_absent_never_zero():
    batch = batch_of([rollout("answer"), rollout("answer")], [0.0, 0.0])
    numbers = health(batch, assign_credit(batch.samples, PAPER), [[[]], [[]]], [1, 1])
    means = {
        "gain_mean",
        "gain_positive",
        "gain_right",
        "gain_wrong",
        "browse_correct",
        "browse_wrong",
        "scale",
        "turns_with_gain",
        "turns_penalised",
    }
    assert not means & numbers.keys()
    assert numbers["outcome"] == 0.0 and numbers["right_pages"] == 0.0
    nothing = batch_of([rollout("answer")] * 2, [None, None])
    numbers = health(nothing, assign_credit(nothing.samples, PAPER), [], [])
    assert numbers["groups_without_any_signal"] == 1.0
    assert not {"outcome", "turns", "advantage_max"} & numbers.keys()


def test_a_turn_with_a_right_page_among_others_counts_as_right_and_a_mixed_bad_one_as_neither():
    a, b = rollout("visit", "visit", "answer"), rollout("visit", "answer")
    logprobs = [beliefs(a, -3.0, -2.0, -4.0), beliefs(b, -3.0, -3.5)]
    batch = batch_of([a, b], [0.0, 0.0], logprobs=logprobs)
    labels = [[["wrong", "right"], ["wrong", "failed"], []], [["wrong", "wrong"], []]]
    numbers = health(batch, assign_credit(batch.samples, PAPER), labels, [1, 1])
    assert (
        numbers["gain_right"] == 1.0
        and numbers["gain_wrong"] == -0.5
        and numbers["right_pages"] == 0.5
    )


def test_a_group_that_lost_its_rollouts_counts_as_one_without_a_signal():
    """Three groups: one with different outcomes, one with equal ones, one that is gone."""
    rollouts = [rollout("answer", question=f"q{i}") for i in range(6)]
    batch = batch_of(rollouts, [1.0, 0.0, 1.0, 1.0, None, 1.0])
    numbers = health(batch, assign_credit(batch.samples, PAPER), [[[]]] * 4, [1] * 4)
    assert (
        numbers["groups_without_outcome_signal"]
        == numbers["groups_without_any_signal"]
        == pytest.approx(2 / 3)
    )
    assert numbers["judge_unknown"] == numbers["alone"] == 1


def test_the_largest_advantage_is_the_largest_in_size_of_any_turn_of_any_group():
    """Outcomes 0 0 1 have the mean 1/3 and the spread sqrt(2)/3: the largest z is sqrt(2). The one
    wrong answer among right ones has -sqrt(2): its sign does not count."""
    for outcomes in ([0.0, 0.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]):
        rollouts = [rollout("answer", question=f"q{i}") for i in range(6)]
        batch = batch_of(rollouts, outcomes, 3)
        numbers = health(batch, assign_credit(batch.samples, PAPER), [[[]]] * 6, [1] * 6)
        assert numbers["advantage_max"] == pytest.approx(2**0.5, abs=1e-4)


def test_an_answer_in_a_rollout_that_was_cut_is_not_correct():
    """`correct` is for the browse ratio; evaluation has the same rule."""
    cut = rollout("search", "answer", termination="timeout")
    whole = rollout("search", "visit", "answer")
    batch = batch_of([cut, whole], [1.0, 1.0], logprobs=[beliefs(cut), [[-1.0], None, [-1.0]]])
    numbers = health(
        batch, assign_credit(batch.samples, PAPER), [[[], []], [[], ["right"], []]], [1, 1]
    )
    assert numbers["browse_correct"] == 0.5 and numbers["browse_wrong"] == 0.0


# ---------------------------------------------------------------------------- the order of the data


@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 3), st.integers(-5, 10**12))
def test_every_epoch_has_every_example_once(total, batch, epochs, seed):
    steps = -(-total * (epochs + 1) // batch)
    order = [i for step in range(1, steps + 1) for i in batch_indices(step, batch, total, seed)]
    for epoch in range(epochs + 1):
        assert sorted(order[epoch * total : (epoch + 1) * total]) == list(range(total))


def test_the_seed_and_the_epoch_reach_the_order():
    def first_epoch(seed, epoch=0):
        return [i for step in range(1, 5) for i in batch_indices(4 * epoch + step, 5, 20, seed)]

    assert first_epoch(0) == first_epoch(0)
    assert len({tuple(first_epoch(seed, epoch)) for seed in range(5) for epoch in range(5)}) == 25
    assert first_epoch(0) != list(range(20))


def example(number):
    return Example(torch.tensor([1, number], dtype=torch.int32), torch.tensor([False, True]))


def numbers(examples):
    return [int(e.tokens[1]) for e in examples]


@given(st.lists(st.integers(0, 12), min_size=1), st.integers(0, 14))
def test_held_out_trajectories_are_different_ones_and_never_trained_on(drawn, count):
    examples = [example(n) for n in drawn]
    if count >= len(set(drawn)):
        words = f"{len(set(drawn))} different trajectories are not enough to hold {count} out"
        with pytest.raises(ConfigError, match=words):
            hold_out(examples, count)
        return
    training, held_out = (numbers(part) for part in hold_out(examples, count))
    assert len(set(held_out)) == len(held_out) == count and not set(held_out) & set(training)
    assert training == [n for n in drawn if n not in held_out], "all others stay, in their order"


def test_the_fingerprint_sees_tokens_masks_and_order():
    a, b = (
        example(1),
        Example(torch.tensor([1, 2, 3], dtype=torch.int32), torch.tensor([False, True, True])),
    )
    masked = Example(b.tokens, torch.tensor([False, False, True]))
    prints = [
        fingerprint(examples) for examples in ([a, b], [b, a], [a, masked], [a], [example(2), b])
    ]
    assert len(set(prints)) == len(prints) and fingerprint([example(1), b]) == prints[0]
