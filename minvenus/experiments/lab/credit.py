"""Plain policy gradient on the table, with the advantages of the shipped code.

    theta <- theta + lr * mean over rollouts of mean over turns of A_t * grad log pi(choice of turn t)

the gradient that the default loss has before its first update: the mean over sequences of the mean over their tokens, a turn
being one token. A turn without a choice has no gradient and still counts in the mean. Rewards come from `segment_gains` and
`turn_rewards`, advantages from `turn_advantages`: this file only builds their arguments. Success and turns are exact, so a
curve has no other noise than that of learning.
"""

from dataclasses import dataclass

import numpy as np

from minvenus.config import Recipe
from minvenus.experiments.lab.world import NO_CHOICE, STOP, Rollouts, World, choice_probs, expected, sample, start_logits
from minvenus.igpo.advantage import turn_advantages
from minvenus.igpo.gain import segment_gains
from minvenus.igpo.rewards import turn_rewards
from minvenus.types import TurnRewards

METHODS = {                  # each differs from `paper` in what its name says; gamma is the same for all but the last
    "grpo": ("GRPO: outcomes only", Recipe.paper(use_gain=False)),
    "paper": ("IGPO as in the paper", Recipe.paper()),
    "released": ("IGPO as in the released code", Recipe.released()),
    "uncentred": ("gains divided by their spread, not centred", Recipe.paper(center_gain=False)),
    "unnormalised": ("rewards as they are, no z-scores", Recipe.paper(normalize="none")),
    "unscaled": ("z-scores without IG-Scale", Recipe.paper(normalize="separate")),
    "browse-off": ("every turn keeps its own gain, searches too", Recipe.paper(browse="off")),
    "gamma-1": ("no discount", Recipe.paper(gamma=1.0)),
}


@dataclass(frozen=True)
class Curve:
    """What the policy is worth before each update."""

    success: list[float]
    turns: list[float]


def train(world: World, recipe: Recipe, seed: int, *, steps: int, groups: int, group_size: int, learning_rate: float) -> Curve:
    logits = start_logits(world)
    group_of = [i // group_size for i in range(groups * group_size)]
    success, turns = [], []
    for step in range(steps):
        probs = choice_probs(world, logits)
        worth = expected(world, probs)
        success.append(worth[0])
        turns.append(worth[1])
        rollouts = sample(world, probs, len(group_of), np.random.default_rng((seed, step)))
        advantages = turn_advantages(rewards_of(world, rollouts, recipe), group_of, recipe)
        logits = logits + learning_rate * policy_gradient(world, probs, rollouts, advantages)
    return Curve(success, turns)


def rewards_of(world: World, rollouts: Rollouts, recipe: Recipe) -> list[TurnRewards]:
    visits = ((rollouts.choice != NO_CHOICE) & (rollouts.choice != STOP)).sum(axis=1).tolist()
    rewards = []
    rows = zip(visits, rollouts.search_gain.tolist(), rollouts.visit_gain.tolist(), rollouts.success.tolist(), strict=True)
    for count, search_gain, visit_gain, success in rows:
        value, kinds = 0.0, []
        values: list[float | None] = [value]                # before each turn
        for k in range(count):
            if world.searches:
                kinds.append("search")
                values.append(value + search_gain[k])
            value += visit_gain[k]
            kinds.append("visit")
            values.append(value)
        kinds.append("answer")
        gains = segment_gains(values, kinds, recipe)
        rewards.append(turn_rewards(kinds, gains, [False] * len(kinds), float(success), recipe))
    return rewards


def policy_gradient(world: World, probs: np.ndarray, rollouts: Rollouts, advantages: list[list[float]]) -> np.ndarray:
    """Gradient of the objective with respect to the logits of the table, [R, 3]."""
    weights = np.zeros(rollouts.choice.shape)                                                         # [N, K]
    for weight, row in zip(weights, advantages, strict=True):
        deciding = row[::world.turns_per_visit]             # choice k is made in turn k * turns_per_visit, a stop too
        weight[:len(deciding)] = np.array(deciding[:len(weight)]) / len(row)
    weights[rollouts.choice == NO_CHOICE] = 0.0             # an answer that came by itself
    chosen = rollouts.choice[:, :, None] == np.arange(3)                                              # [N, K, 3]
    each = weights[:, :, None] * (chosen - probs[rollouts.hop])
    gradient = np.zeros((world.hops, 3))
    np.add.at(gradient, rollouts.hop, each)
    gradient /= len(advantages)
    return gradient.sum(axis=0, keepdims=True) if world.shared else gradient
