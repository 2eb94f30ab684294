"""A research task with known gains and a policy that is a table, trained by the shipped reward and advantage code.

At every hop the policy chooses the right page, a wrong one, or to stop and answer:

    the right visit      goes on to the next hop and gains right[hop] + noise
    a wrong visit        stays at the hop and gains wrong + noise
    stop                 answers; an answer is correct only after the right visit of every hop
    no visits left, or no hop left: the answer comes by itself, without a choice

With `searches` each visit takes two turns, a search and the visit. The choice is made in the search turn. A search
tells nothing: it moves the value by the noise of a wrong visit, and the visit after it moves it on to where it would
have been anyway. The policy is a softmax over a table of logits, one row per hop or one for all, trained by plain
policy gradient:

    theta <- theta + lr * mean over rollouts of mean over turns of A_t * grad log pi(choice of turn t)

This is the gradient that the default loss has before its first update, with one token per turn. A turn without a
choice has no gradient and still counts in the mean. Success and turns of a policy are exact, so a curve has no other
noise than that of learning.
"""

from dataclasses import dataclass

import numpy as np

from minvenus.config import Recipe
from minvenus.igpo.advantage import turn_advantages
from minvenus.igpo.gain import segment_gains
from minvenus.igpo.rewards import turn_rewards
from minvenus.types import TurnRewards

# N rollouts, K visits allowed, H hops, R rows of the table (H, or 1 if shared), 3 choices
RIGHT, WRONG, STOP, NO_CHOICE = 0, 1, 2, -1


@dataclass(frozen=True)
class Gains:
    """How much a visit raises the value of the truth: mean and standard deviation, of the right visit at each hop and
    of a wrong one."""

    right: tuple[float, ...]
    right_noise: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    wrong: float = 0.0
    wrong_noise: float = 0.0


@dataclass(frozen=True)
class World:
    gains: Gains
    visits: int                           # K, visits allowed; there are as many hops as gains.right
    start: tuple[float, float, float]     # probabilities of right, wrong, stop before training
    searches: bool = True                 # each visit is preceded by a search turn
    shared: bool = False                  # one row of logits for all hops

    @property
    def hops(self) -> int:
        return len(self.gains.right)

    @property
    def turns_per_visit(self) -> int:
        return 2 if self.searches else 1


@dataclass(frozen=True)
class LabRollouts:
    """A batch of sampled rollouts. A rollout ends with its first NO_CHOICE or STOP."""

    choice: np.ndarray           # [N, K]   RIGHT, WRONG, STOP, or NO_CHOICE after the end
    hop: np.ndarray              # [N, K]   where the choice was made
    visit_gain: np.ndarray       # [N, K]   what the visit adds to the value, counted from before its search
    search_gain: np.ndarray      # [N, K]   what its search alone adds
    success: np.ndarray          # [N]      every right visit was made


@dataclass(frozen=True)
class Curve:
    """Success and turns of the policy after 0, 1, 2, ... updates."""

    success: list[float]
    turns: list[float]


# ----------------------------------------------------------------------------------------------------------- the policy


def start_logits(world: World) -> np.ndarray:
    return np.tile(np.log(world.start), (1 if world.shared else world.hops, 1))                      # [R, 3]


def choice_probs(world: World, logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.broadcast_to(weights / weights.sum(axis=1, keepdims=True), (world.hops, 3))            # [H, 3]


def sample(world: World, probs: np.ndarray, count: int, rng: np.random.Generator) -> LabRollouts:
    """`count` rollouts. The draws do not depend on the table: the same generator gives every method the same luck."""
    draws = rng.random((count, world.visits))
    noise = rng.standard_normal((2, count, world.visits))
    bounds = probs.cumsum(axis=1)[:, :2]                                                              # [H, 2]
    choice = np.full((count, world.visits), NO_CHOICE)
    at = np.zeros((count, world.visits), dtype=int)
    hop = np.zeros(count, dtype=int)
    running = np.ones(count, dtype=bool)
    for k in range(world.visits):
        at[:, k] = np.minimum(hop, world.hops - 1)
        chosen = (draws[:, k, None] >= bounds[at[:, k]]).sum(axis=1)
        choice[running, k] = chosen[running]
        hop = hop + (choice[:, k] == RIGHT)
        running = running & (chosen != STOP) & (hop < world.hops)
    gains = world.gains
    right = np.array(gains.right)[at] + np.array(gains.right_noise)[at] * noise[0]
    wrong = gains.wrong + gains.wrong_noise * noise[0]
    visit_gain = np.where(choice == RIGHT, right, wrong)
    return LabRollouts(choice, at, visit_gain, gains.wrong_noise * noise[1], hop == world.hops)


def expected(world: World, probs: np.ndarray) -> tuple[float, float]:
    """The exact probability of success and the exact mean number of turns, the answer's included."""
    at_hop = np.zeros(world.hops)                 # probability of being at a hop with visits left
    at_hop[0] = 1.0
    success = visits = 0.0
    for _ in range(world.visits):
        visits += float(at_hop @ (probs[:, RIGHT] + probs[:, WRONG]))
        found = at_hop * probs[:, RIGHT]
        success += float(found[-1])
        at_hop = at_hop * probs[:, WRONG]
        at_hop[1:] += found[:-1]
    return success, 1.0 + world.turns_per_visit * visits


# --------------------------------------------------------------------------------------------------------- the learning


def train(world: World, recipe: Recipe, seed: int, *, steps: int, groups: int, group_size: int,
          learning_rate: float) -> Curve:
    logits = start_logits(world)
    group_of = [i // group_size for i in range(groups * group_size)]
    curve = Curve([], [])
    for step in range(steps):
        probs = choice_probs(world, logits)
        success, turns = expected(world, probs)
        curve.success.append(success)
        curve.turns.append(turns)
        rollouts = sample(world, probs, len(group_of), np.random.default_rng((seed, step)))
        advantages = turn_advantages(rewards_of(world, rollouts, recipe), group_of, recipe)
        logits = logits + learning_rate * policy_gradient(world, probs, rollouts, advantages)
    return curve


def rewards_of(world: World, rollouts: LabRollouts, recipe: Recipe) -> list[TurnRewards]:
    """The rewards of each rollout by the shipped code, from the values before each turn."""
    visits = ((rollouts.choice != NO_CHOICE) & (rollouts.choice != STOP)).sum(axis=1).tolist()
    rewards = []
    for i, count in enumerate(visits):
        value = 0.0
        kinds = []
        values: list[float | None] = [value]
        for k in range(count):
            if world.searches:
                kinds.append("search")
                values.append(value + float(rollouts.search_gain[i, k]))
            value += float(rollouts.visit_gain[i, k])
            kinds.append("visit")
            values.append(value)
        kinds.append("answer")
        gains = segment_gains(values, kinds, recipe)
        rewards.append(turn_rewards(kinds, gains, [False] * len(kinds), float(rollouts.success[i]), recipe))
    return rewards


def policy_gradient(world: World, probs: np.ndarray, rollouts: LabRollouts,
                    advantages: list[list[float]]) -> np.ndarray:
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
