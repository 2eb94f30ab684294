"""Invariants among 9 to 25, numbered as on the mathematics page: what may be added, negated, cloned or removed, and
what that does to an advantage, mode by mode; absent and zero gains; IG-Scale."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import Recipe
from minvenus.igpo.advantage import advantage_record, turn_advantages
from minvenus.types import TurnRewards
from tests.igpo import oracle
from tests.igpo.strategies import ORDINARY, Batch, advantages, assert_close, batches, recipes, rounding

APART = ("separate", "scaled")
Z_SCORED = ("separate", "scaled", "joint")
usual = batches(magnitudes=ORDINARY, max_groups=6)
constants = st.floats(-4.0, 4.0, allow_subnormal=False)
seeds = st.integers(0, 2**32 - 1)


def changed(batch: Batch, group=None, turn=lambda v: v, outcome=lambda v: v) -> Batch:
    """The batch with `turn` applied to every present turn reward and `outcome` to every outcome, of one group or of
    all."""
    rewards = []
    for r, g in zip(batch.rewards, batch.groups, strict=True):
        if group is None or g == group:
            turns = [None if v is None else turn(v) for v in r.turns]
            r = TurnRewards(turns, outcome(r.outcome), penalties=r.penalties)
        rewards.append(r)
    return Batch(rewards, batch.groups)


def some_group(batch: Batch, seed: int) -> int:
    return random.Random(seed).choice(sorted(set(batch.groups)))


def unchanged(before: Batch, after: Batch, recipe: Recipe) -> None:
    tolerance = max(rounding(before, recipe), rounding(after, recipe))
    assert_close(advantages(after, recipe), advantages(before, recipe), tolerance)


# ----------------------------------------------------------------------------------------------------- shift and scale


@given(usual, recipes(normalize=APART), constants, seeds)
def test_adding_a_constant_to_every_outcome_of_a_group_changes_nothing(batch, recipe, c, seed):
    """Invariant 9."""
    unchanged(batch, changed(batch, some_group(batch, seed), outcome=lambda v: v + c), recipe)


@given(usual, recipes(normalize=APART, center_gain=True, spread=("std", "one")), constants, seeds)
def test_adding_a_constant_to_every_turn_reward_of_a_group_changes_nothing(batch, recipe, c, seed):
    """Invariant 10; penalties are shifted with the gains."""
    unchanged(batch, changed(batch, some_group(batch, seed), turn=lambda v: v + c), recipe)


@given(batches(), recipes())
def test_negating_every_reward_negates_every_advantage_exactly(batch, recipe):
    """Invariant 12, every mode."""
    negated = advantages(changed(batch, turn=lambda v: -v, outcome=lambda v: -v), recipe)
    assert [[-a for a in row] for row in negated] == advantages(batch, recipe)


# ---------------------------------------------------------------------------------------------- order, removal, clones


@given(usual, recipes(normalize=("joint", "separate", "none")), seeds)
def test_removing_a_group_leaves_the_others_as_they_were(batch, recipe, seed):
    """Invariant 14; not in the scaled mode, whose scale is taken over the whole batch."""
    gone = some_group(batch, seed)
    keep = [i for i, g in enumerate(batch.groups) if g != gone]
    expected = advantages(batch, recipe)
    rest = Batch([batch.rewards[i] for i in keep], [batch.groups[i] for i in keep])
    assert advantages(rest, recipe) == [expected[i] for i in keep]


@given(usual, recipes(center_gain=True), st.integers(2, 3))
def test_cloning_every_rollout_inside_its_group_changes_nothing(batch, recipe, copies):
    """Invariant 16: the std is that of the population."""
    cloned = Batch(batch.rewards * copies, batch.groups * copies)
    assert_close(advantages(cloned, recipe), advantages(batch, recipe) * copies, rounding(cloned, recipe))


# --------------------------------------------------------------------------------------------- the normalised values


@given(usual, recipes(normalize=Z_SCORED, center_gain=True, spread="std"))
def test_z_scores_have_mean_zero_and_the_population_mean_square(batch, recipe):
    """Invariants 17 and 18, for every set that is normalised: sum z = 0, mean z^2 = var / (sigma + 1e-6)^2 <= 1,
    |z| <= sqrt(n - 1)."""
    record = advantage_record(batch.rewards, batch.groups, recipe)
    for group in set(batch.groups):
        rows = [i for i, g in enumerate(batch.groups) if g == group]
        outcomes, gains = oracle.group_sets(batch.rewards, batch.groups, group)
        z_outcomes = [record.outcome_z[i] for i in rows]
        z_gains = [z for i in rows for z in record.turn_z[i] if z is not None]
        sets = [(z_outcomes, outcomes), (z_gains, gains)]
        if recipe.normalize == "joint":
            sets = [(z_outcomes + z_gains, outcomes + gains)]
        for z, raw in sets:
            check_z_scores(z, raw, rounding(batch, recipe))


def check_z_scores(z: list[float], raw: list[float], tolerance: float) -> None:
    n = len(z)
    if n < 2:
        assert all(v == 0 for v in z)
        return
    mean, sigma = oracle.stats(raw)
    variance = math.fsum((v - mean) ** 2 for v in raw) / n
    assert abs(math.fsum(z)) <= n * tolerance
    assert math.fsum(v * v for v in z) / n == pytest.approx(variance / (sigma + 1e-6) ** 2, abs=1e-7)
    assert max(abs(v) for v in z) <= math.sqrt(n - 1)


@given(st.integers(2, 8), st.data(), st.sampled_from(APART))
def test_k_of_n_correct_gives_the_two_values_of_the_binary_formula(n, data, normalize):
    """Invariant 21: +sqrt((n-k)/k) and -sqrt(k/(n-k)), times 1 / (1 + 1e-6/sigma)."""
    k = data.draw(st.integers(1, n - 1))
    rows = turn_advantages([TurnRewards([], float(i < k)) for i in range(n)], [0] * n, Recipe(normalize=normalize))
    sigma = math.sqrt(k * (n - k)) / n
    right, wrong = math.sqrt((n - k) / k), -math.sqrt(k / (n - k))
    for i, (a,) in enumerate(rows):
        assert a == pytest.approx((right if i < k else wrong) / (1 + 1e-6 / sigma), rel=1e-6)


# ------------------------------------------------------------------------------------------- absent and zero, IG-Scale


@pytest.mark.parametrize("normalize", Z_SCORED)
@pytest.mark.parametrize("recipe", [Recipe.paper, Recipe.released])
def test_a_genuine_zero_gain_counts_and_an_absent_gain_does_not(recipe, normalize):
    """Invariant 22, first half."""
    zero = [TurnRewards([0.0, 0.4], 1.0), TurnRewards([0.2], 0.0)]
    absent = [TurnRewards([None, 0.4], 1.0), TurnRewards([0.2], 0.0)]
    (first, _), (other, _) = (turn_advantages(batch, [0, 0], recipe(normalize=normalize)) for batch in (zero, absent))
    assert any(abs(a - b) > 1e-3 for a, b in zip(first, other, strict=True))


@given(batches(), recipes(normalize="scaled"))
def test_scaled_gains_are_on_average_as_large_as_the_outcomes_unless_capped(batch, recipe):
    """Invariants 23 and 24: mean |s z| = max(M_O, 0.3) up to 1e-6 / M_IG; 0 < s <= 10."""
    record = advantage_record(batch.rewards, batch.groups, recipe)
    gains = [abs(z) for row in record.turn_z for z in row if z is not None]
    m_outcome = math.fsum(abs(z) for z in record.outcome_z) / len(record.outcome_z)
    assert 0 < record.scale <= 10
    if gains and record.scale < 10:
        m_gain = math.fsum(gains) / len(gains)
        assert record.scale * m_gain == pytest.approx(max(m_outcome, 0.3), rel=1e-9 + 1.01e-6 / m_gain)
    if gains and max(gains) == 0:
        assert record.scale == 10


def test_the_floor_and_the_cap_of_the_scale():
    """Equal outcomes: M_O = 0, the floor 0.3 counts. One gain per group: z = 0, M_IG = 0, the cap 10 counts."""
    floor = advantage_record([TurnRewards([0.0], 1.0), TurnRewards([1.0], 1.0)], [0, 0], Recipe())
    assert floor.scale == pytest.approx(0.3, rel=1e-5)
    cap = advantage_record([TurnRewards([0.5], 1.0), TurnRewards([], 0.0)], [0, 0], Recipe())
    assert cap.scale == 10 and cap.m_gain == 0
    assert cap.advantages[0][0] == pytest.approx(0.95 * cap.outcome_z[0])
