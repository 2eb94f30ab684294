"""Credit: from the log-probs of the truth to advantages, by hand and by the definition."""

from dataclasses import asdict, replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.igpo.credit import assign_credit
from minvenus.igpo.recipes import Recipe
from minvenus.types import TurnRewards
from tests.igpo import oracle
from tests.igpo.strategies import (
    Batch,
    assert_close,
    beliefs_of,
    recipes,
    rounding,
    sample,
    samples,
)

KINDS = ["search", "visit", "search", "answer"]
near = partial(pytest.approx, abs=1e-5)


def logprobs_of(*values):
    """Log-probs whose means are these values; None where nothing was asked."""
    return [None if v is None else [v - 0.25, v + 0.25] for v in values]


@st.composite
def measured_batches(draw):
    """Up to 3 groups of up to 4 rollouts."""
    batch = []
    for group in range(draw(st.integers(1, 3))):
        batch += [
            replace(m, group=group)
            for m in draw(st.lists(samples(max_turns=6), min_size=1, max_size=4))
        ]
    return batch


def test_two_rollouts_worked_by_hand():
    """One question, the answer's value -2 before the first turn. A: its visit raises it to -1,
    answer right. B: its visit lowers it to -3, answer wrong. Gains +1 and -1 (the search before a
    visit gets a copy): four rewards, mean 0, std 1. Outcomes 1, 0, std 1/2: every z is +1 or -1,
    and the scale 1. The search behind the visit has no reward. gamma 1/2, over turns:
    A_3 = 1,  A_2 = 0 + 1/2,  A_1 = 1 + 1/4,  A_0 = 1 + 5/8."""
    a = sample(KINDS, logprobs_of(-2.0, None, -1.0, None), 1.0, group=7)
    b = sample(KINDS, logprobs_of(-2.0, None, -3.0, None), 0.0, group=7)
    done = assign_credit([a, b], Recipe(gamma=0.5))
    assert done.beliefs == [[-2.0, None, -1.0, None], [-2.0, None, -3.0, None]]
    assert done.gains == [[None, 1.0, None, None], [None, -1.0, None, None]]
    assert [r.turns for r in done.rewards] == [[1.0, 1.0, None], [-1.0, -1.0, None]]
    expected = [1.625, 1.25, 0.5, 1.0]
    assert_close(done.advantages, [expected, [-x for x in expected]], 1e-5)
    second, one, minus = asdict(done.of_rollout(1, 7)), near(1), near(-1)
    assert second.pop("group_stats")["outcome_mean"] == 0.5
    assert second.pop("advantages") == done.advantages[1]
    assert second == {
        "beliefs": done.beliefs[1],
        "gains": done.gains[1],
        "turn_rewards": [-1.0, -1.0, None],
        "penalties": [False] * 3,
        "outcome": 0.0,
        "turn_z": [minus, minus, None],
        "outcome_z": minus,
        "terms": [minus, minus, None, minus],
        "scale": one,
        "outcome_size": one,
        "turn_reward_size": one,
    }


@given(
    measured_batches(),
    recipes(use_gain=(True, True, True, False), format_penalty=(1.0, 0.0, 0.25, 2.0, None)),
)
def test_from_log_probs_to_advantages_everything_is_the_definition(batch, recipe):
    """Among it: the outcome is the penalty iff the last turn is malformed."""
    done = assign_credit(batch, recipe)
    rewards, groups = [], [m.group for m in batch]
    for i, m in enumerate(batch):
        values = beliefs_of(m, recipe.gain)
        needed = oracle.scored_turns(m.rollout.kinds, recipe)
        assert done.beliefs[i] == [
            pytest.approx(v, rel=1e-12) if t in needed else None for t, v in enumerate(values)
        ]
        gains = oracle.segment_gains(values, m.rollout.kinds, recipe)
        assert done.gains[i] == pytest.approx(gains, abs=1e-12)
        turns, outcome, penalties = oracle.turn_rewards(
            m.rollout.kinds, gains, m.rollout.malformed, m.outcome, recipe
        )
        rewards.append(TurnRewards(turns, outcome, penalties))
        assert [*done.rewards[i].turns, done.rewards[i].outcome] == pytest.approx(
            [*turns, outcome], abs=1e-12
        )
        assert done.rewards[i].is_penalty() == penalties
    tolerance = rounding(Batch(rewards, groups), recipe)
    assert_close(done.advantages, oracle.advantages(rewards, groups, recipe), tolerance)


def test_a_belief_that_is_missing_or_not_finite_is_an_error_with_the_place():
    whole = sample(KINDS, logprobs_of(-2.0, -2.0, -1.0, -1.0), 1.0, group=0)
    missing = replace(whole, truth_logprobs=logprobs_of(-2.0, None, -1.0, -1.0))
    with pytest.raises(ValueError, match=r"rollout 1, context before turn 1: .* not measured"):
        assign_credit([whole, missing], Recipe(browse="off"))
    infinite = replace(whole, truth_logprobs=logprobs_of(-2.0, None, float("-inf"), None))
    with pytest.raises(
        ValueError, match=r"rollout 1, context before turn 2: .* -inf: it must be finite"
    ):
        assign_credit([whole, infinite], Recipe())


def test_a_rollout_that_was_not_graded_has_no_credit():
    graded = sample(["answer"], [None], 0.0)
    with pytest.raises(ValueError, match="rollout 1 has no outcome"):
        assign_credit([graded, replace(graded, outcome=None)], Recipe())


# ---------------------------------------------------------------------- credit goes where it should
