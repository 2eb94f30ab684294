"""The numbers of an evaluation, as pure functions over finished runs, and the difference of two.

A run is right, wrong or unknown (correct = None: the judge gave no verdict). A run without an
answer is wrong. Unknown runs are left out of every share, and counted beside it.

    accuracy      right runs / runs with a verdict; over k runs of each question this is avg@k
    pass@k        mean over questions of 1 - C(n-c, k) / C(n, k), for c right runs of n with a
                  verdict: the chance that k new runs have a right one, without bias
    interval      Wilson:  (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n),
                  z = 1.96, n questions
    B - A         mean, over the questions that both have, of B's accuracy on the question minus
                  A's. Its interval: 95 % of the means of as many questions, drawn from these with
                  replacement

pass@k leaves out a question with fewer than k verdicts, whatever these are: counting
[right, unknown] but not [wrong, unknown] would depend on the result and read too high.

The n of an interval counts questions, also where p is a mean over runs: runs of one question
resemble each other, and the variance of their mean is at most that of one run. With several runs
the interval is too wide, never too narrow. Pairing by question removes what makes it easy or hard
for both A and B, so a small steady difference becomes visible.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from minvenus.config import ConfigError
from minvenus.files import digest
from minvenus.types import Question

Z95 = 1.959963984540054               # 97.5 % quantile of the normal distribution
SAMPLES = 2000                        # of the bootstrap


@dataclass(frozen=True)
class RunResult:
    """One finished run of one question."""

    question: Question
    run: int                          # 0-based number among the runs of this question
    termination: str
    answer: str | None = None         # None = it ended without one
    correct: bool | None = None       # the verdict; None = unknown, or not graded yet
    numbers: dict[str, float] = field(default_factory=dict)   # of results.result_of
    tool_errors: list[str] = field(default_factory=list)      # the kind of each
    note: str = ""                    # why the run failed, or why the verdict is unknown


def grouped(results: Sequence[RunResult], by: str) -> dict[str, list[RunResult]]:
    """The results by the "id" or "source" of their question; those without one are left out."""
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        name = getattr(result.question, by)
        if name is not None:
            groups.setdefault(name, []).append(result)
    return groups


# ------------------------------------------------------------------------------------------- shares


def wilson(successes: float, n: int) -> tuple[float, float]:
    """95 % interval of a share of n."""
    p = successes / n
    zz = Z95 * Z95 / n
    middle = p + zz / 2
    half = Z95 * math.sqrt(p * (1 - p) / n + zz / n / 4)
    low = (middle - half) / (1 + zz)
    high = (middle + half) / (1 + zz)
    # exactly 0 and 1, not up to rounding
    return low if successes > 0 else 0.0, high if successes < n else 1.0


def share(values: Sequence[float], unknown: int, questions: int) -> dict:
    """The mean of the values with its 95 % interval; None if there is no value."""
    mean = low = high = None
    if values:
        mean = fmean(values)
        low, high = wilson(mean * questions, questions)
    return {
        "value": mean,
        "low": low,
        "high": high,
        "counted": len(values),
        "unknown": unknown}


def accuracy(results: Sequence[RunResult]) -> dict:
    known = [result for result in results if result.correct is not None]
    correct = [float(bool(result.correct)) for result in known]
    questions = {result.question.id for result in known}
    return share(correct, len(results) - len(known), len(questions))


def pass_share(results: Sequence[RunResult], k: int) -> dict:
    """pass@k over the questions with at least k runs."""
    chances = []
    unknown = 0
    for runs in grouped(results, "id").values():
        verdicts = [run.correct for run in runs if run.correct is not None]
        n = len(verdicts)
        if n >= k:                                  # whatever these verdicts are
            only_wrong = math.comb(n - sum(verdicts), k) / math.comb(n, k)
            chances.append(1.0 - only_wrong)
        elif len(runs) >= k:
            unknown += 1
    return share(chances, unknown, len(chances))


# --------------------------------------------------------------------------------------- everything


def summarise(results: Sequence[RunResult], graded_by: str) -> dict:
    """The numbers of report.json. There is at least one run."""
    questions = grouped(results, "id")
    most = max(map(len, questions.values()))                # runs of a question
    ks = [k for k in sorted({2, 4, 8, 16, 32, most}) if 1 < k <= most]

    by_question = {}                                        # for a comparison
    for name, runs in questions.items():
        question = runs[0].question
        by_question[name] = {
            "fingerprint": digest([question.text, question.answers]),
            "accuracy": accuracy(runs)["value"]}

    means = means_of(results)
    browse = {"all": means.get("browse")}
    for name, verdict in {"correct": True, "wrong": False}.items():
        part = [result for result in results if result.correct is verdict]
        browse[name] = means_of(part).get("browse")
    endings = Counter(result.termination for result in results)
    errors = Counter(kind for result in results for kind in result.tool_errors)
    sources = grouped(results, "source").items()
    return {
        "graded_by": graded_by,
        "questions": len(questions),
        "runs": len(results),
        "accuracy": accuracy(results),
        "by_source": {source: accuracy(part) for source, part in sources},
        "pass_at_k": {str(k): pass_share(results, k) for k in ks},
        "terminations": dict(endings.most_common()),
        "problems": [f"{r.question.id} run {r.run}: {r.note}" for r in results if r.note],
        "means": means,                                           # per run
        "malformed": means["malformed"] / means["turns"],         # share of all turns
        "tool_errors": dict(errors.most_common()),
        "browse": browse,
        "by_question": by_question}


def means_of(results: Sequence[RunResult]) -> dict[str, float]:
    """The mean of each number over the runs that have it."""
    numbers: dict[str, list[float]] = {}
    for result in results:
        for name, number in result.numbers.items():
            numbers.setdefault(name, []).append(number)
    return {name: fmean(values) for name, values in numbers.items()}


# --------------------------------------------------------------------------------------- comparison


def compare(a: dict, b: dict) -> dict:
    """B - A of two reports, question by question.

    Refuses reports that were graded differently, whose difference would be one of the graders, and
    other questions or true answers under the same ids."""
    if a["graded_by"] != b["graded_by"]:
        raise ConfigError(f"A was graded by {a['graded_by']}, B by {b['graded_by']}: repeat one's "
                          "eval.py command with the other's grading to compare them")
    questions_a, questions_b = a["by_question"], b["by_question"]
    both = sorted(questions_a.keys() & questions_b.keys())

    differences = []
    for name in both:
        before, after = questions_a[name], questions_b[name]
        if before["fingerprint"] != after["fingerprint"]:
            raise ConfigError(f"question {name!r} is another one in A than in B, or has other "
                              "answers: they cannot be compared (the toy web's follow from "
                              "--question-seed, else --seed)")
        if before["accuracy"] is not None and after["accuracy"] is not None:
            differences.append(after["accuracy"] - before["accuracy"])
    if len(differences) < 2:
        raise ConfigError(f"A and B cannot be compared: {len(differences)} questions have a "
                          "verdict in both, and an interval needs two")

    low, high = bootstrap_interval(differences)
    return {
        "a": a,
        "b": b,
        "difference": fmean(differences),
        "low": low,
        "high": high,
        "questions": len(differences),                          # with a verdict in both
        "better": sum(d > 0 for d in differences),
        "worse": sum(d < 0 for d in differences),
        "unpaired": len(questions_a.keys() ^ questions_b.keys()),     # questions that only one has
        "unknown": len(both) - len(differences)}


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % percentile interval of the mean, the same in every run."""
    rng = random.Random(0)
    means = []
    for _ in range(SAMPLES):
        sample = rng.choices(values, k=len(values))
        means.append(fmean(sample))
    means.sort()
    tail = SAMPLES // 40                                    # 2.5 % on either side
    return means[tail], means[-1 - tail]
