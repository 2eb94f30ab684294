"""A training run in its folder: its steps, its files, how it stops and goes on.

    RUN/run.json        the settings
    RUN/metrics.jsonl   one line per step: the same settings and seed give the same bytes on the
                        same machine with the same number of threads (OMP_NUM_THREADS)
    RUN/timing.jsonl    one line per step: seconds, of its phases too, and tokens per second

Steps are counted from 1; "after step N" N steps have been made. The weights are whole except from
the beginning of a step's update to its line of metrics. A run that is left while they are whole
saves a checkpoint, whatever the reason; otherwise it goes back to its last checkpoint. A resumed
run first cuts both files back to the checkpoint's step, so that they end as those of a run that
was never stopped. A signal (Ctrl-C, SIGTERM, SIGHUP) ends the run after its step, a second one at
once.
"""

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path

import torch

from minvenus.config import ConfigError, read_json
from minvenus.console import Progress, stop_on_signals
from minvenus.files import (
    claimed,
    digest,
    latest_checkpoint,
    model_fingerprint,
    naming,
    read_jsonl,
    sync,
    write_text,
)
from minvenus.flags import save_config
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import start_folder
from minvenus.train import checkpoint
from minvenus.train.optim import Diverged
from minvenus.train.parallel import everywhere, failed_alone, on_rank_0, together

# What a resumed run may change: settings of memory, speed and reports, none of what is learned.
MAY_CHANGE = {
    "out", "device", "plan", "pack_tokens", "recompute", "offload", "pages", "expected_context",
    "tool_seconds", "evaluate_every", "save_every", "rollouts_every",
}


# ------------------------------------------------------------------------------------- the run


@contextmanager
def open_run(name: str, config, may_change: set[str] = MAY_CHANGE) -> Iterator["Run"]:
    """The run in the folder `config.out`, closed to other processes.

    It is opened before models are loaded: nobody should wait for them to learn that the folder is
    in use, or that the run was begun with other settings.
    """
    with ExitStack() as stack:
        on_rank_0(stack.enter_context, claimed(config.out, "training"))
        on_rank_0(check_resume, config, may_change)
        run = Run(name, config)
        try:
            yield run
        except (Exception, KeyboardInterrupt) as error:
            if run.done:
                run.progress.end()           # what is printed next starts a new line
                if run.whole and failed_alone() is None:
                    with suppress(OSError):  # of a full disk: the first error has said so
                        run.save()
            if isinstance(error, Diverged):
                raise Diverged(f"step {run.done + 1}: {error}") from None
            raise


def check_resume(config, may_change: set[str]) -> None:
    """Refuse other settings than those that the run began with: they would make another run."""
    newest = latest_checkpoint(config.out)
    if newest is None:
        return
    before = flat(read_json(Path(config.out) / "run.json"))
    now = flat(json.loads(json.dumps(asdict(config))))       # tuples become lists, as in the file
    changes = [f"{name} was {before.get(name)!r}, is {value!r}" for name, value in now.items()
               if before.get(name) != value and name not in may_change]
    if changes:
        raise ConfigError(f"{newest} was made with other settings: {'; '.join(changes)}. Use the "
                          "same, or another --out")


def flat(settings: dict) -> dict:
    """Settings with the fields of those that have fields beside the others."""
    fields_by_name: dict = {}
    for name, value in settings.items():
        fields_by_name |= value if isinstance(value, dict) else {name: value}
    return fields_by_name


class Run:
    """Made by `open_run`. The body of `for step in run.steps(...)` ends with `run.log(...)`."""

    def __init__(self, name: str, config):
        self.name = name
        self.config = config
        self.folder = Path(config.out)
        self.metrics = self.folder / "metrics.jsonl"
        self.timing = self.folder / "timing.jsonl"
        self.done = 0                        # steps so far
        self.whole = False                   # the weights are those after `done` steps

    def steps(self, model: Qwen3, optimizer, tokenizer_files, data: str) -> Iterator[int]:
        """The numbers of the steps that are left after the latest checkpoint.

        `data` is a fingerprint of what is trained on.
        """
        self.model, self.optimizer, self.tokenizer_files = model, optimizer, tokenizer_files
        start = on_rank_0(model_fingerprint, str(start_folder(self.config.model)))
        self.data = digest([data, start])
        steps = self.config.steps
        done = self.resume()
        for path in (self.metrics, self.timing):
            on_rank_0(cut_back, path, done)
        self.progress = Progress(self.name, done, steps)
        self.done = done
        self.whole = True

        with stop_on_signals() as stop:
            while self.done < steps and not any(everywhere(bool(stop))):
                self.began = clock()
                self.seconds: dict[str, float] = defaultdict(float)      # by phase
                yield self.done + 1
            self.save()
        if self.done < steps:
            self.progress.end()
            print(f"stopped after step {self.done} of {steps}; the same command goes on from there")

    def resume(self) -> int:
        """Fill model and optimiser from the latest checkpoint; returns its step, 0 for none."""
        newest = on_rank_0(latest_checkpoint, self.folder)
        state: dict = {"step": 0, "data": self.data}
        if newest:
            state = checkpoint.restore(newest, self.model, self.optimizer)
        if state["data"] != self.data:
            raise ConfigError(f"{newest} was made with other data, another prompt, start model or "
                              f"judge than now (--data {self.config.data}): use the same, or "
                              "another --out")

        settings_file = on_rank_0(save_config, self.config, self.folder)
        print(describe(self.model))
        print(f"settings    {changed_settings(self.config)}; all of them in {settings_file}")
        finished = state["step"] >= self.config.steps
        ending = ", the last step: nothing is left to do" if finished else ""
        print(f"start       {newest or 'step 0'}{ending}", flush=True)
        return state["step"]

    def is_due(self, every: int) -> bool:
        """Whether what happens every so many steps, and after the last, happens in this step."""
        step = self.done + 1
        return step % every == 0 or step == self.config.steps

    @contextmanager
    def update(self) -> Iterator[None]:
        """The update of a step: from here to `log` the weights are not whole."""
        self.whole = False
        with self.phase("update"):
            yield

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """`with run.phase(name):` measures the time of a part of the step."""
        start = clock()
        yield
        self.seconds[f"{name}_seconds"] += clock() - start

    @contextmanager
    def apart(self, name: str) -> Iterator[None]:
        """A phase in which ranks work without each other. If one fails, all raise its error."""
        with together(), self.phase(name):
            yield

    def log(self, step: int, numbers: dict) -> None:
        """End the step with its lines in both files."""
        tokens = numbers["tokens"] + numbers.get("rollout_tokens", 0)
        seconds = clock() - self.began
        training = seconds - self.seconds.get("evaluation_seconds", 0.0)
        timing = {**self.seconds, "seconds": seconds, "tokens_per_second": tokens / training}
        on_rank_0(append, self.metrics, {"step": step} | numbers)
        on_rank_0(append, self.timing, {"step": step} | timing)
        self.progress.show(step, numbers, timing["tokens_per_second"])
        self.done = step
        self.whole = True

    def save(self) -> None:
        """A checkpoint of the last step. Its lines of metrics are on the disk before it."""
        for path in (self.metrics, self.timing):
            on_rank_0(sync, path)
        state = {"step": self.done, "data": self.data}
        newest = checkpoint.save(
            self.folder, state, self.model, self.optimizer, self.tokenizer_files
        )
        self.model_folder = newest / "model"


def describe(model: Qwen3) -> str:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    total = sum(numel for numel, _ in sizes)
    trained = sum(numel for numel, is_trained in sizes if is_trained)
    share = f", {trained:,} of them trained" if trained < total else ""
    return f"model       {total:,} parameters on {model.head_weight.device}{share}"


def changed_settings(config) -> str:
    values = {field.name: getattr(config, field.name) for field in fields(config)
              if getattr(config, field.name) != field.default}
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "the defaults"


# --------------------------------------------------------------------------- the files of steps


def clock() -> float:
    """Seconds. What a GPU has yet to do belongs to the time before."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def append(path: Path, row: dict) -> None:
    for name, value in row.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise Diverged(f"{name} is {value}, not a finite number")
    with naming(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def cut_back(path: Path, step: int) -> None:
    """Keep the lines of the first `step` steps."""
    rows = [row for row in read_jsonl(path) if row["step"] <= step]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
