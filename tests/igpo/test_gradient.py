"""What every step does to the expected gradient, by exact enumeration through the shipped advantage
and loss code: the rows of the table in docs/equations.md, the identity of a batch, and the quotient
that centred gains climb."""

import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given

from minvenus.igpo.advantage import advantage_record
from minvenus.igpo.recipes import Recipe
from tests.igpo import oracle
from tests.igpo.enumeration import (
    EQUAL,
    FRONT,
    World,
    by_recipe,
    compare,
    cosine,
    expected_update,
    loss_direction,
    push_to_go_on,
    true_gradient,
)
from tests.igpo.strategies import ORDINARY, advantages, assert_close, batches, recipes, rounding

UNCENTRED = Recipe(normalize="separate", center_gain=False, gamma=1.0)
CENTRED = replace(UNCENTRED, center_gain=True)
OUTCOMES = Recipe(use_gain=False, gamma=1.0)
TABLE = Path(__file__).parents[2] / "docs/equations.md"


def small(gains=(0.8, 0.8)) -> World:
    """Two hops, three visits: 13 rollouts, so that groups of 3 and 4 take no time."""
    return World.of(gains, visits=3)


def outcomes_only(world: World) -> World:
    return replace(world, rewards=[replace(r, turns=[None] * len(r.turns)) for r in world.rewards])


def gains_only(world: World) -> World:
    return replace(world, rewards=[replace(r, outcome=0.0) for r in world.rewards])


def outcome_gradient(world: World):
    return true_gradient(world, [r.outcome for r in world.rewards])


def gain_gradient(world: World):
    return true_gradient(world, [sum(r.turns) for r in world.rewards])


def same(a, b, tolerance=1e-12) -> bool:
    return bool(torch.allclose(a, b, rtol=0, atol=tolerance))


def centred(recipe: Recipe, rewards):
    """Outcomes minus their mean, not divided: the shipped advantages times the std that they were
    divided by."""
    record = advantage_record(rewards, [0] * len(rewards), recipe)
    return [[a * (record.groups[0].outcome_std + 1e-6) for a in row] for row in record.advantages]


def population_update(world: World, recipe: Recipe):
    """The update on one group that stands for G -> infinity: 64 rollouts that hold every rollout as
    often as its probability says, so that it has the population's mean and spread."""
    chances = world.probabilities().tolist()
    counts = [round(64 * chance) for chance in chances]
    assert counts == pytest.approx([64 * chance for chance in chances]) and sum(counts) == 64
    members = [i for i, count in enumerate(counts) for _ in range(count)]
    total = torch.zeros_like(world.logprobs())
    for i, row in zip(members, by_recipe(recipe, [world.rewards[i] for i in members]), strict=True):
        total[i, : len(row)] += torch.tensor(row, dtype=torch.float64)
    return loss_direction(world, total * len(counts) / 64, "seq-mean-token-sum")


# ---------------------------------------------------------------------------------------- the world


def test_pushes_are_per_time_that_a_hop_is_reached_and_in_lengths_of_the_gradient():
    """Two hops, two visits, right 1/4 and wrong 1/2: hop 1 is reached once, and after a wrong visit
    again, 1.5 times; hop 2 after a right one. The gradient has the length 5."""
    world = World.of((0.8, 0.8), (0.25, 0.5, 0.25), visits=2)
    gradient = torch.tensor([[0.0, 0.0, 3.0], [0.0, 0.0, -4.0]], dtype=torch.float64)
    assert push_to_go_on(world, gradient) == pytest.approx([-3 / 1.5 / 5, 4 / 0.25 / 5])


# -------------------------------------------------------------------- the identity and the quotient


@given(batches(magnitudes=ORDINARY, max_groups=4), recipes(normalize="separate", center_gain=True))
def test_centring_takes_the_mean_gain_from_every_rewarded_turn_to_come(batch, recipe):
    """A(centred) = A(uncentred) - mu / sigma * D, D the discounted number of rewarded turns from t
    on: for any batch, discount, spread, weight and scope of penalties."""
    without = advantages(batch, replace(recipe, center_gain=False))
    groups = advantage_record(batch.rewards, batch.groups, recipe).groups
    expected = []
    for row, r, group in zip(without, batch.rewards, batch.groups, strict=True):
        ones = [None if v is None else 1.0 for v in r.turns]
        to_come = oracle.returns([*ones, 0.0], r.penalties, recipe)
        stats = groups[group]
        fee = recipe.ig_weight * stats.turn_reward_mean / (stats.turn_reward_spread + 1e-6)
        expected.append([a - fee * d for a, d in zip(row, to_come, strict=True)])
    assert_close(advantages(batch, recipe), expected, 20 * rounding(batch, recipe))


@pytest.mark.parametrize("gains", [EQUAL, (0.4, 0.6, 0.9), FRONT, (-0.5, 0.2, 0.1)])
def test_centred_gains_climb_the_gain_per_rewarded_turn(gains):
    """G -> infinity, gamma 1, token sums: E[update] = grad E S - mu grad E N = E N * grad(E S / E
    N), over sigma."""
    world = gains_only(World.of(gains, (0.25, 0.5, 0.25), visits=3))
    total = torch.tensor([sum(r.turns) for r in world.rewards], dtype=torch.float64)
    turns = torch.tensor([len(r.turns) for r in world.rewards], dtype=torch.float64)
    chance = world.probabilities()
    per_turn = (chance @ total) / (chance @ turns)
    quotient = torch.autograd.grad(per_turn, world.logits, retain_graph=True)[0]
    mean_turns, mu = (chance @ turns).item(), per_turn.item()
    difference = gain_gradient(world) - mu * true_gradient(world, turns.tolist())
    assert same(difference, mean_turns * quotient)
    squares = sum(
        p * sum((v - mu) ** 2 for v in r.turns)
        for p, r in zip(chance.tolist(), world.rewards, strict=True)
    )
    sigma = math.sqrt(squares / mean_turns + 1e-8) + 1e-6
    assert same(population_update(world, CENTRED) * sigma, difference)
    uncentred = population_update(world, UNCENTRED)
    assert cosine(uncentred, gain_gradient(world)) == pytest.approx(1.0), "sigma is only a factor"


def test_front_loaded_gains_push_to_stop_at_later_hops_when_they_are_centred():
    pushes, _ = compare(World.of(FRONT), 2)
    assert min(pushes["true gradient of the gain"]) > 0 and min(pushes["uncentred"]) > 0
    first, *later = pushes["paper"]
    assert first > 0 > max(later)


# --------------------------------------------------------------------------------- the table's rows


@pytest.mark.parametrize("size", [2, 3, 4])
def test_centred_outcomes_without_discount_give_the_true_gradient(size):
    """Exactly (G-1)/G of it; divided by their std, it times E sqrt(k (G-k)) / (G p (1-p))."""
    world = outcomes_only(small())
    truth = outcome_gradient(world)
    update = expected_update(world, partial(centred, OUTCOMES), size)
    assert same(update, (size - 1) / size * truth)
    chances = world.probabilities().tolist()
    p = sum(c * r.outcome for c, r in zip(chances, world.rewards, strict=True))
    spread = sum(
        math.comb(size, k) * p**k * (1 - p) ** (size - k) * math.sqrt(k * (size - k))
        for k in range(size + 1)
    )
    z_scored = expected_update(world, partial(by_recipe, OUTCOMES), size)
    assert same(z_scored, spread / (size * p * (1 - p)) * truth, 1e-6)


def test_gains_that_are_not_divided_give_the_true_gradient():
    world = gains_only(small((1.0, 0.2)))
    update = expected_update(world, partial(by_recipe, replace(UNCENTRED, spread="one")), 2)
    assert same(update * (1 + 1e-6), gain_gradient(world))


def test_means_over_tokens_turn_grpo_into_the_outcome_per_turn():
    """(G-1)/G * (grad E[O/T] - b grad E[1/T]): shortens where outcomes are bad on average."""
    world = outcomes_only(small())
    turns = [len(r.turns) + 1 for r in world.rewards]
    chances = world.probabilities().tolist()
    b = sum(c * r.outcome for c, r in zip(chances, world.rewards, strict=True))
    update = expected_update(world, partial(centred, OUTCOMES), 3, "seq-mean-token-mean")
    outcomes = [r.outcome / t for r, t in zip(world.rewards, turns, strict=True)]
    shorter = true_gradient(world, [1 / t for t in turns])
    assert same(update, 2 / 3 * (true_gradient(world, outcomes) - b * shorter))


def test_the_cosines_of_the_table_are_those_of_the_world_with_29_rollouts():
    """Every row of docs/equations.md that has one."""
    equal, front = (compare(World.of(gains), 3)[1] for gains in (EQUAL, FRONT))
    world = outcomes_only(World.of(EQUAL))
    early = [r if r.turns else replace(r, outcome=-3.0) for r in world.rewards]

    def cosine_of(world, credit, size=3, aggregate="seq-mean-token-sum"):
        update = expected_update(world, credit, size, aggregate)
        return round(cosine(update, outcome_gradient(world)), 3)

    cosines = {
        "gains centred": [equal["paper"], front["paper"]],
        "gains uncentred, / std": [equal["uncentred / std"], front["uncentred / std"]],
        "gains uncentred, / root mean square": [equal["uncentred"], front["uncentred"]],
        "outcomes centred, γ < 1": [
            cosine_of(world, partial(centred, replace(OUTCOMES, gamma=gamma)))
            for gamma in (0.95, 0.8)
        ],
        "the same with outcomes −3 / 0 / 1": [
            cosine_of(replace(world, rewards=early), partial(by_recipe, OUTCOMES), size)
            for size in (2, 3)
        ],
        "means over": [
            cosine_of(world, partial(centred, OUTCOMES), aggregate="seq-mean-token-mean")
        ],
    }
    rows = re.findall(r"^\| ([^|]+) \| (.*) \|$", TABLE.read_text(), re.MULTILINE)
    stated = {name: re.findall(r"(?<![\d.])[01]?\.\d{3}", effect) for name, effect in rows}
    for name, numbers in cosines.items():
        [row] = [row for title, row in stated.items() if title.startswith(name)]
        assert list(map(float, row)) == numbers, name
    counts = [sum(map(len, table.values())) for table in (stated, cosines)]
    assert counts[0] == counts[1], "no other number of three places"
