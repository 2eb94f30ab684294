"""A training run in its folder: settings, metrics, checkpoints, progress line, and how it stops and goes on.

    RUN/run.json        the settings
    RUN/metrics.jsonl   one line per step: what the same settings and seed give again, byte for byte
    RUN/timing.jsonl    one line per step: seconds, of its phases too, and tokens per second

Steps are counted from 1: step N is the N-th, and "after step N" N steps have been made. A run evaluates before its
first step, every so many steps, and after its last. Whatever ends it, an error included, the last whole step is kept: a
checkpoint is written unless the weights have moved since. A resumed run first cuts both files back to the checkpoint's
step, so that they end as those of a run that was never stopped. A signal (Ctrl-C, SIGTERM, SIGHUP) ends the run after
its step, a second one in the middle of it.
"""

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path

import torch

from minvenus.config import ConfigError, read_json
from minvenus.console import Progress, stop_on_signals
from minvenus.files import claimed, digest, latest_checkpoint, naming, read_jsonl, sync, write_text
from minvenus.flags import save_config
from minvenus.model.lora import adapter_rank, add_adapters
from minvenus.model.precision import PRECISION
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import device_of, model_fingerprint, start_folder, start_model
from minvenus.settings import model_shape
from minvenus.text.tokenizer import TINY, Tokenizer
from minvenus.train import checkpoint
from minvenus.train.optim import Diverged, steps_taken
from minvenus.train.parallel import check_ranks, everywhere, failed_alone, on_rank_0, shard, size
from minvenus.train.plan import check_memory

# Settings that a resumed run may change: they decide memory, speed and what is looked at, not what is learned.
MAY_CHANGE = {"out", "device", "pack_tokens", "recompute", "offload", "sequence_parallel", "pages", "tool_seconds",
              "evaluate_every", "save_every", "rollouts_every", "plan"}


def load_start(config) -> tuple[Qwen3, Tokenizer]:
    """The model that training starts from, with new adapters if these are what is trained, split over the ranks if
    there are several; and its tokenizer."""
    folder, device = start_folder(config.model), device_of(config.device)
    check_memory(config, size())
    rank = adapter_rank(folder) if folder else 0
    if config.lora_rank and rank not in (0, config.lora_rank):
        raise ConfigError(f"{folder} was trained with an adapter of rank {rank}, --lora-rank is {config.lora_rank}: "
                          f"use {rank}, or remove its folder adapter to begin a new one on the merged weights")
    frozen = PRECISION[device].engine           # the type of weights that are not trained
    model = start_model(config.model, device, config.seed, frozen if config.lora_rank else torch.float32)
    if config.lora_rank:
        add_adapters(model, config.lora_rank, 32.0, config.seed)
    model.model.recompute, model.model.offload = config.recompute, config.offload
    return shard(model, config.sequence_parallel), Tokenizer.from_file(folder or TINY)


def load_reference(config, model: Qwen3) -> Qwen3 | None:
    """The start checkpoint, not trained, where something is measured against it. A model with adapters holds it: see
    lora.switched_off."""
    if not config.loss.kl_coef and config.gain_policy == "current":
        return None
    if config.lora_rank:
        return model
    device = device_of(config.device)
    reference = start_model(config.model, device, config.seed, PRECISION[device].engine).requires_grad_(False)
    return shard(reference, config.sequence_parallel)


@contextmanager
def open_run(name: str, config, may_change: set[str] = MAY_CHANGE) -> Iterator["Run"]:
    """The run in the folder `config.out`, closed to other processes. It comes before models are loaded: nobody should
    wait for them to learn that the folder is in use or that the run was begun with other settings."""
    with ExitStack() as stack:
        on_rank_0(stack.enter_context, claimed(config.out, "training"))
        on_rank_0(check_resume, config, may_change)
        check_ranks(config, model_shape(config.model).num_key_value_heads)
        run = Run(name, config)
        try:
            yield run
        except (Exception, KeyboardInterrupt) as error:
            if run.done:
                run.progress.end()
                if failed_alone() is None and steps_taken(run.optimizer) == run.moves:
                    with suppress(OSError):         # on a full disk the error that is raised already says so
                        run.save()
            if isinstance(error, Diverged):
                raise Diverged(f"step {run.done + 1}: {error}") from None
            raise


def check_resume(config, may_change: set[str]) -> None:
    """Refuse other settings than those that the run began with: they would make another run."""
    newest = latest_checkpoint(config.out)
    if newest is None:
        return
    before = read_json(Path(config.out) / "run.json")
    now = json.loads(json.dumps(asdict(config)))                       # tuples become lists, as in the file
    before, now = (saved.pop("recipe", {}) | saved for saved in (before, now))       # its fields one by one
    changed = [name for name in now if before.get(name) != now[name] and name not in may_change]
    if changed:
        listed = "; ".join(f"{name} was {before.get(name)!r}, is {now[name]!r}" for name in changed)
        raise ConfigError(f"{newest} was made with other settings: {listed}. Use the same, or another --out")


class Run:
    """Made by `open_run`. The body of `for step in run.steps(...):` trains, and ends with `run.log(...)`."""

    def __init__(self, name: str, config):
        self.name, self.config, self.folder = name, config, Path(config.out)
        self.metrics, self.timing = self.folder / "metrics.jsonl", self.folder / "timing.jsonl"
        self.done = 0                               # steps so far
        self.before: dict = {}                      # the evaluation before the first step

    def steps(self, model, optimizer, tokenizer_files, *, data: str, evaluate: Callable[[], dict]) -> Iterator[int]:
        """The numbers of the steps that are left after the latest checkpoint. `data` is a fingerprint of what is
        trained on. `evaluate` gives numbers on what is held out, none if nothing is."""
        self.model, self.optimizer, self.tokenizer_files = model, optimizer, tokenizer_files
        start = on_rank_0(model_fingerprint, str(start_folder(self.config.model)))
        self.data, self.evaluate = digest([data, start]), evaluate
        self.start()
        total = self.config.steps
        with stop_on_signals() as stop:
            if self.done == 0:
                self.before = {f"before_{name}": number for name, number in evaluate().items()}
            while self.done < total and not any(everywhere(bool(stop))):
                self.began = clock()
                self.seconds: dict[str, float] = defaultdict(float)     # of the step, by phase
                yield self.done + 1
            self.save()
        if self.done < total:
            self.progress.end()
            print(f"stopped after step {self.done} of {total}; the same command goes on from there")

    def start(self) -> None:
        """Fill model and optimiser from the latest checkpoint, if there is one, and say what is run."""
        newest = on_rank_0(latest_checkpoint, self.folder)
        state: dict = {"step": 0, "data": self.data}
        if newest:
            state = checkpoint.restore(newest, self.model, self.optimizer)
        if state["data"] != self.data:
            raise ConfigError(f"{newest} was made with other data, another prompt, start model or judge than now "
                              f"(--data {self.config.data}): use the same, or another --out")
        if state["step"] > self.config.steps:
            raise ConfigError(f"{newest} is after step {state['step']}, --steps is {self.config.steps}: give as many "
                              "or more, or another --out")
        for path in (self.metrics, self.timing):
            on_rank_0(cut_back, path, state["step"])
        changed = [field.name for field in fields(self.config) if getattr(self.config, field.name) != field.default]
        settings = ", ".join(f"{name} {getattr(self.config, name)}" for name in changed) or "the defaults"
        numbers = sum(parameter.numel() for parameter in self.model.parameters())
        trained = sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)
        share = f", {trained:,} of them trained" if trained < numbers else ""
        print(f"model       {numbers:,} parameters on {self.model.head_weight.device}{share}")
        print(f"settings    {settings}; all of them in {on_rank_0(save_config, self.config, self.folder)}")
        left = "" if state["step"] < self.config.steps else ", the last step: nothing is left to do"
        print(f"start       {newest or 'step 0'}{left}", flush=True)
        self.done = state["step"]
        self.moves = steps_taken(self.optimizer)    # when the last whole step ended
        self.progress = Progress(self.name, self.done, self.config.steps)

    def is_due(self, every: int) -> bool:
        """Whether something that happens every so many steps, and after the last, happens in the present step."""
        step = self.done + 1
        return step % every == 0 or step == self.config.steps

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures the time of a phase of a step, around it or as the decorator of its function."""
        start = clock()
        yield
        self.seconds[f"{name}_seconds"] += clock() - start

    def log(self, numbers: dict, tokens: int) -> None:
        """End the present step: an evaluation if one is due, its line of metrics, a checkpoint if one is due. `tokens`
        is how many the step has sampled or trained on."""
        step = self.done + 1
        try:
            if self.is_due(self.config.evaluate_every):
                with self.phase("evaluation"):
                    numbers = self.evaluate() | numbers
        finally:                                    # the step is whole, also where its evaluation fails
            total = clock() - self.began
            speed = tokens / (total - self.seconds.get("evaluation_seconds", 0.0))
            on_rank_0(append, self.metrics, {"step": step} | numbers | self.before)
            on_rank_0(append, self.timing, {"step": step, **self.seconds, "seconds": total, "tokens_per_second": speed})
            self.progress.show(step, numbers, speed)
            self.done, self.before, self.moves = step, {}, steps_taken(self.optimizer)
        if step % self.config.save_every == 0:
            self.save()

    def save(self) -> None:
        """A checkpoint of the last whole step. Its lines of metrics must be on the disk no later than itself."""
        on_rank_0(sync, self.metrics)
        on_rank_0(sync, self.timing)
        newest = checkpoint.save(self.folder, self.done, self.model, self.optimizer, self.data, self.tokenizer_files)
        self.model_folder = newest / "model"


def clock() -> float:
    """Seconds. What a GPU has yet to do belongs to the time before."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def append(path: Path, row: dict) -> None:
    bad = [f"{name} {value}" for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
    if bad:
        raise Diverged(f"{', '.join(bad)} is not a finite number")
    with naming(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def cut_back(path: Path, step: int) -> None:
    """Keep the lines of the first `step` steps."""
    rows = [row for row in read_jsonl(path) if row["step"] <= step]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
