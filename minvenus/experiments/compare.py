"""make compare: GRPO and recipes of IGPO from one SFT checkpoint, with the same rollouts per step and the same
settings.

    make compare                                             four methods, eight seeds, two processes side by side
    python -m minvenus.experiments compare --methods "paper unscaled no-browse" --seeds 3 --hops 3

Compared are the accuracy on held-out questions after the last step, the area under its curve (its mean over the
evaluations), and the share of right pages found after the last step. Given again, the command goes on where it was
stopped.
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

from minvenus.config import ConfigError, Count, CountOrZero, GroupSize, Positive, check
from minvenus.console import Progress, table
from minvenus.experiments.scripts import run_all, train, trained
from minvenus.files import read_jsonl, write_text
from minvenus.flags import save_config
from minvenus.report import page
from minvenus.report.curves import Series, line_plot
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
# two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom; above 10 the last one, a little too wide
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)

Curves = dict[str, dict[int, float]]        # of one run: metric -> step -> value; step 0 is before training
Runs = dict[str, list[Curves]]              # method -> its runs, one per seed; all methods have the same seeds


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
    runs = {method: [read_curves(folder / f"{method}-{seed}") for seed in seeds] for method in methods}
    rows = results(runs, config.steps)
    written = write_text(folder / "report.html", page_of(runs, rows, asdict(config)))
    return f"{table(rows)}\n\npage: {written}"


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


def results(runs: Runs, step: int) -> list[list[str]]:
    """The table of all methods, then of each minus the first one, paired by seed: runs of a seed have the same
    questions."""
    (first, baseline), *others = runs.items()
    apart = {f"{method} - {first}": list(map(minus, of_seeds, baseline)) for method, of_seeds in others}
    head, *body = over_seeds(runs | apart, {
        "accuracy at step 0": (ACCURACY, 0), f"at step {step}": (ACCURACY, step),
        "area under the curve": ("area", step), f"right pages at step {step}": (RIGHT_PAGES, step)})
    each = [" ".join(f"{run[ACCURACY][step]:.2f}" for run in of_seeds) for of_seeds in (runs | apart).values()]
    return [[*head, "each seed"], *([*row, seeds] for row, seeds in zip(body, each, strict=True))]


def minus(run: Curves, other: Curves) -> Curves:
    """At the steps that both have."""
    return {metric: {step: curve[step] - other[metric][step] for step in curve.keys() & other[metric].keys()}
            for metric, curve in run.items()}


def over_seeds(runs: Runs, columns: dict[str, tuple[str, int]]) -> list[list[str]]:
    """A table: a head, then each method with its mean over seeds of every column, a title with a metric and a step."""
    found = [["method", *columns]]
    for method, of_seeds in runs.items():
        found.append([method, *(shown([run[metric][step] for run in of_seeds]) for metric, step in columns.values())])
    return found


def shown(values: Sequence[float]) -> str:
    """The mean, with its interval if there are several values."""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    mean, half = interval(values)
    return f"{mean:.3f} ± {half:.3f}"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean and half of its 95 % interval by Student's t, of two values or more."""
    t = T95[min(len(values) - 1, len(T95)) - 1]
    return fmean(values), t * stdev(values) / len(values) ** 0.5


# ------------------------------------------------------------------------------------------------------------ the page


def page_of(runs: Runs, rows: list[list[str]], settings: dict) -> str:
    head, *body = rows
    result = page.table(head, body, "mean ± half of the 95 % interval over the seeds (Student's t)")
    plots = []
    for metric, (title, unit) in PLOTS.items():
        lines = [line(method, [run[metric] for run in of_seeds]) for method, of_seeds in runs.items()]
        if any(drawn.x for drawn in lines):
            plots.append(page.figure(line_plot(lines, title, "steps", unit)))
    sections = [page.section("Result", [result]),
                page.section("Curves", [page.figures(plots)], "Bands are 95 % intervals over the seeds.")]
    facts = [(key, str(value)) for key, value in settings.items() if value is not None]
    lede = "All methods start from the same checkpoint and sample as many rollouts."
    return page.page("Methods compared", sections, lede, facts, kind="minvenus comparison")


def line(method: str, curves: list[dict[int, float]]) -> Series:
    """The mean over seeds, with its interval, at the steps that every curve has. A method without such a step has an
    empty line, so that the others keep the colours that they have in other plots."""
    steps = sorted(set.intersection(*map(set, curves)))
    values = [[curve[step] for curve in curves] for step in steps]
    if len(curves) == 1:
        return Series(method, steps, [value for value, in values])
    points = [interval(of_seeds) for of_seeds in values]
    return Series(method, steps, [mean for mean, _ in points], [mean - half for mean, half in points],
                  [mean + half for mean, half in points])
