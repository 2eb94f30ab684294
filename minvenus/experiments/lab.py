"""make lab: in seconds, when and why IGPO helps, and when it shortens rollouts. Prints tables, writes a page.

A research task with known gains and a policy that is a table, trained by the shipped reward and advantage code. Each
visit takes two turns, a search and the visit. In the search turn the policy chooses the right page, a wrong one, or to
stop and answer:

    the right visit      goes on to the next hop and gains right[hop] + noise
    a wrong visit        stays at the hop and gains wrong + noise
    stop                 answers; an answer is correct only after the right visit of every hop
    no visits left, or no hop left: the answer comes by itself, without a choice

A search tells nothing: it moves the value by the noise of a wrong visit, and the visit after it moves it on to where it
would have been anyway. The policy is a softmax over a table of logits, one row per hop, trained by plain policy
gradient:

    theta <- theta + lr * mean over rollouts of mean over turns of A_t * grad log pi(choice of turn t)

This is the gradient that the default loss has before its first update, with one token per turn. A turn without a
choice has no gradient and still counts in the mean. Success and turns of a policy are exact, so a curve has no other
noise than that of learning. docs/experiment.md says how the learning rate was chosen and what the results depend on.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from minvenus.config import Recipe, check
from minvenus.console import table
from minvenus.experiments.compare import METHODS, check_names
from minvenus.experiments.results import band, shown
from minvenus.files import write_text
from minvenus.flags import parse_flags, save_config
from minvenus.igpo.advantage import turn_advantages
from minvenus.igpo.gain import segment_gains
from minvenus.igpo.rewards import turn_rewards
from minvenus.report import page
from minvenus.report.curves import line_plot
from minvenus.settings import IGPOConfig
from minvenus.types import TurnRewards

# N rollouts, K visits allowed, H hops, 3 choices
RIGHT, WRONG, STOP, NO_CHOICE = 0, 1, 2, -1
START = (0.30, 0.55, 0.15)         # probabilities of right, wrong, stop before training
GROUPS, GROUP_SIZE = 8, 4          # of one update


@dataclass(frozen=True)
class Gains:
    """How much a visit raises the value of the truth: mean and standard deviation, of the right visit at each hop and
    of a wrong one."""

    right: tuple[float, ...]
    right_noise: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    wrong: float = 0.0
    wrong_noise: float = 0.0


PROFILES = {                       # right visits at hop 1..4; all but the measured ones have the mean .8
    "equal": Gains((0.8, 0.8, 0.8, 0.8)),
    "rising": Gains((0.4, 0.6, 0.9, 1.3)),
    "back": Gains((0.1, 0.1, 0.1, 2.9)),
    "front": Gains((2.6, 0.2, 0.2, 0.2)),
    "noisy": Gains((0.8, 0.8, 0.8, 0.8), (1.0, 1.0, 1.0, 1.0), wrong_noise=1.0),
    # of a tiny language model on a toy web, before its RL
    "measured": Gains((0.47, 0.43, 0.45, 0.40), (0.25, 0.13, 0.19, 0.06), wrong=-0.05, wrong_noise=0.23),
}


@dataclass(frozen=True)
class LabConfig:
    """python -m minvenus.experiments lab: who learns what from which gains."""

    gains: str = " ".join(PROFILES)  # names of profiles, with spaces between
    methods: str = "grpo paper released uncentred unnormalised unscaled no-browse gamma-1"  # see experiments/compare.py
    visits: int = 6                  # visits allowed; a correct answer needs four
    steps: int = 80                  # updates
    seeds: int = 4                   # runs per method and profile, seeds 0, 1, ...
    learning_rate: float = 0.8       # the same for all methods, chosen on GRPO alone
    out: str = "runs/lab"            # folder for the page with the curves

    def __post_init__(self):
        check(self)
        check_names("gains", self.gains, PROFILES)
        check_names("methods", self.methods, METHODS)


@dataclass(frozen=True)
class LabRollouts:
    """A batch of sampled rollouts. A rollout ends with its first NO_CHOICE or STOP."""

    choice: np.ndarray           # [N, K]   RIGHT, WRONG, STOP, or NO_CHOICE after the end
    hop: np.ndarray              # [N, K]   where the choice was made
    visit_gain: np.ndarray       # [N, K]   what the visit adds to the value, counted from before its search
    search_gain: np.ndarray      # [N, K]   what its search alone adds
    success: np.ndarray          # [N]      every right visit was made


Curve = list[tuple[float, float]]           # success and turns of the policy after 0, 1, 2, ... updates


def main(config: LabConfig) -> str:
    print("Share of correct answers, mean ± half of the 95 % interval over the seeds, and turns at the last step.")
    parts = []
    for name in config.gains.split():
        gains = PROFILES[name]
        curves = {}
        for method in config.methods.split():
            recipe = parse_flags(IGPOConfig, list(METHODS[method])).recipe
            curves[method] = [train(gains, recipe, seed, config) for seed in range(config.seeds)]
        head, *body = rows(curves)
        print(f"\ngains {name}: {gains}\n{table([head, *body])}", flush=True)
        parts.append(page.section(f"Gains {name}", [page.figures(plots(curves)), page.table(head, body)], str(gains)))
    save_config(config, config.out)
    lede = "Success and turns of a table policy, mean and 95 % interval over the seeds."
    facts = [(key, str(value)) for key, value in asdict(config).items()]
    document = page.page("The credit lab", parts, lede, facts, kind="minvenus lab")
    return f"\ncurves: {write_text(Path(config.out) / 'lab.html', document)}"


def rows(curves: dict[str, list[Curve]]) -> list[list[str]]:
    """A head, then each method: success at some steps and turns at the last one, mean and 95 % interval over seeds."""
    count = len(next(iter(curves.values()))[0])
    steps = sorted({*range(0, count, 20), count - 1})
    found = [["method", *(f"step {step}" for step in steps), "turns"]]
    for method, of_seeds in curves.items():
        success = [shown([curve[step][0] for curve in of_seeds]) for step in steps]
        found.append([method, *success, shown([curve[-1][1] for curve in of_seeds])])
    return found


def plots(curves: dict[str, list[Curve]]) -> list[str]:
    found = []
    for column, label, covers in ((0, "correct answers", (0.0, 1.0)), (1, "turns", (0.0, 0.0))):
        lines = []
        for method, of_seeds in curves.items():
            values = [[point[column] for point in points] for points in zip(*of_seeds, strict=True)]
            lines.append(band(method, range(len(values)), values))
        found.append(page.figure(line_plot(lines, label, "updates", label, covers=covers)))
    return found


# --------------------------------------------------------------------------------------------------------- the learning


def train(gains: Gains, recipe: Recipe, seed: int, config: LabConfig) -> Curve:
    logits = np.tile(np.log(START), (len(gains.right), 1))                                            # [H, 3]
    group_of = [i // GROUP_SIZE for i in range(GROUPS * GROUP_SIZE)]
    curve = []
    for step in range(config.steps):
        probs = softmax(logits)
        curve.append(expected(probs, config.visits))
        rollouts = sample(gains, probs, config.visits, len(group_of), np.random.default_rng((seed, step)))
        advantages = turn_advantages(rewards_of(rollouts, recipe), group_of, recipe)
        logits = logits + config.learning_rate * policy_gradient(probs, rollouts, advantages)
    return curve


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def expected(probs: np.ndarray, visits: int) -> tuple[float, float]:
    """The exact probability of success and the exact mean number of turns, the answer's included."""
    at_hop = np.zeros(len(probs))                 # probability of being at a hop with visits left
    at_hop[0] = 1.0
    success = made = 0.0
    for _ in range(visits):
        made += float(at_hop @ (probs[:, RIGHT] + probs[:, WRONG]))
        found = at_hop * probs[:, RIGHT]
        success += float(found[-1])
        at_hop = at_hop * probs[:, WRONG]
        at_hop[1:] += found[:-1]
    return success, 1.0 + 2 * made


def sample(gains: Gains, probs: np.ndarray, visits: int, count: int, rng: np.random.Generator) -> LabRollouts:
    """`count` rollouts. The draws do not depend on the table: the same generator gives every method the same luck."""
    hops = len(probs)
    draws = rng.random((count, visits))
    noise = rng.standard_normal((2, count, visits))
    bounds = probs.cumsum(axis=1)[:, :2]                                                              # [H, 2]
    choice = np.full((count, visits), NO_CHOICE)
    at = np.zeros((count, visits), dtype=int)
    hop = np.zeros(count, dtype=int)
    running = np.ones(count, dtype=bool)
    for k in range(visits):
        at[:, k] = np.minimum(hop, hops - 1)
        chosen = (draws[:, k, None] >= bounds[at[:, k]]).sum(axis=1)
        choice[running, k] = chosen[running]
        hop = hop + (choice[:, k] == RIGHT)
        running = running & (chosen != STOP) & (hop < hops)
    right = np.array(gains.right)[at] + np.array(gains.right_noise)[at] * noise[0]
    wrong = gains.wrong + gains.wrong_noise * noise[0]
    return LabRollouts(choice, at, np.where(choice == RIGHT, right, wrong), gains.wrong_noise * noise[1], hop == hops)


def rewards_of(rollouts: LabRollouts, recipe: Recipe) -> list[TurnRewards]:
    """The rewards of each rollout by the shipped code, from the values before each turn."""
    visits = np.isin(rollouts.choice, (RIGHT, WRONG)).sum(axis=1).tolist()
    rewards = []
    for i, count in enumerate(visits):
        value = 0.0
        values: list[float | None] = [value]
        for k in range(count):
            values.append(value + float(rollouts.search_gain[i, k]))
            value += float(rollouts.visit_gain[i, k])
            values.append(value)
        kinds = ["search", "visit"] * count + ["answer"]
        gains = segment_gains(values, kinds, recipe)
        rewards.append(turn_rewards(kinds, gains, [False] * len(kinds), float(rollouts.success[i]), recipe))
    return rewards


def policy_gradient(probs: np.ndarray, rollouts: LabRollouts, advantages: list[list[float]]) -> np.ndarray:
    """Gradient of the objective with respect to the logits of the table, [H, 3]."""
    weights = np.zeros(rollouts.choice.shape)                                                         # [N, K]
    for weight, row in zip(weights, advantages, strict=True):
        deciding = row[::2]                                 # choice k is made in turn 2k, a stop too
        weight[:len(deciding)] = np.array(deciding[:len(weight)]) / len(row)
    weights[rollouts.choice == NO_CHOICE] = 0.0             # an answer that came by itself
    chosen = rollouts.choice[:, :, None] == np.arange(3)                                              # [N, K, 3]
    each = weights[:, :, None] * (chosen - probs[rollouts.hop])
    gradient = np.zeros(probs.shape)
    np.add.at(gradient, rollouts.hop, each)
    return gradient / len(advantages)
