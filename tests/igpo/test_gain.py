"""Values of the ground truth and the gains between them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import Recipe
from minvenus.igpo.gain import needed_values, segment_gains, value
from tests.igpo import oracle
from tests.igpo.strategies import recipes, trajectories

logprobs = st.lists(st.floats(-30.0, 0.0), min_size=1, max_size=12)
KINDS = ("log_prob", "prob")


# --------------------------------------------------------------------------------------------------------------- value


def test_value_is_the_mean_log_prob_or_the_geometric_mean_probability():
    assert value([-1.0, -2.0, -6.0], "log_prob") == -3.0
    assert value([math.log(0.5), math.log(0.125)], "prob") == pytest.approx(0.25, rel=1e-12)


@given(logprobs, st.sampled_from(KINDS))
def test_value_equals_the_definition(tokens, kind):
    assert value(tokens, kind) == pytest.approx(oracle.value(tokens, kind), rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [[], [math.nan], [-1.0, -math.inf], [math.inf, -1.0]])
def test_a_value_that_does_not_exist_is_an_error_not_a_number(tokens, kind):
    with pytest.raises(ValueError):
        value(tokens, kind)


# --------------------------------------------------------------------------------------------------------------- gains


def test_gains_of_a_small_trajectory_worked_by_hand():
    kinds = ["search", "visit", "search", "search", "visit", "search", "answer"]
    values = [-5.0, -4.5, -3.0, -3.5, -3.25, -1.0, -0.5]
    visits = [None, 2.0, None, None, 2.0, None, None]
    assert segment_gains(values, kinds, Recipe(browse="replicate")) == visits
    assert segment_gains(values, kinds, Recipe(browse="segment")) == visits
    assert segment_gains(values, kinds, Recipe(browse="off")) == [0.5, 1.5, -0.5, 0.25, 2.25, 0.5, None]
    assert segment_gains(values, kinds, Recipe(use_gain=False)) == [None] * 7


def test_the_answer_turn_has_no_gain_even_when_it_is_a_visit():
    """A rollout that was cut short may end in a visit: it is the last turn, so it has an outcome and nothing else."""
    assert segment_gains([-3.0, -2.0], ["visit", "visit"], Recipe()) == [1.0, None]
    assert segment_gains([-3.0], ["visit"], Recipe()) == [None]


def test_only_the_values_around_visits_are_needed():
    kinds = ["search", "visit", "search", "search", "visit", "search", "answer"]
    assert needed_values(kinds, Recipe(browse="replicate")) == [0, 2, 5]
    assert needed_values(kinds, Recipe(browse="off")) == [0, 1, 2, 3, 4, 5, 6]
    assert needed_values(kinds, Recipe(use_gain=False)) == []
    assert needed_values(["search", "search", "answer"], Recipe()) == []
    assert needed_values(["answer"], Recipe(browse="off")) == []


any_gain_recipe = recipes(use_gain=(True, True, True, False))


@st.composite
def measured(draw):
    kinds, _ = draw(trajectories())
    return kinds, draw(st.lists(st.floats(-20.0, 0.0), min_size=len(kinds), max_size=len(kinds)))


@given(measured(), any_gain_recipe)
def test_gains_equal_the_definition(trajectory, recipe):
    kinds, values = trajectory
    assert segment_gains(values, kinds, recipe) == oracle.segment_gains(values, kinds, recipe)
    assert needed_values(kinds, recipe) == oracle.needed_values(kinds, recipe)


@given(measured(), any_gain_recipe)
def test_values_that_are_not_needed_may_be_missing_and_needed_ones_may_not(trajectory, recipe):
    kinds, values = trajectory
    needed = needed_values(kinds, recipe)
    sparse = [v if t in needed else None for t, v in enumerate(values)]
    assert segment_gains(sparse, kinds, recipe) == segment_gains(values, kinds, recipe)
    for t in needed:
        with pytest.raises(ValueError):
            segment_gains([None if i == t else v for i, v in enumerate(sparse)], kinds, recipe)


@given(measured(), st.sampled_from(KINDS))
def test_per_turn_gains_telescope_to_the_whole_way(trajectory, kind):
    """Invariant 1, for both kinds: the gains add up to the last value minus the first."""
    kinds, values = trajectory
    values = values if kind == "log_prob" else [math.exp(v) for v in values]
    gains = segment_gains(values, kinds, Recipe(browse="off", gain=kind))
    assert sum(g for g in gains if g is not None) == pytest.approx(values[-1] - values[0], abs=1e-12)


@given(measured(), st.sampled_from(("replicate", "segment")))
def test_a_visits_gain_is_the_sum_over_its_segment_and_trailing_searches_are_dropped(trajectory, browse):
    """Invariant 2."""
    kinds, values = trajectory
    gains = segment_gains(values, kinds, Recipe(browse=browse))
    single = segment_gains(values, kinds, Recipe(browse="off"))
    visits = [t for t in range(len(kinds) - 1) if kinds[t] == "visit"]
    for previous, t in zip([-1, *visits], visits, strict=False):
        assert gains[t] == pytest.approx(sum(single[previous + 1:t + 1]), abs=1e-12)
    if visits:
        assert sum(gains[t] for t in visits) == pytest.approx(values[visits[-1] + 1] - values[0], abs=1e-12)
    assert [t for t, g in enumerate(gains) if g is not None] == visits
