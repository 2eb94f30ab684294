"""From kinds, gains, malformed turns and the outcome to the rewards of a rollout."""


import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minvenus.config import Recipe
from minvenus.igpo.rewards import turn_rewards
from tests.igpo import oracle
from tests.igpo.strategies import recipes, trajectories

KINDS = ["search", "visit", "search", "search", "visit", "search", "answer"]
GAINS = [None, 0.5, None, None, -0.25, None, None]
FINE = [False] * 7


def bad(*turns):
    return [t in turns for t in range(7)]


@st.composite
def measured(draw, recipe_strategy):
    """(recipe, kinds, gains, malformed, outcome), gains where the recipe measures them; zero among them."""
    recipe = draw(recipe_strategy)
    kinds, malformed = draw(trajectories())
    values = draw(st.lists(st.sampled_from((-3.0, -2.0)) if draw(st.booleans()) else st.floats(-20.0, 0.0),
                           min_size=len(kinds), max_size=len(kinds)))
    return recipe, kinds, oracle.segment_gains(values, kinds, recipe), malformed, draw(st.sampled_from((0.0, 1.0, 0.3)))


any_recipe = recipes(use_gain=(True, True, True, False), format_penalty=(1.0, 0.0, 0.25, 2.0))


# ------------------------------------------------------------------------------------------------------ worked by hand


@pytest.mark.parametrize("recipe, turns", [
    (Recipe(browse="replicate"), [0.5, 0.5, -0.25, -0.25, -0.25, None]),
    (Recipe(browse="segment"), [None, 0.5, None, None, -0.25, None]),
    (Recipe(use_gain=False), [None] * 6),
], ids=["replicate", "segment", "grpo"])
def test_who_gets_a_visits_gain(recipe, turns):
    gains = GAINS if recipe.use_gain else [None] * 7
    rewards = turn_rewards(KINDS, gains, FINE, 1.0, recipe)
    assert rewards.turns == turns
    assert rewards.outcome == 1.0


def test_a_zero_gain_is_copied_like_any_other():
    gains = [None, 0.0, None, None, 0.5, None, None]
    assert turn_rewards(KINDS, gains, FINE, 1.0, Recipe()).turns == [0.0, 0.0, 0.5, 0.5, 0.5, None]


def test_a_penalty_replaces_the_gain_of_its_turn_and_touches_no_other():
    rewards = turn_rewards(KINDS, GAINS, bad(2), 1.0, Recipe())
    assert rewards.turns == [0.5, 0.5, -1.0, -0.25, -0.25, None]
    assert rewards.penalties == [False, False, True, False, False, False]


def test_a_malformed_visit_loses_its_gain_and_its_searches_keep_their_copies():
    """Only the bad turn is penalised: what the page brought was brought by the searches too."""
    assert turn_rewards(KINDS, GAINS, bad(4), 1.0, Recipe()).turns == [0.5, 0.5, -0.25, -0.25, -1.0, None]


def test_a_malformed_turn_does_not_cut_a_search_off_from_its_visit():
    kinds, gains = ["search", "none", "visit", "answer"], [None, None, 0.4, None]
    assert turn_rewards(kinds, gains, [False, True, False, False], 1.0, Recipe()).turns == [0.4, -1.0, 0.4]


def test_with_the_segment_scope_the_searches_before_a_malformed_turn_copy_its_penalty():
    """The leak of section 5 in the replicating form: turn 3 is malformed, so the search before it no longer sees its
    visit."""
    assert turn_rewards(KINDS, GAINS, bad(3), 1.0, Recipe(penalty_scope="segment")).turns == [
        0.5,
        0.5,
        -1.0,
        -1.0,
        -0.25,
        None,
    ]


def test_grpo_has_no_turn_rewards_and_the_same_outcome():
    """A penalty on a turn before the last would be a turn reward, which GRPO does not have; the outcome is that of
    IGPO."""
    rewards = turn_rewards(KINDS, [None] * 7, bad(0, 1, 6), 1.0, Recipe(use_gain=False))
    assert rewards.turns == [None] * 6
    assert rewards.outcome == -1.0
    assert not any(rewards.penalties or [])


@pytest.mark.parametrize("kinds, gains, malformed", [
    (["search", "answer"], [None], [False, False]), (["search", "answer"], [None, None], [False]), ([], [], []),
    (["answer"], [None, None], [False]),
])
def test_lists_of_different_lengths_are_an_error(kinds, gains, malformed):
    with pytest.raises(ValueError):
        turn_rewards(kinds, gains, malformed, 1.0, Recipe())


# ---------------------------------------------------------------------------------------------------------- properties


@given(measured(any_recipe))
def test_rewards_equal_the_definition(case):
    recipe, kinds, gains, malformed, outcome = case
    ours = turn_rewards(kinds, gains, malformed, outcome, recipe)
    turns, outcome, penalties = oracle.turn_rewards(kinds, gains, malformed, outcome, recipe)
    assert ours.turns == turns
    assert ours.outcome == outcome
    assert list(ours.penalties or [False] * len(turns)) == penalties


@given(measured(any_recipe), st.floats(-5.0, 5.0))
def test_the_outcome_is_the_penalty_iff_the_last_turn_is_malformed_whatever_the_judge_said(case, verdict):
    """Invariant 39."""
    recipe, kinds, gains, malformed, _ = case
    assume(verdict != -recipe.format_penalty)
    rewards = turn_rewards(kinds, gains, malformed, verdict, recipe)
    assert rewards.outcome == (-recipe.format_penalty if malformed[-1] else verdict)


@given(measured(recipes(penalty_scope="turn")), st.data())
def test_making_one_turn_malformed_changes_the_reward_of_that_turn_only(case, data):
    """Invariant 38, the part about rewards: the localised penalty has no neighbours."""
    recipe, kinds, gains, malformed, outcome = case
    assume(len(kinds) > 1)
    t = data.draw(st.integers(0, len(kinds) - 2))
    before = turn_rewards(kinds, gains, [m and i != t for i, m in enumerate(malformed)], outcome, recipe)
    after = turn_rewards(kinds, gains, [m or i == t for i, m in enumerate(malformed)], outcome, recipe)
    assert after.turns[t] == -recipe.format_penalty
    assert [r for i, r in enumerate(after.turns) if i != t] == [r for i, r in enumerate(before.turns) if i != t]
    assert after.outcome == before.outcome


@given(measured(recipes(browse="replicate", penalty_scope="turn")))
def test_a_copied_gain_is_that_of_the_next_visit_and_goes_no_further_back_than_the_visit_before(case):
    recipe, kinds, gains, _, outcome = case
    rewards = turn_rewards(kinds, gains, [False] * len(kinds), outcome, recipe)
    waiting = []
    for t in range(len(kinds) - 1):
        if kinds[t] == "search":
            waiting.append(t)
        elif kinds[t] == "visit":
            assert all(rewards.turns[s] == gains[t] for s in [*waiting, t])
            waiting = []
        else:
            assert rewards.turns[t] is None
    assert all(rewards.turns[t] is None for t in waiting), "searches after the last visit have no gain"
