"""The numbers of an evaluation, and the difference of two, as pure functions over finished runs; and both as text.

A run is right, wrong or unknown (correct = None: the judge gave no verdict). A run without an answer is wrong.

    accuracy      right runs / runs with a verdict; over k runs of each question this is avg@k
    pass@k        mean over questions of 1 - C(n-c, k) / C(n, k), for c right runs of n with a verdict: the chance that
                  k new runs have a right one, without bias
    interval      Wilson:  (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n),   z = 1.96, n questions
    browse ratio  mean over runs of visits / (searches + visits), executed calls
    B - A         mean, over the questions that both have, of B's accuracy on the question minus A's. Its interval: 95 %
                  of the means of as many questions, drawn from these with replacement

Unknown runs are left out; `worst` and `best` are the value if all of them were wrong or right. pass@k leaves out a
question with fewer than k verdicts, whatever these are: counting [right, unknown] but not [wrong, unknown] would depend
on the result and read too high. The bounds are over all questions with k runs, so with few questions the value can lie
outside them.

The n of an interval counts questions, also where p is a mean over runs: runs of one question resemble each other, and
the variance of their mean is at most that of one run. With several runs the interval is too wide, never too narrow.
Pairing by question removes what makes it easy or hard for both A and B, so a small steady difference becomes visible.
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
    """One finished and graded run of one question."""

    question: Question
    run: int                          # 0-based number among the runs of this question
    correct: bool | None              # None = unknown
    termination: str
    answer: str | None = None         # None = it ended without one
    graded_by: str = "exact match"    # how `correct` was decided
    numbers: dict[str, float] = field(default_factory=dict)   # results.result_of says which; the report has their means
    tool_errors: list[str] = field(default_factory=list)      # the kind of each
    note: str = ""                    # why the run failed, or why the verdict is unknown


def executed_calls(turns: Sequence[Turn]) -> tuple[int, int]:
    """Searches and visits. A call without an observation was not executed: the rollout ended in it."""
    kinds = Counter(turn.kind for turn in turns if turn.observation is not None)
    return kinds["search"], kinds["visit"]


def grouped(results: Sequence[RunResult], by: Literal["id", "source"]) -> dict[str, list[RunResult]]:
    """The results by a name of their question, sorted; those without one are left out."""
    found: dict[str, list[RunResult]] = {}
    for result in results:
        name = getattr(result.question, by)
        if name is not None:
            found.setdefault(name, []).append(result)
    return dict(sorted(found.items()))


# --------------------------------------------------------------------------------------------------------- shares


def wilson(successes: float, n: int) -> tuple[float, float]:
    """95 % interval of a share of n."""
    p, zz = successes / n, Z95 * Z95 / n
    middle, half = p + zz / 2, Z95 * math.sqrt(p * (1 - p) / n + zz / n / 4)
    low, high = (middle - half) / (1 + zz), (middle + half) / (1 + zz)
    low = 0.0 if successes == 0 else max(0.0, low)            # exactly 0 and 1, not up to rounding
    high = 1.0 if successes == n else min(1.0, high)
    return low, high


def share(known: list[float], worst: list[float], best: list[float], questions: int) -> dict:
    """The mean of `known` with its 95 % interval, None if nothing is known. `worst` and `best` also have a value for
    each unknown verdict, as if it were wrong or right."""
    value = fmean(known) if known else None
    low, high = wilson(value * questions, questions) if value is not None else (None, None)
    return {"value": value, "low": low, "high": high, "counted": len(known), "unknown": len(worst) - len(known),
            "worst": fmean(worst) if worst else None, "best": fmean(best) if best else None}


def accuracy(results: Sequence[RunResult]) -> dict:
    known = [r for r in results if r.correct is not None]
    return share([float(r.correct is True) for r in known], [float(r.correct is True) for r in results],
                 [float(r.correct is not False) for r in results], len({r.question.id for r in known}))


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that k runs drawn from n without replacement have a right one: 1 - C(n - correct, k) / C(n, k)."""
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_share(results: Sequence[RunResult], k: int) -> dict:
    """pass@k over the questions with at least k runs."""
    known, worst, best = [], [], []
    for runs in grouped(results, "id").values():
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


def summarise(results: Sequence[RunResult]) -> dict:
    """Everything that is reported about at least one run; it becomes report.json."""
    questions = grouped(results, "id")
    k = max(map(len, questions.values()))
    ks = sorted({1 << i for i in range(k.bit_length())} | {k})              # 1, 2, 4, ... and the most runs
    ended = Counter(r.termination for r in results)
    errors = Counter(kind for r in results for kind in r.tool_errors)
    browse = {}
    for name, verdicts in (("all", (True, False, None)), ("correct", (True,)), ("wrong", (False,))):
        browse[name] = browse_ratio([(r.numbers["searches"], r.numbers["visits"])
                                     for r in results if r.correct in verdicts])
    means = {name: fmean(r.numbers[name] for r in results) for name in results[0].numbers}
    return {
        "graded_by": ", ".join(sorted({r.graded_by for r in results})),
        "questions": len(questions), "runs": len(results),
        "accuracy": accuracy(results),
        "by_source": {source: accuracy(part) for source, part in grouped(results, "source").items()},
        "pass_at_k": {i: pass_share(results, i) for i in ks},
        "terminations": {name: ended[name] for name in TERMINATIONS if ended[name]},
        "problems": [f"{r.question.id} run {r.run}: {r.note}" for r in results if r.note],
        "means": means,                                                     # per run
        "malformed": means["malformed"] / means["turns"],                   # share of all turns
        "tool_errors": dict(errors.most_common()),
        "browse": browse}


# ------------------------------------------------------------------------------------------------------ comparison


def compare(a: Sequence[RunResult], b: Sequence[RunResult], names: tuple[str, str] = ("A", "B")) -> dict:
    """Refuses results that were graded differently, whose difference would be one of the graders, and results of other
    questions or true answers under the same ids."""
    of_a, of_b = grouped(a, "id"), grouped(b, "id")
    both = [name for name in of_a if name in of_b]
    graders = sorted({result.graded_by for result in [*a, *b]})
    for results, name in zip((a, b), names, strict=True):
        if len({result.graded_by for result in results}) > 1:
            raise ConfigError(f"{name} was stopped while its runs were graded again, by {' and '.join(graders)}: "
                              "repeat its eval.py command")
    if len(graders) > 1:
        raise ConfigError(f"{names[0]} and {names[1]} cannot be compared, they were graded by {' and '.join(graders)}: "
                          "repeat one's eval.py command with the other's grading")
    for name in both:
        first, second = of_a[name][0].question, of_b[name][0].question
        if (first.text, first.answers) != (second.text, second.answers):
            raise ConfigError(f"question {name!r} is another one in {names[0]} than in {names[1]}, or has other "
                              "answers: they cannot be compared (the toy web's follow from --question-seed, else "
                              "--seed)")
    pairs = [(accuracy(of_a[name])["value"], accuracy(of_b[name])["value"]) for name in both]
    differences = [y - x for x, y in pairs if x is not None and y is not None]
    if len(differences) < 2:
        raise ConfigError(f"{names[0]} and {names[1]} cannot be compared: {len(differences)} questions have a verdict "
                          "in both, and an interval needs two")
    low, high = bootstrap_interval(differences)
    return {
        "a": summarise(a), "b": summarise(b),
        "difference": fmean(differences), "low": low, "high": high,
        "questions": len(differences),                          # with a verdict in both
        "better": sum(d > 0 for d in differences), "worse": sum(d < 0 for d in differences),
        "unpaired": len(of_a.keys() ^ of_b.keys()),             # questions that only one of them has
        "unknown": len(both) - len(differences)}


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % percentile interval of the mean, the same in every run."""
    rng = random.Random(0)
    drawn = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(SAMPLES))
    tail = SAMPLES // 40                                    # 2.5 % on either side
    return drawn[tail], drawn[-1 - tail]


# ------------------------------------------------------------------------------------------------------------ text


def report_text(summary: dict) -> str:
    """Everything about one evaluation."""
    problems = summary["problems"]
    rows = [*named_numbers(summary).items(), *(("problem", plain(line)[:200]) for line in problems[:PROBLEMS])]
    if len(problems) > PROBLEMS:
        rows.append(("", f"and {len(problems) - PROBLEMS} more in report.json"))
    return table(rows, left=True)


def comparison_text(found: dict, names: tuple[str, str]) -> str:
    """The numbers of both side by side, and their difference in words."""
    a, b = named_numbers(found["a"]), named_numbers(found["b"])
    rows = [("", *names), *((name, a.get(name, "–"), b.get(name, "–")) for name in {**a, **b})]
    points, low, high = (100 * found[name] for name in ("difference", "low", "high"))
    clear = "" if low > 0 or high < 0 else ": no clear difference"
    paired = "paired over {questions} questions, {better} better and {worse} worse".format(**found)
    for key, words in (("unpaired", "questions only in one of them"), ("unknown", "without a verdict in one of them")):
        paired += f"; {found[key]} {words}" if found[key] else ""
    return (f"{table(rows, left=True)}\n\n"
            f"B - A: {points:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}{clear}\n{paired}")


def named_numbers(summary: dict) -> dict[str, str]:
    """Shares in percent, with 95 % intervals."""
    ended, means = summary["terminations"], summary["means"]
    unfinished = summary["runs"] - sum(ended[name] for name in ended if name.startswith("answered"))
    rows = {"graded by": summary["graded_by"], "accuracy": share_text(**summary["accuracy"])}
    rows |= {f"  {plain(source)}": share_text(**part) for source, part in summary["by_source"].items()}
    rows |= {f"pass@{k}": share_text(**part) for k, part in summary["pass_at_k"].items() if k > 1}
    rows["ended"] = counted(ended)
    if unfinished:
        rows["unfinished"] = f"{unfinished} without an answer, counted as wrong"
    rows |= {"mean F1": "{f1:.3f}, of the answer's words".format(**means),
             "turns": "{turns:.1f} per run: {searches:.1f} searches, {visits:.1f} visits".format(**means),
             "format errors": f"{percent(summary['malformed'])} of all turns",
             "tool errors": counted(summary["tool_errors"]) or "none",
             "tokens": "{tokens:,.0f} per run, {written:,.0f} of them written by the model".format(**means),
             "seconds": "{seconds:.2f} per run, while other runs share the machine".format(**means)}
    for name, ratio in summary["browse"].items():
        rows[f"browse, {name}"] = f"{percent(ratio)} of a run's calls are visits"
    return rows


def share_text(value, low, high, counted, unknown, worst, best) -> str:
    text = percent(value)
    if value is not None:
        text += f" [{100 * low:.1f}, {100 * high:.1f}] of {counted}"
    if unknown:
        text += f", {unknown} unknown"
    if worst != best:
        text += f"; unknown verdicts all wrong {percent(worst)}, all right {percent(best)}"
    return text


def counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def plain(text: str) -> str:
    """One line without control characters: question files, endpoints and judges may write anything."""
    return "".join(char if char.isprintable() else " " for char in text)
