"""Invariants 26 to 36: from normalised rewards to advantages, discounting over turns (the `paper` recipe) or over
rewarded turns (the `released` recipe).

Invariant 30 (token lengths do not matter) holds by construction: advantages are computed from rewards that know no
tokens.
"""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import Recipe
from minvenus.igpo.advantage import advantage_record, turn_advantages
from minvenus.types import TurnRewards
from tests.igpo.strategies import ORDINARY, Batch, advantages, assert_close, batches, recipes, rounding

usual = batches(magnitudes=ORDINARY, max_groups=6)
shared = recipes(discount_over="rewards", penalty_scope="segment")       # the released recipe's return
per_turn = recipes(discount_over="turns")                                # the paper's


def rows(batch: Batch, recipe: Recipe):
    """(terms, advantages) of every rollout."""
    record = advantage_record(batch.rewards, batch.groups, recipe)
    return list(zip(record.terms, record.advantages, strict=True))


def close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-12 * max(1.0, abs(a), abs(b))


def without_gains(batch: Batch) -> Batch:
    return Batch([TurnRewards([None] * len(r.turns), r.outcome) for r in batch.rewards], batch.groups)


# ---------------------------------------------------------------------------------------------------------- the return


@given(usual, recipes(discount_over=("turns", "rewards"), penalty_scope="segment", gamma=1.0))
def test_with_gamma_one_the_first_turn_sums_the_whole_trajectory(batch, recipe):
    """Invariant 27; without a discount both ways of counting agree, and a step from turn to turn is that turn's
    reward."""
    for terms, a in rows(batch, recipe):
        assert close(a[0], math.fsum(r for r in terms if r is not None))
        for t in range(len(terms) - 1):
            assert abs(a[t] - a[t + 1] - (terms[t] or 0.0)) <= 1e-10
    other = "turns" if recipe.discount_over == "rewards" else "rewards"
    assert_close(advantages(batch, recipe), advantages(batch, replace(recipe, discount_over=other)), 1e-10)


@given(usual, shared)
def test_the_return_of_a_rewarded_turn_is_its_reward_plus_gamma_times_the_next_return(batch, recipe):
    """Invariant 28; A_T is the normalised outcome in every mode."""
    for terms, a in rows(batch, recipe):
        rewarded = [t for t, r in enumerate(terms) if r is not None]
        for t, later in pairwise(rewarded):
            assert close(a[t], terms[t] + recipe.gamma * a[later])
        assert a[-1] == terms[-1]
        for t in range(len(terms)):
            if terms[t] is None:
                assert a[t] == a[t + 1]


@given(usual, per_turn)
def test_over_turns_every_turn_costs_a_factor_gamma_rewarded_or_not(batch, recipe):
    """Invariant 28 in the paper's form."""
    for terms, a in rows(batch, recipe):
        assert a[-1] == terms[-1]
        for t in range(len(terms) - 1):
            assert close(a[t], (terms[t] or 0.0) + recipe.gamma * a[t + 1])


# ---------------------------------------------------------------------------------------------------- unrewarded turns


def with_turn_inserted(batch: Batch, data, reward=None) -> tuple[Batch, int, int]:
    i = data.draw(st.integers(0, len(batch.rewards) - 1))
    r = batch.rewards[i]
    t = data.draw(st.integers(0, len(r.turns)))
    flags = r.penalties or [False] * len(r.turns)
    longer = TurnRewards(
        [*r.turns[:t], reward, *r.turns[t:]], r.outcome, penalties=[*flags[:t], reward is not None, *flags[t:]]
    )
    return Batch([longer if j == i else other for j, other in enumerate(batch.rewards)], batch.groups), i, t


@given(usual, recipes(discount_over="rewards"), st.data())
def test_inserting_an_unrewarded_turn_changes_no_other_advantage(batch, recipe, data):
    """Invariant 29, exactly; with the segment scope the new turn equals its successor."""
    before = advantages(batch, recipe)
    longer, i, t = with_turn_inserted(batch, data)
    after = advantages(longer, recipe)
    assert after[i][:t] + after[i][t + 1:] == before[i]
    assert [row for j, row in enumerate(after) if j != i] == [row for j, row in enumerate(before) if j != i]
    if recipe.penalty_scope == "segment":
        assert after[i][t] == after[i][t + 1]


# ------------------------------------------------------------------------------------------------ gains off, ig_weight


@given(usual, recipes(discount_over="rewards", use_gain=False, normalize=("scaled", "separate", "joint")))
def test_without_gains_all_turns_share_the_outcome_in_every_mode_and_gamma_is_irrelevant(batch, recipe):
    """Invariant 31."""
    batch = without_gains(batch)
    ours = advantages(batch, recipe)
    assert all(a == row[-1] for row in ours for a in row)
    assert ours == advantages(batch, replace(recipe, gamma=0.3))
    for normalize in ("scaled", "separate", "joint"):
        assert_close(advantages(batch, replace(recipe, normalize=normalize)), ours, rounding(batch, recipe))


def test_ig_weight_zero_is_not_gains_off_over_rewards():
    batch, groups = [TurnRewards([0.5, 0.1], 1.0), TurnRewards([0.2], 0.0)], [0, 0]
    bare = [TurnRewards([None] * len(r.turns), r.outcome) for r in batch]
    recipe = Recipe.released(ig_weight=0.0)
    assert turn_advantages(batch, groups, recipe)[0][0] == pytest.approx(
        0.95**2 * turn_advantages(bare, groups, recipe)[0][0]
    )
    undiscounted = replace(recipe, gamma=1.0)
    assert turn_advantages(batch, groups, undiscounted) == turn_advantages(bare, groups, undiscounted)
