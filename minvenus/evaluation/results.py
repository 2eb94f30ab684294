"""The file of an evaluation: results.jsonl, one line per finished run, and beside it what its runs have in common.

    FOLDER/settings.json    config.identity; other settings are refused, because a mix would be an evaluation of nothing
    FOLDER/results.jsonl    a rollout as agent/record.py writes it, with these keys on top:
        run, seed           which run of the question, 0-based, and the seed of its sampling
        hops, source        of the question
        correct             true, false, or null: the verdict is unknown
        verdict             {"word": "yes" | "no" | "unknown", "by": who says so, "note": the judge's words, or why it is unknown}
        em, f1              of the answer, 0 without one
        elapsed_seconds, and of each turn seconds and tool_seconds: all that another machine would give differently

A line is appended and on the disk before the next run counts. What a killed process leaves behind its last line end is dropped.
Rewriting (new verdicts, failed runs taken out) makes a new file that takes the old one's place whole. One process at a time has
the folder: a lock that ends with the process says so. Rollouts are not kept in memory.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from minvenus.agent.protocol import final_answer
from minvenus.agent.record import FORMAT, rollout_to_json
from minvenus.config import ConfigError, read_json
from minvenus.evaluation.aggregate import Run
from minvenus.evaluation.answers import exact_match, f1
from minvenus.evaluation.config import refuse_changes
from minvenus.evaluation.grade import Paper
from minvenus.evaluation.judge import Verdict
from minvenus.evaluation.task import Job
from minvenus.files import claimed, sync
from minvenus.types import Question, Rollout

NAME = "results.jsonl"
Key = tuple[str, int]


class Results:
    """`with Results(folder, identity) as results:` the runs of the folder, open to be continued."""

    def __init__(self, folder, identity: dict, regrade: bool = False):
        self.folder, self.path = Path(folder), Path(folder) / NAME
        self.held = ExitStack()
        self.held.enter_context(claimed(self.folder, "evaluating"))
        try:
            self._begin(identity, regrade)
            self.runs: dict[Key, Run] = read_runs(self.path)
        except BaseException:
            self.held.close()
            raise

    def _begin(self, identity: dict, regrade: bool) -> None:
        settings, has_runs = self.folder / "settings.json", drop_torn_line(self.path)
        if has_runs and not settings.exists():
            raise ConfigError(f"{self.path} has runs, but there is no {settings.name} that says how they were made: choose "
                              "another --out")
        if has_runs:
            refuse_changes(read_json(settings), identity, self.folder, regrade)
        if not has_runs or not regrade:
            self.settle(identity)

    def settle(self, identity: dict) -> None:
        """From here on these are the settings of all runs: with another grading, once every line has its new verdict."""
        replace_text(self.folder / "settings.json", json.dumps(identity, indent=2, ensure_ascii=False) + "\n")

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *_) -> None:
        self.held.close()

    def add(self, line: dict) -> Run:
        run = run_of_line(line)
        if (run.question, run.run) in self.runs:
            raise ValueError(f"run {run.run} of question {run.question!r} is there already")
        new = not self.path.exists()
        with self.path.open("ab") as file:
            file.write(as_bytes(line))
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync(self.folder)
        self.runs[run.question, run.run] = run
        return run

    def rewrite(self, change: Callable[[dict], dict | None]) -> None:
        """Every line as `change` gives it; None takes it out."""
        if self.path.exists():
            beside = self.path.with_name(f".{NAME}")
            with beside.open("wb") as file:
                file.writelines(as_bytes(changed) for line in read_lines(self.path) if (changed := change(line)) is not None)
            sync(beside)
            os.replace(beside, self.path)
            sync(self.folder)
            self.runs = read_runs(self.path)

    def papers(self, wanted: Callable[[Run], bool]) -> list[tuple[Key, Paper]]:
        """What has to be graded again."""
        keys = {key for key, run in self.runs.items() if wanted(run)}
        return [(key_of(line), paper_of(line)) for line in read_lines(self.path) if key_of(line) in keys] if keys else []


# ---------------------------------------------------------------------------------------------------------------- one line


def line_of(job: Job, rollout: Rollout, verdict: Verdict, seed: int) -> dict:
    answer, answers = final_answer(rollout.turns), job.entry.question.answers
    answer = answer if rollout.termination.startswith("answered") else None
    return rollout_to_json(rollout) | {
        "run": job.run, "seed": seed, "hops": job.entry.hops, "source": job.entry.source, **graded(verdict),
        "em": exact_match(answer, answers), "f1": f1(answer, answers)}


def graded(verdict: Verdict) -> dict:
    return {"correct": verdict.correct, "verdict": asdict(verdict)}


def paper_of_rollout(rollout: Rollout) -> Paper:
    return Paper(rollout.question, final_answer(rollout.turns), rollout.termination.startswith("answered"))


def paper_of(line: dict) -> Paper:
    question = Question(line["id"], line["question"], line["answers"])
    return Paper(question, line["prediction"], line["termination"].startswith("answered"))


def key_of(line: dict) -> Key:
    return line["id"], line["run"]


def run_of_line(line: dict) -> Run:
    """As aggregate.run_of, without building the rollout: a line may have a hundred thousand tokens."""
    turns, verdict = line["turns"], line["verdict"]
    observed = len(line["messages"]) - 2 - len(turns)                # of the system prompt, the question and the turns
    kinds = Counter(turn["kind"] for turn in turns[:observed])
    errors = [turn["tool_error"] for turn in turns if turn["tool_error"] is not None]
    note = verdict["note"] if verdict["word"] == "unknown" else ""
    return Run(line["id"], line["run"], line["correct"], line["termination"], kinds["search"], kinds["visit"], len(turns),
               sum(turn["malformed"] for turn in turns), len(errors), len(line["tokens"]), line["elapsed_seconds"],
               line["hops"], line["source"], line["f1"], sum(turn["end"] - turn["start"] for turn in turns), errors,
               note or line["error"] or "")


# ---------------------------------------------------------------------------------------------------------------- the file


def as_bytes(line: dict) -> bytes:
    return (json.dumps(line) + "\n").encode()                        # ASCII: half a surrogate pair has no UTF-8


def replace_text(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}")
    beside.write_text(text, encoding="utf-8")
    sync(beside)
    os.replace(beside, path)


def drop_torn_line(path: Path) -> bool:
    """Cut off what stands behind the last line end; whether any line is left."""
    if not path.exists():
        return False
    with path.open("rb+") as file:
        end = size = file.seek(0, os.SEEK_END)
        block = 1 << 16
        while end:
            start = max(0, end - block)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            file.truncate(end)
            os.fsync(file.fileno())
    return end > 0


def read_lines(path: Path) -> Iterator[dict]:
    """The complete lines."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            if not text.endswith(b"\n"):
                return
            try:
                line = json.loads(text)
                whole = isinstance(line, dict) and line.get("format") == FORMAT and {"run", "correct", "verdict"} <= line.keys()
            except (ValueError, RecursionError):
                whole = False
            if not whole:
                raise ConfigError(f"{path}, line {number} is not a finished run of an evaluation: repair or remove the file")
            yield line


def read_runs(path: Path) -> dict[Key, Run]:
    return {key: run for key, run, _ in read_with_text(path)}


def read_with_text(path: Path) -> Iterator[tuple[Key, Run, str]]:
    """Every run, and its question's text."""
    seen: set[Key] = set()
    for number, line in enumerate(read_lines(path), start=1):
        try:
            run = run_of_line(line)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{path}, line {number} cannot be read: {type(error).__name__}: {error}") from None
        if key_of(line) in seen:
            raise ConfigError(f"{path}, line {number}: run {run.run} of question {run.question!r} is there twice")
        seen.add(key_of(line))
        yield key_of(line), run, line["question"]
