"""make lab: in seconds, when and why IGPO helps, and when it shortens rollouts.

A research task with known gains and a policy that is a table, trained by the shipped reward and
advantage code. Each visit takes two turns, a search and the visit. In the search turn the policy
chooses the right page, a wrong one, or to stop and answer:

    the right visit      goes on to the next hop and gains right[hop] + noise
    a wrong visit        stays at the hop and gains wrong + noise
    stop                 answers; an answer is correct only after the right visit of every hop
    no visits left, or no hop left: the answer comes by itself, without a choice

A search tells nothing: it moves the belief by the noise of a wrong visit, and the visit after it
moves it on to where it would have been anyway. The policy is a softmax over a table of logits, one
row per hop, trained by plain policy gradient:

    theta <- theta + lr * mean over rollouts of mean over turns of A_t * grad log pi(choice of t)

This is the gradient that the default loss has before its first update, with one token per turn. A
turn without a choice has no gradient and still counts in the mean. Success and turns of a policy
are exact, so a curve has no other noise than that of learning. docs/experiment.md says how the
learning rate was chosen and what the results depend on.
"""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from minvenus.config import check
from minvenus.console import table
from minvenus.experiments.methods import (
    CHANGES,
    check_names,
    method_recipe,
    split_names,
)
from minvenus.experiments.results import Curves, Runs, line, over_seeds
from minvenus.files import write_text
from minvenus.igpo.advantage import turn_advantages
from minvenus.igpo.gain import belief, segment_gains
from minvenus.igpo.recipes import RECIPES, Recipe
from minvenus.igpo.rewards import turn_rewards
from minvenus.report.curves import line_plot
from minvenus.report.page import Html
from minvenus.setting import setting

RIGHT, WRONG, STOP = 0, 1, 2       # choices
START = (0.30, 0.55, 0.15)         # their probabilities before training
GROUPS = 8                         # of one update
GROUP_SIZE = 4
VISITS = 6                         # allowed; a correct answer needs four


@dataclass(frozen=True)
class Gains:
    """By how much a visit raises the log-prob of the truth: mean and standard deviation."""

    right: tuple[float, ...]                                     # of the right visit at each hop
    right_noise: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    wrong: float = 0.0                                           # of a wrong visit
    wrong_noise: float = 0.0


PROFILES = {                       # of right visits at hops 1 to 4
    "equal": Gains((0.8, 0.8, 0.8, 0.8)),
    "front": Gains((2.6, 0.2, 0.2, 0.2)),
    # of a tiny language model on a toy web, before its RL
    "measured": Gains(
        right=(0.47, 0.43, 0.45, 0.40),
        right_noise=(0.25, 0.13, 0.19, 0.06),
        wrong=-0.05,
        wrong_noise=0.23,
    ),
}


@dataclass(frozen=True)
class LabConfig:
    """python -m minvenus.experiments lab: who learns what from which gains."""

    gains: str = setting("measured, equal, front", "names of profiles, with commas between")
    methods: str = setting(
        ", ".join(RECIPES), "recipes, perhaps with changes; a wrong name lists them all")
    steps: int = setting(80, "updates", least=1)
    seeds: int = setting(20, "runs per method and profile, seeds 0, 1, ...", least=1)
    learning_rate: float = setting(0.8, "the same for all methods, chosen on GRPO alone", above=0)
    out: str = setting("runs/lab", "folder of the pictures, one per profile")

    def __post_init__(self):
        check(self)
        check_names("gains", self.gains, PROFILES)
        parts = {field.name for field in fields(Recipe)}       # the lab has nothing else to change
        changes = [name for name, change in CHANGES.items() if change.keys() <= parts]
        check_names("methods", self.methods, RECIPES, changes)


def main(config: LabConfig) -> str:
    last = config.steps - 1
    columns = {f"step {step}": ("success", step) for step in [*range(0, last, 20), last]}
    columns["turns"] = ("turns", last)
    for name in split_names(config.gains):
        runs = train_all(name, config)
        write_text(Path(config.out) / f"lab-{name}.svg", picture(name, runs) + "\n")
        print(f"gains {name}: {PROFILES[name]}\n{table(over_seeds(runs, columns))}\n", flush=True)
    return ("Share of correct answers and turns, mean over the seeds [95 % interval]. "
            f"Curves: {config.out}")


def picture(name: str, runs: Runs) -> Html:
    lines = []
    for method, method_runs in runs.items():
        lines.append(line(method, [run["success"] for run in method_runs]))
    title = f"Correct answers, gains {name}"
    return line_plot(lines, title, "updates", "share, mean of the seeds", (0.0, 1.0))


# ------------------------------------------------------------------------------------ the learning


def train_all(name: str, config: LabConfig) -> Runs:
    """The runs of every method on one profile of gains."""
    runs: Runs = {}
    for method in split_names(config.methods):
        recipe = method_recipe(method)
        seeds = range(config.seeds)
        runs[method] = [train(PROFILES[name], recipe, seed, config) for seed in seeds]
    return runs


def train(gains: Gains, recipe: Recipe, seed: int, config: LabConfig) -> Curves:
    """Probability of success and mean number of turns after 0, 1, 2, ... updates."""
    logits = np.tile(np.log(START), (len(gains.right), 1))              # [hops, 3]
    curves: Curves = {"success": {}, "turns": {}}
    for step in range(config.steps):
        probs = softmax(logits)
        curves["success"][step], curves["turns"][step] = expected(probs, VISITS)

        rng = np.random.default_rng((seed, step))
        rollouts = sample(gains, probs, VISITS, GROUPS * GROUP_SIZE, rng)
        gradient = policy_gradient(probs, rollouts, advantages(rollouts, recipe))
        logits = logits + config.learning_rate * gradient
    return curves


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def expected(probs: np.ndarray, visits: int) -> tuple[float, float]:
    """The exact probability of success and mean number of turns, the answer's included."""
    at_hop = np.zeros(len(probs))                 # probability of being at a hop with visits left
    at_hop[0] = 1.0
    success = 0.0
    visits_made = 0.0
    for _ in range(visits):
        visits_made += float(at_hop @ (probs[:, RIGHT] + probs[:, WRONG]))
        right = at_hop * probs[:, RIGHT]
        success += float(right[-1])
        at_hop = at_hop * probs[:, WRONG]
        at_hop[1:] += right[:-1]
    return success, 1.0 + 2 * visits_made


@dataclass(frozen=True)
class LabRollout:
    """A rollout of the lab, as if the truth had one token."""

    choices: list[tuple[int, int]]               # (hop, choice); choice k is made in turn 2k
    logprobs: list[float]                        # of the truth before each turn
    outcome: float

    @property
    def kinds(self) -> list[str]:
        return ["search", "visit"] * (len(self.logprobs) // 2) + ["answer"]


def sample(
    gains: Gains, probs: np.ndarray, visits: int, count: int, rng: np.random.Generator
) -> list[LabRollout]:
    """`count` rollouts. What is drawn does not depend on the table: the same generator gives every
    method the same random numbers."""
    draws = rng.random((count, visits)).tolist()
    visit_noise, search_noise = rng.standard_normal((2, count, visits)).tolist()
    bounds = probs.cumsum(axis=1)[:, :2].tolist()                       # [hops, 2]
    rollouts = []
    for i in range(count):
        hop = 0
        logprob = 0.0
        choices = []
        logprobs = [logprob]
        for k in range(visits):
            choice = sum(draws[i][k] >= bound for bound in bounds[hop])
            choices.append((hop, choice))
            if choice == STOP:
                break

            logprobs.append(logprob + gains.wrong_noise * search_noise[i][k])
            mean, noise = gains.wrong, gains.wrong_noise
            if choice == RIGHT:
                mean, noise = gains.right[hop], gains.right_noise[hop]
                hop += 1
            logprob += mean + noise * visit_noise[i][k]
            logprobs.append(logprob)
            if hop == len(probs):
                break
        rollouts.append(LabRollout(choices, logprobs, outcome=float(hop == len(probs))))
    return rollouts


def advantages(rollouts: list[LabRollout], recipe: Recipe) -> list[list[float]]:
    """By the shipped code. GROUP_SIZE rollouts in a row are a group."""
    rewards = []
    for rollout in rollouts:
        kinds = rollout.kinds
        beliefs: list[float | None] = [belief([p], recipe.gain) for p in rollout.logprobs]
        gains = segment_gains(beliefs, kinds, recipe)
        malformed = [False] * len(kinds)
        rewards.append(turn_rewards(kinds, gains, malformed, rollout.outcome, recipe))
    groups = [i // GROUP_SIZE for i in range(len(rollouts))]
    return turn_advantages(rewards, groups, recipe)


def policy_gradient(
    probs: np.ndarray, rollouts: list[LabRollout], advantages: list[list[float]]
) -> np.ndarray:
    """Gradient of the objective with respect to the logits of the table, [hops, 3]."""
    gradient = np.zeros(probs.shape)
    for rollout, row in zip(rollouts, advantages, strict=True):
        for k, (hop, choice) in enumerate(rollout.choices):
            weight = row[2 * k] / len(row)
            gradient[hop] -= weight * probs[hop]
            gradient[hop, choice] += weight
    return gradient / len(rollouts)
