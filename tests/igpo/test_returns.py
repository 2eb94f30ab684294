"""Invariants 27 to 32 and 38: from normalised rewards to advantages, over turns (the `paper` recipe) or over rewarded
turns (the `released` recipe), and how far a format penalty reaches."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import Recipe
from minvenus.igpo.advantage import advantage_record, turn_advantages
from minvenus.types import TurnRewards
from tests.igpo.strategies import ORDINARY, Batch, advantages, assert_close, batches, recipes, rounding

Z_SCORED = ("separate", "scaled", "joint")
usual = batches(magnitudes=ORDINARY, max_groups=6)



def rows_of(batch: Batch, recipe: Recipe):
    """(terms, advantages) of every rollout."""
    record = advantage_record(batch.rewards, batch.groups, recipe)
    return zip(record.terms, record.advantages, strict=True)


def close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-12 * max(1.0, abs(a), abs(b))


@given(usual, recipes(penalty_scope="segment", gamma=1.0))
def test_with_gamma_one_the_first_turn_sums_the_whole_trajectory(batch, recipe):
    """Invariant 27; without a discount both ways of counting agree."""
    for terms, a in rows_of(batch, recipe):
        assert close(a[0], math.fsum(r for r in terms if r is not None))
    other = "turns" if recipe.discount_over == "rewards" else "rewards"
    assert_close(advantages(batch, recipe), advantages(batch, replace(recipe, discount_over=other)), 1e-10)


@given(usual, recipes(discount_over="turns"))
def test_over_turns_every_turn_costs_a_factor_gamma_rewarded_or_not(batch, recipe):
    """Invariant 28 in the paper's form; over rewards it is what the definition says."""
    for terms, a in rows_of(batch, recipe):
        assert a[-1] == terms[-1]
        for t in range(len(terms) - 1):
            assert close(a[t], (terms[t] or 0.0) + recipe.gamma * a[t + 1])


def with_turn_inserted(batch: Batch, data, reward=None) -> tuple[Batch, int, int]:
    """One more turn in one rollout: (batch, rollout, turn). A turn with a reward is a penalised one."""
    i = data.draw(st.integers(0, len(batch.rewards) - 1))
    r = batch.rewards[i]
    t = data.draw(st.integers(0, len(r.turns)))
    flags = r.is_penalty()
    longer = TurnRewards([*r.turns[:t], reward, *r.turns[t:]], r.outcome,
                         penalties=[*flags[:t], reward is not None, *flags[t:]])
    return Batch([*batch.rewards[:i], longer, *batch.rewards[i + 1:]], batch.groups), i, t


@given(usual, recipes(discount_over="rewards"), st.data())
def test_inserting_an_unrewarded_turn_changes_no_other_advantage(batch, recipe, data):
    """Invariant 29, exactly; with the segment scope the new turn equals its successor."""
    longer, i, t = with_turn_inserted(batch, data)
    after = advantages(longer, recipe)
    new = after[i].pop(t)
    assert after == advantages(batch, recipe)
    if recipe.penalty_scope == "segment":
        assert new == after[i][t]


@given(usual, recipes(discount_over="rewards", use_gain=False, normalize=Z_SCORED))
def test_without_gains_all_turns_share_the_outcome_in_every_mode_and_gamma_is_irrelevant(batch, recipe):
    """Invariant 31."""
    batch = Batch([TurnRewards([None] * len(r.turns), r.outcome) for r in batch.rewards], batch.groups)
    ours = advantages(batch, recipe)
    assert all(a == row[-1] for row in ours for a in row)
    assert ours == advantages(batch, replace(recipe, gamma=0.3))
    for normalize in Z_SCORED:
        assert_close(advantages(batch, replace(recipe, normalize=normalize)), ours, rounding(batch, recipe))


def test_ig_weight_zero_is_not_gains_off_over_rewards():
    """Invariant 32: the two rewarded turns still cost a factor gamma each."""
    batch = [TurnRewards([0.5, 0.1], 1.0), TurnRewards([0.2], 0.0)]
    bare = [TurnRewards([None] * len(r.turns), r.outcome) for r in batch]
    recipe = Recipe.released(ig_weight=0.0)
    shared = turn_advantages(bare, [0, 0], recipe)[0][0]
    assert turn_advantages(batch, [0, 0], recipe)[0][0] == pytest.approx(0.95**2 * shared)
    undiscounted = replace(recipe, gamma=1.0)
    assert turn_advantages(batch, [0, 0], undiscounted) == turn_advantages(bare, [0, 0], undiscounted)


# ----------------------------------------------------------------------------------------------- the reach of a penalty


def test_a_search_before_a_malformed_turn_keeps_belonging_to_its_visit():
    """Search, malformed turn, visit (0.4), answer (1), raw rewards, gamma 1/2. Localised, the search shares the
    visit's return 0.4 + 0.5; leaking, it shares the malformed turn's -1 + 0.45."""
    rewards = [TurnRewards([None, -1.0, 0.4], 1.0, penalties=[False, True, False])]
    recipe = Recipe.released(normalize="none", gamma=0.5)
    assert_close(turn_advantages(rewards, [0], replace(recipe, penalty_scope="turn")), [[0.9, -0.55, 0.9, 1.0]], 1e-15)
    assert_close(turn_advantages(rewards, [0], recipe), [[-0.55, -0.55, 0.9, 1.0]], 1e-15)


@given(usual, recipes(discount_over="rewards", penalty_scope="turn", normalize="none"), st.data())
def test_a_localised_malformed_turn_changes_only_its_own_reward_and_the_sums_before_it(batch, recipe, data):
    """Invariant 38, with raw rewards so that no statistics move: later turns and the unrewarded searches just before
    it keep their advantages; only returns that look across it change."""
    before = advantages(batch, recipe)
    longer, i, t = with_turn_inserted(batch, data, reward=-1.0)
    after = advantages(longer, recipe)
    assert after[i][t + 1:] == before[i][t:]
    while t > 0 and batch.rewards[i].turns[t - 1] is None:
        t -= 1
        assert after[i][t] == before[i][t]
