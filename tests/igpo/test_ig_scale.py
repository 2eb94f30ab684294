"""Absent and zero gains, and IG-Scale: invariants 22 to 25."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import Recipe
from minvenus.igpo.advantage import advantage_record, turn_advantages
from minvenus.types import TurnRewards
from tests.igpo.strategies import advantages, assert_close, batches, recipes
from tests.igpo.test_normalisation import Z_SCORED, changed, differ, usual


@pytest.mark.parametrize("normalize", Z_SCORED)
@pytest.mark.parametrize("recipe", [Recipe.paper, Recipe.released])
def test_a_genuine_zero_gain_counts_and_an_absent_gain_does_not(recipe, normalize):
    """Invariant 22, first half."""
    zero = [TurnRewards([0.0, 0.4], 1.0), TurnRewards([0.2], 0.0)]
    absent = [TurnRewards([None, 0.4], 1.0), TurnRewards([0.2], 0.0)]
    recipe = recipe(normalize=normalize)
    assert differ(turn_advantages(zero, [0, 0], recipe), turn_advantages(absent, [0, 0], recipe))


@given(usual, recipes(center_gain=True), st.sampled_from((1e-10, -1e-10)))
def test_replacing_zero_by_a_trace_changes_next_to_nothing(batch, recipe, trace):
    """Invariant 22, second half: at most 1e-10 / 1e-4 per z-score, times the scale of up to 10, summed over 13
    turns."""
    after = changed(batch, turn=lambda v: trace if v == 0 else v)
    assert_close(advantages(after, recipe), advantages(batch, recipe), 2 * 1e-6 * 10 * 13 * max(1.0, recipe.ig_weight))


@given(batches(), recipes(normalize="scaled"))
def test_scaled_gains_are_on_average_as_large_as_the_outcomes_unless_capped(batch, recipe):
    """Invariants 23 and 24: mean |s z| = max(M_O, 0.3) up to 1e-6 / M_IG; 0 < s <= 10."""
    record = advantage_record(batch.rewards, batch.groups, recipe)
    gains = [abs(z) for row in record.turn_z for z in row if z is not None]
    m_outcome = math.fsum(abs(z) for z in record.outcome_z) / len(record.outcome_z)
    assert 0 < record.scale <= 10
    if gains and record.scale < 10:
        scaled = record.scale * math.fsum(gains) / len(gains)
        assert scaled == pytest.approx(max(m_outcome, 0.3), rel=1e-9 + 1.01e-6 / (math.fsum(gains) / len(gains)))
    if gains and max(gains) == 0:
        assert record.scale == 10


def test_the_floor_and_the_cap_of_the_scale():
    """Equal outcomes: M_O = 0, the floor 0.3 counts. One gain per group: z = 0, M_IG = 0, the cap 10 counts."""
    floor = advantage_record([TurnRewards([0.0], 1.0), TurnRewards([1.0], 1.0)], [0, 0], Recipe())
    assert floor.scale == pytest.approx(0.3, rel=1e-5)
    cap = advantage_record([TurnRewards([0.5], 1.0), TurnRewards([], 0.0)], [0, 0], Recipe())
    assert cap.scale == 10 and cap.m_gain == 0
    assert cap.advantages[0][0] == pytest.approx(0.95 * cap.outcome_z[0])


@given(usual, recipes(normalize="scaled"))
def test_scaled_is_separate_with_the_turn_rewards_times_s_and_the_outcome_untouched(batch, recipe):
    """Invariants 24 and 25; at gamma = 0 the advantages themselves differ by the factor s on rewarded turns."""
    scaled = advantage_record(batch.rewards, batch.groups, recipe)
    apart = advantage_record(batch.rewards, batch.groups, replace(recipe, normalize="separate"))
    assert [row[-1] for row in scaled.advantages] == [row[-1] for row in apart.advantages]
    for a, b in zip(scaled.terms, apart.terms, strict=True):
        assert all(
            x is None if y is None else abs(x - scaled.scale * y) <= 1e-12 for x, y in zip(a[:-1], b[:-1], strict=True)
        )
