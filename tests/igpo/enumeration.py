"""The expected update of a recipe, exactly: every rollout of a small world is enumerated.

A policy chooses at each hop between the right page, a wrong one and to stop. With three hops and
four visits there are 29 different rollouts. So every group of G rollouts can be written down with
its probability, credited by the shipped advantage code and trained by the shipped loss: the sum is
the expected update, without any sampling. Beside it stands the true gradient of what should rise:

    of the outcome        d E[O] / d logits     what GRPO estimates
    of the total gain     d E[S] / d logits     S = the sum of a rollout's gains: what uncentred
                                                gains estimate
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from minvenus.igpo.advantage import turn_advantages
from minvenus.igpo.loss import LossConfig, igpo_loss, token_weights
from minvenus.igpo.recipes import RECIPES, Recipe
from minvenus.types import TurnRewards

RIGHT, WRONG, STOP = 0, 1, 2
START = (0.30, 0.55, 0.15)  # probabilities of right, wrong, stop
FRONT = (2.0, 0.2, 0.2)  # gains of the right visits, most of them at the first one
EQUAL = (0.8, 0.8, 0.8)
ARMS = {  # without IG-Scale, which is one factor for a batch
    "grpo": replace(RECIPES["grpo"], normalize="separate"),
    "paper": replace(RECIPES["paper"], normalize="separate"),
    "uncentred / std": replace(RECIPES["uncentred"], normalize="separate", spread="std"),
    "uncentred": replace(RECIPES["uncentred"], normalize="separate"),
}


@dataclass(frozen=True)
class World:
    """All rollouts of a small world. R rollouts, H hops, T turns."""

    logits: Tensor  # [H, 3], float64, with gradient
    choices: Sequence[tuple]  # (hop, choice) of every turn that has one; a forced answer has none
    rewards: Sequence[TurnRewards]

    @classmethod
    def of(cls, gains, start=START, visits: int = 4) -> "World":
        logits = torch.tensor([start] * len(gains), dtype=torch.float64).log().requires_grad_()
        choices, rewards = zip(*complete(gains, visits), strict=True)
        return cls(logits, choices, rewards)

    def logprobs(self) -> Tensor:
        """[R, T]; 0 for a forced answer and behind the last turn."""
        table = self.logits.log_softmax(dim=1)
        rows = table.new_zeros(len(self.rewards), max(len(r.turns) + 1 for r in self.rewards))
        for i, choices in enumerate(self.choices):
            hops, chosen = zip(*choices, strict=True)
            rows[i, : len(choices)] = table[hops, chosen]
        return rows

    def probabilities(self) -> Tensor:
        return self.logprobs().sum(dim=1).exp()


def complete(gains, visits: int, choices: tuple = (), turns: tuple = (), hop: int = 0):
    """The choices and rewards of every rollout that goes on from here."""
    if hop < len(gains) and len(turns) < visits:
        yield from complete(gains, visits, (*choices, (hop, RIGHT)), (*turns, gains[hop]), hop + 1)
        yield from complete(gains, visits, (*choices, (hop, WRONG)), (*turns, 0.0), hop)
        choices = (*choices, (hop, STOP))
    yield choices, TurnRewards(list(turns), float(hop == len(gains)))


def true_gradient(world: World, worth: list[float]) -> Tensor:
    """d E[worth] / d logits, [H, 3]: each rollout is worth a fixed number."""
    mean = world.probabilities() @ torch.tensor(worth, dtype=torch.float64)
    return torch.autograd.grad(mean, world.logits)[0]


def expected_update(
    world: World, credit: Callable, size: int, aggregate: str = "seq-mean-token-sum"
) -> Tensor:
    """The expected direction of a step on one group of `size` rollouts, [H, 3]. `credit` makes
    advantages of a group's rewards. The loss is linear in them: it is enough to know the expected
    one of every turn of every rollout."""
    chance = world.probabilities().tolist()
    expected = [[0.0] * world.logprobs().size(1) for _ in chance]  # [R, T]
    for group in itertools.combinations_with_replacement(range(len(chance)), size):
        weight = float(math.factorial(size))  # in how many orders the group can be drawn
        for member, count in Counter(group).items():
            weight *= chance[member] ** count / math.factorial(count)
        for member, row in zip(group, credit([world.rewards[i] for i in group]), strict=True):
            for t, advantage in enumerate(row):
                expected[member][t] += weight / size * advantage
    advantages = torch.tensor(expected, dtype=torch.float64) * len(chance)
    return loss_direction(world, advantages, aggregate)


def loss_direction(world: World, advantages: Tensor, aggregate: str) -> Tensor:
    """Minus the gradient of the shipped loss on every rollout once, one token per turn."""
    turns = torch.tensor([len(r.turns) + 1 for r in world.rewards])
    segments = torch.arange(len(turns)).repeat_interleave(turns)
    weights = token_weights(segments, aggregate, len(turns), int(turns.sum()))
    kept = torch.arange(advantages.size(1)) < turns[:, None]
    logp = world.logprobs()[kept]
    config = LossConfig(kl_coef=0.0, aggregate=aggregate)
    loss = igpo_loss(logp, logp.detach(), None, advantages[kept], weights, config)
    return -torch.autograd.grad(loss, world.logits)[0]


def by_recipe(recipe: Recipe, rewards: list[TurnRewards]) -> list[list[float]]:
    return turn_advantages(rewards, [0] * len(rewards), recipe)


def cosine(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum() / (a.norm() * b.norm()))


# ----------------------------------------------------------------------------------- the comparison


def compare(world: World, size: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """The pushes to go on of both truths and of every arm, and the cosines of the arms to their
    truth. An arm is given only the rewards whose truth it should follow."""
    no_gains = [replace(r, turns=[None] * len(r.turns)) for r in world.rewards]
    no_outcomes = [replace(r, outcome=0.0) for r in world.rewards]
    pushes, cosines = {}, {}
    for kind, rewards in {"outcome": no_gains, "gain": no_outcomes}.items():
        truth = true_gradient(world, [sum(filter(None, r.turns), r.outcome) for r in rewards])
        pushes[f"true gradient of the {kind}"] = push_to_go_on(world, truth)
        for arm, recipe in ARMS.items():
            if recipe.use_gain == (kind == "gain"):
                chosen = replace(world, rewards=rewards)
                update = expected_update(chosen, partial(by_recipe, recipe), size)
                pushes[arm] = push_to_go_on(world, update)
                cosines[arm] = round(cosine(update, truth), 3)
    return pushes, cosines


def push_to_go_on(world: World, gradient: Tensor) -> list[float]:
    """Minus the gradient of the logit of stopping, per time that the hop is reached, in lengths of
    the gradient: a negative number shortens rollouts."""
    reached = torch.zeros(len(world.logits), dtype=torch.float64)
    for choices, chance in zip(world.choices, world.probabilities().tolist(), strict=True):
        for hop, _ in choices:
            reached[hop] += chance
    return (-gradient[:, STOP] / reached / gradient.norm()).tolist()
