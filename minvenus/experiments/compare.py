"""The comparison: GRPO and recipes of IGPO from one SFT checkpoint, with the same rollouts per step and the same settings.

    make compare                                             four methods, eight seeds, two processes side by side
    python -m minvenus.experiments compare --methods "paper unscaled no-browse" --seeds 3 --hops 3

Fixed before any run: accuracy on held-out questions at step `at`, the area under the curve of accuracy (its mean over the
evaluations), and the share of right pages found at step `at`. A run that is stopped goes on where it was when the command is
given again; runs that are finished are only read.
"""

import os
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from minvenus.config import ConfigError, read_json
from minvenus.console import clock
from minvenus.experiments.compare_page import write_page
from minvenus.experiments.results import differences, read_outcome, table
from minvenus.experiments.scripts import check_finished, command, environment, steps_done, stop, train
from minvenus.flags import save_config
from minvenus.settings import IGPOConfig, SFTConfig, check_model

METHODS = {                       # flags of train_igpo.py, beside those that all methods share
    "grpo": ("--no-use-gain",),
    "paper": (),
    "released": ("--recipe", "released"),
    "uncentred": ("--no-center-gain",),
    # ablations of `paper`
    "unscaled": ("--normalize", "separate"),                      # without IG-Scale
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


LOOK_EVERY = 0.2                  # seconds
MAY_CHANGE = ("out", "methods", "seeds", "first_seed", "at", "jobs")       # between two commands for one folder


@dataclass(frozen=True)
class CompareConfig:
    """python -m minvenus.experiments compare: methods side by side on the toy web, on fresh seeds."""

    model: str | None = None                 # the SFT checkpoint that all start from; none = train one as `make demo` does
    out: str = "runs/compare"                # folder of the runs, the table and the page
    methods: str = "grpo paper released uncentred"       # which ones, see METHODS in experiment/compare.py
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
        unknown = [name for name in self.methods.split() if name not in METHODS]
        if unknown or not self.methods.split():
            raise ConfigError(f"methods must be of {', '.join(METHODS)}; got {', '.join(unknown) or 'none'}")
        if len(set(self.methods.split())) < len(self.methods.split()):
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
    wanted = [(method, seed) for seed in range(config.first_seed, config.first_seed + config.seeds)
              for method in config.methods.split()]                  # all methods of a seed before the next seed
    run_all(config, start, wanted)
    outcomes = {method: [read_outcome(folder / f"{method}-{seed}", config.at) for m, seed in wanted if m == method]
                for method in config.methods.split()}
    text = table(outcomes, config.at)
    text += "".join(f"\n{name:<28} {metric:<10} {found}, paired by seed" for name, metric, found in differences(outcomes))
    (folder / "table.txt").write_text(text + "\n", encoding="utf-8")
    return f"{text}\n\npage: {write_page(folder, config, outcomes)}"


def check_settings(config: CompareConfig, saved: Path) -> None:
    """Runs of the folder that were made with other settings would be read as if they had these."""
    before, now = read_json(saved) if saved.exists() else {}, asdict(config)
    changed = [f"{key} was {before[key]!r}, is {now[key]!r}" for key in now
               if key in before and key not in MAY_CHANGE and before[key] != now[key]]
    if changed:
        raise ConfigError(f"{saved.parent} holds runs with other settings: {'; '.join(changed)}. Use the same, or another --out")


def run_all(config: CompareConfig, start: Path, wanted: list[tuple[str, int]]) -> None:
    """One process per core, until all are done. A failure stops the others after their current step, and says where to look."""
    left = [w for w in wanted if steps_done(Path(config.out) / f"{w[0]}-{w[1]}") < config.steps]
    began, total = time.monotonic(), len(left)
    running: dict[str, subprocess.Popen] = {}
    print(f"{len(wanted)} runs of {config.steps} steps, {len(wanted) - total} of them done before", flush=True)
    try:
        while left or running:
            while left and len(running) < (config.jobs or os.cpu_count() or 1):
                method, seed = left.pop(0)
                running[f"{method}-{seed}"] = launch(config, start, method, seed)
            time.sleep(LOOK_EVERY)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                if running.pop(name).returncode:
                    raise RuntimeError(f"run {name} failed; its last lines are in {Path(config.out) / name / 'log.txt'}")
                check_finished(Path(config.out) / name, config.steps)
                done, spent = total - len(left) - len(running), time.monotonic() - began
                to_come = spent / done * (total - done)
                print(f"{done}/{total} {name}, {clock(spent)} so far, about {clock(to_come)} left", flush=True)
    finally:
        stop(list(running.values()))


def launch(config: CompareConfig, start: Path, method: str, seed: int) -> subprocess.Popen:
    folder = Path(config.out) / f"{method}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    shared = ["--model", start, "--out", folder, "--seed", seed, "--steps", config.steps, "--questions", config.questions,
              "--group", config.group, "--hops", config.hops, "--slack", config.slack, "--learning-rate", config.learning_rate,
              "--evaluate-every", config.evaluate_every, "--evaluate-questions", config.evaluate_questions,
              "--rollouts-every", config.steps]
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        return subprocess.Popen(command("train_igpo.py", *shared, *METHODS[method]), env=environment(), stdout=log, stderr=log,
                                start_new_session=True)
