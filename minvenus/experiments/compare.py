"""make compare: GRPO and recipes of IGPO from one SFT checkpoint, with the same rollouts per step and the same
settings.

    make compare                                             four methods, eight seeds, two processes side by side
    python -m minvenus.experiments compare --methods "paper unscaled no-browse" --seeds 3 --hops 3

Compared are the accuracy on held-out questions after the last step, the area under its curve (its mean over the
evaluations), and the share of right pages found after the last step. Given again, the command goes on where it was
stopped.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from minvenus.config import ConfigError, Count, CountOrZero, GroupSize, Positive, check
from minvenus.console import Progress, table
from minvenus.experiments.results import OVER_SEEDS, Curves, Runs, figures, rows, shown
from minvenus.experiments.scripts import run_all, train, trained
from minvenus.files import read_jsonl, write_text
from minvenus.flags import save_config
from minvenus.report import page
from minvenus.report.run_page import with_step_0
from minvenus.settings import Hops, SFTConfig, check_model

METHODS = {                       # flags of train_igpo.py, beside those that all methods share
    "grpo": ("--no-use-gain",),                                   # outcomes only
    "paper": (),                                                  # IGPO as in the paper
    "released": ("--recipe", "released"),                         # IGPO as in the released code
    "uncentred": ("--no-center-gain",),                           # gains divided by their spread, not centred
    # ablations of `paper`
    "unnormalised": ("--normalize", "none"),                      # rewards as they are, no z-scores
    "unscaled": ("--normalize", "separate"),                      # z-scores without IG-Scale
    "no-browse": ("--browse", "off"),                             # a gain for every turn, searches too
    "no-penalty": ("--format-penalty", "0"),
    "gamma-1": ("--gamma", "1"),
    "reference": ("--gain-policy", "reference"),                  # gains from the frozen start checkpoint
    "token-mean": ("--aggregate", "token-mean"),
    # ... and of the others
    "uncentred-unscaled": ("--no-center-gain", "--normalize", "separate"),
    "grpo-gamma-1": ("--no-use-gain", "--gamma", "1"),
}
ACCURACY, RIGHT_PAGES = "test_exact_match", "test_right_pages"       # on held-out questions
PLOTS = {                                                            # metric -> title, unit
    ACCURACY: ("Accuracy on held-out questions", "share right"),
    RIGHT_PAGES: ("Right pages found", "share of the path"),
    "test_turns": ("Turns per rollout", "turns"),
    "groups_without_outcome_signal": ("Groups that end alike: no signal for GRPO", "share of groups"),
    "gain_right": ("Gain of right visits", "log-prob per answer token"),
    "gain_wrong": ("Gain of wrong visits", "log-prob per answer token"),
}


@dataclass(frozen=True)
class CompareConfig:
    """python -m minvenus.experiments compare: methods side by side on the toy web, on fresh seeds."""

    model: str | None = None                 # the SFT checkpoint to start from; none = train one as `make demo` does
    out: str = "runs/compare"                # folder of the runs and the page
    methods: str = "grpo paper released uncentred"       # which ones, see METHODS in experiments/compare.py
    seeds: Count = 8                         # runs of each method
    first_seed: int = 200                    # seeds count up from here
    steps: Count = 40                        # of each run; an evaluation every 10, and after the last
    hops: Hops | None = 4                    # of every question; none = 1, 2, 3 and 4 in turn
    slack: CountOrZero = 0                   # turns beyond what is needed
    questions: Count = 8                     # per step
    group: GroupSize = 4                     # rollouts of each question
    learning_rate: Positive = 6e-4           # of all methods
    jobs: Count = 2                          # processes at the same time, of one thread each

    def __post_init__(self):
        check(self)
        check_names("methods", self.methods, METHODS)
        if self.model is not None:
            check_model(self.model)


def check_names(setting: str, given: str, known: Collection[str]) -> None:
    """Raise unless a setting is names out of `known` with spaces between, each once."""
    names = given.split()
    if not names or len(set(names)) < len(names) or not set(names) <= set(known):
        raise ConfigError(f"{setting} must be some of {' '.join(known)}, each once; got {given!r}")


def main(config: CompareConfig) -> str:
    folder = Path(config.out)
    start = Path(config.model) if config.model else train("train_sft.py", folder / "sft", SFTConfig.steps)
    methods = config.methods.split()
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    jobs = {}
    for seed in seeds:
        for method in methods:
            jobs[f"{method}-{seed}"] = flags_of(config, start, method, seed)
    progress = Progress("runs", 0, len(jobs))
    for done, name in enumerate(run_all("train_igpo.py", jobs, config.jobs, folder), start=1):
        trained(folder / name, config.steps)
        progress.show(done, {})
    save_config(config, folder)
    runs = {method: {seed: read_curves(folder / f"{method}-{seed}") for seed in seeds} for method in methods}
    several = tables(runs, config.steps)
    written = write_text(folder / "report.html", page_of(runs, several, asdict(config)))
    return "\n\n".join([*map(table, several), f"page: {written}"])


def flags_of(config: CompareConfig, start: Path, method: str, seed: int) -> tuple:
    """The flags of train_igpo.py for one run."""
    shared = ("--model", start, "--out", Path(config.out) / f"{method}-{seed}", "--seed", seed, "--steps", config.steps,
              "--hops", config.hops, "--slack", config.slack, "--questions", config.questions, "--group", config.group,
              "--learning-rate", config.learning_rate, "--evaluate-every", 10, "--rollouts-every", config.steps)
    return shared + METHODS[method]


# --------------------------------------------------------------------------------------------------------- the numbers


def read_curves(folder: Path) -> Curves:
    """The metrics of a run of train_igpo.py, and the area under its curve of accuracy: the mean over the evaluations up
    to a step. Step 0, the checkpoint that all methods start from, counts in no area."""
    metrics = with_step_0(read_jsonl(folder / "metrics.jsonl"))
    curves: Curves = {key: {row["step"]: row[key] for row in metrics if row.get(key) is not None} for key in PLOTS}
    steps = [step for step in curves[ACCURACY] if step > 0]
    curves["area"] = {last: fmean(curves[ACCURACY][step] for step in steps if step <= last) for last in steps}
    return curves


def tables(runs: Runs, step: int) -> list[list[list[str]]]:
    """Every method with the accuracy of each seed, above them the checkpoint that all start from; then each method
    minus the first one, paired by seed: runs of a seed have the same questions."""
    (first, baseline), *others = runs.items()
    columns = {f"accuracy at step {step}": (ACCURACY, step), "area under the curve": ("area", step),
               f"right pages at step {step}": (RIGHT_PAGES, step)}
    head, *body = rows(runs, columns)
    accuracy, pages = (shown([run[metric][0] for run in baseline.values()]) for metric in (ACCURACY, RIGHT_PAGES))
    found = [[*head, "each seed"], ["start (step 0)", accuracy, "", pages, each(baseline, 0)]]
    found += [[*row, each(of_seeds, step)] for row, of_seeds in zip(body, runs.values(), strict=True)]
    if not others:
        return [found]
    apart: Runs = {}
    for method, of_seeds in others:
        apart[f"{method} - {first}"] = {seed: minus(run, baseline[seed], step) for seed, run in of_seeds.items()}
    return [found, rows(apart, columns)]


def each(runs: dict[int, Curves], step: int) -> str:
    return " ".join(f"{run[ACCURACY][step]:.2f}" for run in runs.values())


def minus(run: Curves, other: Curves, step: int) -> Curves:
    return {metric: {step: run[metric][step] - other[metric][step]} for metric in (ACCURACY, "area", RIGHT_PAGES)}


def page_of(runs: Runs, several: list[list[list[str]]], settings: dict) -> str:
    parts = [page.table(head, body, OVER_SEEDS) for head, *body in several]
    sections = [page.section("Result", parts),
                page.section("Curves", [figures(runs, PLOTS)], "Bands are 95 % intervals over the seeds.")]
    facts = [(key, str(value)) for key, value in settings.items() if value is not None]
    lede = "All methods start from the same checkpoint and sample as many rollouts."
    return page.page("Methods compared", sections, lede, facts, kind="minvenus comparison")
