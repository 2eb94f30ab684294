"""What a step trains on: the order of the data, what is held out, which rollouts count, and the
numbers about them."""

from collections import Counter
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example as also
from hypothesis import given
from hypothesis import strategies as st

import train_igpo
from minvenus.config import ConfigError
from minvenus.evaluation.questions import batch_indices
from minvenus.igpo.credit import assign_credit
from minvenus.igpo.recipes import Recipe
from minvenus.sft.dataset import Example
from minvenus.train.batch import failed, health, make_batch
from minvenus.train.sft import fingerprint, hold_out
from minvenus.types import Question, Rollout, Sample, Turn

PAPER = Recipe.paper()
GRPO = Recipe.paper(use_gain=False)
approx = partial(pytest.approx, rel=1e-5)


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
    one has written nothing in its last turn and one is unknown. A rollout that reached its last
    turn without an answer counts."""
    terminations = {0: "max_steps", 1: "error"}
    rollouts = [
        rollout(
            *(("search", "answer") if i == 6 else ("answer",)),
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


def test_what_has_not_failed_is_graded_in_the_order_of_groups_and_numbers():
    """The rollouts of a step as ranks have gathered them. The failed one was the only one of its
    question, which still counts as a group."""
    samples = [
        Sample(rollout("answer", question=name, termination=end), [None], None, group, number)
        for name, end, group, number in (
            *[("d", "answered", 1, 1), ("e", "error", 2, 0), ("c", "answered", 1, 0)],
            *[("b", "timeout", 0, 1), ("a", "answered", 0, 0)],
        )
    ]
    grades = {"a": 0.25, "b": 0.5, "c": 0.75, "d": 1.0}
    grader = SimpleNamespace(grade=lambda questions, answers: [grades[q.id] for q in questions])
    batch = train_igpo.grade(samples, grader)
    assert [(s.rollout.question.id, s.outcome) for s in batch.samples] == [*grades.items()]
    assert batch.groups == 3 and batch.dropped["failed"] == 1


# -------------------------------------------------------------------------------------- the numbers


def test_every_number_of_a_step_worked_by_hand():
    """Five questions. The first has gains +1 (a right page among wrong ones) and +1 (a page seen
    before), a right answer, and -1 (wrong pages) and 0 (one of them failed). In the second the
    right answer of a rollout that was cut does not count as one: its last turn is malformed, so
    its reward is -1. A lonely penalty has z = 0. Of the third question one rollout is left, of the
    fourth none; both answers to the last are right.

    Turn rewards of the first, copies on searches included: 1 1 1 -1 -1 0, mean 1/6, variance 29/36.
    z times the deviation: 5/6 5/6 5/6, -7/6 -7/6 -1/6; mean size 5 / deviation / 7 turns. Outcomes
    1 -1 -1 1 0 0 have the mean size 2/3: the scale is 14/15 of the deviation. Returns of the second
    rollout: -1, -7/45 - .95, ..., in the end -3.12110: larger in size than any of the first.
    """
    a = rollout("search", "visit", "visit", "answer", termination="answered_max_steps")
    b = rollout("search", "visit", "visit", "answer")
    c = rollout("search", "none", "answer", malformed=(1, 2), termination="timeout")
    failed_one = rollout("answer", termination="error")
    one = rollout("answer")
    rollouts = [a, b, c, one, failed_one, one, one, one, one, one]
    logprobs = [beliefs(a, -3.0, None, -2.0, -1.0), beliefs(b, -3.0, None, -4.0, -4.0)]
    logprobs += map(beliefs, rollouts[2:])
    outcomes = [1.0, 0.0, 1.0, 1.0, 1.0, 1.0, None, None, 1.0, 1.0]
    batch = batch_of(rollouts, outcomes, logprobs=logprobs)
    labels = [
        [[], ["wrong", "right"], ["repeated"], []],
        [[], ["wrong", "wrong"], ["wrong", "failed"], []],
        [[], [], []],
        *[[[]]] * 3,
    ]
    right_pages = [2, 2, 4, None, None, None]
    assert health(batch, assign_credit(batch.samples, PAPER), labels, right_pages) == {
        "outcome": approx(5 / 6),
        "gain_mean": 1 / 4,
        "gain_positive": 1 / 2,
        "gain_right": 1.0,
        "gain_wrong": -1.0,
        "turns": approx(14 / 6),
        "malformed": approx(2 / 14),
        "right_pages": approx((1 / 2 + 0 + 0) / 3),
        "browse_correct": approx(2 / 3),
        "browse_wrong": approx((2 / 3 + 0) / 2),
        "groups_without_outcome_signal": 3 / 5,
        "groups_without_any_signal": 3 / 5,
        "advantage_max": approx(3.1210972),
        "scale": approx(14 / 15 * 29**0.5 / 6),
        "turns_with_gain": 6 / 8,
        "turns_penalised": 1 / 8,
        "failed": 1,
        "judge_unknown": 2,
        "alone": 1,
    }


def test_only_a_whole_outcome_is_a_correct_answer():
    """With outcome f1 an answer may be right in part: it browsed for a wrong one."""
    batch = batch_of([rollout("visit", "answer"), rollout("search", "answer")], [0.5, 1.0])
    numbers = health(batch, assign_credit(batch.samples, GRPO), [[[]] * 2] * 2, [None] * 2)
    assert (numbers["browse_correct"], numbers["browse_wrong"]) == (0.0, 1.0)


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
@also([1, 1, 2], 2)
def test_held_out_trajectories_are_different_ones_and_never_trained_on(drawn, count):
    examples = [example(n) for n in drawn]
    if count >= len(set(drawn)):
        words = f"{len(set(drawn))} different trajectories are not enough to hold {count} out"
        with pytest.raises(ConfigError, match=words):
            hold_out(examples, count)
        return
    training, held_out = (numbers(part) for part in hold_out(examples, count))
    assert held_out == [*dict.fromkeys(reversed(drawn))][:count][::-1], "the last ones"
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
