"""The world of the credit lab: its exact figures against enumeration, its rollouts against its rules."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minvenus.experiments.lab_world import (
    NO_CHOICE,
    RIGHT,
    STOP,
    WRONG,
    Gains,
    World,
    choice_probs,
    expected,
    sample,
    start_logits,
)


def world_of(hops=2, visits=3, start=(0.5, 0.25, 0.25), **more):
    return World(Gains((1.0,) * hops, (0.0,) * hops), visits, start, **more)


@st.composite
def worlds(draw):
    hops = draw(st.integers(1, 3))
    gain = st.floats(-2, 2)
    gains = Gains(tuple(draw(st.lists(gain, min_size=hops, max_size=hops))), (draw(st.floats(0, 1)),) * hops,
                  draw(gain), draw(st.floats(0, 1)))
    return World(gains, hops + draw(st.integers(0, 2)), (0.4, 0.35, 0.25), draw(st.booleans()), draw(st.booleans()))


def enumerated(world, probs):
    """Success and turns as a sum over everything that can be chosen."""
    success, turns = 0.0, 0.0
    for wanted in itertools.product((RIGHT, WRONG, STOP), repeat=world.visits):
        hop, visits, weight, going = 0, 0, 1.0, True
        for choice in wanted:
            weight *= probs[hop, choice] if going else 1 / 3          # after the end all choices are alike
            if going and choice != STOP:
                visits, hop = visits + 1, hop + (choice == RIGHT)
            going = going and choice != STOP and hop < world.hops
        success += weight * (hop == world.hops)
        turns += weight * (1 + visits * world.turns_per_visit)
    return success, turns


def test_one_hop_two_visits_worked_by_hand():
    """right 1/2, wrong 1/4, stop 1/4: success 1/2 + 1/4 * 1/2, visits 3/4 + 1/4 * 3/4"""
    world = world_of(hops=1, visits=2)
    assert expected(world, choice_probs(world, start_logits(world))) == pytest.approx((0.625, 1 + 2 * 0.9375))
    visits_only = world_of(hops=1, visits=2, searches=False)
    assert expected(visits_only, np.array([[0.5, 0.25, 0.25]])) == pytest.approx((0.625, 1.9375))


@given(worlds(), st.integers(0, 1000))
def test_exact_figures_equal_the_sum_over_all_choices(world, seed):
    probs = choice_probs(world, np.random.default_rng(seed).normal(size=(1 if world.shared else world.hops, 3)))
    assert probs.shape == (world.hops, 3) and np.allclose(probs.sum(axis=1), 1)
    assert expected(world, probs) == pytest.approx(enumerated(world, probs), abs=1e-12)


@given(worlds(), st.integers(0, 1000))
def test_rollouts_follow_the_rules(world, seed):
    rollouts = sample(world, choice_probs(world, start_logits(world)), 20, np.random.default_rng(seed))
    for choices, hops, success in zip(rollouts.choice.tolist(), rollouts.hop.tolist(), rollouts.success, strict=True):
        hop, going = 0, True
        for choice, at in zip(choices, hops, strict=True):
            assert (choice != NO_CHOICE) == going
            assert not going or at == hop
            hop += choice == RIGHT
            going = going and choice != STOP and hop < world.hops
        assert success == (hop == world.hops)


def test_sampled_rollouts_succeed_as_often_as_the_exact_figure_says():
    world = world_of(hops=3, visits=5, start=(0.5, 0.4, 0.1))
    probs = choice_probs(world, start_logits(world))
    success, turns = expected(world, probs)
    rollouts = sample(world, probs, 20_000, np.random.default_rng(0))
    sampled_turns = 1 + 2 * np.isin(rollouts.choice, (RIGHT, WRONG)).sum(axis=1)
    assert abs(rollouts.success.mean() - success) < 4 * (success * (1 - success) / 20_000) ** 0.5
    assert abs(sampled_turns.mean() - turns) < 4 * sampled_turns.std() / 20_000 ** 0.5


def test_gains_have_the_mean_and_the_spread_that_were_asked_for():
    world = World(Gains((1.0, 3.0), (0.5, 0.1), -1.0, 0.2), 4, (0.5, 0.4, 0.1))
    rollouts = sample(world, choice_probs(world, start_logits(world)), 20_000, np.random.default_rng(0))
    for chosen, mean, spread in ((rollouts.hop == 0, 1.0, 0.5), (rollouts.hop == 1, 3.0, 0.1)):
        gains = rollouts.visit_gain[(rollouts.choice == RIGHT) & chosen]
        assert gains.mean() == pytest.approx(mean, abs=0.02) and gains.std() == pytest.approx(spread, rel=0.05)
    wrong = rollouts.visit_gain[rollouts.choice == WRONG]
    assert wrong.mean() == pytest.approx(-1.0, abs=0.02) and wrong.std() == pytest.approx(0.2, rel=0.05)
    assert rollouts.search_gain.mean() == pytest.approx(0.0, abs=0.01)
    assert rollouts.search_gain.std() == pytest.approx(0.2, rel=0.05)
    correlation = np.corrcoef(wrong, rollouts.search_gain[rollouts.choice == WRONG])[0, 1]
    assert abs(correlation) < 0.05, "two draws, not one"


@settings(max_examples=max(5, settings.default.max_examples // 4))
@given(worlds())
def test_luck_does_not_depend_on_the_table(world):
    """The same generator for two tables: wherever both choose the same at the same hop, the gain is the same too."""
    first = sample(world, np.full((world.hops, 3), 1 / 3), 50, np.random.default_rng(7))
    second = sample(world, np.tile((0.5, 0.2, 0.3), (world.hops, 1)), 50, np.random.default_rng(7))
    same = (first.choice == second.choice) & (first.hop == second.hop)
    assert same.any() and np.array_equal(first.visit_gain[same], second.visit_gain[same])
    assert np.array_equal(first.search_gain, second.search_gain)
