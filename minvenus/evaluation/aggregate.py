"""The numbers of an evaluation, and the difference of two, as pure functions over finished runs; and
both as text.

A run is right, wrong or unknown (correct = None: the judge gave no verdict). A run without an answer
is wrong. Unknown runs are left out of every share, and counted beside it.

    accuracy      right runs / runs with a verdict; over k runs of each question this is avg@k
    pass@k        mean over questions of 1 - C(n-c, k) / C(n, k), for c right runs of n with a
                  verdict: the chance that k new runs have a right one, without bias
    interval      Wilson:  (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n),
                  z = 1.96, n questions
    browse ratio  mean over runs of visits / (searches + visits), executed calls
    B - A         mean, over the questions that both have, of B's accuracy on the question minus
                  A's. Its interval: 95 % of the means of as many questions, drawn from these with
                  replacement

pass@k leaves out a question with fewer than k verdicts, whatever these are: counting
[right, unknown] but not [wrong, unknown] would depend on the result and read too high.

The n of an interval counts questions, also where p is a mean over runs: runs of one question
resemble each other, and the variance of their mean is at most that of one run. With several runs the
interval is too wide, never too narrow. Pairing by question removes what makes it easy or hard for
both A and B, so a small steady difference becomes visible.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from minvenus.config import ConfigError
from minvenus.console import table
from minvenus.types import TERMINATIONS, Question, Turn

Z95 = 1.959963984540054               # 97.5 % quantile of the normal distribution
SAMPLES = 2000                        # of the bootstrap
PROBLEMS = 5                          # that are shown as text; report.json has all of them


@dataclass(frozen=True)
class RunResult:
    """One finished run of one question."""

    question: Question
    run: int                          # 0-based number among the runs of this question
    termination: str
    answer: str | None = None         # None = it ended without one
    correct: bool | None = None       # the verdict; None = unknown, or not graded yet
    numbers: dict[str, float] = field(default_factory=dict)   # of results.numbers_of
    tool_errors: list[str] = field(default_factory=list)      # the kind of each
    note: str = ""                    # why the run failed, or why the verdict is unknown


@dataclass(frozen=True)
class Evaluation:
    """All runs of an evaluation, with their verdicts."""

    name: str                         # for messages, such as its folder
    graded_by: str                    # the name of the grader
    results: list[RunResult]


def executed_calls(turns: Sequence[Turn]) -> tuple[int, int]:
    """Searches and visits. A call without an observation was not executed: the rollout ended in
    it."""
    kinds = Counter(turn.kind for turn in turns if turn.observation is not None)
    return kinds["search"], kinds["visit"]


def grouped(results: Sequence[RunResult],
            by: Literal["id", "source"]) -> dict[str, list[RunResult]]:
    """The results by a name of their question, sorted; those without one are left out."""
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        name = getattr(result.question, by)
        if name is not None:
            groups.setdefault(name, []).append(result)
    return dict(sorted(groups.items()))


# -------------------------------------------------------------------------------------------- shares


def wilson(successes: float, n: int) -> tuple[float, float]:
    """95 % interval of a share of n."""
    p = successes / n
    zz = Z95 * Z95 / n
    middle = p + zz / 2
    half = Z95 * math.sqrt(p * (1 - p) / n + zz / n / 4)
    low = max(0.0, (middle - half) / (1 + zz))
    high = min(1.0, (middle + half) / (1 + zz))
    if successes == 0:                                        # exactly 0 and 1, not up to rounding
        low = 0.0
    if successes == n:
        high = 1.0
    return low, high


def share(values: list[float], unknown: int, questions: int) -> dict:
    """The mean of the values with its 95 % interval; None if there is no value."""
    mean = low = high = None
    if values:
        mean = fmean(values)
        low, high = wilson(mean * questions, questions)
    return {"value": mean, "low": low, "high": high, "counted": len(values), "unknown": unknown}


def accuracy(results: Sequence[RunResult]) -> dict:
    known = [result for result in results if result.correct is not None]
    questions = {result.question.id for result in known}
    values = [float(result.correct is True) for result in known]
    return share(values, len(results) - len(known), len(questions))


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that k runs drawn from n without replacement have a right one:
    1 - C(n - correct, k) / C(n, k)."""
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_share(results: Sequence[RunResult], k: int) -> dict:
    """pass@k over the questions with at least k runs."""
    values = []
    unknown = 0
    for runs in grouped(results, "id").values():
        verdicts = [run.correct for run in runs if run.correct is not None]
        if len(verdicts) >= k:                      # decided without looking at which they are
            values.append(pass_at_k(len(verdicts), sum(verdicts), k))
        elif len(runs) >= k:
            unknown += 1
    return share(values, unknown, len(values))


def browse_ratio(calls: Sequence[tuple[float, float]]) -> float | None:
    """Of the executed searches and visits of each run. A run without a call has no ratio."""
    ratios = [visits / (searches + visits) for searches, visits in calls if searches + visits]
    return fmean(ratios) if ratios else None


# ---------------------------------------------------------------------------------------- everything


def summarise(evaluation: Evaluation) -> dict:
    """Everything that is reported about at least one run; it becomes report.json."""
    results = evaluation.results
    questions = grouped(results, "id")
    k = max(map(len, questions.values()))
    ks = sorted({2**i for i in range(k.bit_length())} | {k})      # 1, 2, 4, ... and the most runs

    sources = grouped(results, "source").items()
    names = results[0].numbers
    means = {name: fmean(result.numbers[name] for result in results) for name in names}
    endings = Counter(result.termination for result in results)
    errors = Counter(kind for result in results for kind in result.tool_errors)
    return {
        "graded_by": evaluation.graded_by,
        "questions": len(questions),
        "runs": len(results),
        "accuracy": accuracy(results),
        "by_source": {source: accuracy(part) for source, part in sources},
        "pass_at_k": {i: pass_share(results, i) for i in ks},
        "terminations": {name: endings[name] for name in TERMINATIONS if endings[name]},
        "problems": [f"{r.question.id} run {r.run}: {r.note}" for r in results if r.note],
        "means": means,                                           # per run
        "malformed": means["malformed"] / means["turns"],         # share of all turns
        "tool_errors": dict(errors.most_common()),
        "browse": {
            "all": browsing(results),
            "correct": browsing([result for result in results if result.correct is True]),
            "wrong": browsing([result for result in results if result.correct is False]),
        }}


def browsing(results: list[RunResult]) -> float | None:
    return browse_ratio([(r.numbers["searches"], r.numbers["visits"]) for r in results])


# ---------------------------------------------------------------------------------------- comparison


def compare(a: Evaluation, b: Evaluation) -> dict:
    """B - A, question by question."""
    runs_a = grouped(a.results, "id")
    runs_b = grouped(b.results, "id")
    both = [name for name in runs_a if name in runs_b]
    refuse_unlike(a, b)

    differences = []
    for name in both:
        before = accuracy(runs_a[name])["value"]
        after = accuracy(runs_b[name])["value"]
        if before is not None and after is not None:
            differences.append(after - before)
    if len(differences) < 2:
        raise ConfigError(f"{a.name} and {b.name} cannot be compared: {len(differences)} questions "
                          "have a verdict in both, and an interval needs two")

    low, high = bootstrap_interval(differences)
    return {
        "a": summarise(a),
        "b": summarise(b),
        "difference": fmean(differences),
        "low": low,
        "high": high,
        "questions": len(differences),                          # with a verdict in both
        "better": sum(d > 0 for d in differences),
        "worse": sum(d < 0 for d in differences),
        "unpaired": len(runs_a.keys() ^ runs_b.keys()),         # questions that only one of them has
        "unknown": len(both) - len(differences)}


def refuse_unlike(a: Evaluation, b: Evaluation) -> None:
    """Refuse evaluations that were graded differently, whose difference would be one of the
    graders, and other questions or true answers under the same ids."""
    if a.graded_by != b.graded_by:
        raise ConfigError(f"{a.name} and {b.name} cannot be compared, they were graded by "
                          f"{a.graded_by} and {b.graded_by}: repeat one's eval.py command with the "
                          "other's grading")
    questions = {result.question.id: result.question for result in a.results}
    for result in b.results:
        second = result.question
        first = questions.get(second.id, second)
        if (first.text, first.answers) != (second.text, second.answers):
            raise ConfigError(f"question {second.id!r} is another one in {a.name} than in {b.name}, "
                              "or has other answers: they cannot be compared (the toy web's follow "
                              "from --question-seed, else --seed)")


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % percentile interval of the mean, the same in every run."""
    rng = random.Random(0)
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(SAMPLES))
    tail = SAMPLES // 40                                    # 2.5 % on either side
    return means[tail], means[-1 - tail]


# ---------------------------------------------------------------------------------------------- text


def report_text(summary: dict) -> str:
    """Everything about one evaluation."""
    rows = list(named_numbers(summary).items())
    problems = summary["problems"]
    for line in problems[:PROBLEMS]:
        rows.append(("problem", plain(line)[:200]))
    if len(problems) > PROBLEMS:
        rows.append(("", f"and {len(problems) - PROBLEMS} more in report.json"))
    return table(rows, left=True)


def comparison_text(comparison: dict, names: tuple[str, str]) -> str:
    """The numbers of both side by side, and their difference in words."""
    a = named_numbers(comparison["a"])
    b = named_numbers(comparison["b"])
    rows = [("", *names)]
    for name in a | b:
        rows.append((name, a.get(name, "–"), b.get(name, "–")))

    points, low, high = (100 * comparison[name] for name in ("difference", "low", "high"))
    difference = f"B - A: {points:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}"
    if low <= 0 <= high:
        difference += ": no clear difference"

    pairs = "paired over {questions} questions, {better} better and {worse} worse"
    if comparison["unpaired"]:
        pairs += "; {unpaired} questions only in one of them"
    if comparison["unknown"]:
        pairs += "; {unknown} without a verdict in one of them"
    return f"{table(rows, left=True)}\n\n{difference}\n{pairs.format(**comparison)}"


def named_numbers(summary: dict) -> dict[str, str]:
    """Shares in percent, with 95 % intervals."""
    rows = {"graded by": summary["graded_by"], "accuracy": share_text(summary["accuracy"])}
    for source, part in summary["by_source"].items():
        rows[f"  {plain(source)}"] = share_text(part)
    for k, part in summary["pass_at_k"].items():
        if k > 1:
            rows[f"pass@{k}"] = share_text(part)

    endings = summary["terminations"]
    rows["ended"] = counted(endings)
    unfinished = sum(endings[name] for name in endings if not name.startswith("answered"))
    if unfinished:
        rows["unfinished"] = f"{unfinished} without an answer, counted as wrong"

    means = summary["means"]
    calls = "{searches:.1f} searches, {visits:.1f} visits".format(**means)
    rows["mean F1"] = f"{means['f1']:.3f}, of the answer's words"
    rows["turns"] = f"{means['turns']:.1f} per run: {calls}"
    rows["format errors"] = f"{percent(summary['malformed'])} of all turns"
    rows["tool errors"] = counted(summary["tool_errors"]) or "none"
    written = f"{means['written']:,.0f} of them written by the model"
    rows["tokens"] = f"{means['tokens']:,.0f} per run, {written}"
    rows["seconds"] = f"{means['seconds']:.2f} per run, while other runs share the machine"
    for name, ratio in summary["browse"].items():
        rows[f"browse, {name}"] = f"{percent(ratio)} of a run's calls are visits"
    return rows


def share_text(part: dict) -> str:
    text = percent(part["value"])
    if part["value"] is not None:
        text += " [{:.1f}, {:.1f}]".format(100 * part["low"], 100 * part["high"])
        text += f" of {part['counted']}"
    if part["unknown"]:
        text += f", {part['unknown']} unknown"
    return text


def counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def plain(text: str) -> str:
    """One line without control characters: question files, endpoints and judges may write
    anything."""
    return "".join(char if char.isprintable() else " " for char in text)
