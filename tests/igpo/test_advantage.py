"""Advantages as a whole: every number of the record against the definition, small cases by hand, what is refused."""

import math

import pytest
from hypothesis import assume, given

from minvenus.config import Recipe
from minvenus.igpo.advantage import advantage_record, token_advantages, turn_advantages
from minvenus.types import TurnRewards
from tests.igpo import oracle
from tests.igpo.strategies import amplification, assert_close, batches, recipes, rounding

# Beyond this, z-scores of nearly equal, large values are rounding noise and two correct programs may differ in the
# first digit.
WELL_CONDITIONED = 1e6


@given(batches(), recipes())
def test_advantages_equal_the_definition(batch, recipe):
    """With every number that they were made of, as the record keeps it."""
    assume(recipe.normalize == "none" or amplification(batch, recipe) < WELL_CONDITIONED)
    rewards, groups = batch.rewards, batch.groups
    record = advantage_record(rewards, groups, recipe)
    scores = oracle.z_scores(rewards, groups, recipe)
    scale, m_outcome, m_gain = oracle.ig_scale(scores)
    tolerance = rounding(batch, recipe)
    assert_close(record.advantages, oracle.advantages(rewards, groups, recipe), tolerance)
    assert_close(record.terms, oracle.reward_terms(rewards, groups, recipe), tolerance)
    assert_close([*record.turn_z, record.outcome_z], [*(z for z, _ in scores), [z for _, z in scores]], tolerance)
    assert (record.m_outcome, record.m_gain) == pytest.approx((m_outcome, m_gain), abs=tolerance)
    assert record.scale == pytest.approx(scale if recipe.normalize == "scaled" else 1.0, rel=1e-9 + 40 * tolerance)
    assert set(record.groups) == set(groups)
    for group, stats in record.groups.items():
        outcomes, gains = oracle.group_sets(rewards, groups, group)
        if recipe.normalize == "joint":
            outcomes = gains = outcomes + gains
        assert (stats.outcome_mean, stats.outcome_std) == pytest.approx(oracle.stats(outcomes), rel=1e-9, abs=1e-9)
        assert (stats.gain_mean, stats.gain_std) == pytest.approx(oracle.stats(gains), rel=1e-9, abs=1e-9)


@given(batches(magnitudes=(1.0, 1e9, 1e90, 1e-150)), recipes())
def test_advantages_are_finite_whatever_the_magnitude(batch, recipe):
    for row in turn_advantages(batch.rewards, batch.groups, recipe):
        assert all(math.isfinite(a) for a in row)


# ------------------------------------------------------------------------------------------------------------- by hand


def test_two_rollouts_with_gamma_half_worked_by_hand():
    """Gains 1 and 3: mean 2, sigma 1; outcomes 1 and 0: z = +1 and -1. The search in the middle has no reward."""
    batch = [TurnRewards([1.0, None], 1.0), TurnRewards([3.0], 0.0)]
    z = 1.0 / (math.sqrt(1 + 1e-8) + 1e-6)
    o = 0.5 / (math.sqrt(0.25 + 1e-8) + 1e-6)
    per_turn = turn_advantages(batch, [5, 5], Recipe(normalize="separate", gamma=0.5))
    assert_close(per_turn, [[-z + 0.25 * o, 0.5 * o, o], [z - 0.5 * o, -o]], 1e-14)
    per_reward = turn_advantages(batch, [5, 5], Recipe(normalize="separate", gamma=0.5, discount_over="rewards"))
    assert_close(per_reward, [[-z + 0.5 * o, o, o], [z - 0.5 * o, -o]], 1e-14)


def test_uncentred_gains_keep_their_sign():
    """Gains 0.1 and 0.5 are both good news; centred, the first becomes a punishment."""
    batch = [TurnRewards([0.1], 0.0), TurnRewards([0.5], 0.0)]
    centred = advantage_record(batch, [0, 0], Recipe(normalize="separate")).terms
    raw = advantage_record(batch, [0, 0], Recipe(normalize="separate", center_gain=False)).terms
    sigma = math.sqrt(0.04 + 1e-8) + 1e-6
    assert centred[0][0] < 0 < raw[0][0] == pytest.approx(0.1 / sigma, rel=1e-14)
    assert raw[1][0] == pytest.approx(0.5 / sigma, rel=1e-14)


def test_every_token_of_a_turn_holds_its_advantage_and_the_others_hold_zero():
    assert token_advantages([0.5, -2.0], [(2, 4), (5, 6)], 7) == [0.0, 0.0, 0.5, 0.5, 0.0, -2.0, 0.0]
    with pytest.raises(ValueError):
        token_advantages([0.5], [(0, 1), (1, 2)], 3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("place", ["turn", "outcome"])
def test_a_reward_that_is_not_finite_or_whose_square_is_not_is_an_error(bad, place):
    first = TurnRewards([bad], 1.0) if place == "turn" else TurnRewards([0.1], bad)
    with pytest.raises(ValueError, match="rollout 0: rewards must be finite"):
        turn_advantages([first, TurnRewards([0.1], 0.0)], [0, 0], Recipe())


def test_one_group_id_per_rollout_is_needed_and_an_empty_batch_has_no_advantages():
    with pytest.raises(ValueError):
        turn_advantages([TurnRewards([], 1.0), TurnRewards([], 0.0)], [0], Recipe())
    assert turn_advantages([], [], Recipe()) == []
