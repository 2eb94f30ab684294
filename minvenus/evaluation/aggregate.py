"""What an evaluation reports, as pure functions over finished runs. Nothing here runs, grades or prints anything.

Q questions, k runs of each; a run is right, wrong, or of unknown verdict (correct = None).

    accuracy        right runs / runs with a verdict
    avg@k           mean over the k runs of that run's accuracy;   best@1 = the best of them
    pass@k any      share of questions with a right run among their first k: the plain curve that papers draw
    pass@k unbiased mean over questions of 1 - C(n-c, k) / C(n, k), c right of n runs: the expected "any" of k runs drawn from n
    interval        Wilson:  (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n),   z = 1.96, n questions
    browse ratio    visits / (searches + visits) of executed calls; macro = mean over runs, pooled = of the sums

The n of an interval counts questions, also where p is a mean over runs: runs of one question resemble each other, and the
variance of its mean is at most that of a single run. So with k > 1 the interval is wide rather than wrong.

Unfinished and failed runs are wrong. Unknown verdicts are neither right nor wrong: they are left out of the value, their number
stands beside it, and `worst` and `best` say what the value would be if all of them were wrong or right.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from minvenus.types import TERMINATIONS, Rollout

Z95 = 1.959963984540054               # 97.5 % quantile of the normal distribution


@dataclass(frozen=True)
class Run:
    """One finished run of one question."""

    question: str                     # its id
    run: int                          # 0-based: which run of this question
    correct: bool | None              # None = the verdict is unknown
    termination: str
    searches: int = 0                 # calls that were executed, whatever came back
    visits: int = 0
    turns: int = 0
    malformed: int = 0                # turns that failed the strict format check
    tool_errors: int = 0
    tokens: int = 0                   # of the whole rollout, observations included
    seconds: float = 0.0
    hops: int | None = None
    source: str | None = None
    f1: float | None = None           # of the answer, 0 without one; None = not computed
    written: int = 0                  # of the tokens: by the model
    error_kinds: list[str] = field(default_factory=list)      # of the tool errors, one each
    note: str = ""                    # why it failed, or why the verdict is unknown

    def __post_init__(self):
        if self.correct is not None and type(self.correct) is not bool:
            raise ValueError(f"correct must be True, False or None, got {self.correct!r}")
        if self.termination not in TERMINATIONS:
            raise ValueError(f"termination must be one of {', '.join(TERMINATIONS)}, got {self.termination!r}")
        if not self.finished and self.correct is not False:
            raise ValueError(f"run {self.run} of question {self.question!r} ended as {self.termination}, which counts as wrong; "
                             f"got correct = {self.correct}")

    @property
    def finished(self) -> bool:
        return self.termination.startswith("answered")

    @property
    def calls(self) -> int:
        return self.searches + self.visits


def run_of(rollout: Rollout, run: int, correct: bool | None, hops: int | None = None, source: str | None = None,
           f1: float | None = None, note: str = "") -> Run:
    """The record of a rollout. A call is executed if something came back: a rollout may end in the middle of one."""
    kinds = Counter(turn.kind for turn in rollout.turns if turn.observation is not None)
    errors = [turn.tool_error for turn in rollout.turns if turn.tool_error is not None]
    return Run(rollout.question.id, run, correct, rollout.termination, kinds["search"], kinds["visit"], len(rollout.turns),
               sum(turn.malformed for turn in rollout.turns), len(errors), len(rollout.tokens), rollout.seconds, hops, source, f1,
               sum(turn.end - turn.start for turn in rollout.turns), errors, note or rollout.error or "")


# ----------------------------------------------------------------------------------------------------------------- shares


@dataclass(frozen=True)
class Share:
    """A share in [0, 1] with its 95 % interval. All of them are None where nothing is known."""

    value: float | None
    low: float | None
    high: float | None
    counted: int                      # runs or questions that the value is about
    unknown: int                      # those that have no verdict
    worst: float | None               # the value if every unknown verdict were wrong ...
    best: float | None                # ... or right
    short: int = 0                    # pass@k: questions with fewer than k runs, which are left out altogether


def wilson(successes: float, n: int) -> tuple[float, float]:
    """95 % interval of a share of n."""
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"need 0 <= successes <= n and n >= 1, got {successes} of {n}")
    p, zz = successes / n, Z95 * Z95 / n
    middle, half = p + zz / 2, Z95 * math.sqrt(p * (1 - p) / n + zz / n / 4)
    low, high = (middle - half) / (1 + zz), (middle + half) / (1 + zz)
    return 0.0 if successes == 0 else max(0.0, low), 1.0 if successes == n else min(1.0, high)       # exactly, not up to rounding


def share(known: Sequence[float], worst: Sequence[float], best: Sequence[float], questions: int, short: int = 0) -> Share:
    """The mean of what is known; `worst` and `best` have a value for everything, the unknown counted as wrong or right."""
    unknown = len(worst) - len(known)
    if not known:
        return Share(None, None, None, 0, unknown, fmean(worst) if worst else None, fmean(best) if best else None, short)
    low, high = wilson(fmean(known) * questions, questions)
    return Share(fmean(known), low, high, len(known), unknown, fmean(worst), fmean(best), short)


def accuracy(runs: Sequence[Run]) -> Share:
    known = [run for run in runs if run.correct is not None]
    return share([float(run.correct is True) for run in known], [float(run.correct is True) for run in runs],
                 [float(run.correct is not False) for run in runs], len({run.question for run in known}))


def by_question(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of every question in their order; a run that is there twice is an error."""
    found: defaultdict[str, dict[int, Run]] = defaultdict(dict)
    for run in runs:
        if run.run in found[run.question]:
            raise ValueError(f"run {run.run} of question {run.question!r} is there twice")
        found[run.question][run.run] = run
    return {question: [some[i] for i in sorted(some)] for question, some in found.items()}


# ------------------------------------------------------------------------------------------------------- several runs each


@dataclass(frozen=True)
class Averages:
    each: list[Share]                 # accuracy of the first, second, ... run of all questions
    avg: float | None                 # avg@k, the mean of those
    best: float | None                # best@1, the highest of those


def averages(runs: Sequence[Run]) -> Averages:
    by_question(runs)
    each = [accuracy([run for run in runs if run.run == i]) for i in sorted({run.run for run in runs})]
    values = [one.value for one in each if one.value is not None]
    return Averages(each, fmean(values) if values else None, max(values, default=None))


def pass_any(runs: Sequence[Run], k: int) -> Share:
    """Share of questions with a right run among the first k. A question without one, but with an unknown verdict, is unknown."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    groups = by_question(runs).values()
    first_k = [[run.correct for run in some[:k]] for some in groups if len(some) >= k]
    worst = [float(True in some) for some in first_k]
    best = [float(some.count(False) < k) for some in first_k]
    known = [low for low, high in zip(worst, best, strict=True) if low == high]
    return share(known, worst, best, len(known), len(groups) - len(first_k))


def pass_unbiased(runs: Sequence[Run], k: int) -> Share:
    """Mean of pass_at_k over questions. n and c count runs with a verdict; a question with fewer than k of those is unknown."""
    groups = [[run.correct for run in some] for some in by_question(runs).values()]
    full = [some for some in groups if len(some) >= k]
    verdicts = [(some.count(True), some.count(False)) for some in full]
    known = [pass_at_k(right + wrong, right, k) for right, wrong in verdicts if right + wrong >= k]
    worst = [pass_at_k(len(some), right, k) for some, (right, _) in zip(full, verdicts, strict=True)]
    best = [pass_at_k(len(some), len(some) - wrong, k) for some, (_, wrong) in zip(full, verdicts, strict=True)]
    return share(known, worst, best, len(known), len(groups) - len(full))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that k runs drawn from n without replacement, c of them right, have a right one: 1 - C(n-c, k) / C(n, k)."""
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"need 0 <= c <= n and 1 <= k <= n, got n = {n}, c = {c}, k = {k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


# ------------------------------------------------------------------------------------------------------------- breakdowns


def accuracy_by(runs: Sequence[Run], field: str) -> dict[int | str, Share]:
    """Accuracy by "hops" or "source", sorted; runs that have none stand last, under "none". Empty if no run has one."""
    groups: defaultdict[int | str | None, list[Run]] = defaultdict(list)
    for run in runs:
        groups[getattr(run, field)].append(run)
    if set(groups) <= {None}:
        return {}
    order = sorted(groups, key=lambda value: (value is None, value))
    return {"none" if value is None else value: accuracy(groups[value]) for value in order}


def terminations(runs: Sequence[Run]) -> dict[str, int]:
    """How the runs ended, in the order of types.TERMINATIONS; only what happened."""
    counts = Counter(run.termination for run in runs)
    return {name: counts[name] for name in TERMINATIONS if counts[name]}


def means(runs: Sequence[Run]) -> dict[str, float]:
    """Per run; F1 only where it was computed for all of them."""
    names = ["turns", "searches", "visits", "malformed", "tool_errors", "tokens", "written", "seconds"]
    names += ["f1"] * all(run.f1 is not None for run in runs)
    return {name: fmean(getattr(run, name) for run in runs) for name in names} if runs else {}


@dataclass(frozen=True)
class BrowseRatio:
    macro: float | None               # mean over runs of visits / calls
    pooled: float | None              # all visits / all calls
    runs: int                         # that made a call
    skipped: int                      # that made none, and have no ratio


def browse_ratio(runs: Sequence[Run]) -> BrowseRatio:
    called = [run for run in runs if run.calls]
    if not called:
        return BrowseRatio(None, None, 0, len(runs))
    return BrowseRatio(fmean(run.visits / run.calls for run in called),
                       sum(run.visits for run in called) / sum(run.calls for run in called), len(called), len(runs) - len(called))


def browse_ratios(runs: Sequence[Run]) -> dict[str, BrowseRatio]:
    verdicts = {"all": (True, False, None), "correct": (True,), "wrong": (False,), "unknown": (None,)}
    return {name: browse_ratio([run for run in runs if run.correct in which]) for name, which in verdicts.items()}
