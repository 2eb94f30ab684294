"""Invariants 26 to 36: from normalised rewards to advantages, discounting over turns (the `paper` recipe) or over rewarded turns
(the `released` recipe).

Invariant 30 (token lengths do not matter) holds by construction: advantages are computed from rewards that know no tokens.
"""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import Recipe
from minvenus.igpo.advantage import advantage_record, turn_advantages
from minvenus.igpo.rewards import turn_rewards
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


# ------------------------------------------------------------------------------------------------------------- the return


@given(usual, recipes(discount_over="rewards", penalty_scope="segment", gamma=0.0))
def test_with_gamma_zero_a_turn_sees_only_the_next_reward(batch, recipe):
    """Invariant 26."""
    for terms, a in rows(batch, recipe):
        for t in range(len(terms)):
            assert a[t] == next(r for r in terms[t:] if r is not None)


@given(usual, recipes(discount_over="turns", gamma=0.0))
def test_with_gamma_zero_over_turns_a_turn_sees_only_its_own_reward(batch, recipe):
    """Invariant 26 in the paper's form: an unrewarded turn gets nothing."""
    for terms, a in rows(batch, recipe):
        assert a == [0.0 if r is None else r for r in terms]


@given(usual, recipes(discount_over=("turns", "rewards"), penalty_scope="segment", gamma=1.0))
def test_with_gamma_one_the_first_turn_sums_the_whole_trajectory(batch, recipe):
    """Invariant 27; without a discount both ways of counting agree, and a step from turn to turn is that turn's reward."""
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


@given(usual, recipes(gamma=(0.0, 0.5, 0.95)))
def test_advantages_are_bounded_by_the_geometric_sum(batch, recipe):
    """Invariant 36; n counts what is discounted: rewarded turns, or turns."""
    for terms, a in rows(batch, recipe):
        largest = max(abs(r) for r in terms if r is not None)
        for t in range(len(a)):
            n = len(a) - t if recipe.discount_over == "turns" else sum(r is not None for r in terms[t:])
            assert abs(a[t]) <= largest * (1 - recipe.gamma**n) / (1 - recipe.gamma) * (1 + 1e-12)


# ------------------------------------------------------------------------------------------------------- unrewarded turns


def with_turn_inserted(batch: Batch, data, reward=None) -> tuple[Batch, int, int]:
    i = data.draw(st.integers(0, len(batch.rewards) - 1))
    r = batch.rewards[i]
    t = data.draw(st.integers(0, len(r.turns)))
    flags = r.penalties or [False] * len(r.turns)
    longer = TurnRewards([*r.turns[:t], reward, *r.turns[t:]], r.outcome, penalties=[*flags[:t], reward is not None, *flags[t:]])
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


@given(usual, per_turn, st.data())
def test_over_turns_an_unrewarded_turn_delays_everything_behind_it(batch, recipe, data):
    """Invariant 29 in the paper's form: later turns keep theirs, the new turn has gamma times its successor, and what earlier
    turns see of the later ones is discounted once more."""
    before = advantages(batch, recipe)
    longer, i, t = with_turn_inserted(batch, data)
    after = advantages(longer, recipe)[i]
    assert after[t + 1:] == before[i][t:]
    assert close(after[t], recipe.gamma * after[t + 1])
    for u in range(t):
        behind = recipe.gamma ** (t - u) * before[i][t]
        assert abs(after[u] - (before[i][u] - behind + recipe.gamma * behind)) <= 1e-10


def test_with_replication_one_more_search_does_change_the_others():
    """Invariant 29 fails for browse="replicate" by design: the search gets a copy, which enters the group's statistics and the
    sum of every turn before it."""
    recipe = Recipe.paper(normalize="separate", gamma=1.0)

    def first_advantage(kinds, gains):
        rollouts = [turn_rewards(kinds, gains, [False] * len(kinds), 1.0, recipe),
                    turn_rewards(["visit", "visit", "answer"], [0.1, -0.4, None], [False] * 3, 0.0, recipe)]
        return turn_advantages(rollouts, [0, 0], recipe)[0]

    short = first_advantage(["visit", "search", "visit", "answer"], [0.3, None, 0.2, None])
    longer = first_advantage(["visit", "search", "search", "visit", "answer"], [0.3, None, None, 0.2, None])
    assert abs(short[0] - longer[0]) > 0.1


# ----------------------------------------------------------------------------------------------------- gains off, ig_weight


@given(usual, recipes(discount_over="rewards", use_gain=False, normalize=("scaled", "separate", "joint")))
def test_without_gains_all_turns_share_the_outcome_in_every_mode_and_gamma_is_irrelevant(batch, recipe):
    """Invariant 31."""
    batch = without_gains(batch)
    ours = advantages(batch, recipe)
    assert all(a == row[-1] for row in ours for a in row)
    assert ours == advantages(batch, replace(recipe, gamma=0.3))
    for normalize in ("scaled", "separate", "joint"):
        assert_close(advantages(batch, replace(recipe, normalize=normalize)), ours, rounding(batch, recipe))


@given(usual, recipes(discount_over="turns", use_gain=True))
def test_without_gains_over_turns_the_outcome_is_discounted_by_the_turns_left(batch, recipe):
    """Invariant 31 in the paper's form: A_t = gamma^(T - t) z_outcome."""
    for row in advantages(without_gains(batch), recipe):
        for t, a in enumerate(row):
            assert close(a, recipe.gamma ** (len(row) - 1 - t) * row[-1])


@given(usual, recipes(discount_over="rewards", penalty_scope="segment", ig_weight=0.0))
def test_ig_weight_zero_still_counts_rewarded_turns(batch, recipe):
    """Invariant 32: A_t = gamma^(n_t - 1) r_T with n_t the rewarded turns from t on, the outcome included."""
    for terms, a in rows(batch, recipe):
        for t in range(len(a)):
            n = sum(r is not None for r in terms[t:])
            assert close(a[t], recipe.gamma ** (n - 1) * terms[-1])


def test_ig_weight_zero_is_not_gains_off_over_rewards():
    batch, groups = [TurnRewards([0.5, 0.1], 1.0), TurnRewards([0.2], 0.0)], [0, 0]
    bare = [TurnRewards([None] * len(r.turns), r.outcome) for r in batch]
    recipe = Recipe.released(ig_weight=0.0)
    assert turn_advantages(batch, groups, recipe)[0][0] == pytest.approx(0.95**2 * turn_advantages(bare, groups, recipe)[0][0])
    undiscounted = replace(recipe, gamma=1.0)
    assert turn_advantages(batch, groups, undiscounted) == turn_advantages(bare, groups, undiscounted)


@given(usual, recipes(discount_over="turns", ig_weight=0.0, normalize=("scaled", "separate", "none")))
def test_over_turns_ig_weight_zero_is_gains_off(batch, recipe):
    """Invariant 32 in the paper's form: a turn costs gamma whether it is rewarded with nothing or not at all. (Not pooled: there
    gains move the outcome's statistics.)"""
    assert_close(advantages(batch, recipe), advantages(without_gains(batch), recipe), 1e-12)


@given(usual, recipes(), st.floats(-2.0, 2.0), st.floats(0.1, 2.0))
def test_advantages_are_affine_in_ig_weight(batch, recipe, weight, step):
    """Invariant 33: the second difference is zero, every mode."""
    low, middle, high = (advantages(batch, replace(recipe, ig_weight=weight + k * step)) for k in range(3))
    second = [[a - 2 * b + c for a, b, c in zip(x, y, z, strict=True)] for x, y, z in zip(low, middle, high, strict=True)]
    assert_close(second, [[0.0] * len(row) for row in second], 1e-9)
