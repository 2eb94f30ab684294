"""A training run in its folder: settings, metrics, checkpoints, progress line, signals, and how it stops and goes on.

    with Run("igpo", config) as run:                           # locks the folder
        run.begin(model, optimizer, tokenizer.files, data, evaluate, config.evaluate_every)      # or goes on
        for step in run.steps():
            ...                                                # train
            run.log(numbers)                                   # evaluates and saves when it is due

    RUN/run.json        the settings
    RUN/metrics.jsonl   one line per step: what the same settings and seed give again, byte for byte
    RUN/timing.jsonl    one line per step: seconds and tokens per second

Steps are counted from 1: step N is the N-th, and "after step N" N steps have been made. A run evaluates before its
first step, every so many steps, and after its last. Whatever ends it, an error included, the last whole step is kept: a
checkpoint is written unless the weights have moved since. A resumed run first cuts both files back to the checkpoint's
step, so that they end as those of a run that was never stopped. A signal (Ctrl-C, SIGTERM) ends the run after its step,
a second one at once.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path

from minvenus.config import ConfigError, read_json
from minvenus.console import Progress, stop_on_signals
from minvenus.files import claimed, latest_checkpoint, read_jsonl, replaced_file, sync
from minvenus.flags import save_config
from minvenus.train import checkpoint
from minvenus.train.optim import Diverged, steps_taken

# Settings that a resumed run may change: they decide memory, speed and what is looked at, not what is learned.
MAY_CHANGE = {"out", "resume", "device", "pack_tokens", "recompute", "pages", "page_size", "tool_seconds",
              "tool_threads", "evaluate_every", "validate_every", "save_every", "rollouts_every", "logprob_gap"}


class Run:
    def __init__(self, name: str, config, may_change: set[str] = MAY_CHANGE):
        self.name, self.config, self.folder, self.may_change = name, config, Path(config.out), may_change
        self.files = self.folder / "metrics.jsonl", self.folder / "timing.jsonl"
        self.done = 0                               # steps so far
        self.counters: dict[str, int] = {}          # counts over the whole run; saved with every checkpoint
        self.start_clock()

    # -------------------------------------------------------------------------------------------------- begin and end

    def __enter__(self) -> "Run":
        with ExitStack() as exits:                  # unlocks the folder if the settings are refused
            exits.enter_context(claimed(self.folder, "training"))
            if newest := latest_checkpoint(self.folder):
                self.check_resume(newest)
            self._exits = exits.pop_all()
        return self

    def check_resume(self, newest: Path) -> None:
        """Other settings would make another run, half of it under the old ones."""
        if self.config.resume == "never":
            raise ConfigError(f"{self.folder} holds a run already: choose another --out, remove it, or go on with "
                              "--resume auto")
        before = read_json(self.folder / "run.json")
        now = json.loads(json.dumps(asdict(self.config)))              # tuples become lists, as in the file
        changed = [name for name in now if before.get(name) != now[name] and name not in self.may_change]
        if changed:
            listed = "; ".join(f"{name} was {before.get(name)!r}, is {now[name]!r}" for name in changed)
            why = " The learning rate of every step depends on the number of steps." if "steps" in changed else ""
            raise ConfigError(f"{newest} was made with other settings: {listed}.{why} Use the same, or another --out")

    def begin(self, model, optimizer, tokenizer_files, data: str, evaluate: Callable[[], dict],
              evaluate_every: int) -> None:
        """Start, or go on from the latest checkpoint. `data` is a fingerprint of what is trained on. `evaluate` gives
        numbers on what is held out; none if nothing is."""
        self.model, self.optimizer, self.tokenizer_files, self.data = model, optimizer, tokenizer_files, data
        self.evaluate, self.evaluate_every = evaluate, evaluate_every
        self.before: dict = {}                      # the evaluation before the first step
        newest = latest_checkpoint(self.folder)
        if newest:
            state = checkpoint.restore(newest, model, optimizer)
            if state["data"] != data:
                raise ConfigError(f"{newest} was made with other data or another prompt than {self.config.data} gives "
                                  "now: use the same, or another --out")
            self.done, self.counters = state["step"], state["counters"]
        settings = {field.name: (getattr(self.config, field.name), field.default) for field in fields(self.config)}
        changed = [f"{name} {value}" for name, (value, default) in settings.items() if value != default]
        print(f"model       {sum(p.numel() for p in model.parameters()):,} parameters on {model.head_weight.device}")
        saved = save_config(self.config, self.folder)
        print(f"settings    {', '.join(changed) or 'the defaults'}; all of them in {saved}")
        print(f"start       {newest or 'step 0'}", flush=True)
        for path in self.files:
            cut_back(path, self.done)
        self.progress = Progress(self.name, self.done, self.config.steps)
        self.moves = steps_taken(optimizer)         # of the optimiser, when the last whole step ended
        self.stop = self._exits.enter_context(stop_on_signals())

    def __exit__(self, kind, error, trace) -> None:
        with self._exits:
            if isinstance(error, Exception) and hasattr(self, "moves"):
                self.progress.end()
                if self.done and steps_taken(self.optimizer) == self.moves:
                    with suppress(OSError):         # on a full disk the error that is raised already says so
                        self.save()

    # ---------------------------------------------------------------------------------------------------------- steps

    def steps(self) -> Iterator[int]:
        """The numbers of the steps that are left. The body of the loop ends with `log`."""
        total = self.config.steps
        if self.done == 0:
            self.before = {f"before_{name}": number for name, number in self.evaluate().items()}
        while self.done < total and not self.stop:
            self.start_clock()
            yield self.done + 1
        self.save()
        if self.done < total:
            self.progress.end()
            print(f"stopped after step {self.done} of {total}; the same command goes on from there")

    def is_due(self, every: int) -> bool:
        """Whether something that happens every so many steps, and after the last, happens in the present step."""
        step = self.done + 1
        return step % every == 0 or step == self.config.steps

    def log(self, numbers: dict) -> None:
        """End the present step: its line of metrics, then a checkpoint; with an evaluation first if one is due."""
        step, failure = self.done + 1, None
        self.lap("rest")
        if self.is_due(self.evaluate_every):
            try:
                numbers = self.evaluate() | numbers
            except Exception as error:              # the step itself is whole, and is kept
                failure = error
            self.lap("evaluation")
        timing = self.timing()
        for path, row in zip(self.files, (numbers | self.before, timing), strict=True):
            append(path, {"step": step} | row)
        self.progress.show(step, numbers, timing)
        self.done, self.before, self.moves = step, {}, steps_taken(self.optimizer)
        if failure:
            raise failure
        if step % self.config.save_every == 0:
            self.save()

    def save(self) -> None:
        """A checkpoint of the last whole step. Its lines of metrics must be on the disk no later than itself."""
        for path in self.files:
            if path.exists():
                sync(path)
        state = {"data": self.data, "counters": self.counters}
        checkpoint.save(self.folder, self.done, self.model, self.optimizer, state, self.tokenizer_files)

    # ------------------------------------------------------------------------------------------------------ the clock

    def start_clock(self) -> None:
        self.seconds: dict[str, float] = {}         # by phase of the step
        self.tokens: dict[str, int] = {}            # that ran through a model, by phase
        self.mark = time.perf_counter()

    def lap(self, phase: str, tokens: int = 0) -> None:
        """The time since the last lap belongs to `phase`, in which `tokens` ran through a model."""
        now = time.perf_counter()
        self.seconds[phase] = now - self.mark
        self.mark = now
        if tokens:
            self.tokens[phase] = tokens

    def timing(self) -> dict[str, float]:
        """Seconds of every phase and tokens per second of those that ran any; the last two are over all of them."""
        numbers = {f"{phase}_seconds": seconds for phase, seconds in self.seconds.items()}
        numbers |= {f"{phase}_tokens_per_second": tokens / self.seconds[phase] for phase, tokens in self.tokens.items()}
        if "scoring" in self.seconds:
            numbers["scoring_share"] = self.seconds["scoring"] / (self.seconds["scoring"] + self.seconds["rollout"])
        busy = sum(self.seconds[phase] for phase in self.tokens)
        return numbers | {"seconds": sum(self.seconds.values()),
                          "tokens_per_second": sum(self.tokens.values()) / busy if busy else 0.0}

    @property
    def model_folder(self) -> Path:
        """The model of the latest checkpoint."""
        newest = latest_checkpoint(self.folder)
        assert newest is not None
        return newest / "model"


@contextmanager
def one_line_errors(script: str, *stops: type[BaseException]) -> Iterator[None]:
    """What the user can mend ends the program with one line: settings, files, and the errors in `stops`. A bug shows
    its traceback."""
    mendable: tuple[type[BaseException], ...] = (ConfigError, OSError, Diverged, *stops)
    try:
        yield
    except KeyboardInterrupt:
        print(f"\n{script}: stopped at once; the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)
    except mendable as error:
        print(f"\n{script}: {error}", file=sys.stderr)
        sys.exit(2)


# ------------------------------------------------------------------------------------------------------ the two files


def append(path: Path, row: dict) -> None:
    bad = [f"{name} {value}" for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
    if bad:
        raise Diverged(f"step {row['step']}: {', '.join(bad)} is not a finite number")
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None       # a full disk does not name the file


def cut_back(path: Path, step: int) -> None:
    """Keep the lines of the first `step` steps."""
    if path.exists():
        kept = [json.dumps(row) + "\n" for row in read_jsonl(path) if row["step"] <= step]
        with replaced_file(path) as new:
            new.write_text("".join(kept), encoding="utf-8")
