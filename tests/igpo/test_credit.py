"""Credit in one place: the same numbers as the steps one by one, and one measurement under several recipes."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import Recipe
from minvenus.igpo.advantage import advantage_record
from minvenus.igpo.credit import Measured, credit
from minvenus.igpo.gain import needed_values, segment_gains, value
from minvenus.igpo.rewards import turn_rewards
from tests.igpo.strategies import assert_close, recipes, trajectories

KINDS = ["search", "visit", "search", "answer"]
RECIPES = recipes() | st.builds(replace, recipes(), use_gain=st.just(False))


def belief(*values, tokens=2):
    """Log-probs whose means are these values; None where nothing was asked."""
    return [None if v is None else [v - 0.25, v + 0.25][:tokens] for v in values]


@st.composite
def measured_batches(draw):
    """Up to 3 groups of up to 4 rollouts, the answer scored before every turn, as browse="off" needs it."""
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    batch = []
    for group in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(1, 4))):
            kinds, malformed = draw(trajectories(max_turns=6))
            logprobs = [[-4.0 * rng.random() for _ in range(rng.randint(1, 4))] for _ in kinds]
            batch.append(Measured(kinds, malformed, logprobs, float(rng.random() < 0.5), group))
    return batch


def test_two_rollouts_worked_by_hand():
    """One question, the answer's value -2 before the first turn. A: its visit raises it to -1, answer right. B: its
    visit lowers it to -3, answer wrong. Gains +1 and -1 (the search before a visit gets a copy): four rewards, mean 0,
    std 1. Outcomes 1, 0, std 1/2: every z is +1 or -1, and the scale 1. The search behind the visit has no reward.
    gamma 1/2, over turns: A_3 = 1,  A_2 = 0 + 1/2,  A_1 = 1 + 1/4,  A_0 = 1 + 5/8."""
    a = Measured(KINDS, [False] * 4, belief(-2.0, None, -1.0, None), 1.0, 7)
    b = Measured(KINDS, [False] * 4, belief(-2.0, None, -3.0, None), 0.0, 7)
    done = credit([a, b], Recipe(gamma=0.5))
    assert done.values == [[-2.0, None, -1.0, None], [-2.0, None, -3.0, None]]
    assert done.gains == [[None, 1.0, None, None], [None, -1.0, None, None]]
    assert [r.turns for r in done.rewards] == [[1.0, 1.0, None], [-1.0, -1.0, None]]
    expected = [1.625, 1.25, 0.5, 1.0]
    assert_close(done.record.advantages, [expected, [-x for x in expected]], 1e-5)
    told = done.arithmetic(1, 7)
    assert (
        told["gains"] == [None, -1.0, None, None]
        and told["turn_rewards"] == [-1.0, -1.0, None]
        and told["outcome"] == 0.0
    )
    assert told["advantages"] == done.record.advantages[1] and told["terms"][2] is None
    assert told["group_stats"]["gain_count"] == 4 and told["group_stats"]["outcome_mean"] == 0.5


@given(measured_batches(), RECIPES)
def test_credit_is_the_steps_one_by_one(batch, recipe):
    done = credit(batch, recipe)
    rewards = []
    for i, m in enumerate(batch):
        values = [None] * len(m.kinds)
        for t in needed_values(m.kinds, recipe):
            values[t] = value(m.logprobs[t], recipe.gain)
        gains = segment_gains(values, m.kinds, recipe)
        rewards.append(turn_rewards(m.kinds, gains, m.malformed, m.outcome, recipe))
        assert done.values[i] == values and done.gains[i] == gains
    assert done.rewards == rewards
    assert done.record == advantage_record(rewards, [m.group for m in batch], recipe)


@given(measured_batches())
def test_measured_under_the_paper_credited_as_released_or_without_gains_as_if_measured_so(batch):
    """The first two ask at the same turns, GRPO nowhere: what was measured for `paper` is enough for all three."""
    asked = [
        replace(
            m, logprobs=[x if t in needed_values(m.kinds, Recipe.paper()) else None for t, x in enumerate(m.logprobs)]
        )
        for m in batch
    ]
    for recipe in (Recipe.paper(), Recipe.released(), Recipe.paper(center_gain=False), Recipe.paper(use_gain=False)):
        assert credit(asked, recipe) == credit(batch, recipe)


def test_a_recipe_that_asks_at_more_turns_than_were_measured_is_an_error_with_the_place():
    m = Measured(KINDS, [False] * 4, belief(-2.0, None, -1.0, None), 1.0, 0)
    with pytest.raises(ValueError, match=r"rollout 1, context before turn 1: .* not measured \(browse 'off'\)"):
        credit([replace(m, logprobs=belief(-2.0, -2.0, -1.0, -1.0)), m], Recipe(browse="off"))


def test_log_probs_for_another_number_of_turns_are_an_error():
    with pytest.raises(ValueError, match="rollout 0: 3 entries of log-probs for 4 turns"):
        credit([Measured(KINDS, [False] * 4, belief(-2.0, None, -1.0), 1.0, 0)], Recipe())


# ------------------------------------------------------------------------------------------ credit goes where it should


def random_world(rng: random.Random) -> tuple[list[Measured], int, int]:
    """A group in which one visit of one rollout is the right one; (group, that rollout, that turn).

    Visits follow one or two searches each. The right page lifts the belief in the answer by 1 to 3, others lower it a
    little: one that raised it would have its own gain on top of the discounted right one behind it. The rollout that
    found the page is the only one that may have answered right; most often nobody has, and outcomes say nothing.
    """
    rollouts, size = [], rng.randint(2, 8)
    lucky, found = rng.randrange(size), rng.random() < 0.3
    lift = rng.uniform(1.0, 3.0)
    right = 0
    for i in range(size):
        kinds: list[str] = []
        beliefs = [-4.0]
        visits = rng.randint(1, 5)
        chosen = rng.randrange(visits) if i == lucky else None
        for n in range(visits):
            for kind in ["search"] * rng.randint(1, 2) + ["visit"]:
                kinds.append(kind)
                change = 0.0 if kind == "search" else lift if n == chosen else rng.uniform(-0.02, 0.0)
                beliefs.append(beliefs[-1] + change)
            right = len(kinds) - 1 if n == chosen else right
        kinds.append("answer")
        rollouts.append(Measured(kinds, [False] * len(kinds), belief(*beliefs), float(found and i == lucky), 0))
    return rollouts, lucky, right


@pytest.mark.parametrize("recipe", [Recipe.paper(browse="segment"), Recipe.paper(), Recipe.released(),
                                    Recipe.paper(center_gain=False), Recipe.paper(normalize="separate")],
                         ids=["segment", "paper", "released", "uncentred", "unscaled"])
def test_in_200_random_worlds_the_right_turn_has_the_largest_advantage_of_its_group(recipe):
    """Where a visit's gain, or its return, is given to the searches that led to it too, one of those may have as much
    or more: then it is the right turn's own stretch, searches and visit, that holds the largest."""
    rng = random.Random(0)
    for number in range(200):
        group, lucky, right = random_world(rng)
        advantages = credit(group, recipe).record.advantages
        best = max((a, i, t) for i, row in enumerate(advantages) for t, a in enumerate(row))
        stretch = {right}
        if recipe.browse == "replicate" or recipe.discount_over == "rewards":
            t = right
            while t and group[lucky].kinds[t - 1] == "search":
                t -= 1
                stretch.add(t)
        assert best[1] == lucky and best[2] in stretch, f"world {number}: {best}, right is {(lucky, right)}"
