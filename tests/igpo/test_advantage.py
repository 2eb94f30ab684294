"""Advantages as a whole: the definition on random batches, the record that explains them, what is refused, and the
speed."""

import math
import time

import pytest
from hypothesis import assume, given

from minvenus.config import Recipe
from minvenus.igpo.advantage import advantage_record, token_advantages, turn_advantages
from minvenus.igpo.credit import batch_health
from minvenus.types import TurnRewards
from tests.igpo import oracle
from tests.igpo.strategies import Batch, advantages, amplification, assert_close, batches, recipes, rounding

# Beyond this, z-scores of nearly equal, large values are rounding noise and two correct programs may differ in the
# first digit.
WELL_CONDITIONED = 1e6


@given(batches(), recipes())
def test_advantages_equal_the_definition(batch, recipe):
    assume(recipe.normalize == "none" or amplification(batch, recipe) < WELL_CONDITIONED)
    assert_close(
        advantages(batch, recipe), oracle.advantages(batch.rewards, batch.groups, recipe), rounding(batch, recipe)
    )


@given(batches(magnitudes=(1.0, 1e9, 1e90, 1e-150)), recipes())
def test_advantages_are_finite_whatever_the_magnitude(batch, recipe):
    for row in advantages(batch, recipe):
        assert all(math.isfinite(a) for a in row)


def test_two_rollouts_with_gamma_half_worked_by_hand():
    """Gains 1 and 3: mean 2, sigma 1; outcomes 1 and 0: z = +1 and -1. The search in the middle has no reward."""
    batch = [TurnRewards([1.0, None], 1.0), TurnRewards([3.0], 0.0)]
    sigma, half = math.sqrt(1 + 1e-8) + 1e-6, math.sqrt(0.25 + 1e-8) + 1e-6
    z, o = 1.0 / sigma, 0.5 / half
    per_turn = turn_advantages(batch, [5, 5], Recipe(normalize="separate", gamma=0.5))
    assert_close(per_turn, [[-z + 0.25 * o, 0.5 * o, o], [z - 0.5 * o, -o]], 1e-14)
    per_reward = turn_advantages(batch, [5, 5], Recipe(normalize="separate", gamma=0.5, discount_over="rewards"))
    assert_close(per_reward, [[-z + 0.5 * o, o, o], [z - 0.5 * o, -o]], 1e-14)


def test_uncentred_gains_keep_their_sign():
    """Gains 0.1 and 0.5 are both good news; centred, the first becomes a punishment."""
    batch, groups = [TurnRewards([0.1], 0.0), TurnRewards([0.5], 0.0)], [0, 0]
    centred = advantage_record(batch, groups, Recipe(normalize="separate")).terms
    raw = advantage_record(batch, groups, Recipe(normalize="separate", center_gain=False)).terms
    sigma = math.sqrt(0.04 + 1e-8) + 1e-6
    assert centred[0][0] < 0 < raw[0][0] == pytest.approx(0.1 / sigma, rel=1e-14)
    assert raw[1][0] == pytest.approx(0.5 / sigma, rel=1e-14)


# ---------------------------------------------------------------------------------------------------------- the record


@given(batches(), recipes())
def test_the_record_explains_the_advantages(batch, recipe):
    """Advantages follow from `.terms` by the return formula alone, and terms from z, the scale and ig_weight."""
    record = advantage_record(batch.rewards, batch.groups, recipe)
    tolerance = rounding(batch, recipe)
    assert record.advantages == advantages(batch, recipe)
    assert_close([oracle.returns(row, r.penalties, recipe) for row, r in zip(record.terms, batch.rewards, strict=True)],
                 record.advantages, tolerance)
    scale = record.scale if recipe.normalize == "scaled" else 1.0
    for r, z, outcome, terms in zip(batch.rewards, record.turn_z, record.outcome_z, record.terms, strict=True):
        assert [v is None for v in z] == [v is None for v in r.turns] == [v is None for v in terms[:-1]]
        assert terms[-1] == outcome
        assert all(a is None or abs(a - recipe.ig_weight * scale * b) <= 1e-12 * max(1.0, abs(a))
                   for a, b in zip(terms, z, strict=False))


@given(batches(), recipes(normalize="scaled"))
def test_the_record_holds_the_scale_and_the_statistics_of_every_group(batch, recipe):
    assume(amplification(batch, recipe) < WELL_CONDITIONED)
    record = advantage_record(batch.rewards, batch.groups, recipe)
    scale, m_outcome, m_gain = oracle.ig_scale(oracle.z_scores(batch.rewards, batch.groups, recipe))
    tolerance = rounding(batch, recipe)
    assert record.m_outcome == pytest.approx(m_outcome, abs=tolerance)
    assert record.m_gain == pytest.approx(m_gain, abs=tolerance)
    assert record.scale == pytest.approx(scale, rel=1e-9 + 40 * tolerance)
    assert set(record.groups) == set(batch.groups)
    for group, stats in record.groups.items():
        outcomes, gains = oracle.group_sets(batch.rewards, batch.groups, group)
        assert (stats.outcome_mean, stats.outcome_std) == pytest.approx(oracle.stats(outcomes), rel=1e-9, abs=1e-9)
        assert (stats.gain_mean, stats.gain_std) == pytest.approx(oracle.stats(gains), rel=1e-9, abs=1e-9)


def test_health_figures_worked_by_hand():
    """Group 0 has equal outcomes and a lonely gain (z = 0): it teaches nothing. Group 1 has everything. 2 gains and 1
    penalty in the 4 turns before the last ones."""
    batch = [TurnRewards([0.4], 1.0), TurnRewards([], 1.0),
             TurnRewards([0.2, -1.0], 0.0, penalties=[False, True]), TurnRewards([None], 1.0)]
    advantages = turn_advantages(batch, [0, 0, 1, 1], Recipe())
    health = batch_health(batch, [0, 0, 1, 1], advantages)
    assert health == {"groups_without_outcome_signal": 0.5, "groups_without_any_signal": 0.5, "turns_with_gain": 0.5,
                      "turns_penalised": 0.25}


# ------------------------------------------------------------------------------------------------ from turns to tokens


def test_every_token_of_a_turn_holds_its_advantage_and_the_others_hold_zero():
    assert token_advantages([0.5, -2.0], [(2, 4), (5, 6)], 7) == [0.0, 0.0, 0.5, 0.5, 0.0, -2.0, 0.0]


@pytest.mark.parametrize("advantages, spans", [([0.5], [(0, 1), (1, 2)]), ([0.5], [(1, 4)]), ([0.5], [(-1, 2)])])
def test_a_span_without_an_advantage_or_outside_the_tokens_is_an_error(advantages, spans):
    with pytest.raises(ValueError):
        token_advantages(advantages, spans, 3)


# ----------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300])
def test_a_reward_that_is_not_finite_or_whose_square_is_not_is_an_error(bad):
    for batch in (
        [TurnRewards([bad], 1.0), TurnRewards([0.1], 0.0)],
        [TurnRewards([0.1], bad), TurnRewards([0.1], 0.0)],
    ):
        with pytest.raises(ValueError):
            turn_advantages(batch, [0, 0], Recipe())


def test_one_group_id_per_rollout_is_needed():
    with pytest.raises(ValueError):
        turn_advantages([TurnRewards([], 1.0), TurnRewards([], 0.0)], [0], Recipe())


def test_an_empty_batch_has_no_advantages():
    assert turn_advantages([], [], Recipe()) == []


# --------------------------------------------------------------------------------------------------------------- speed


@pytest.mark.parametrize("recipe", [Recipe.paper(), Recipe.released()], ids=["paper", "released"])
def test_128_rollouts_of_200_turns_take_under_a_fifth_of_a_second(recipe):
    """Best of five in processor time: other work on the machine must not decide."""
    turns = [None if t % 3 == 2 else math.sin(t) for t in range(199)]
    batch = Batch(
        [TurnRewards([None if v is None else v + 0.001 * i for v in turns], float(i % 3 == 0)) for i in range(128)],
        [i // 8 for i in range(128)],
    )
    times = []
    for _ in range(5):
        start = time.process_time()
        result = advantages(batch, recipe)
        times.append(time.process_time() - start)
    assert sum(len(row) for row in result) == 128 * 200
    assert min(times) < 0.2
