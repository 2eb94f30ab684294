"""Invariants 9 to 25, numbered as on the mathematics page: what may be added, scaled, permuted, cloned or removed
without changing an advantage, mode by mode; absent and zero gains; IG-Scale."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minvenus.igpo.advantage import advantage_record, turn_advantages
from minvenus.igpo.recipes import Recipe
from minvenus.types import TurnRewards
from tests.igpo import oracle
from tests.igpo.strategies import (
    ORDINARY,
    Batch,
    advantages,
    assert_close,
    batches,
    recipes,
    rounding,
)

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


def chosen(batch: Batch, rows: list[int]) -> Batch:
    return Batch([batch.rewards[i] for i in rows], [batch.groups[i] for i in rows])


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


@given(usual, recipes(normalize=APART, center_gain=True, spread="std"), st.floats(0.25, 8.0), seeds)
def test_positive_scaling_of_a_groups_gains_changes_nothing_up_to_the_epsilons(
    batch, recipe, factor, seed
):
    """Invariant 11. The two epsilons change a z-score by 1e-6 / sigma + 1e-8 / sigma^2, and so the scale: twice that
    on every term of the discounted sum, and rounding."""
    group = some_group(batch, seed)
    sigma = oracle.stats(oracle.group_sets(batch.rewards, batch.groups, group)[1])[1] * min(
        1.0, factor
    )
    assume(sigma > 0.02)
    terms = oracle.reward_terms(batch.rewards, batch.groups, recipe)
    largest = max(sum(abs(v) for v in row if v is not None) for row in terms)
    tolerance = 2.1 * (1e-6 / sigma + 1e-8 / sigma**2) * largest + rounding(batch, recipe)
    after = changed(batch, group, turn=lambda v: factor * v)
    assert_close(advantages(after, recipe), advantages(batch, recipe), tolerance)


@given(batches(), recipes())
def test_negating_every_reward_negates_every_advantage_exactly(batch, recipe):
    """Invariant 12, every mode."""
    negated = advantages(changed(batch, turn=lambda v: -v, outcome=lambda v: -v), recipe)
    assert [[-a for a in row] for row in negated] == advantages(batch, recipe)


# ---------------------------------------------------------------------------------------------- order, removal, clones


@given(usual, recipes(), seeds)
def test_order_of_rollouts_and_names_of_groups_do_not_matter(batch, recipe, seed):
    """Invariant 13."""
    rng = random.Random(seed)
    order = rng.sample(range(len(batch.groups)), len(batch.groups))
    names = dict(
        zip(
            sorted(set(batch.groups)),
            rng.sample(range(-100, 100), len(set(batch.groups))),
            strict=True,
        )
    )
    moved = Batch([batch.rewards[i] for i in order], [names[batch.groups[i]] for i in order])
    expected = advantages(batch, recipe)
    assert_close(advantages(moved, recipe), [expected[i] for i in order], rounding(batch, recipe))


@given(usual, recipes(normalize=("joint", "separate", "none")), seeds)
def test_removing_a_group_leaves_the_others_as_they_were(batch, recipe, seed):
    """Invariant 14; not in the scaled mode, whose scale is taken over the whole batch."""
    gone = some_group(batch, seed)
    keep = [i for i, g in enumerate(batch.groups) if g != gone]
    expected = advantages(batch, recipe)
    assert advantages(chosen(batch, keep), recipe) == [expected[i] for i in keep]


@given(usual, recipes())
def test_cloning_all_groups_under_new_names_changes_nothing(batch, recipe):
    """Invariant 15, the scale included."""
    twice = Batch(batch.rewards * 2, batch.groups + [10**9 + g for g in batch.groups])
    assert_close(advantages(twice, recipe), advantages(batch, recipe) * 2, rounding(batch, recipe))


@given(usual, recipes(center_gain=True), st.integers(2, 3))
def test_cloning_every_rollout_inside_its_group_changes_nothing(batch, recipe, copies):
    """Invariant 16: the std is that of the population."""
    cloned = Batch(batch.rewards * copies, batch.groups * copies)
    assert_close(
        advantages(cloned, recipe), advantages(batch, recipe) * copies, rounding(cloned, recipe)
    )


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
    assert math.fsum(v * v for v in z) / n == pytest.approx(
        variance / (sigma + 1e-6) ** 2, abs=1e-7
    )
    assert max(abs(v) for v in z) <= math.sqrt(n - 1)


@given(usual, recipes(normalize=APART), seeds)
def test_a_group_of_one_has_no_outcome_signal(batch, recipe, seed):
    """Invariant 19."""
    group = some_group(batch, seed)
    first = batch.groups.index(group)
    keep = [i for i, g in enumerate(batch.groups) if g != group or i == first]
    assert advantages(chosen(batch, keep), recipe)[keep.index(first)][-1] == 0.0


@given(usual, recipes(normalize=APART), constants)
def test_equal_outcomes_give_no_outcome_signal_and_the_gains_remain(batch, recipe, c):
    """Invariant 20."""
    equal = changed(batch, outcome=lambda v: c)
    record = advantage_record(equal.rewards, equal.groups, recipe)
    assert max(abs(z) for z in record.outcome_z) <= rounding(equal, recipe)
    gains_only = [
        oracle.returns([*row[:-1], 0.0], r.penalties, recipe)
        for row, r in zip(record.terms, equal.rewards, strict=True)
    ]
    assert_close(record.advantages, gains_only, rounding(equal, recipe))


@given(st.integers(2, 8), st.data(), st.sampled_from(APART))
def test_k_of_n_correct_gives_the_two_values_of_the_binary_formula(n, data, normalize):
    """Invariant 21: +sqrt((n-k)/k) and -sqrt(k/(n-k)), times 1 / (1 + 1e-6/sigma)."""
    k = data.draw(st.integers(1, n - 1))
    rows = turn_advantages(
        [TurnRewards([], float(i < k)) for i in range(n)], [0] * n, Recipe(normalize=normalize)
    )
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
    (first, _), (other, _) = (
        turn_advantages(batch, [0, 0], recipe(normalize=normalize)) for batch in (zero, absent)
    )
    assert any(abs(a - b) > 1e-3 for a, b in zip(first, other, strict=True))


@given(usual, recipes(center_gain=True), st.sampled_from((1e-10, -1e-10)))
def test_replacing_zero_by_a_trace_changes_next_to_nothing(batch, recipe, trace):
    """Invariant 22, second half: at most 1e-10 / 1e-4 per z-score, times the scale of up to 10, summed over 13
    turns."""
    after = changed(batch, turn=lambda v: trace if v == 0 else v)
    assert_close(
        advantages(after, recipe),
        advantages(batch, recipe),
        2 * 1e-6 * 10 * 13 * max(1.0, recipe.ig_weight),
    )


@given(batches(), recipes(normalize="scaled"))
def test_scaled_gains_are_on_average_as_large_as_the_outcomes_unless_capped(batch, recipe):
    """Invariants 23 and 24: mean |s z| = max(M_O, 0.3) up to 1e-6 / M_IG; 0 < s <= 10."""
    record = advantage_record(batch.rewards, batch.groups, recipe)
    gains = [abs(z) for row in record.turn_z for z in row if z is not None]
    outcome_size = math.fsum(abs(z) for z in record.outcome_z) / len(record.outcome_z)
    assert 0 < record.scale <= 10
    if gains and record.scale < 10:
        turn_reward_size = math.fsum(gains) / len(gains)
        assert record.scale * turn_reward_size == pytest.approx(
            max(outcome_size, 0.3), rel=1e-9 + 1.01e-6 / turn_reward_size
        )
    if gains and max(gains) == 0:
        assert record.scale == 10


def test_the_floor_and_the_cap_of_the_scale():
    """Equal outcomes: M_O = 0, the floor 0.3 counts. One gain per group: z = 0, M_IG = 0, the cap 10 counts."""
    floor = advantage_record([TurnRewards([0.0], 1.0), TurnRewards([1.0], 1.0)], [0, 0], Recipe())
    assert floor.scale == pytest.approx(0.3, rel=1e-5)
    cap = advantage_record([TurnRewards([0.5], 1.0), TurnRewards([], 0.0)], [0, 0], Recipe())
    assert cap.scale == 10 and cap.turn_reward_size == 0
    assert cap.advantages[0][0] == pytest.approx(0.95 * cap.outcome_z[0])


@given(usual, recipes(normalize="scaled", outcome_on="last"))
def test_scaled_is_separate_with_the_turn_rewards_times_s_and_the_outcome_untouched(batch, recipe):
    """Invariants 24 and 25."""
    scaled = advantage_record(batch.rewards, batch.groups, recipe)
    apart = advantage_record(batch.rewards, batch.groups, replace(recipe, normalize="separate"))
    for a, b in zip(scaled.terms, apart.terms, strict=True):
        assert a[-1] == b[-1]
        assert a[:-1] == [
            None if z is None else pytest.approx(scaled.scale * z, abs=1e-12) for z in b[:-1]
        ]
