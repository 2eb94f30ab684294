"""Beliefs in the truth: where the model is asked, what enters the mean; and the gains between
them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.igpo.gain import (
    WrappedTruth,
    belief,
    scored_lengths,
    scored_turns,
    segment_gains,
    truth_logprobs,
)
from minvenus.igpo.recipes import Recipe
from minvenus.types import Question, Rollout, Turn
from tests.igpo.strategies import beliefs_of, recipes, samples

KINDS = ["search", "visit", "search", "search", "visit", "search", "answer"]
KINDS_OF_BELIEF = ("log_prob", "prob")


# -------------------------------------------------------------------------------------------- value


def test_belief_is_the_mean_log_prob_or_the_geometric_mean_probability():
    assert belief([-1.0, -2.0, -6.0], "log_prob") == -3.0
    assert belief([math.log(0.5), math.log(0.125)], "prob") == pytest.approx(0.25, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS_OF_BELIEF)
@pytest.mark.parametrize("tokens", [[], [math.nan], [-1.0, -math.inf], [math.inf, -1.0]])
def test_a_belief_that_does_not_exist_is_an_error_not_a_number(tokens, kind):
    with pytest.raises(ValueError):
        belief(tokens, kind)


# ----------------------------------------------------------------------------- where it is measured

WRAPPED = WrappedTruth(ids=[7, 8, 9, 3, 4], start=3)


def rollout(*kinds):
    """A prompt of 4 tokens, then turns of 3 tokens, each but the last with an observation of 2:
    turns start at 4, 9, 14, 19."""
    sampled = [False] * 4 + ([True] * 3 + [False] * 2) * len(kinds)
    sampled = sampled[:-2]
    turns = [Turn(kind, 4 + 5 * t, 7 + 5 * t, text="") for t, kind in enumerate(kinds)]
    logprobs = [-1.0 if s else None for s in sampled]
    return Rollout(
        Question("q", "where?", ["here"]), [1] * len(sampled), sampled, logprobs, turns, "answered"
    )


def test_the_truth_is_scored_where_beliefs_are_needed_and_the_lead_in_is_left_out():
    """Three of the five wrapped tokens lead in, the truth is the last two."""
    r = rollout("search", "visit", "search", "answer")
    assert scored_lengths(r, Recipe()) == [4, 14]
    scores = [[-9.0, -9.0, -9.0, -2.0, -2.5], [-8.0, -8.0, -8.0, -3.25, -3.75]]
    assert truth_logprobs(r, WRAPPED, scores, Recipe()) == [
        [-2.0, -2.5],
        None,
        [-3.25, -3.75],
        None,
    ]


def test_the_belief_before_anything_was_done_is_that_of_the_prompt_alone():
    """V_0 is scored before the first turn, so that the first turn's gain counts."""
    assert scored_lengths(rollout("visit", "answer"), Recipe()) == [4, 9]


@pytest.mark.parametrize(
    "kinds, recipe",
    [(("search", "answer"), Recipe()), (("visit", "answer"), Recipe(use_gain=False))],
)
def test_the_model_is_not_asked_when_no_gain_is_to_be_computed(kinds, recipe):
    assert scored_lengths(rollout(*kinds), recipe) == []
    assert truth_logprobs(rollout(*kinds), WRAPPED, [], recipe) == [None, None]


@pytest.mark.parametrize("wrong", [[[-1.0] * 5], [[-1.0] * 5] * 3, [[-1.0] * 5, [-1.0] * 2]])
def test_scores_that_do_not_fit_what_was_asked_are_an_error(wrong):
    """One context short, one too many, or a context with the truth's tokens alone."""
    with pytest.raises(ValueError):
        truth_logprobs(rollout("visit", "answer"), WRAPPED, wrong, Recipe())


# -------------------------------------------------------------------------------------------- gains


def test_gains_of_a_small_trajectory_worked_by_hand():
    beliefs = [-5.0, -4.5, -3.0, -3.5, -3.25, -1.0, -0.5]
    visits = [None, 2.0, None, None, 2.0, None, None]
    assert segment_gains(beliefs, KINDS, Recipe(browse="replicate")) == visits
    assert segment_gains(beliefs, KINDS, Recipe(browse="segment")) == visits
    assert segment_gains(beliefs, KINDS, Recipe(browse="off")) == [
        0.5,
        1.5,
        -0.5,
        0.25,
        2.25,
        0.5,
        None,
    ]
    assert segment_gains(beliefs, KINDS, Recipe(use_gain=False)) == [None] * 7


def test_the_answer_turn_has_no_gain_even_when_it_is_a_visit():
    """A rollout that was cut short may end in a visit: it is the last turn, so it has an outcome
    and nothing else."""
    assert segment_gains([-3.0, -2.0], ["visit", "visit"], Recipe()) == [1.0, None]
    assert segment_gains([-3.0], ["visit"], Recipe()) == [None]


@given(samples(), recipes(use_gain=(True, True, True, False)))
def test_beliefs_that_are_not_needed_may_be_missing_and_needed_ones_may_not(m, recipe):
    kinds, beliefs = m.rollout.kinds, beliefs_of(m)
    needed = scored_turns(kinds, recipe)
    sparse = [v if t in needed else None for t, v in enumerate(beliefs)]
    assert segment_gains(sparse, kinds, recipe) == segment_gains(beliefs, kinds, recipe)
    for t in needed:
        with pytest.raises(ValueError):
            segment_gains([None if i == t else v for i, v in enumerate(sparse)], kinds, recipe)


@given(samples(), st.sampled_from(("replicate", "segment")))
def test_a_visits_gain_is_the_sum_over_its_segment_and_trailing_searches_are_dropped(m, browse):
    kinds, beliefs = m.rollout.kinds, beliefs_of(m)
    gains = segment_gains(beliefs, kinds, Recipe(browse=browse))
    single = segment_gains(beliefs, kinds, Recipe(browse="off"))
    visits = [t for t in range(len(kinds) - 1) if kinds[t] == "visit"]
    assert [t for t, g in enumerate(gains) if g is not None] == visits
    for previous, t in zip([-1, *visits], visits, strict=False):
        assert gains[t] == pytest.approx(sum(single[previous + 1 : t + 1]), abs=1e-12)
