"""make lab: in seconds, when and why IGPO helps, and when it shortens rollouts. Prints tables, writes a page.

Every method under every profile of gains, over several seeds, in the world of lab_world.py. docs/experiment.md says
how the learning rate was chosen and what the results depend on."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from minvenus.config import ConfigError, Recipe
from minvenus.console import table
from minvenus.experiments.lab_world import Curve, Gains, World, train
from minvenus.experiments.results import band, interval
from minvenus.files import write_text
from minvenus.flags import save_config
from minvenus.report.curves import line_plot
from minvenus.report.page import figure, figures, page, section
from minvenus.report.page import table as html_table

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

    gains: str = "equal rising back front noisy measured"    # names of profiles with spaces between, or all
    methods: str = "all"             # names of methods with spaces between, or all
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
            if not given.split() or not set(given.split()) <= {*known, "all"}:
                raise ConfigError(f"{name} must be all, or some of {' '.join(known)}; got {given!r}")

    def worlds(self) -> dict[str, World]:
        """The world under each profile of gains."""
        start = (self.right, self.wrong, round(1 - self.right - self.wrong, 9))
        return {name: World(PROFILES[name], self.visits, start, self.searches, self.shared)
                for name in chosen(self.gains, PROFILES)}


def chosen(names: str, known: dict) -> list[str]:
    return list(known) if "all" in names.split() else names.split()


def main(config: LabConfig) -> str:
    results = compare(config)
    print(tables(config, results))
    save_config(config, config.out)
    return f"\ncurves: {write_text(Path(config.out) / 'lab.html', lab_page(config, results))}"


def compare(config: LabConfig) -> dict[str, dict[str, list[Curve]]]:
    """One curve per seed, by gains and method. A method that ignores gains is run once."""
    results: dict[str, dict[str, list[Curve]]] = {}
    without_gains: dict[str, list[Curve]] = {}
    for gains, world in config.worlds().items():
        results[gains] = {}
        for method in chosen(config.methods, METHODS):
            if sys.stderr.isatty():
                print(f"\r\033[K{gains}, {method}", end="", file=sys.stderr, flush=True)
            recipe = METHODS[method][1]
            curves = without_gains.get(method) or [
                train(world, recipe, seed, steps=config.steps, groups=config.groups, group_size=config.group_size,
                      learning_rate=config.learning_rate) for seed in range(config.seeds)]
            if not recipe.use_gain:
                without_gains[method] = curves
            results[gains][method] = curves
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return results


# ------------------------------------------------------------------------------------------------------ tables and page


def setting(config: LabConfig) -> str:
    return (f"{config.visits} visits at most{', a search before each' if config.searches else ''}, "
            f"{'one row for all hops' if config.shared else 'one row per hop'}, start right {config.right:.2f} "
            f"wrong {config.wrong:.2f}, {config.groups} groups of {config.group_size}, {config.seeds} seeds, "
            f"learning rate {config.learning_rate:g}")


def describe(gains: Gains) -> str:
    text = f"right visits {' '.join(f'{gain:.2f}' for gain in gains.right)}, wrong {gains.wrong:.2f}"
    if any(gains.right_noise):
        text += f"; noise {' '.join(f'{noise:.2f}' for noise in gains.right_noise)}, wrong {gains.wrong_noise:.2f}"
    return text


def rows(curves: dict[str, list[Curve]], steps: int) -> list[list[str]]:
    """A head, then each method: success at some steps and turns at the last one, mean and 95 % interval over seeds."""
    shown = sorted({*range(0, steps, 20 * math.ceil(steps / 100)), steps - 1})      # at most six, so that a row fits
    found = [["method", *(f"step {step}" for step in shown), "turns"]]
    for method, of_seeds in curves.items():
        success = [str(interval([curve.success[step] for curve in of_seeds])) for step in shown]
        found.append([method, *success, str(interval([curve.turns[-1] for curve in of_seeds]))])
    return found


def tables(config: LabConfig, results: dict[str, dict[str, list[Curve]]]) -> str:
    lines = ["Share of correct answers, mean ± half of the 95 % interval over the seeds, and turns at the last step.",
             setting(config)]
    for gains, curves in results.items():
        lines += ["", f"gains {gains}: {describe(PROFILES[gains])}", table(rows(curves, config.steps))]
    meanings = [[name, METHODS[name][0]] for name in chosen(config.methods, METHODS)]
    return "\n".join([*lines, "", *(f"{name:<14}{meaning}" for name, meaning in meanings)])


def lab_page(config: LabConfig, results: dict[str, dict[str, list[Curve]]]) -> str:
    meanings = [[name, METHODS[name][0]] for name in chosen(config.methods, METHODS)]
    parts = [section("Methods", [html_table(["method", "meaning"], meanings)])]
    for gains, curves in results.items():
        plots = []
        for what, label, covers in (("success", "correct answers", (0.0, 1.0)), ("turns", "turns", (0.0, 0.0))):
            lines = []
            for method, of_seeds in curves.items():
                values = zip(*(getattr(curve, what) for curve in of_seeds), strict=True)
                lines.append(band(method, dict(enumerate(map(list, values)))))
            plots.append(figure(line_plot(lines, f"{label}, gains {gains}", "updates", label, covers=covers)))
        head, *body = rows(curves, config.steps)
        parts.append(section(f"Gains {gains}", [figures(plots), html_table(head, body)], describe(PROFILES[gains])))
    lede = "Success and turns of a table policy, mean and 95 % interval over the seeds."
    return page("The credit lab", parts, lede, [("setting", setting(config))], kind="minvenus lab")
