"""What a recipe does to the expected gradient, exactly: python -m minvenus.experiments theory

The lab's world with three hops and four visits, one turn per visit, has 29 different rollouts. So every group of G
rollouts can be written down with its probability, credited by the shipped advantage code, and trained by the shipped
loss: the sum is the expected update, without any sampling. Beside it stands the true gradient of what should rise:

    of the outcome        d E[O] / d logits         what GRPO estimates
    of the total gain     d E[S] / d logits         S = the sum of a rollout's gains: what uncentred gains estimate

Centred gains climb E[S] / E[N] instead, the gain per rewarded turn: every further rewarded turn costs the mean gain
(docs/equations.md). The numbers are pushes to go on, minus the gradient of the logit of stopping, for each time that a
hop is reached, and in units of the true gradient's length: a negative number shortens rollouts.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from minvenus.config import check
from minvenus.console import table
from minvenus.experiments.lab import RIGHT, START, STOP, WRONG
from minvenus.igpo.advantage import turn_advantages
from minvenus.igpo.loss import LossConfig, igpo_loss, token_weights
from minvenus.igpo.recipes import RECIPES, Recipe
from minvenus.report.curves import Series, line_plot
from minvenus.report.page import Html
from minvenus.types import TurnRewards, setting

PROFILES = {"equal": (0.8, 0.8, 0.8), "rising": (0.4, 0.8, 1.2), "front": (2.0, 0.2, 0.2)}    # of the right visits
VISITS = 4
ARMS = {name: replace(RECIPES[name], normalize="separate") for name in ("grpo", "paper", "uncentred")}   # no IG-Scale
ARMS["uncentred, std"] = replace(ARMS["uncentred"], spread="std")


@dataclass(frozen=True)
class TheoryConfig:
    """python -m minvenus.experiments theory: expected updates beside the true gradient, by enumeration."""

    group: int = setting(3, "rollouts of a group; 3 takes seconds, 4 a minute", least=2)

    def __post_init__(self):
        check(self)


@dataclass(frozen=True)
class World:
    """All rollouts of a small world. R rollouts, H hops, T turns."""

    logits: Tensor                               # [H, 3], float64, with gradient
    choices: Sequence[tuple]                     # (hop, choice) of every turn that has one; a forced answer has none
    rewards: Sequence[TurnRewards]

    @classmethod
    def of(cls, gains: tuple[float, ...], start: tuple[float, ...] = START, visits: int = VISITS) -> "World":
        logits = torch.tensor([start] * len(gains), dtype=torch.float64).log().requires_grad_()
        choices, rewards = zip(*complete(gains, visits), strict=True)
        return cls(logits, choices, rewards)

    def logprobs(self) -> Tensor:
        """[R, T]; 0 for a forced answer and for padding."""
        log_probs = self.logits.log_softmax(dim=1)
        found = log_probs.new_zeros(len(self.rewards), max(len(r.turns) + 1 for r in self.rewards))
        for i, made in enumerate(self.choices):
            hops, chosen = zip(*made, strict=True)
            found[i, :len(made)] = log_probs[hops, chosen]
        return found

    def probabilities(self) -> Tensor:
        return self.logprobs().sum(dim=1).exp()


def complete(gains: tuple[float, ...], visits: int, choices: tuple = (), turns: tuple = (), hop: int = 0):
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


def expected_update(world: World, credit: Callable, size: int, aggregate: str = "seq-mean-token-sum") -> Tensor:
    """The expected direction of a step on one group of `size` rollouts, [H, 3]. `credit` makes advantages of a group's
    rewards. The loss is linear in them: it is enough to know the expected one of every turn of every rollout."""
    chance = world.probabilities().tolist()
    expected = [[0.0] * world.logprobs().size(1) for _ in chance]                       # [R, T]
    for group in itertools.combinations_with_replacement(range(len(chance)), size):
        weight = float(math.factorial(size))                      # in how many orders the group can be drawn
        for member, count in Counter(group).items():
            weight *= chance[member] ** count / math.factorial(count)
        for member, row in zip(group, credit([world.rewards[i] for i in group]), strict=True):
            for t, advantage in enumerate(row):
                expected[member][t] += weight / size * advantage
    return loss_direction(world, torch.tensor(expected, dtype=torch.float64) * len(chance), aggregate)


def loss_direction(world: World, advantages: Tensor, aggregate: str) -> Tensor:
    """Minus the gradient of the shipped loss on every rollout once, one token per turn."""
    logp = world.logprobs()
    turns = torch.tensor([len(r.turns) + 1 for r in world.rewards])
    mask = torch.arange(logp.size(1)) < turns[:, None]
    segments = torch.arange(len(turns)).repeat_interleave(turns)
    weights = token_weights(segments, aggregate, len(turns), int(turns.sum()))
    loss = igpo_loss(logp[mask], logp[mask].detach(), None, advantages[mask], weights, LossConfig(kl_coef=0.0))
    return -torch.autograd.grad(loss, world.logits)[0]


def by_recipe(recipe: Recipe, rewards: list[TurnRewards]) -> list[list[float]]:
    return turn_advantages(rewards, [0] * len(rewards), recipe)


# --------------------------------------------------------------------------------------------------------- the command


def main(config: TheoryConfig) -> str:
    parts = []
    for name, gains in PROFILES.items():
        pushes, cosines = compare(World.of(gains), config.group)
        head = ["", *(f"hop {hop + 1}" for hop in range(len(gains))), "cosine to the truth"]
        rows = [[arm, *(f"{push:+.3f}" for push in row), cosines.get(arm, "")] for arm, row in pushes.items()]
        parts.append(f"gains {name} {gains}, groups of {config.group}\n{table([head, *rows])}")
    return "\n\n".join([*parts, "Pushes to go on at each hop; below 0 rollouts get shorter."])


def picture(name: str, size: int) -> Html:
    """The pushes for one profile of gains, a line for each arm."""
    pushes, _ = compare(World.of(PROFILES[name]), size)
    lines = [Series(arm, list(range(1, len(row) + 1)), row) for arm, row in pushes.items()]
    return line_plot(lines, f"Push to go on, gains {name}", "hop", "push, in lengths of the truth", (0.0,))


def compare(world: World, size: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """The pushes of both truths and of every arm, and the cosines of the arms. An arm is given only the rewards whose
    truth it should follow."""
    no_gains = [replace(r, turns=[None] * len(r.turns)) for r in world.rewards]
    no_outcomes = [replace(r, outcome=0.0) for r in world.rewards]
    pushes, cosines = {}, {}
    for kind, rewards in {"outcome": no_gains, "gain": no_outcomes}.items():
        truth = true_gradient(world, [sum(filter(None, r.turns), r.outcome) for r in rewards])
        pushes[f"true gradient of the {kind}"] = push_to_go_on(world, truth)
        for arm, recipe in ARMS.items():
            if recipe.use_gain == (kind == "gain"):
                update = expected_update(replace(world, rewards=rewards), partial(by_recipe, recipe), size)
                pushes[arm] = push_to_go_on(world, update)
                cosines[arm] = f"{cosine(update, truth):.3f}"
    return pushes, cosines


def push_to_go_on(world: World, gradient: Tensor) -> list[float]:
    """Minus the gradient of the logit of stopping, per time that the hop is reached, in lengths of the gradient."""
    reached = torch.zeros(len(world.logits), dtype=torch.float64)
    for made, chance in zip(world.choices, world.probabilities().tolist(), strict=True):
        for hop, _ in made:
            reached[hop] += chance
    return (-gradient[:, STOP] / reached / gradient.norm()).tolist()


def cosine(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum() / (a.norm() * b.norm()))
