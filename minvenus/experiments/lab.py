"""make lab: in seconds, when and why IGPO helps, and when it shortens rollouts. Prints tables, writes a page.

Every method under every profile of gains, over several seeds, in the world of lab_world.py. docs/experiment.md says how
the learning rate was chosen and what the results depend on.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from minvenus.config import ConfigError, Recipe
from minvenus.console import table
from minvenus.experiments.compare import METHODS
from minvenus.experiments.lab_world import Curve, Gains, World, train
from minvenus.experiments.results import band, interval
from minvenus.files import write_text
from minvenus.flags import parse_flags, save_config
from minvenus.report import page
from minvenus.report.curves import line_plot
from minvenus.settings import IGPOConfig

PROFILES = {                 # right visits at hop 1..4; all but the measured ones have the mean .8
    "equal": Gains((0.8, 0.8, 0.8, 0.8)),
    "penalised": Gains((0.8, 0.8, 0.8, 0.8), wrong=-1.5),
    "noisy": Gains((0.8, 0.8, 0.8, 0.8), (1.0, 1.0, 1.0, 1.0), wrong_noise=1.0),
    "rising": Gains((0.4, 0.6, 0.9, 1.3)),
    "back": Gains((0.1, 0.1, 0.1, 2.9)),
    "front": Gains((2.6, 0.2, 0.2, 0.2)),
    # of a tiny language model on a toy web, before its RL
    "measured": Gains((0.47, 0.43, 0.45, 0.40), (0.25, 0.13, 0.19, 0.06), wrong=-0.05, wrong_noise=0.23),
}
ALL_METHODS = "grpo paper released uncentred unnormalised unscaled no-browse gamma-1"
PRESETS: dict[str, dict] = {
    "visits-only": {"searches": False, "visits": 5, "right": 0.35, "wrong": 0.50, "group_size": 8, "steps": 60,
                    "gains": "equal penalised noisy rising back front",
                    "methods": "grpo paper uncentred unnormalised unscaled gamma-1"},     # the others equal paper here
    "likely": {"right": 0.45, "wrong": 0.50},               # success is less rare at the start
    "no-slack": {"visits": 4},                              # one wrong visit and the question is lost
    "one-skill": {"shared": True},                          # what is learnt at one hop serves all of them
}


@dataclass(frozen=True)
class LabConfig:
    """python -m minvenus.experiments lab: who learns what from which gains."""

    gains: str = "equal rising back front noisy measured"    # names of profiles, with spaces between
    methods: str = ALL_METHODS       # names of methods, those of experiments/compare.py that change the recipe
    visits: int = 6                  # visits allowed; a correct answer needs four
    searches: bool = True            # each visit is preceded by a search turn
    shared: bool = False             # one row of logits for all hops instead of one per hop
    right: float = 0.30              # probability of the right visit at the start
    wrong: float = 0.55              # of a wrong one; the rest is to stop and answer
    groups: int = 8                  # groups (questions) per step
    group_size: int = 4              # G, rollouts per group
    steps: int = 80                  # updates
    seeds: int = 4                   # runs per method and gain, seeds 0, 1, ...
    learning_rate: float = 0.8       # the same for all methods, chosen on GRPO alone
    out: str = "runs/lab"            # folder for the page with the curves

    def __post_init__(self):
        for name, least in (("visits", 4), ("groups", 1), ("group_size", 2), ("steps", 1), ("seeds", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise ConfigError(f"learning_rate must be above 0, got {self.learning_rate}")
        if min(self.right, self.wrong, 1 - self.right - self.wrong) <= 0:
            raise ConfigError(f"right and wrong must be above 0 and below 1 in sum, got {self.right} and {self.wrong}")
        for name, given, known in (("gains", self.gains, PROFILES), ("methods", self.methods, METHODS)):
            if not given.split() or not set(given.split()) <= set(known):
                raise ConfigError(f"{name} must be some of {' '.join(known)}; got {given!r}")


def main(config: LabConfig) -> str:
    print("Share of correct answers, mean ± half of the 95 % interval over the seeds, and turns at the last step.")
    parts = []
    for name in config.gains.split():
        curves = learn(config, PROFILES[name])
        head, *body = rows(curves, config.steps)
        print(f"\ngains {name}: {PROFILES[name]}\n{table([head, *body])}", flush=True)
        shown = [page.figures(plots(curves)), page.table(head, body)]
        parts.append(page.section(f"Gains {name}", shown, str(PROFILES[name])))
    save_config(config, config.out)
    lede = "Success and turns of a table policy, mean and 95 % interval over the seeds."
    facts = [(key, str(value)) for key, value in asdict(config).items()]
    document = page.page("The credit lab", parts, lede, facts, kind="minvenus lab")
    return f"\ncurves: {write_text(Path(config.out) / 'lab.html', document)}"


def learn(config: LabConfig, gains: Gains) -> dict[str, list[Curve]]:
    """The curves of each method, one per seed."""
    start = (config.right, config.wrong, round(1 - config.right - config.wrong, 9))
    world = World(gains, config.visits, start, config.searches, config.shared)
    curves = {}
    for method in config.methods.split():
        curves[method] = [train(world, recipe_of(method), seed, steps=config.steps, groups=config.groups,
                                group_size=config.group_size, learning_rate=config.learning_rate)
                          for seed in range(config.seeds)]
    return curves


def recipe_of(method: str) -> Recipe:
    return parse_flags(IGPOConfig, list(METHODS[method])).recipe


def rows(curves: dict[str, list[Curve]], steps: int) -> list[list[str]]:
    """A head, then each method: success at some steps and turns at the last one, mean and 95 % interval over seeds."""
    shown = sorted({*range(0, steps, 20 * math.ceil(steps / 100)), steps - 1})      # at most six, so that a row fits
    found = [["method", *(f"step {step}" for step in shown), "turns"]]
    for method, of_seeds in curves.items():
        success = [str(interval([curve.success[step] for curve in of_seeds])) for step in shown]
        found.append([method, *success, str(interval([curve.turns[-1] for curve in of_seeds]))])
    return found


def plots(curves: dict[str, list[Curve]]) -> list[str]:
    found = []
    for what, label, covers in (("success", "correct answers", (0.0, 1.0)), ("turns", "turns", (0.0, 0.0))):
        lines = []
        for method, of_seeds in curves.items():
            values = zip(*(getattr(curve, what) for curve in of_seeds), strict=True)
            lines.append(band(method, dict(enumerate(map(list, values)))))
        found.append(page.figure(line_plot(lines, label, "updates", label, covers=covers)))
    return found
