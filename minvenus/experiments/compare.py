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
first run, and again at every start with other settings, with the number of runs that had begun by then; the page and
the terminal say what was changed. Given again, the command goes on where it was stopped.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from minvenus.config import ConfigError, check, read_json
from minvenus.console import clock, table
from minvenus.experiments.results import (
    ACCURACY,
    COLLAPSED,
    TURNS,
    Runs,
    page_of,
    read_curves,
    results,
)
from minvenus.experiments.scripts import train_all
from minvenus.files import write_json, write_text
from minvenus.flags import save_config
from minvenus.settings import Hops, SFTConfig
from minvenus.types import setting

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
SECONDS = 0.017                   # of one core for a rollout of one hop, its training and its share of the evaluations


@dataclass(frozen=True)
class CompareConfig:
    """python -m minvenus.experiments compare: methods side by side on the toy web, on fresh seeds."""

    preset: Literal["methods", "ablations", "rates", "sparse"] = setting("methods",
        "settings of the others: above")
    out: str = setting("runs/compare", "folder of the runs, the plan and the page")
    methods: str = setting("grpo paper released uncentred",
        "ARM or ARM+CHANGE; a wrong name lists them all")
    seeds: int = setting(12, "runs of each method", least=1)
    first_seed: int = setting(3000, "seeds of the questions count up from here")
    first_sampling_seed: int = setting(103_000, "those of the sampling from here")
    checkpoints: int = setting(3,
        "start checkpoints, each from demonstrations and SFT of its own", least=1)
    first_sft_seed: int = setting(10, "their seeds count up from here")
    sft_steps: int = setting(SFTConfig.steps, "optimiser steps on demonstrations", least=1)
    wrong_result: float = setting(0.5,
        "how often their teacher opens a wrong result first, per hop", least=0, most=1)
    steps: int = setting(40, "of each run; an evaluation every 10, and after the last", least=1)
    hops: Hops = setting(4, "of every question; demonstrations have up to 4, or as many")
    slack: int = setting(0, "turns beyond what is needed", least=0)
    questions: int = setting(8, "per step", least=1)
    group: int = setting(4, "rollouts of each question", least=2)
    learning_rate: float = setting(12e-4,
        "of all methods; the best one for GRPO, see docs/experiment.md", above=0)
    jobs: int = setting(2, "processes at the same time, of one thread each", least=1)

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
    plan = plan_of(config)
    begun = [path for path in folder.glob("*/metrics.jsonl") if not path.parent.name.startswith("sft-")]
    said = register(folder, plan, len(begun))
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
    written = write_text(folder / "report.html", page_of(runs, tables, said, plan))
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


def read_runs(config: CompareConfig) -> Runs:
    """The curves of all runs, which have ended."""
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    return {method: [read_curves(Path(config.out) / f"{method}-{seed}") for seed in seeds]
            for method in config.methods.split()}


def register(folder: Path, settings: dict, begun: int) -> list[str]:
    """Write down the settings of this start, if they are new, and how many runs had begun. Returns what a reader must
    know, in sentences."""
    path = folder / "plan.json"
    plans = read_json(path).get("plans") if path.is_file() else []
    if plans is None:
        raise ConfigError(f"{path} is of another version: give the comparison another --out")
    if not plans or plans[-1]["settings"] != settings:
        plans.append({"runs": begun, "settings": settings})
        write_json(path, {"plans": plans})
    said = []
    if plans[0]["runs"]:
        said.append(f"The plan is not from before the first run: {plans[0]['runs']} runs had begun.")
    for before, after in pairwise(plans):
        old, new = before["settings"], after["settings"]
        changed = ", ".join(f"{key} from {old.get(key)} to {new[key]}" for key in new if old.get(key) != new[key])
        said.append(f"Changed after the plan was written, when {after['runs']} runs had begun: {changed}.")
    return said or ["Metric, step, seeds and all other settings were fixed before the first run and not changed."]
