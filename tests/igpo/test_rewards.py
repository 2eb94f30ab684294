"""From kinds, gains, malformed turns and the outcome to the rewards of a rollout."""

import pytest
from hypothesis import given

from minvenus.igpo.recipes import Recipe
from minvenus.igpo.rewards import turn_rewards
from tests.igpo import oracle
from tests.igpo.strategies import beliefs_of, recipes, samples

KINDS = ["search", "visit", "search", "search", "visit", "search", "answer"]
GAINS = [None, 0.5, None, None, -0.25, None, None]
ZERO = [None, 0.0, None, None, 0.5, None, None]


@pytest.mark.parametrize(
    "recipe, gains, bad, turns",
    [
        (Recipe(), GAINS, (), [0.5, 0.5, -0.25, -0.25, -0.25, None]),
        (Recipe(browse="segment"), GAINS, (), [None, 0.5, None, None, -0.25, None]),
        (Recipe(use_gain=False), [None] * 7, (0, 1), [None] * 6),
        (Recipe(), ZERO, (), [0.0, 0.0, 0.5, 0.5, 0.5, None]),
        (Recipe(), GAINS, (2,), [0.5, 0.5, -1.0, -0.25, -0.25, None]),
        (Recipe(), GAINS, (4,), [0.5, 0.5, -0.25, -0.25, -1.0, None]),
        (Recipe(penalty_scope="segment"), GAINS, (3,), [0.5, 0.5, -1.0, -1.0, -0.25, None]),
    ],
    ids=[
        "replicate",
        "segment",
        "grpo has no turn rewards, no penalties either",
        "a zero gain is copied like any other",
        "a penalty replaces the copy of its turn and cuts no search off from its visit",
        "a malformed visit loses its gain and its searches keep their copies",
        "with the segment scope the search before a malformed turn copies its penalty",
    ],
)
def test_who_gets_a_visits_gain_or_a_penalty(recipe, gains, bad, turns):
    malformed = [t in bad for t in range(7)]
    rewards = turn_rewards(KINDS, gains, malformed, 1.0, recipe)
    assert rewards.turns == turns
    assert rewards.outcome == 1.0
    assert rewards.is_penalty() == [reward == -1.0 for reward in turns]


@pytest.mark.parametrize(
    "penalty, turns, outcome",
    [(1.0, [0.5, -1.0, -1.0], -1.0), (0.0, [0.5, 0.0, 0.0], 0.0), (None, [0.5, 0.5, None], 1.0)],
)
def test_a_penalty_of_zero_takes_gain_and_outcome_away_and_none_leaves_them(
    penalty, turns, outcome
):
    """The table of docs/recipes.md."""
    rewards = turn_rewards(
        ["search", "visit", "none", "answer"],
        [None, 0.5, None, None],
        [False, True, True, True],
        1.0,
        Recipe(format_penalty=penalty),
    )
    assert (rewards.turns, rewards.outcome) == (turns, outcome)
    assert rewards.is_penalty() == [False] + [penalty is not None] * 2


@pytest.mark.parametrize(
    "kinds, gains, malformed",
    [
        (["search", "answer"], [None], [False, False]),
        (["search", "answer"], [None, None], [False]),
        ([], [], []),
    ],
)
def test_lists_of_different_lengths_are_an_error(kinds, gains, malformed):
    with pytest.raises(ValueError):
        turn_rewards(kinds, gains, malformed, 1.0, Recipe())


# --------------------------------------------------------------------------------------- properties


def gains_of(m, recipe):
    return oracle.segment_gains(beliefs_of(m), m.rollout.kinds, recipe)


@given(samples(), recipes(penalty_scope="turn"))
def test_making_one_turn_malformed_changes_the_reward_of_that_turn_only(m, recipe):
    """The localised penalty has no neighbours."""
    gains = gains_of(m, recipe)
    for t in range(len(m.rollout.kinds) - 1):
        earlier, later = m.rollout.malformed[:t], m.rollout.malformed[t + 1 :]
        before = turn_rewards(m.rollout.kinds, gains, [*earlier, False, *later], m.outcome, recipe)
        after = turn_rewards(m.rollout.kinds, gains, [*earlier, True, *later], m.outcome, recipe)
        assert after.turns[t] == -recipe.format_penalty
        assert after.turns[:t] + after.turns[t + 1 :] == before.turns[:t] + before.turns[t + 1 :]
        assert after.outcome == before.outcome


@given(samples(), recipes(browse="replicate"))
def test_a_copied_gain_is_that_of_the_next_visit_and_stays_in_its_segment(m, recipe):
    gains = gains_of(m, recipe)
    rewards = turn_rewards(
        m.rollout.kinds, gains, [False] * len(m.rollout.kinds), m.outcome, recipe
    )
    waiting = []
    for t, kind in enumerate(m.rollout.kinds[:-1]):
        if kind == "search":
            waiting.append(t)
        elif kind == "visit":
            assert all(rewards.turns[s] == gains[t] for s in [*waiting, t])
            waiting = []
        else:
            assert rewards.turns[t] is None
    assert all(rewards.turns[t] is None for t in waiting), (
        "searches after the last visit have no gain"
    )
