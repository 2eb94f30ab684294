"""A research task without a network: at every hop the policy chooses the right page, a wrong one, or to stop and answer.

    the right visit      goes on to the next hop and gains right[hop] + noise
    a wrong visit        stays at the hop and gains wrong + noise
    stop                 answers; an answer is correct only after the right visit of every hop
    no visits left, or no hop left: the answer comes by itself, without a choice

With `searches` each visit takes two turns, a search and the visit. The choice is made in the first of them (what to look for);
the second has none. A search tells nothing: it moves the value by the noise of a wrong visit, and the visit behind it moves
it on to where it would have been anyway. The policy is a softmax over a table of logits, one row per hop or one for all.

Nothing here knows rewards, advantages or learning.
"""

from dataclasses import dataclass

import numpy as np

# N rollouts, K visits allowed, H hops, R rows of the table (H, or 1 if shared), 3 choices
RIGHT, WRONG, STOP, NO_CHOICE = 0, 1, 2, -1


@dataclass(frozen=True)
class Gains:
    """By how much a visit raises the value of the truth: mean and spread, of the right visit at each hop and of a wrong one."""

    right: tuple[float, ...]
    right_noise: tuple[float, ...]
    wrong: float = 0.0
    wrong_noise: float = 0.0

    def __post_init__(self):
        if len(self.right) != len(self.right_noise):
            raise ValueError(f"one spread per hop: {len(self.right)} gains, {len(self.right_noise)} spreads")
        if min((*self.right_noise, self.wrong_noise)) < 0:
            raise ValueError(f"a spread is >= 0, got {self.right_noise} and {self.wrong_noise}")


@dataclass(frozen=True)
class World:
    gains: Gains
    visits: int                           # K, visits allowed; the hops are as many as gains.right
    start: tuple[float, float, float]     # probabilities of right, wrong, stop before training
    searches: bool = True                 # each visit is preceded by a search turn
    shared: bool = False                  # one row of logits for all hops

    def __post_init__(self):
        if not 1 <= self.hops <= self.visits:
            raise ValueError(f"{self.hops} hops need at least as many visits and at least one, got {self.visits}")
        if min(self.start) <= 0 or abs(sum(self.start) - 1) > 1e-6:
            raise ValueError(f"right, wrong and stop are probabilities above 0 that add up to 1, got {self.start}")

    @property
    def hops(self) -> int:
        return len(self.gains.right)

    @property
    def turns_per_visit(self) -> int:
        return 2 if self.searches else 1


@dataclass(frozen=True)
class Rollouts:
    """A batch of sampled rollouts. The entries of a rollout end with its first NO_CHOICE, and with a STOP."""

    choice: np.ndarray           # [N, K]   RIGHT, WRONG, STOP, or NO_CHOICE behind the end
    hop: np.ndarray              # [N, K]   where the choice was made
    visit_gain: np.ndarray       # [N, K]   what the visit adds to the value, counted from before its search
    search_gain: np.ndarray      # [N, K]   what its search alone adds
    success: np.ndarray          # [N]      every right visit was made


def start_logits(world: World) -> np.ndarray:
    return np.tile(np.log(world.start), (1 if world.shared else world.hops, 1))                      # [R, 3]


def choice_probs(world: World, logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.broadcast_to(weights / weights.sum(axis=1, keepdims=True), (world.hops, 3))            # [H, 3]


def sample(world: World, probs: np.ndarray, count: int, rng: np.random.Generator) -> Rollouts:
    """`count` rollouts. The draws do not depend on the table: the same generator gives every method the same luck."""
    draws = rng.random((count, world.visits))
    noise = rng.standard_normal((2, count, world.visits))
    bounds = probs.cumsum(axis=1)[:, :2]                                                              # [H, 2]
    choice = np.full((count, world.visits), NO_CHOICE)
    at = np.zeros((count, world.visits), dtype=int)
    hop, going = np.zeros(count, dtype=int), np.ones(count, dtype=bool)
    for k in range(world.visits):
        at[:, k] = np.minimum(hop, world.hops - 1)
        chosen = (draws[:, k, None] >= bounds[at[:, k]]).sum(axis=1)
        choice[going, k] = chosen[going]
        hop = hop + (choice[:, k] == RIGHT)
        going = going & (chosen != STOP) & (hop < world.hops)
    gains = world.gains
    right = np.array(gains.right)[at] + np.array(gains.right_noise)[at] * noise[0]
    wrong = gains.wrong + gains.wrong_noise * noise[0]
    return Rollouts(choice, at, np.where(choice == RIGHT, right, wrong), gains.wrong_noise * noise[1], hop == world.hops)


def expected(world: World, probs: np.ndarray) -> tuple[float, float]:
    """The exact probability of success and the exact mean number of turns, the answer's included."""
    at_hop = np.zeros(world.hops)                 # probability of being at a hop with visits left
    at_hop[0], success, visits = 1.0, 0.0, 0.0
    for _ in range(world.visits):
        visits += float(at_hop @ (probs[:, RIGHT] + probs[:, WRONG]))
        found = at_hop * probs[:, RIGHT]
        success += float(found[-1])
        at_hop = at_hop * probs[:, WRONG]
        at_hop[1:] += found[:-1]
    return success, 1.0 + world.turns_per_visit * visits
