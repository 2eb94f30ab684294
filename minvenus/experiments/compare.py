"""make compare: GRPO and recipes of IGPO from one SFT checkpoint, with the same rollouts per step and the same
settings.

    make compare                                             four methods, eight seeds, two processes side by side
    python -m minvenus.experiments compare --methods "paper unscaled no-browse" --seeds 3 --hops 3

Compared are the accuracy on held-out questions after step `at`, the area under its curve (its mean over the
evaluations), and the share of right pages found after step `at`. A run that is stopped goes on where it was when the
command is given again; runs that are finished are only read.
"""

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from minvenus.config import ConfigError, read_json
from minvenus.console import clock, table
from minvenus.experiments.results import differences, read_outcome, rows, write_page
from minvenus.experiments.scripts import Job, check_finished, run_all, steps_done, train
from minvenus.files import write_text
from minvenus.flags import save_config
from minvenus.settings import IGPOConfig, SFTConfig, check_model

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
    "uncentred-reference": ("--no-center-gain", "--gain-policy", "reference"),
    "grpo-gamma-1": ("--no-use-gain", "--gamma", "1"),
}
MAY_CHANGE = ("out", "methods", "seeds", "first_seed", "at", "jobs")       # between two commands for one folder


@dataclass(frozen=True)
class CompareConfig:
    """python -m minvenus.experiments compare: methods side by side on the toy web, on fresh seeds."""

    model: str | None = None                 # the SFT checkpoint to start from; none = train one as `make demo` does
    out: str = "runs/compare"                # folder of the runs, the table and the page
    methods: str = "grpo paper released uncentred"       # which ones, see METHODS in experiments/compare.py
    seeds: int = 8                           # runs of each method
    first_seed: int = 200                    # seeds count up from here
    steps: int = 40                          # of each run
    at: int = 40                             # the step whose accuracy is compared
    evaluate_every: int = 10                 # steps between evaluations
    evaluate_questions: int = 128            # held-out questions of each
    hops: int | None = 4                     # of every question; none = 1, 2, 3 and 4 in turn
    slack: int = 0                           # turns beyond what is needed
    questions: int = 8                       # per step
    group: int = 4                           # rollouts of each question
    learning_rate: float = 6e-4              # of all methods
    jobs: int = 0                            # processes at the same time; 0 = one per core

    def __post_init__(self):
        methods = self.methods.split()
        unknown = [name for name in methods if name not in METHODS]
        if unknown or not methods:
            raise ConfigError(f"methods must be of {', '.join(METHODS)}; got {', '.join(unknown) or 'none'}")
        if len(set(methods)) < len(methods):
            raise ConfigError(f"methods names one twice: {self.methods}")
        if min(self.seeds, self.steps, self.evaluate_every, self.evaluate_questions) < 1 or self.jobs < 0:
            raise ConfigError("seeds, steps, evaluate_every and evaluate_questions must be at least 1, jobs at least 0")
        if not 0 < self.at <= self.steps or self.at % self.evaluate_every:
            raise ConfigError(f"at ({self.at}) must be an evaluated step: a multiple of evaluate_every, at most steps")
        if self.model is not None:
            check_model(self.model)
        IGPOConfig(steps=self.steps, questions=self.questions, group=self.group, hops=self.hops, slack=self.slack,
                   learning_rate=self.learning_rate)                 # refused now, not after the SFT


def main(config: CompareConfig) -> str:
    folder = Path(config.out)
    check_settings(config, folder / "run.json")
    start = Path(config.model) if config.model else train("train_sft.py", folder / "sft", SFTConfig().steps)
    save_config(config, folder)
    methods = config.methods.split()
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    jobs = {}
    for seed in seeds:
        for method in methods:
            jobs[f"{method}-{seed}"] = job_of(config, start, method, seed)
    run_missing(jobs, config)
    outcomes = {method: [read_outcome(folder / f"{method}-{seed}", config.at) for seed in seeds] for method in methods}
    text = table(rows(outcomes, config.at))
    if len(methods) > 1:
        text += "\n\n" + table([["paired by seed", "metric", "difference"], *differences(outcomes)])
    write_text(folder / "table.txt", text + "\n")
    return f"{text}\n\npage: {write_page(folder, config, outcomes)}"


def check_settings(config: CompareConfig, saved: Path) -> None:
    """Refuse a folder with runs of other settings: they would be read as if they had these."""
    before, now = read_json(saved) if saved.exists() else {}, asdict(config)
    changed = [f"{key} was {before[key]!r}, is {now[key]!r}" for key in now
               if key in before and key not in MAY_CHANGE and before[key] != now[key]]
    if changed:
        raise ConfigError(f"{saved.parent} holds runs with other settings: {'; '.join(changed)}. "
                          "Use the same, or another --out")


def job_of(config: CompareConfig, start: Path, method: str, seed: int) -> Job:
    folder = Path(config.out) / f"{method}-{seed}"
    shared = ("--model", start, "--out", folder, "--seed", seed, "--steps", config.steps,
              "--questions", config.questions, "--group", config.group, "--hops", config.hops, "--slack", config.slack,
              "--learning-rate", config.learning_rate, "--evaluate-every", config.evaluate_every,
              "--evaluate-questions", config.evaluate_questions, "--rollouts-every", config.steps)
    return Job("train_igpo.py", shared + METHODS[method], folder / "log.txt")


def run_missing(jobs: dict[str, Job], config: CompareConfig) -> None:
    """Run those that are not finished yet, and say how long the rest will take."""
    folder = Path(config.out)
    missing = {name: job for name, job in jobs.items() if steps_done(folder / name) < config.steps}
    print(f"{len(jobs)} runs of {config.steps} steps, {len(jobs) - len(missing)} of them done before", flush=True)
    began = time.monotonic()
    done: list[str] = []

    def finished(name: str) -> None:
        check_finished(folder / name, config.steps)
        done.append(name)
        spent = time.monotonic() - began
        left = spent / len(done) * (len(missing) - len(done))
        print(f"{len(done)}/{len(missing)} {name}, {clock(spent)} so far, about {clock(left)} left", flush=True)

    run_all(missing, config.jobs or os.cpu_count() or 1, finished)
