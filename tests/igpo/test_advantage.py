"""Advantages: every number of the record against the definition, small cases by hand, what is
refused; the discounted sum over turns (`paper`) or over rewarded turns (`released`), and how far a
format penalty reaches."""

import math
from dataclasses import fields, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minvenus.igpo.advantage import advantage_record, token_advantages, turn_advantages
from minvenus.igpo.recipes import Recipe
from minvenus.types import TurnRewards
from tests.igpo import oracle
from tests.igpo.strategies import (
    ORDINARY,
    Batch,
    advantages,
    amplification,
    assert_close,
    batches,
    choices_of_recipes,
    recipes,
    rounding,
)

Z_SCORED = ("separate", "scaled", "joint")
usual = batches(magnitudes=ORDINARY, max_groups=6)
# Beyond this, z-scores of nearly equal, large values are rounding noise and two correct programs
# may differ in the first digit.
WELL_CONDITIONED = 1e6


def test_every_field_of_a_recipe_that_is_arithmetic_is_drawn_by_the_strategies():
    """Otherwise a wrong formula of it would pass unseen, here and on the pages."""
    drawn = {*choices_of_recipes(), "use_gain", "format_penalty"}  # the last two where they matter
    assert {f.name for f in fields(Recipe)} - drawn == {"newlines_after_think", "lead_in"}


@given(batches(), recipes())
def test_advantages_equal_the_definition(batch, recipe):
    """With every number that they were made of, as the record keeps it."""
    assume(recipe.normalize == "none" or amplification(batch, recipe) < WELL_CONDITIONED)
    rewards, groups = batch.rewards, batch.groups
    record = advantage_record(rewards, groups, recipe)
    scores = oracle.z_scores(rewards, groups, recipe)
    scale, outcome_size, turn_reward_size = oracle.ig_scale(scores)
    tolerance = rounding(batch, recipe)
    assert_close(record.advantages, oracle.advantages(rewards, groups, recipe), tolerance)
    assert_close(record.terms, oracle.reward_terms(rewards, groups, recipe), tolerance)
    assert_close(record.turn_z, [z for z, _ in scores], tolerance)
    assert_close([record.outcome_z], [[z for _, z in scores]], tolerance)
    assert record.outcome_size == pytest.approx(outcome_size, abs=tolerance)
    assert record.turn_reward_size == pytest.approx(turn_reward_size, abs=tolerance)
    scale = scale if recipe.normalize == "scaled" else 1.0
    assert record.scale == pytest.approx(scale, rel=1e-9 + 40 * tolerance)
    assert set(record.groups) == set(groups)
    for group, stats in record.groups.items():
        outcomes, turns = oracle.group_sets(rewards, groups, group)
        if recipe.normalize == "joint":
            outcomes = turns = outcomes + turns
        expected = *oracle.stats(outcomes), oracle.stats(turns)[0], oracle.divisor(turns, recipe)
        found = stats.outcome_mean, stats.outcome_std, stats.turn_reward_mean
        assert (*found, stats.turn_reward_spread) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(batches(magnitudes=(1.0, 1e9, 1e90, 1e-150)), recipes())
def test_advantages_are_finite_whatever_the_magnitude(batch, recipe):
    for row in turn_advantages(batch.rewards, batch.groups, recipe):
        assert all(math.isfinite(a) for a in row)


# ------------------------------------------------------------------------------------------ by hand


def test_two_rollouts_with_gamma_half_worked_by_hand():
    """Gains 1 and 3: mean 2, sigma 1; outcomes 1 and 0: z = +1 and -1. The search in the middle has
    no reward."""
    batch = [TurnRewards([1.0, None], 1.0), TurnRewards([3.0], 0.0)]
    z = 1.0 / (math.sqrt(1 + 1e-8) + 1e-6)
    o = 0.5 / (math.sqrt(0.25 + 1e-8) + 1e-6)
    recipe = Recipe(normalize="separate", gamma=0.5)
    per_turn = turn_advantages(batch, [5, 5], recipe)
    assert_close(per_turn, [[-z + 0.25 * o, 0.5 * o, o], [z - 0.5 * o, -o]], 1e-14)
    per_reward = turn_advantages(batch, [5, 5], replace(recipe, discount_over="rewards"))
    assert_close(per_reward, [[-z + 0.5 * o, o, o], [z - 0.5 * o, -o]], 1e-14)


def test_what_gains_are_divided_by_worked_by_hand():
    """Gains 3 and 4: mean 3.5, std .5, root mean square sqrt(12.5). Outcomes are divided by their
    std in any case."""
    batch = [TurnRewards([3.0], 1.0), TurnRewards([4.0], 0.0)]
    spreads = {"std": math.sqrt(0.25 + 1e-8), "rms": math.sqrt(12.5 + 1e-8), "one": 1.0}
    for spread, divisor in spreads.items():
        for center, mean in ((True, 3.5), (False, 0.0)):
            recipe = Recipe(normalize="separate", spread=spread, center_gain=center)
            record = advantage_record(batch, [0, 0], recipe)
            z = [[(gain - mean) / (divisor + 1e-6)] for gain in (3, 4)]
            assert_close(record.turn_z, z, 1e-12)
            assert record.outcome_z == pytest.approx([1.0, -1.0], abs=1e-5)
    pooled = advantage_record(batch, [0, 0], Recipe(normalize="joint", spread="rms"))  # 3, 4, 1, 0
    assert pooled.turn_z[0][0] == pytest.approx((3 - 2) / (math.sqrt(6.5 + 1e-8) + 1e-6))
    assert pooled.outcome_z[0] == pytest.approx((1 - 2) / (math.sqrt(2.5 + 1e-8) + 1e-6))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_equal_gains_are_about_1_over_their_root_mean_square_and_huge_over_their_std(count):
    """A group without any spread has the std 1e-4: uncentred, its gains are 4,000 and IG-Scale then
    silences the other group. Over the root mean square they are 1, and the scale stays near 1."""
    batch = [TurnRewards([0.4], float(i == 0)) for i in range(count)]
    batch += [TurnRewards([0.2], 1.0), TurnRewards([0.6], 0.0)]
    groups = [0] * count + [1, 1]
    uncentred = Recipe(center_gain=False)
    rms = advantage_record(batch, groups, replace(uncentred, spread="rms"))
    assert [z for row in rms.turn_z[:count] for z in row] == pytest.approx([1.0] * count, abs=1e-5)
    assert 0.3 < rms.scale < 1.5
    if count > 1:
        std = advantage_record(batch, groups, uncentred)
        assert std.turn_z[0][0] > 3000 and std.scale < 1e-3


@pytest.mark.parametrize("normalize", Z_SCORED)
@pytest.mark.parametrize("recipe", [Recipe.paper, Recipe.released])
def test_a_genuine_zero_gain_counts_and_an_absent_gain_does_not(recipe, normalize):
    zero = [TurnRewards([0.0, 0.4], 1.0), TurnRewards([0.2], 0.0)]
    absent = [TurnRewards([None, 0.4], 1.0), TurnRewards([0.2], 0.0)]
    (first, _), (other, _) = (
        turn_advantages(batch, [0, 0], recipe(normalize=normalize)) for batch in (zero, absent)
    )
    assert any(abs(a - b) > 1e-3 for a, b in zip(first, other, strict=True))


def test_equal_outcomes_give_no_outcome_signal_and_the_gains_remain():
    """GRPO learns nothing here. Gains 0 and 1 are z = -1 and +1, times the floor 0.3 of the
    scale."""
    batch = [TurnRewards([0.0], 1.0), TurnRewards([1.0], 1.0)]
    assert turn_advantages(batch, [0, 0], Recipe(use_gain=False, gamma=1.0))[0][-1] == 0.0
    assert_close(turn_advantages(batch, [0, 0], Recipe()), [[-0.3, 0.0], [0.3, 0.0]], 1e-5)


def test_the_floor_and_the_cap_of_the_scale():
    """Equal outcomes: mean |z_O| is 0, the floor 0.3 counts. One gain per group: its z is 0, the
    cap 10 counts."""
    floor = advantage_record([TurnRewards([0.0], 1.0), TurnRewards([1.0], 1.0)], [0, 0], Recipe())
    assert floor.scale == pytest.approx(0.3, rel=1e-5)
    cap = advantage_record([TurnRewards([0.5], 1.0), TurnRewards([], 0.0)], [0, 0], Recipe())
    assert cap.scale == 10 and cap.turn_reward_size == 0
    assert cap.advantages[0][0] == pytest.approx(0.95 * cap.outcome_z[0])


def test_every_token_of_a_turn_holds_its_advantage_and_the_others_hold_zero():
    tokens = token_advantages([0.5, -2.0], [(2, 4), (5, 6)], 7)
    assert tokens == [0.0, 0.0, 0.5, 0.5, 0.0, -2.0, 0.0]
    with pytest.raises(ValueError):
        token_advantages([0.5], [(0, 1), (1, 2)], 3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e160])
@pytest.mark.parametrize("place", ["turn", "outcome"])
def test_a_reward_that_is_not_finite_or_whose_square_is_not_is_an_error(bad, place):
    first = TurnRewards([bad], 1.0) if place == "turn" else TurnRewards([0.1], bad)
    with pytest.raises(ValueError, match="rollout 0: rewards must be finite"):
        turn_advantages([first, TurnRewards([0.1], 0.0)], [0, 0], Recipe())


def test_one_group_id_per_rollout_is_needed_and_an_empty_batch_has_no_advantages():
    with pytest.raises(ValueError):
        turn_advantages([TurnRewards([], 1.0), TurnRewards([], 0.0)], [0], Recipe())
    assert turn_advantages([], [], Recipe()) == []


# ------------------------------------------------------------------------------- the discounted sum


@given(usual, recipes(discount_over="turns"))
def test_over_turns_every_turn_costs_a_factor_gamma_rewarded_or_not(batch, recipe):
    """The paper's form; over rewards it is what the definition says."""
    record = advantage_record(batch.rewards, batch.groups, recipe)
    for terms, a in zip(record.terms, record.advantages, strict=True):
        sums = [(terms[t] or 0.0) + recipe.gamma * a[t + 1] for t in range(len(a) - 1)]
        assert a == pytest.approx([*sums, terms[-1]], rel=1e-12, abs=1e-12)


@given(usual, recipes(discount_over="rewards"), st.data())
def test_inserting_an_unrewarded_turn_changes_no_other_advantage(batch, recipe, data):
    """Exactly; with the segment scope the new turn equals its successor."""
    i = data.draw(st.integers(0, len(batch.rewards) - 1))
    r = batch.rewards[i]
    t = data.draw(st.integers(0, len(r.turns)))
    turns, flags = [*r.turns], [*r.is_penalty()]
    turns.insert(t, None)
    flags.insert(t, False)
    rewards = [*batch.rewards]
    rewards[i] = TurnRewards(turns, r.outcome, flags)
    after = advantages(Batch(rewards, batch.groups), recipe)
    new = after[i].pop(t)
    assert after == advantages(batch, recipe)
    if recipe.penalty_scope == "segment":
        assert new == after[i][t]


@given(usual, recipes(discount_over="rewards", use_gain=False, normalize=Z_SCORED))
def test_without_gains_all_turns_share_the_outcome_in_every_mode_and_gamma_is_irrelevant(
    batch, recipe
):
    bare = [TurnRewards([None] * len(r.turns), r.outcome) for r in batch.rewards]
    batch = Batch(bare, batch.groups)
    ours = advantages(batch, recipe)
    assert all(a == row[-1] for row in ours for a in row)
    assert ours == advantages(batch, replace(recipe, gamma=0.3))


# --------------------------------------------------------------------------- the reach of a penalty


def test_a_search_before_a_malformed_turn_keeps_belonging_to_its_visit():
    """Search, malformed turn, visit (0.4), answer (1), raw rewards, gamma 1/2. Localised, the
    search shares the visit's return 0.4 + 0.5; leaking, it shares the malformed turn's -1 +
    0.45."""
    rewards = [TurnRewards([None, -1.0, 0.4], 1.0, penalties=[False, True, False])]
    recipe = Recipe.released(normalize="none", gamma=0.5)
    localised = turn_advantages(rewards, [0], replace(recipe, penalty_scope="turn"))
    assert_close(localised, [[0.9, -0.55, 0.9, 1.0]], 1e-15)
    assert_close(turn_advantages(rewards, [0], recipe), [[-0.55, -0.55, 0.9, 1.0]], 1e-15)
