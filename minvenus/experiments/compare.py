"""make compare: GRPO and recipes of IGPO from the same SFT checkpoints, with as many rollouts.

    make compare                     five methods, fifteen runs each from five start checkpoints
    python -m minvenus.experiments compare --preset penalty   malformed turns are paid -1
    python -m minvenus.experiments compare --preset last      only the last page has the answer
    python -m minvenus.experiments compare --preset sparse    five hops, starts below 1 %, 60 steps
    python -m minvenus.experiments compare --preset rates     the methods at five learning rates
    python -m minvenus.experiments compare --preset own       each at its own best rate
    python -m minvenus.experiments compare --methods "paper, paper / prob - penalty" --seeds 3

A method is a recipe (igpo/recipes.py), or a recipe with what changed behind it. Every run has a
seed for its questions and another for its sampling; runs take turns through the start checkpoints,
each from demonstrations and SFT of a seed of its own. Runs of different methods with the same seeds
are paired. Compared are the accuracy on held-out questions after the last step and the area under
its curve (its mean over the evaluations). All of this is written into OUT/plan.json before the
first run; other settings need another folder. Given again, the command goes on where it was
stopped.

The scripts run in processes of their own with one thread each, as a reader would start them. They
have sessions of their own, so that Ctrl-C reaches this program only: it asks them once to finish
their step and save, and waits. A training script that is started again goes on where it was, and
one that has made all its steps ends at once.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from minvenus.config import ConfigError, check, read_json
from minvenus.console import Progress, clock, table
from minvenus.experiments import results
from minvenus.experiments.methods import CHANGES, METHODS, check_names, method_settings, split_names
from minvenus.files import latest_checkpoint, step_name, write_json, write_text
from minvenus.flags import save_config
from minvenus.igpo.recipes import RECIPES
from minvenus.setting import setting
from minvenus.settings import ASKS, Hops
from minvenus.tools.toyweb import Asks
from minvenus.train.settings import SFTConfig

# of one core for a step of a run of one hop: 32 rollouts, their training, a share of evaluations
SECONDS = 0.544


@dataclass(frozen=True)
class CompareConfig:
    """python -m minvenus.experiments compare: methods side by side on the toy web."""

    preset: Literal["methods", "penalty", "last", "sparse", "rates", "own"] = setting(
        "methods", "a planned comparison: methods.py")
    out: str = setting("runs/compare", "folder of the runs, the plan and the page")
    methods: str = setting(
        ", ".join(METHODS), "recipes, perhaps with changes; a wrong name lists them all")
    seeds: int = setting(15, "runs of each method", least=1)
    first_seed: int = setting(11_000, "seeds of the questions count up from here")
    first_sampling_seed: int = setting(311_000, "those of the sampling from here")
    checkpoints: int = setting(5, "start checkpoints, each from an SFT of its own", least=1)
    first_sft_seed: int = setting(110, "their seeds count up from here")
    sft_steps: int = setting(SFTConfig.steps, "optimiser steps on demonstrations", least=1)
    wrong_result: float = setting(
        0.5, "how often their teacher opens a wrong result first, per hop", least=0, most=1)
    steps: int = setting(40, "of each run; an evaluation every 10, and after the last", least=1)
    hops: Hops = setting(4, "of every question; demonstrations have up to 4, or as many")
    asks: Asks = setting("every", ASKS)
    learning_rate: float = setting(
        9e-4, "of all methods; the best one for GRPO, see docs/experiment.md", above=0)
    jobs: int = setting(2, "processes at the same time, of one thread each", least=1)

    def __post_init__(self):
        check(self)
        check_names("methods", self.methods, RECIPES, CHANGES)


# -------------------------------------------------------------------------------------- the command


def main(config: CompareConfig) -> str:
    folder = Path(config.out)
    plan = plan_of(config)
    write_plan(folder, plan)
    starts = start_checkpoints(config)

    jobs = {}
    for i in range(config.seeds):
        start = starts[i % len(starts)]
        for method in split_names(config.methods):
            jobs[run_name(config, method, i)] = run_settings(config, start, method, i)
    cost = len(jobs) * config.steps * config.hops * SECONDS / config.jobs
    print(f"{len(jobs)} runs of {config.steps} steps, {config.jobs} at a time: about {clock(cost)} "
          f"in all on {config.jobs} quiet cores. Ctrl-C stops, the same command goes on.",
          flush=True)
    train_all("runs", "train_igpo.py", folder, config.steps, jobs, config.jobs)
    save_config(config, folder)

    runs = read_runs(config)
    tables = results.tables(runs, config.checkpoints, config.steps)
    page = write_text(folder / "report.html", results.page_of(runs, tables, plan))
    parts = [f"{title}\n{table(rows)}" for title, rows in tables.items()]
    return "\n\n".join([*parts, f"page: {page}"])


def plan_of(config: CompareConfig) -> dict:
    """What is fixed before the first run."""
    settings = asdict(config)
    del settings["out"], settings["jobs"]
    methods = split_names(config.methods)
    return {
        "first metric": f"{results.ACCURACY} after step {config.steps}",
        "second metric": "area under its curve",
        "statistics": "mean, paired differences, 95 % bootstrap intervals; differences to the "
                      "first method by t over the means of the start checkpoints, p after Holm",
        "failed": f"{results.ACCURACY} at the end below {results.FAILED}",
        "collapsed": f"{results.TURNS} at the end below {results.COLLAPSED} of those at step 0",
        **settings,
        "recipes": {method: method_settings(method) for method in methods},
    }


def write_plan(folder: Path, plan: dict) -> None:
    """Write the plan once. Raise if the folder has another plan, or runs without one."""
    path = folder / "plan.json"
    if path.is_file():
        planned = read_json(path)
        for name, value in plan.items():
            if planned.get(name) != value:
                raise ConfigError(f"{path} says {name} {planned.get(name)}, now it is {value}: a "
                                  "comparison is planned once, give this one another --out")
    elif list(folder.glob("*/metrics.jsonl")):
        raise ConfigError(f"{folder} has runs and no plan.json: a comparison is planned before its "
                          "first run, give this one another --out")
    else:
        write_json(path, plan)


def start_checkpoints(config: CompareConfig) -> list[Path]:
    """Train the SFT checkpoints that are not there yet."""
    shared = {
        "most_hops": max(4, config.hops),
        "wrong_result": config.wrong_result,
        "asks": config.asks,
    }
    jobs = {}
    for seed in range(config.first_sft_seed, config.first_sft_seed + config.checkpoints):
        jobs[f"sft-{seed}"] = shared | {"seed": seed}
    folder = Path(config.out)
    return train_all("SFT", "train_sft.py", folder, config.sft_steps, jobs, config.jobs)


def run_name(config: CompareConfig, method: str, i: int) -> str:
    """The folder of run i of a method: "raw_ig / rms" with seed 3000 is raw_ig-over-rms-3000."""
    words = method.replace("/", "over").replace("- ", "without ").replace("+", "with")
    return f"{words.replace(' ', '-')}-{config.first_seed + i}"


def run_settings(config: CompareConfig, start: Path, method: str, i: int) -> dict:
    """The settings of train_igpo.py for run i of a method, beside the folder and the steps."""
    shared = {
        "model": start,
        "question_seed": config.first_seed + i,
        "seed": config.first_sampling_seed + i,
        "hops": config.hops,
        "asks": config.asks,
        "learning_rate": config.learning_rate,
        "evaluate_every": 10,
        "max_context": max(256, 192 * config.hops),
        "rollouts_every": config.steps,
    }
    return shared | method_settings(method)


def read_runs(config: CompareConfig) -> results.Runs:
    """The curves of all runs, which have ended."""
    runs: results.Runs = {}
    for method in split_names(config.methods):
        names = [run_name(config, method, i) for i in range(config.seeds)]
        runs[method] = [results.read_curves(Path(config.out) / name) for name in names]
    return runs


# ----------------------------------------------------------------------------- starting the scripts

ROOT = Path(__file__).resolve().parents[2]
LOOK_EVERY = 0.1                  # seconds


def flags_of(settings: dict) -> list[str]:
    """Flags of a script; a value of several words is a tuple."""
    flags = []
    for name, value in settings.items():
        words = value if isinstance(value, tuple) else (value,)
        flags.append("--" + name.replace("_", "-"))
        flags += ["none" if word is None else str(word) for word in words]
    return flags


def run(script: str, **settings: object) -> None:
    """Show the command and run it. Its failure is an error."""
    print(f"\n$ python {script} {' '.join(flags_of(settings))}", flush=True)
    list(run_all(script, {script: settings}))


def train(script: str, out: Path, steps: int, **settings: object) -> Path:
    """Run a training script to its end, and return the folder of the trained model."""
    run(script, out=out, steps=steps, **settings)
    return trained(out, steps)


def trained(run_folder: Path, steps: int) -> Path:
    """The model of a run that has made all its steps: one that was stopped exits with 0, too."""
    newest = latest_checkpoint(run_folder)
    if newest is None or newest.name < step_name(steps):
        raise ConfigError(
            f"{run_folder} was stopped before step {steps}; the same command goes on there")
    return newest / "model"


def train_all(label: str, script: str, folder: Path, steps: int, jobs: dict[str, dict],
              at_once: int, threads: int = 1) -> list[Path]:
    """Run a training script to its end for each job, into FOLDER/NAME; returns the models."""
    runs = {}
    for name, settings in jobs.items():
        runs[name] = {"out": folder / name, "steps": steps} | settings

    progress = Progress(label, 0, len(jobs))
    for done, name in enumerate(run_all(script, runs, at_once, folder, threads), start=1):
        trained(folder / name, steps)
        progress.show(done, {})
    return [trained(folder / name, steps) for name in jobs]


def run_all(script: str, jobs: dict[str, dict], at_once: int = 1, logs: Path | None = None,
            threads: int = 1) -> Iterator[str]:
    """Run a script once for each job, a name and settings, at most `at_once` at a time. Of a tiny
    model, two processes with a thread each are faster than one with two.

    Yields the name of each one that has ended well. After a failure or Ctrl-C the others finish
    their step and save. With `logs`, a job's output is appended to LOGS/NAME/log.txt, not shown.
    """
    waiting = list(jobs)
    running: dict[str, subprocess.Popen] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name = waiting.pop(0)
                log = logs and logs / name / "log.txt"
                running[name] = start(script, jobs[name], log, threads)
            time.sleep(LOOK_EVERY)

            for name, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[name]
                if process.returncode:
                    message = f"{name} ended with exit code {process.returncode}"
                    if logs:
                        lines = (logs / name / "log.txt").read_text().splitlines()
                        message = ": ".join([message, *lines[-1:]])
                    raise ConfigError(message)
                yield name
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def start(script: str, settings: dict, log: Path | None, threads: int) -> subprocess.Popen:
    if not (ROOT / script).exists():
        raise ConfigError(f"{ROOT} has no {script}, an installed package has no scripts: run this "
                          "in a clone of the repository")
    count = str(threads)
    environment = os.environ | {"OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
    command = [sys.executable, str(ROOT / script), *flags_of(settings)]
    if log is None:
        return subprocess.Popen(command, env=environment, start_new_session=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as out:
        return subprocess.Popen(
            command, env=environment, stdout=out, stderr=out, start_new_session=True)
