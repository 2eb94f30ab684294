"""The folder of an evaluation, and the loop that makes its runs.

    run.json         the settings of the newest command (flags.py)
    results.jsonl    one line per finished run: a rollout as agent/record.py writes it, with these keys on top
        run               number of the run among those of its question, from 0
        source            of the question
        correct, note     the verdict (judge.py)
        graded_by         how verdicts are found: exact match, word F1, or the judge's model
        settings          what may not change, with fingerprints of questions, system prompt, model, live tools
    judge.sqlite     the judge's verdicts
    report.json      the summary

Other settings or files are refused: mixed runs are an evaluation of nothing. A line is on the disk before the next run
counts; the torn last line of a killed process is dropped. A judge is asked after the last run, until then its verdicts
are unknown. Whatever another grader found, or none, is then graded again. New verdicts and removed runs make a new file
that replaces the old one as a whole. A lock keeps other processes out. Memory holds no rollouts.
"""

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

from minvenus.agent.protocol import final_answer
from minvenus.agent.record import rollout_from_json, rollout_to_json
from minvenus.agent.rollout import Episode, RolloutLoop
from minvenus.config import ConfigError
from minvenus.console import Progress
from minvenus.evaluation.aggregate import RunResult, executed_calls
from minvenus.evaluation.answers import f1
from minvenus.evaluation.judge import RIGHT, Judge, WordGrader, make_grader
from minvenus.evaluation.questions import QuestionSource
from minvenus.files import claimed, digest, refuse_training_run, replaced_file, sync
from minvenus.flags import save_config
from minvenus.settings import EvalConfig
from minvenus.tools.base import FailureGuard
from minvenus.types import Question, Rollout

NAME = "results.jsonl"
FAILURES = 5                          # so many runs in a row that ended in an error stop the evaluation
Key = tuple[str, int]                 # question id, number of the run

# Settings that may change when an evaluation goes on: how much, how fast, where and in which form a server is asked,
# what is shown. The last row is compared by fingerprint or by each line's graded_by.
MAY_CHANGE = {"limit", "runs", "concurrency", "pages", "api_base", "prompt_ids", "json", "out", "redo_failed",
              "compare", "xray", "group", "answer",
              "questions", "system_prompt", "model", "score", "judge"}


def fixed_settings(config: EvalConfig, fingerprints: dict[str, str]) -> dict:
    """What may not change while an evaluation goes on."""
    settings = asdict(config) | asdict(config.agent)
    return {name: value for name, value in settings.items() if name not in MAY_CHANGE | {"agent"}} | fingerprints


def default_folder(config: EvalConfig, settings: dict) -> Path:
    """runs/eval/MODEL-DIGEST: other settings have another folder, another grading has not."""
    model = Path(config.agent.api_model or config.agent.model)
    parts = [part for part in model.parts if part not in ("/", "runs", "checkpoints", "model")]
    return Path("runs/eval", re.sub(r"[^\w.-]", "-", "-".join(parts[-2:])) + f"-{digest(settings)[:8]}")


@contextmanager
def open_results(config: EvalConfig, fingerprints: dict[str, str]) -> Iterator["ResultsFile"]:
    """The results of an evaluation's folder, to be continued. Meanwhile no other process may use the folder."""
    settings = fixed_settings(config, fingerprints)
    folder = Path(config.out) if config.out else default_folder(config, settings)
    grader = make_grader("judge" if config.judge else config.score, folder)
    refuse_training_run(folder)
    with closing(grader), claimed(folder, "evaluating"):
        results = ResultsFile(folder, settings, grader)
        save_config(config, folder)
        if config.redo_failed:
            results.remove_failed()
        yield results


class ResultsFile:
    """Refuses to continue runs that were made with other settings."""

    def __init__(self, folder: Path, settings: dict, grader: WordGrader | Judge):
        self.folder, self.path = folder, folder / NAME
        self.settings, self.grader = settings, grader
        drop_torn_line(self.path)
        self.runs = read_results(self.path)
        before = next(read_lines(self.path), {"settings": settings}).get("settings", {})
        changed = [f"{name} was {before.get(name)!r}, is {settings.get(name)!r}"
                   for name in sorted({**before, **settings}) if before.get(name) != settings.get(name)]
        if changed:
            raise ConfigError(f"{folder} holds runs with other settings: {'; '.join(changed)}. Use the same, or "
                              "another --out")

    def add(self, run: int, rollout: Rollout) -> RunResult:
        """Append a line for a new run."""
        question, grade, note = rollout.question, None, "not judged yet"
        if isinstance(self.grader, WordGrader):
            [grade], note = self.grader.grade([question], [answer_of(rollout)]), ""
        line = rollout_to_json(rollout) | self._graded(grade, note) | {
            "run": run, "source": question.source, "settings": self.settings}
        with self.path.open("ab") as file:
            file.write(as_bytes(line))
        sync(self.path)
        sync(self.folder)
        self.runs[question.id, run] = result_of(line)
        return self.runs[question.id, run]

    def grade(self) -> None:
        """Grade all runs, unless this grader has a verdict of each. A judge finds what it knows in its cache, and few
        unknown verdicts beside many of those are no failing judge."""
        if all(run.correct is not None and run.graded_by == self.grader.name for run in self.runs.values()):
            return
        questions, answers = zip(*((run.question, run.answer) for run in self.runs.values()), strict=True)
        grades = self.grader.grade(list(questions), list(answers))
        notes = [self.grader.notes.get((run.question.id, run.answer), "") for run in self.runs.values()]
        self._rewrite({key: self._graded(grade, note) for key, grade, note in zip(self.runs, grades, notes, strict=True)})

    def remove_failed(self) -> None:
        self._rewrite({key: None for key, result in self.runs.items() if result.termination == "error"})

    def _graded(self, grade: float | None, note: str) -> dict:
        correct = None if grade is None else grade >= RIGHT
        return {"correct": correct, "note": note, "graded_by": self.grader.name}

    def _rewrite(self, changes: Mapping[Key, dict | None]) -> None:
        """Put the new values into the lines of these runs; None removes a line."""
        with replaced_file(self.path) as new, new.open("wb") as file:
            for line in read_lines(self.path):
                change = changes.get((line["id"], line["run"]), {})
                if change is not None:
                    file.write(as_bytes(line | change))
        sync(self.folder)
        self.runs = read_results(self.path)


# ------------------------------------------------------------------------------------------------------- new runs


def collect(loop: RolloutLoop, source: QuestionSource, missing: list[tuple[Question, int]], concurrency: int,
            results: ResultsFile, stop: object) -> None:
    """Make the runs (question, number). Whatever ends this early, every run that has ended is saved. Once `stop` is
    true, no other run starts, and those that are open are dropped."""
    waiting = deque(missing)
    running: dict[Episode, int] = {}                         # the number of the run
    guard = FailureGuard("runs (--redo-failed makes them again)", FAILURES, 1 - 1 / FAILURES)
    progress = Progress("eval", 0, len(missing))
    made: list[RunResult] = []                               # only these: kept ones may be graded by another grader
    try:
        while (waiting or running) and not stop:
            while waiting and len(running) < concurrency:
                question, run = waiting.popleft()
                name = question.id if run == 0 else f"{question.id} run {run}"        # run 0 samples as infer.py does
                [episode] = loop.add(question, source.tools_for, name=name, max_turns=source.max_turns(question))
                running[episode] = run
            errors = []
            for episode in loop.step():
                rollout = episode.rollout
                assert rollout is not None
                made.append(results.add(running.pop(episode), rollout))
                errors.append(rollout.error)
            if errors:
                known = [float(result.correct) for result in made if result.correct is not None]
                progress.show(len(made), {"accuracy": fmean(known)} if known else {})
            for error in errors:
                guard.add(error)
    finally:
        drop_torn_line(results.path)                         # of a full disk
        for episode, run in running.items():
            if episode.rollout is not None:                  # it ended in the step that raised
                results.add(run, episode.rollout)
        progress.end()


# ------------------------------------------------------------------------------------------------------------ lines


def answer_of(rollout: Rollout) -> str | None:
    """The answer to grade; None for a run that ended without one, whatever its last turn looks like."""
    return final_answer(rollout.turns) if rollout.termination.startswith("answered") else None


def result_of(line: dict) -> RunResult:
    note = line["note"] if line["correct"] is None else ""
    rollout = rollout_from_json(line)
    turns, answer = rollout.turns, answer_of(rollout)
    searches, visits = executed_calls(turns)
    numbers = {
        "turns": len(turns), "malformed": sum(turn.malformed for turn in turns),       # failed the strict format check
        "searches": searches, "visits": visits,                                        # executed, errors included
        "tokens": len(rollout.tokens), "written": sum(turn.end - turn.start for turn in turns),       # by the model
        "seconds": rollout.seconds, "f1": f1(answer, rollout.question.answers)}
    return RunResult(
        question=replace(rollout.question, source=line["source"]), run=line["run"], correct=line["correct"],
        termination=rollout.termination, answer=answer, graded_by=line["graded_by"], numbers=numbers,
        tool_errors=[turn.tool_error for turn in turns if turn.tool_error is not None],
        note=note or rollout.error or "")


def read_results(path: Path) -> dict[Key, RunResult]:
    """The runs of a file, none if there is no file."""
    found: dict[Key, RunResult] = {}
    try:
        for number, line in enumerate(read_lines(path), start=1):
            result = result_of(line)
            found[result.question.id, result.run] = result
            if len(found) < number:
                raise ValueError(f"run {result.run} of question {result.question.id!r} is there twice")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}, line {len(found) + 1} is not a finished run of an evaluation "
                          f"({type(error).__name__}: {error}): repair or remove the file") from None
    return found


def results_of(name: str) -> list[RunResult]:
    """The runs of an evaluation to compare: a folder, or its results.jsonl."""
    path = Path(name) / NAME if Path(name).is_dir() else Path(name)
    results = list(read_results(path).values())
    if not results:
        raise ConfigError(f"{path} has no runs: --compare takes two folders of evaluations, or their {NAME}")
    return results


def read_lines(path: Path) -> Iterator[dict]:
    """The complete lines, none if there is no file."""
    if path.exists():
        with path.open("rb") as file:
            yield from (json.loads(line) for line in file if line.endswith(b"\n"))


def as_bytes(line: dict) -> bytes:
    return (json.dumps(line) + "\n").encode()                        # ASCII: half a surrogate pair has no UTF-8


def drop_torn_line(path: Path) -> None:
    """Cut off what follows the last line end."""
    if path.exists():
        with path.open("rb+") as file:
            file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))
