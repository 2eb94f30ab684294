"""make compare: GRPO and recipes of IGPO from the same SFT checkpoints, with the same rollouts per step.

    make compare                                               four methods, twelve runs each, two at a time
    make ablations                                             what each part does: --preset ablations
    python -m minvenus.experiments compare --preset rates      the four methods at five learning rates
    python -m minvenus.experiments compare --preset sparse     five hops, starts below 1 %, 60 steps
    python -m minvenus.experiments compare --methods "paper paper+prob uncentred+token-mean" --seeds 3 --hops 3

A method is an arm, or an arm with changes after plus signs. Every run has a seed for its questions and another for its
sampling; runs take turns through the start checkpoints, each from demonstrations and SFT of a seed of its own. Runs of
different methods with the same seeds are paired. Compared are the accuracy on held-out questions after the last step
and the area under its curve (its mean over the evaluations). What is compared is written into OUT/plan.json before the
first run (plan.py). Given again, the command goes on where it was stopped.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from minvenus.config import ConfigError, Count, CountOrZero, GroupSize, Positive, Share, check
from minvenus.console import clock, table
from minvenus.experiments.plan import register
from minvenus.experiments.scripts import train_all
from minvenus.experiments.statistics import interquartile_mean, interval, mean, shown
from minvenus.files import read_jsonl, write_text
from minvenus.flags import save_config
from minvenus.report import page
from minvenus.report.curves import Series, line_plot
from minvenus.report.explain import RECIPE_WORDS
from minvenus.report.run_page import with_step_0
from minvenus.settings import Hops, SFTConfig

ARMS = {                          # flags of train_igpo.py, beside those that all methods share
    "grpo": ("--no-use-gain", "--gamma", "1"),                    # outcomes only, as its authors write it
    "paper": (),                                                  # IGPO as in the paper
    "released": ("--recipe", "released"),                         # IGPO as in the released code
    "uncentred": ("--no-center-gain",),                           # gains divided by their spread, not centred
}
CHANGES = {
    "discounted": ("--gamma", "0.95"),                            # of grpo: a factor .95 for every turn
    "gamma-1": ("--gamma", "1"),
    "no-penalty": ("--format-penalty", "none"),                   # a malformed turn keeps its gain and its outcome
    "prob": ("--gain", "prob"),
    "unscaled": ("--normalize", "separate"),                      # z-scores without IG-Scale
    "unnormalised": ("--normalize", "none"),                      # rewards as they are, no z-scores
    "rms": ("--spread", "rms"),
    "one": ("--spread", "one"),
    "every-turn": ("--browse", "off"),                            # a gain for every turn, searches too
    "reference": ("--gain-policy", "reference"),                  # gains from the frozen start checkpoint
    "groups-of-8": ("--group", "8", "--questions", "4"),
    "token-mean": ("--aggregate", "token-mean"),
    "token-sum": ("--aggregate", "seq-mean-token-sum"),
    **{f"rate-{rate}": ("--learning-rate", rate) for rate in ("3e-4", "6e-4", "9e-4", "12e-4", "18e-4")},
}
ABLATED = ("no-penalty", "prob", "unscaled", "rms", "one", "gamma-1", "every-turn", "reference", "groups-of-8")
RATES = [change for change in CHANGES if change.startswith("rate-")]
PRESETS: dict[str, dict] = {
    "methods": {},
    "ablations": {"out": "runs/ablations", "seeds": 8, "first_seed": 4000, "learning_rate": 9e-4, "methods": " ".join(
        ["grpo", "grpo+discounted", "grpo+no-penalty", "grpo+token-mean", "grpo+token-sum",
         "uncentred", "uncentred+token-mean", "uncentred+token-sum", *(f"uncentred+{change}" for change in ABLATED),
         "paper", *(f"paper+{change}" for change in ABLATED)])},
    "rates": {"out": "runs/rates", "seeds": 3, "first_seed": 2000, "first_sft_seed": 20, "methods": " ".join(
        f"{arm}+{rate}" for arm in ARMS for rate in RATES)},
    # a right answer is rare at the start, below 1 %: outcomes alone have little to begin with
    "sparse": {"out": "runs/sparse", "seeds": 10, "first_seed": 6100, "first_sft_seed": 70, "hops": 5,
               "wrong_result": 0.7, "steps": 60, "methods": "grpo grpo+no-penalty uncentred uncentred+no-penalty"},
}
ACCURACY, RIGHT_PAGES, TURNS = "test_exact_match", "test_right_pages", "test_turns"       # on held-out questions
PLOTS = {                                                            # metric -> title, unit
    ACCURACY: ("Accuracy on held-out questions", "share right"),
    RIGHT_PAGES: ("Right pages found", "share of the path"),
    TURNS: ("Turns per rollout", "turns"),
    "groups_without_outcome_signal": ("Groups that end alike: no signal for GRPO", "share of groups"),
    "gain_right": ("Gain of right visits", "log-prob per answer token"),
    "gain_wrong": ("Gain of wrong visits", "log-prob per answer token"),
}
COLLAPSED = 0.5                   # a run has collapsed if its rollouts have less than this share of its start's turns
SECONDS = 0.017                   # of one core for a rollout of one hop, its training and its share of the evaluations

Curves = dict[str, dict[int, float]]        # of one run: metric -> step -> value; step 0 is before training
Runs = dict[str, list[Curves]]              # method -> its runs, one per seed; all methods have the same seeds


@dataclass(frozen=True)
class CompareConfig:
    """python -m minvenus.experiments compare: methods side by side on the toy web, on fresh seeds."""

    preset: Literal["methods", "ablations", "rates", "sparse"] = "methods"        # settings of the others: above
    out: str = "runs/compare"                # folder of the runs, the plan and the page
    methods: str = "grpo paper released uncentred"       # ARM or ARM+CHANGE; a wrong name lists them all
    seeds: Count = 12                        # runs of each method
    first_seed: int = 3000                   # seeds of the questions count up from here
    first_sampling_seed: int = 103_000       # those of the sampling from here
    checkpoints: Count = 3                   # start checkpoints, each from demonstrations and SFT of its own
    first_sft_seed: int = 10                 # their seeds count up from here
    sft_steps: Count = SFTConfig.steps       # optimiser steps on demonstrations
    wrong_result: Share = 0.5                # how often their teacher opens a wrong result first, per hop
    steps: Count = 40                        # of each run; an evaluation every 10, and after the last
    hops: Hops = 4                           # of every question; demonstrations have up to 4, or as many
    slack: CountOrZero = 0                   # turns beyond what is needed
    questions: Count = 8                     # per step
    group: GroupSize = 4                     # rollouts of each question
    learning_rate: Positive = 12e-4          # of all methods; the best one for GRPO, see docs/experiment.md
    jobs: Count = 2                          # processes at the same time, of one thread each

    def __post_init__(self):
        check(self)
        check_names("methods", self.methods, ARMS, CHANGES)


def check_names(setting: str, given: str, known: Collection[str], changes: Collection[str] = ()) -> None:
    """Raise unless a setting is names out of `known`, perhaps with changes, with spaces between, each once."""
    names = given.split()
    parts = [name.split("+") for name in names]
    wrong = [name for name, *more in parts if name not in known or not set(more) <= set(changes)]
    if not names or len(set(names)) < len(names) or wrong:
        after = f", or such a name with changes after plus signs: {' '.join(changes)}" if changes else ""
        raise ConfigError(f"{setting} must be some of {' '.join(known)}, each once{after}; got {given!r}")


def method_flags(method: str) -> tuple[str, ...]:
    arm, *changes = method.split("+")
    return sum((CHANGES[change] for change in changes), ARMS[arm])


def main(config: CompareConfig) -> str:
    folder = Path(config.out)
    begun = sorted(path.parent.name for path in folder.glob("*/metrics.jsonl") if path.parent.name[:4] != "sft-")
    said = register(folder, plan_of(config), begun)
    starts = start_checkpoints(config)
    jobs = {}
    for i in range(config.seeds):
        for method in config.methods.split():
            jobs[f"{method}-{config.first_seed + i}"] = run_flags(config, starts[i % len(starts)], method, i)
    cost = config.steps * config.questions * config.group * config.hops * SECONDS * len(jobs) / config.jobs
    print(f"{len(jobs)} runs of {config.steps} steps, {config.jobs} at a time: about {clock(cost)} in all on "
          f"{config.jobs} quiet cores. Ctrl-C stops, the same command goes on.", flush=True)
    train_all("runs", "train_igpo.py", folder, config.steps, jobs, config.jobs)
    save_config(config, folder)
    runs = read_runs(config)
    tables = results(runs, config.checkpoints, config.steps)
    written = write_text(folder / "report.html", page_of(runs, tables, said, config))
    parts = [f"{title}\n{table(rows)}" for title, rows in tables.items()]
    return "\n\n".join([*parts, *said, f"page: {written}"])


def plan_of(config: CompareConfig) -> dict:
    """What is fixed before the first run."""
    settings = {key: value for key, value in asdict(config).items() if key not in ("out", "jobs")}
    return {"first metric": f"{ACCURACY} after step {config.steps}", "second metric": "area under its curve",
            "statistics": "mean and interquartile mean, paired differences, 95 % bootstrap intervals",
            "collapsed": f"{TURNS} after the last step below {COLLAPSED} of those at step 0", **settings,
            "flags": {method: " ".join(method_flags(method)) for method in config.methods.split()}}


def start_checkpoints(config: CompareConfig) -> list[Path]:
    """Train the SFT checkpoints that are not there yet."""
    flags = ("--most-hops", max(4, config.hops), "--wrong-result", config.wrong_result)
    seeds = range(config.first_sft_seed, config.first_sft_seed + config.checkpoints)
    jobs = {f"sft-{seed}": ("--seed", seed, *flags) for seed in seeds}
    return train_all("SFT", "train_sft.py", Path(config.out), config.sft_steps, jobs, config.jobs)


def run_flags(config: CompareConfig, start: Path, method: str, i: int) -> tuple:
    """The flags of train_igpo.py for run i of a method, beside the folder and the steps."""
    shared = ("--model", start, "--question-seed", config.first_seed + i, "--seed", config.first_sampling_seed + i,
              "--hops", config.hops, "--slack", config.slack, "--questions", config.questions,
              "--group", config.group, "--learning-rate", config.learning_rate, "--evaluate-every", 10,
              "--max-context", max(256, 192 * config.hops), "--rollouts-every", config.steps)
    return shared + method_flags(method)


# --------------------------------------------------------------------------------------------------------- the numbers


def read_runs(config: CompareConfig) -> Runs:
    """The curves of all runs, which have ended."""
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    return {method: [read_curves(Path(config.out) / f"{method}-{seed}") for seed in seeds]
            for method in config.methods.split()}


def read_curves(folder: Path) -> Curves:
    """The metrics of a run of train_igpo.py, and the area under its curve of accuracy: the mean over the evaluations up
    to a step. Step 0, the checkpoint that the methods start from, counts in no area."""
    metrics = with_step_0(read_jsonl(folder / "metrics.jsonl"))
    curves: Curves = {key: {row["step"]: row[key] for row in metrics if row.get(key) is not None} for key in PLOTS}
    steps = [step for step in curves[ACCURACY] if step > 0]
    curves["area"] = {last: fmean(curves[ACCURACY][step] for step in steps if step <= last) for last in steps}
    return curves


def results(runs: Runs, checkpoints: int, step: int) -> dict[str, list[list[str]]]:
    """Tables with their titles. An arm is compared with the first method and with the arms before it; an arm with
    changes with the arm itself, and with the first arm under the same changes."""
    columns = {"accuracy at step 0": (ACCURACY, 0), f"at step {step}": (ACCURACY, step),
               "area under the curve": ("area", step), "right pages": (RIGHT_PAGES, step), "turns": (TURNS, step)}
    apart, first, arms = {}, next(iter(runs)), [method for method in runs if "+" not in method]
    for method, of_seeds in runs.items():
        arm, _, changes = method.partition("+")
        if changes:
            others = [arm if arm in runs else first, f"{first.split('+')[0]}+{changes}"]
        else:
            others = [first, *arms[:arms.index(arm)]]
        for other in others:
            if other in runs and other != method:
                apart[f"{method} - {other}"] = list(map(minus, of_seeds, runs[other]))
    methods = over_seeds(runs, columns)
    methods[0] += ["collapsed"]
    for row, of_seeds in zip(methods[1:], runs.values(), strict=True):
        row.append(f"{sum(run[TURNS][step] < COLLAPSED * run[TURNS][0] for run in of_seeds)} of {len(of_seeds)}")
    found = {"Mean over runs [95 % interval]": methods,
             "Interquartile mean [95 % interval]": over_seeds(runs, columns, interquartile_mean)}
    if apart:
        found["Differences of paired runs, mean [95 % interval]"] = over_seeds(apart, columns)
        found["The same, start checkpoints drawn, too"] = over_seeds(apart, columns, mean, checkpoints)
    each = [[method, *(f"{run[ACCURACY][step]:.2f}" for run in of_seeds)] for method, of_seeds in runs.items()]
    starts = [str(i % checkpoints + 1) for i in range(len(next(iter(runs.values()))))]
    found[f"Accuracy at step {step} of each run"] = [["start checkpoint", *starts], *each]
    return found


def minus(run: Curves, other: Curves) -> Curves:
    """At the steps that both have."""
    return {metric: {step: curve[step] - other[metric][step] for step in curve.keys() & other[metric].keys()}
            for metric, curve in run.items()}


def over_seeds(runs: Runs, columns: dict[str, tuple[str, int]], statistic=mean, starts: int = 0) -> list[list[str]]:
    """A table: a head, then each method with every column, a title with a metric and a step, over its runs."""
    found = [["method", *columns]]
    for method, of_seeds in runs.items():
        cells = [shown([run[metric][step] for run in of_seeds], statistic, starts)
                 for metric, step in columns.values()]
        found.append([method, *cells])
    return found


# ------------------------------------------------------------------------------------------------------------ the page


def page_of(runs: Runs, tables: dict[str, list[list[str]]], said: list[str], config: CompareConfig) -> str:
    plots = [page.figure(plot) for metric in PLOTS if (plot := plot_of(runs, metric))]
    listed = [page.table(rows[0], rows[1:], title) for title, rows in tables.items()]
    arms = dict.fromkeys(method.split("+")[0] for method in runs)
    words = [(arm, RECIPE_WORDS["GRPO" if arm == "grpo" else arm]) for arm in arms]
    sections = [page.pairs(words, "glossary"), page.section("Result", listed),
                page.section("Plan", [page.note(remark, "remark") for remark in said]),
                page.section("Curves", [page.figures(plots)], "Bands are 95 % intervals over the runs.")]
    facts = [(key, str(value)) for key, value in plan_of(config).items()]
    lede = "All methods start from the same checkpoints and sample as many rollouts; runs of one seed are paired."
    return page.page("Methods compared", sections, lede, facts, kind="minvenus comparison")


def plot_of(runs: Runs, metric: str) -> page.Html | None:
    """A line with its band for each method; nothing if the metric was never logged."""
    title, unit = PLOTS[metric]
    lines = [line(method, [run[metric] for run in of_seeds]) for method, of_seeds in runs.items()]
    return line_plot(lines, title, "steps", unit) if any(drawn.x for drawn in lines) else None


def line(method: str, curves: list[dict[int, float]]) -> Series:
    """The mean over runs, with its interval, at the steps that every curve has. A method without such a step has an
    empty line, so that the others keep the colours that they have in other plots."""
    steps = sorted(set.intersection(*map(set, curves)))
    points = [interval([curve[step] for curve in curves]) for step in steps]
    if len(curves) == 1:
        return Series(method, steps, [number for number, _, _ in points])
    return Series(method, steps, *([point[i] for point in points] for i in range(3)))
