"""Invariants 9 to 21: what may be added, scaled, permuted, cloned or removed without changing an advantage, mode by
mode, and for each mode in which an invariant does not hold, an example of how it fails."""

import math
import random

import pytest
from hypothesis import assume, given
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


def changed(batch: Batch, group=None, turn=lambda v: v, outcome=lambda v: v) -> Batch:
    """The batch with `turn` applied to every present turn reward and `outcome` to every outcome, of one group or of
    all."""
    rewards = [TurnRewards([None if v is None else turn(v) for v in r.turns], outcome(r.outcome), penalties=r.penalties)
               if group is None or g == group else r for r, g in zip(batch.rewards, batch.groups, strict=True)]
    return Batch(rewards, batch.groups)


def some_group(batch: Batch, seed: int) -> int:
    return random.Random(seed).choice(sorted(set(batch.groups)))


def unchanged(before: Batch, after: Batch, recipe: Recipe) -> None:
    assert_close(
        advantages(after, recipe), advantages(before, recipe), max(rounding(before, recipe), rounding(after, recipe))
    )


def differ(a, b) -> bool:
    return any(abs(x - y) > 1e-3 for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))


EXAMPLE = Batch(
    [
        TurnRewards([0.5, -0.1], 1.0),
        TurnRewards([0.2, None], 0.0),
        TurnRewards([0.3], 1.0),
        TurnRewards([-0.4], 0.0),
        TurnRewards([0.9, 0.1], 0.0),
    ],
    [0, 0, 1, 1, 1],
)


# ----------------------------------------------------------------------------------------------------- shift and scale


@given(usual, recipes(normalize=APART), constants, st.integers(0, 99))
def test_adding_a_constant_to_every_outcome_of_a_group_changes_nothing(batch, recipe, c, seed):
    """Invariant 9."""
    unchanged(batch, changed(batch, some_group(batch, seed), outcome=lambda v: v + c), recipe)


@given(usual, recipes(normalize=APART, center_gain=True), constants, st.integers(0, 99))
def test_adding_a_constant_to_every_turn_reward_of_a_group_changes_nothing(batch, recipe, c, seed):
    """Invariant 10; penalties are shifted with the gains."""
    unchanged(batch, changed(batch, some_group(batch, seed), turn=lambda v: v + c), recipe)


@pytest.mark.parametrize("recipe", [Recipe(normalize="joint"), Recipe(normalize="none"),
                                    Recipe(center_gain=False), Recipe(normalize="separate", center_gain=False)])
def test_a_shift_of_gains_changes_pooled_raw_and_uncentred_rewards(recipe):
    assert differ(advantages(EXAMPLE, recipe), advantages(changed(EXAMPLE, 0, turn=lambda v: v + 1), recipe))


def scaling_error(batch: Batch, group: int, factor: float) -> float:
    """The relative change of z by the two epsilons when a set with spread sigma is scaled: 1e-6 / sigma + 1e-8 /
    sigma^2."""
    _, gains = oracle.group_sets(batch.rewards, batch.groups, group)
    sigma = oracle.stats(gains)[1] * min(1.0, factor)
    assume(sigma > 0.02)
    return 1e-6 / sigma + 1e-8 / sigma**2


@given(usual, recipes(normalize=APART, center_gain=True), st.floats(0.25, 8.0), st.integers(0, 99))
def test_positive_scaling_of_a_groups_gains_changes_nothing_up_to_the_epsilons(batch, recipe, factor, seed):
    """Invariant 11."""
    group = some_group(batch, seed)
    error = scaling_error(batch, group, factor)
    after = changed(batch, group, turn=lambda v: factor * v)
    terms = oracle.reward_terms(batch.rewards, batch.groups, recipe)
    largest = max(sum(abs(v) for v in row if v is not None) for row in terms)
    # z moves by `error`, and so does the scale: twice the error on every term of the discounted sum, and rounding.
    assert_close(advantages(after, recipe), advantages(batch, recipe), 2.1 * error * largest + rounding(batch, recipe))


@given(batches(), recipes())
def test_negating_every_reward_negates_every_advantage_exactly(batch, recipe):
    """Invariant 12, every mode."""
    negated = advantages(changed(batch, turn=lambda v: -v, outcome=lambda v: -v), recipe)
    assert [[-a for a in row] for row in negated] == advantages(batch, recipe)


# ---------------------------------------------------------------------------------------------- order, removal, clones


@given(usual, recipes(), st.integers(0, 2**32 - 1))
def test_order_of_rollouts_and_names_of_groups_do_not_matter(batch, recipe, seed):
    """Invariant 13."""
    rng = random.Random(seed)
    order = rng.sample(range(len(batch.groups)), len(batch.groups))
    names = dict(zip(sorted(set(batch.groups)), rng.sample(range(-100, 100), len(set(batch.groups))), strict=True))
    moved = Batch([batch.rewards[i] for i in order], [names[batch.groups[i]] for i in order])
    expected = advantages(batch, recipe)
    assert_close(advantages(moved, recipe), [expected[i] for i in order], rounding(batch, recipe))


@given(usual, recipes(normalize=("joint", "separate", "none")), st.integers(0, 99))
def test_removing_a_group_leaves_the_others_as_they_were(batch, recipe, seed):
    """Invariant 14."""
    gone = some_group(batch, seed)
    keep = [i for i, g in enumerate(batch.groups) if g != gone]
    rest = Batch([batch.rewards[i] for i in keep], [batch.groups[i] for i in keep])
    expected = advantages(batch, recipe)
    assert_close(advantages(rest, recipe), [expected[i] for i in keep], 0.0)


def test_removing_a_group_changes_the_scale_of_the_others():
    """Invariant 14 fails for the scaled mode by design: IG-Scale is taken over the whole batch."""
    alone = Batch(EXAMPLE.rewards[:2], EXAMPLE.groups[:2])
    together = advantages(EXAMPLE, Recipe())[:2]
    assert differ(advantages(alone, Recipe()), together)
    assert_close([[row[-1]] for row in advantages(alone, Recipe())], [[row[-1]] for row in together], 0.0)


@given(usual, recipes())
def test_cloning_all_groups_under_new_names_changes_nothing(batch, recipe):
    """Invariant 15, the scale included."""
    twice = Batch(batch.rewards * 2, batch.groups + [10**9 + g for g in batch.groups])
    assert_close(advantages(twice, recipe), advantages(batch, recipe) * 2, rounding(batch, recipe))


@given(usual, recipes(center_gain=True), st.integers(2, 3))
def test_cloning_every_rollout_inside_its_group_changes_nothing(batch, recipe, copies):
    """Invariant 16: the std is that of the population."""
    cloned = Batch(batch.rewards * copies, batch.groups * copies)
    assert_close(advantages(cloned, recipe), advantages(batch, recipe) * copies, rounding(cloned, recipe))


def test_cloning_changes_a_single_uncentred_gain():
    """Invariant 16 fails for one entry that is not centred: its sigma jumps from 1 to 1e-4."""
    one = [TurnRewards([0.5], 1.0)]
    recipe = Recipe(normalize="separate", center_gain=False, gamma=0.0)
    assert turn_advantages(one, [0], recipe)[0][0] == pytest.approx(0.5 / (1 + 1e-6))
    assert turn_advantages(one * 2, [0, 0], recipe)[0][0] == pytest.approx(0.5 / (1e-4 + 1e-6))


# --------------------------------------------------------------------------------------------- the normalised values


def sets_of_z(batch: Batch, recipe: Recipe):
    """(z-scores, raw values) of every set that was normalised, from the record."""
    record = advantage_record(batch.rewards, batch.groups, recipe)
    for group in set(batch.groups):
        rows = [i for i, g in enumerate(batch.groups) if g == group]
        outcomes, gains = oracle.group_sets(batch.rewards, batch.groups, group)
        z_outcomes = [record.outcome_z[i] for i in rows]
        z_gains = [z for i in rows for z in record.turn_z[i] if z is not None]
        if recipe.normalize == "joint":
            yield z_outcomes + z_gains, outcomes + gains
        else:
            yield z_outcomes, outcomes
            yield z_gains, gains


@given(usual, recipes(normalize=Z_SCORED, center_gain=True))
def test_z_scores_have_mean_zero_and_the_population_mean_square(batch, recipe):
    """Invariants 17 and 18: sum z = 0, mean z^2 = var / (sigma + 1e-6)^2 <= 1, |z| <= sqrt(n - 1)."""
    for z, raw in sets_of_z(batch, recipe):
        n = len(z)
        if n < 2:
            assert all(v == 0 for v in z)
            continue
        mean, sigma = oracle.stats(raw)
        variance = math.fsum((v - mean) ** 2 for v in raw) / n
        assert abs(math.fsum(z)) <= n * rounding(batch, recipe)
        assert math.fsum(v * v for v in z) / n == pytest.approx(variance / (sigma + 1e-6) ** 2, abs=1e-7)
        assert max(abs(v) for v in z) <= math.sqrt(n - 1)


@given(usual, recipes(normalize=APART), st.integers(0, 99))
def test_a_group_of_one_has_no_outcome_signal(batch, recipe, seed):
    """Invariant 19."""
    group = some_group(batch, seed)
    first = batch.groups.index(group)
    keep = [i for i, g in enumerate(batch.groups) if g != group or i == first]
    alone = Batch([batch.rewards[i] for i in keep], [batch.groups[i] for i in keep])
    assert advantages(alone, recipe)[keep.index(first)][-1] == 0.0


@given(usual, recipes(normalize=APART), constants)
def test_equal_outcomes_give_no_outcome_signal_and_the_gains_remain(batch, recipe, c):
    """Invariant 20."""
    equal = changed(batch, outcome=lambda v: c)
    record = advantage_record(equal.rewards, equal.groups, recipe)
    assert max(abs(z) for z in record.outcome_z) <= rounding(equal, recipe)
    gains_only = [oracle.returns([*row[:-1], 0.0], r.penalties, recipe)
                  for row, r in zip(record.terms, equal.rewards, strict=True)]
    assert_close(record.advantages, gains_only, rounding(equal, recipe))


def test_where_outcomes_are_equal_grpo_is_silent_and_igpo_speaks_iff_gains_differ():
    """Invariant 20, second half."""
    outcomes_equal = changed(EXAMPLE, outcome=lambda v: 1.0)
    without = Batch([TurnRewards([None] * len(r.turns), 1.0) for r in EXAMPLE.rewards], EXAMPLE.groups)
    all_equal = changed(outcomes_equal, turn=lambda v: 0.25)
    assert all(a == 0 for row in advantages(without, Recipe(use_gain=False)) for a in row)
    assert any(abs(a) > 0.1 for row in advantages(outcomes_equal, Recipe()) for a in row)
    assert all(abs(a) < 1e-9 for row in advantages(all_equal, Recipe()) for a in row)


@given(st.integers(2, 8), st.data(), st.sampled_from(APART))
def test_k_of_n_correct_gives_the_two_values_of_the_binary_formula(n, data, normalize):
    """Invariant 21: +sqrt((n-k)/k) and -sqrt(k/(n-k)), times 1 / (1 + 1e-6/sigma)."""
    k = data.draw(st.integers(1, n - 1))
    rows = turn_advantages([TurnRewards([], float(i < k)) for i in range(n)], [0] * n, Recipe(normalize=normalize))
    sigma = math.sqrt(k * (n - k)) / n
    right, wrong = math.sqrt((n - k) / k), -math.sqrt(k / (n - k))
    for i, (a,) in enumerate(rows):
        assert a == pytest.approx((right if i < k else wrong) / (1 + 1e-6 / sigma), rel=1e-6)
