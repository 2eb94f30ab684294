"""The numbers of an evaluation, as pure functions over finished runs.

A run is right, wrong or unknown (correct = None: the judge gave no verdict). A run without an answer is wrong.

    accuracy      right runs / runs with a verdict; over k runs of each question this is avg@k
    pass@k        mean over questions of 1 - C(n-c, k) / C(n, k), for c right runs of n with a verdict: the chance that
                  k new runs have a right one, without bias
    interval      Wilson:  (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n),   z = 1.96, n questions
    browse ratio  mean over runs of visits / (searches + visits), executed calls

Unknown runs are left out; `worst` and `best` are the value if all of them were wrong or right. pass@k leaves out a
question with fewer than k verdicts, whatever these are: counting [right, unknown] but not [wrong, unknown] would depend
on the result and read too high. The bounds are over all questions with k runs, so with few questions the value can lie
outside them.

The n of an interval counts questions, also where p is a mean over runs: runs of one question resemble each other, and
the variance of their mean is at most that of one run. With several runs the interval is too wide, never too narrow.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from minvenus.types import TERMINATIONS, Turn

Z95 = 1.959963984540054               # 97.5 % quantile of the normal distribution


@dataclass(frozen=True)
class RunResult:
    """One finished and graded run of one question."""

    question: str                     # its id
    run: int                          # 0-based number among the runs of this question
    correct: bool | None              # None = unknown
    termination: str
    text: str = ""                    # of the question
    source: str | None = None         # of the question
    graded_by: str = "exact match"    # how `correct` was decided
    numbers: dict[str, float] = field(default_factory=dict)   # results.result_of says which; the report has their means
    tool_errors: list[str] = field(default_factory=list)      # the kind of each
    note: str = ""                    # why the run failed, or why the verdict is unknown


def executed_calls(turns: Sequence[Turn]) -> tuple[int, int]:
    """Searches and visits. A call without an observation was not executed: the rollout ended in it."""
    kinds = Counter(turn.kind for turn in turns if turn.observation is not None)
    return kinds["search"], kinds["visit"]


def grouped(results: Sequence[RunResult], name: str) -> dict[str, list[RunResult]]:
    """The results by "question" or "source", sorted; those without one are left out."""
    found: dict[str, list[RunResult]] = {}
    for result in results:
        if getattr(result, name) is not None:
            found.setdefault(getattr(result, name), []).append(result)
    return dict(sorted(found.items()))


# --------------------------------------------------------------------------------------------------------- shares


@dataclass(frozen=True)
class Share:
    """A share in [0, 1] with its 95 % interval; None where no verdict is known."""

    value: float | None
    low: float | None
    high: float | None
    counted: int                      # runs or questions in the value
    unknown: int                      # runs or questions left out for want of a verdict
    worst: float | None               # the value if every unknown verdict were wrong ...
    best: float | None                # ... or right


def wilson(successes: float, n: int) -> tuple[float, float]:
    """95 % interval of a share of n."""
    p, zz = successes / n, Z95 * Z95 / n
    middle, half = p + zz / 2, Z95 * math.sqrt(p * (1 - p) / n + zz / n / 4)
    low, high = (middle - half) / (1 + zz), (middle + half) / (1 + zz)
    low = 0.0 if successes == 0 else max(0.0, low)            # exactly 0 and 1, not up to rounding
    high = 1.0 if successes == n else min(1.0, high)
    return low, high


def share(known: list[float], worst: list[float], best: list[float], questions: int) -> Share:
    """The mean of `known`; `worst` and `best` also have a value for each unknown one."""
    unknown = len(worst) - len(known)
    bounds = fmean(worst) if worst else None, fmean(best) if best else None
    if not known:
        return Share(None, None, None, 0, unknown, *bounds)
    value = fmean(known)
    return Share(value, *wilson(value * questions, questions), len(known), unknown, *bounds)


def accuracy(results: Sequence[RunResult]) -> Share:
    known = [r for r in results if r.correct is not None]
    return share([float(r.correct is True) for r in known], [float(r.correct is True) for r in results],
                 [float(r.correct is not False) for r in results], len({r.question for r in known}))


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that k runs drawn from n without replacement have a right one: 1 - C(n - correct, k) / C(n, k)."""
    if not (0 <= correct <= n and 1 <= k <= n):
        raise ValueError(f"need 0 <= correct <= n and 1 <= k <= n, got n = {n}, correct = {correct}, k = {k}")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_share(results: Sequence[RunResult], k: int) -> Share:
    """pass@k over the questions with at least k runs."""
    known, worst, best = [], [], []
    for runs in grouped(results, "question").values():
        verdicts = [r.correct for r in runs]
        n, right, wrong = len(verdicts), verdicts.count(True), verdicts.count(False)
        if n < k:
            continue
        worst.append(pass_at_k(n, right, k))
        best.append(pass_at_k(n, n - wrong, k))
        if right + wrong >= k:                      # decided without looking at which they are
            known.append(pass_at_k(right + wrong, right, k))
    return share(known, worst, best, len(known))


def browse_ratio(calls: Sequence[tuple[float, float]]) -> float | None:
    """Of the executed searches and visits of each run. A run without a call has no ratio."""
    called = [(searches, visits) for searches, visits in calls if searches + visits]
    return fmean(visits / (searches + visits) for searches, visits in called) if called else None


# ---------------------------------------------------------------------------------------------------- everything


@dataclass(frozen=True)
class Summary:
    """Everything that is reported about an evaluation; `dataclasses.asdict` makes it JSON."""

    graded_by: str
    questions: int
    runs: int
    accuracy: Share
    by_source: dict[str, Share]           # accuracy by the source of the questions, empty where none has one
    pass_at_k: dict[int, Share]           # at 1, 2, 4, ... and the most runs of a question
    terminations: dict[str, int]          # in the order of types.TERMINATIONS, only those that happened
    problems: list[str]                   # one line for each run that failed or has no verdict
    means: dict[str, float]               # per run
    malformed: float                      # share of all turns that failed the strict format check
    tool_errors: dict[str, int]           # by kind, the most frequent first
    browse: dict[str, float | None]       # of all runs, the right and the wrong ones


def summarise(results: Sequence[RunResult]) -> Summary:
    """The numbers of at least one run."""
    questions = grouped(results, "question")
    k = max(map(len, questions.values()))
    ks = sorted({1 << i for i in range(k.bit_length())} | {k})
    ended = Counter(r.termination for r in results)
    errors = Counter(kind for r in results for kind in r.tool_errors)
    browse = {}
    for name, verdicts in (("all", (True, False, None)), ("correct", (True,)), ("wrong", (False,))):
        browse[name] = browse_ratio([(r.numbers["searches"], r.numbers["visits"])
                                     for r in results if r.correct in verdicts])
    means = {name: fmean(r.numbers[name] for r in results) for name in results[0].numbers}
    return Summary(
        graded_by=", ".join(sorted({r.graded_by for r in results})), questions=len(questions), runs=len(results),
        accuracy=accuracy(results),
        by_source={source: accuracy(part) for source, part in grouped(results, "source").items()},
        pass_at_k={i: pass_share(results, i) for i in ks},
        terminations={name: ended[name] for name in TERMINATIONS if ended[name]},
        problems=[f"{r.question} run {r.run}: {r.note}" for r in results if r.note],
        means=means,
        malformed=means["malformed"] / means["turns"],
        tool_errors=dict(errors.most_common()),
        browse=browse)
