"""The folder of an evaluation, and the loop that makes its runs.

    run.json         the settings of the newest command (flags.py)
    results.jsonl    a line for every finished run, which is never changed: a rollout as
                     agent/record.py writes it, with these keys on top
        run               number of the run among those of its question, from 0
        source            of the question
        exact_match       a cheap verdict for the X-ray
        settings          what may not change, with fingerprints of questions, system prompt, model
                          and live tools
    judge.sqlite     the judge's verdicts (judge.py)
    report.json      the numbers of the newest command, with the accuracy of each question: two of
                     them can be compared

Other settings or files are refused: an accuracy over runs with mixed settings means nothing. A run
counts once its line is on the disk; a last line that a killed process left incomplete is cut off.
A run that is made again has a second line, and the newest one counts. Lines hold no grades, so the
same runs can be graded by any grader, at any time. A lock keeps other processes out. Rollouts are
not kept in memory.
"""

import json
import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

from minvenus.agent.protocol import final_answer
from minvenus.agent.record import rollout_from_json, rollout_to_json
from minvenus.agent.rollout import Episode, RolloutLoop
from minvenus.config import ConfigError, read_json
from minvenus.console import Progress
from minvenus.evaluation.aggregate import RunResult
from minvenus.evaluation.answers import (
    RIGHT,
    WordGrader,
    browse_ratio,
    exact_match,
    executed_calls,
    f1,
)
from minvenus.evaluation.judge import Judge
from minvenus.evaluation.questions import QuestionSource
from minvenus.files import claimed, digest, read_records, refuse_training_run, sync
from minvenus.settings import EvalConfig
from minvenus.tools.base import FailureGuard
from minvenus.types import Question, Rollout

NAME = "results.jsonl"
REPORT = "report.json"
FAILURES = 5                          # runs in a row that end in an error stop the evaluation
Run = tuple[Question, int]            # a question, and the number among its runs

# Settings that may change when an evaluation goes on: how much, how fast, where and in which form a
# server is asked, how answers are graded, what is shown. Files are compared by fingerprint.
MAY_CHANGE = """
    limit runs concurrency pages api_base prompt_ids score judge json out redo_failed
    compare xray group answer questions system_prompt model agent""".split()


def fixed_settings(config: EvalConfig, fingerprints: dict[str, str]) -> dict:
    """What may not change while an evaluation goes on."""
    settings = asdict(config) | asdict(config.agent)
    fixed = {name: value for name, value in settings.items() if name not in MAY_CHANGE}
    return fixed | fingerprints


def default_folder(config: EvalConfig, settings: dict) -> Path:
    """runs/eval/MODEL-DIGEST: other settings have another folder, another grading has not."""
    model = Path(config.agent.api_model or config.agent.model)
    parts = [part for part in model.parts if part not in ("/", "runs", "checkpoints", "model")]
    name = re.sub(r"[^\w.-]", "-", "-".join(parts[-2:]))
    return Path("runs/eval", f"{name}-{digest(settings)[:8]}")


@contextmanager
def open_results(config: EvalConfig, source: QuestionSource,
                 fingerprints: dict[str, str]) -> Iterator["ResultsFile"]:
    """The results of an evaluation's folder, to be continued. Meanwhile no other process may use
    the folder."""
    settings = fixed_settings(config, fingerprints)
    folder = Path(config.out) if config.out else default_folder(config, settings)
    refuse_training_run(folder)
    with claimed(folder, "evaluating"):
        results = ResultsFile(folder, settings, source)
        if config.redo_failed:
            results.forget_failed()
        yield results


class ResultsFile:
    """Finished runs, appended one by one. Refuses to continue runs with other settings."""

    def __init__(self, folder: Path, settings: dict, source: QuestionSource):
        self.folder = folder
        self.path = folder / NAME
        self.settings = settings
        self.source = source
        self.runs: dict[tuple[str, int], RunResult] = {}       # by question and number
        drop_torn_line(self.path)
        records = read_records(self.path) if self.path.is_file() else ()
        for where, record in records:
            try:
                rollout = rollout_from_json(record)
                question = replace(rollout.question, source=record["source"])
                self._count(record["run"], replace(rollout, question=question))
            except (AttributeError, KeyError, ValueError) as error:
                raise ConfigError(
                    f"{where} is not a finished run of an evaluation "
                    f"({type(error).__name__}: {error}): repair or remove the file") from None
            refuse_other_settings(folder, record.get("settings", {}), settings)

    def missing(self, runs: list[Run]) -> list[Run]:
        return [(question, run) for question, run in runs if (question.id, run) not in self.runs]

    def forget_failed(self) -> None:
        """Count runs that ended in an error as missing. Their lines stay in the file."""
        self.runs = {key: result for key, result in self.runs.items()
                     if result.termination != "error"}

    def add(self, run: int, rollout: Rollout) -> RunResult:
        """Append a line for a new run."""
        line = rollout_to_json(rollout) | {
            "run": run,
            "source": rollout.question.source,
            "exact_match": bool(exact_match(answer_of(rollout), rollout.question.answers)),
            "settings": self.settings}
        with self.path.open("ab") as file:
            file.write(f"{json.dumps(line)}\n".encode())     # ASCII: lone surrogates have no UTF-8
        sync(self.path)
        sync(self.folder)
        return self._count(run, rollout)

    def _count(self, run: int, rollout: Rollout) -> RunResult:
        """Of two lines of a run the second counts."""
        result = result_of(run, rollout, self.source)
        self.runs[result.question.id, run] = result
        return result


def refuse_other_settings(folder: Path, before: dict, now: dict) -> None:
    changed = []
    for name in sorted(before | now):
        if before.get(name) != now.get(name):
            changed.append(f"{name} was {before.get(name)!r}, is {now.get(name)!r}")
    if changed:
        raise ConfigError(f"{folder} holds runs with other settings: {'; '.join(changed)}. Use the "
                          "same, or another --out")


# ----------------------------------------------------------------------------------------- new runs


def make_runs(loop: RolloutLoop, source: QuestionSource, missing: list[Run], concurrency: int,
              results: ResultsFile, stop: object) -> None:
    """Make the missing runs. Whatever ends this early, every run that has ended is saved. Once
    `stop` is true, no other run starts, and those that are open are dropped."""
    waiting = deque(missing)
    running: dict[Episode, int] = {}                         # the number of the run
    matches: list[float] = []                                # of the new runs
    guard = FailureGuard("runs (--redo-failed makes them again)", FAILURES, 1 - 1 / FAILURES)
    progress = Progress("eval", 0, len(missing))
    try:
        while (waiting or running) and not stop:
            while waiting and len(running) < concurrency:
                question, run = waiting.popleft()
                # run 0 samples as infer.py does
                name = question.id if run == 0 else f"{question.id} run {run}"
                [episode] = loop.add(question, source.tools_for, name=name,
                                     max_turns=source.max_turns(question))
                running[episode] = run

            for episode in loop.step():
                rollout = episode.rollout
                assert rollout is not None
                result = results.add(running.pop(episode), rollout)
                matches.append(result.numbers["exact_match"])
                progress.show(len(matches), {"exact match": fmean(matches)})
                guard.add(rollout.error)
    finally:
        drop_torn_line(results.path)                         # of a full disk
        for episode, run in running.items():
            if episode.rollout is not None:                  # it ended in the step that raised
                results.add(run, episode.rollout)
        progress.end()


# --------------------------------------------------------------------------------------- one run


def answer_of(rollout: Rollout) -> str | None:
    """The answer to grade; None for a run that ended without one, whatever its last turn looks
    like."""
    return final_answer(rollout.turns) if rollout.termination.startswith("answered") else None


def result_of(run: int, rollout: Rollout, source: QuestionSource) -> RunResult:
    turns = rollout.turns
    answer = answer_of(rollout)
    answers = rollout.question.answers
    searches, visits = executed_calls(turns)
    [labels], [right_pages] = source.visits([rollout])
    numbers = {
        "turns": len(turns),
        "malformed": sum(rollout.malformed),                # failed the strict format check
        "searches": searches,                               # executed, errors included
        "visits": visits,
        "browse": browse_ratio([(searches, visits)]),
        "tokens": len(rollout.tokens),
        "seconds": rollout.seconds,
        "exact_match": exact_match(answer, answers),
        "f1": f1(answer, answers)}
    if right_pages is not None:                             # the share of them that was visited
        numbers["right_pages"] = sum(turn.count("right") for turn in labels) / right_pages
    return RunResult(
        question=rollout.question,
        run=run,
        termination=rollout.termination,
        answer=answer,
        numbers={name: number for name, number in numbers.items() if number is not None},
        tool_errors=[turn.tool_error for turn in turns if turn.tool_error is not None],
        note=rollout.error or "")


def drop_torn_line(path: Path) -> None:
    """Cut off what follows the last line end."""
    if not path.is_file():
        return
    with path.open("rb") as lines:
        whole = sum(len(line) for line in lines if line.endswith(b"\n"))
    os.truncate(path, whole)


# ------------------------------------------------------------------------------------------ grading


def graded(results: list[RunResult], grader: WordGrader | Judge) -> list[RunResult]:
    """The runs with their verdicts. All are graded in one call: few unknown verdicts among many are
    no failing judge, and a judge does not ask again about those in its cache."""
    questions = [result.question for result in results]
    answers = [result.answer for result in results]
    grades = grader.grade(questions, answers)
    verdicts = []
    for result, grade in zip(results, grades, strict=True):
        if grade is None:
            note = grader.notes[result.question.text, result.answer]
            verdicts.append(replace(result, note=note))
        else:
            verdicts.append(replace(result, correct=grade >= RIGHT))
    return verdicts


def read_report(name: str) -> dict:
    """The report of an evaluation, by its folder or a file in it."""
    path = Path(name)
    folder = path if path.is_dir() else path.parent
    return read_json(folder / REPORT)
