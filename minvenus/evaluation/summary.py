"""All aggregates of an evaluation in one record, for tables, JSON files and comparisons. Pure: runs in, numbers out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from minvenus.evaluation.aggregate import (
    Averages,
    BrowseRatio,
    Run,
    Share,
    accuracy,
    accuracy_by,
    averages,
    browse_ratios,
    by_question,
    means,
    pass_any,
    pass_unbiased,
    terminations,
)


@dataclass(frozen=True)
class Listed:
    """A run that is named in the report."""

    question: str
    run: int
    termination: str
    note: str


@dataclass(frozen=True)
class Summary:
    """What is said about runs. `dataclasses.asdict` makes JSON of it."""

    questions: int
    runs: int
    k: int                                # most runs of a question
    accuracy: Share
    averages: Averages                    # avg@k, best@1, and each run by itself
    pass_any: dict[int, Share]            # by k: a right one among the first k
    pass_unbiased: dict[int, Share]       # by k: expected of k drawn from all
    by_hops: dict[int | str, Share]       # empty where no question has hops
    by_source: dict[int | str, Share]
    terminations: dict[str, int]
    unfinished: list[Listed]              # ended without an answer: counted as wrong ...
    failed: list[Listed]                  # ... like those that ended in an error
    unknown: list[Listed]                 # answered, but without a verdict: in no accuracy
    means: dict[str, float]               # per run
    malformed: float | None               # share of all turns that failed the strict format check
    tool_errors: dict[str, int]           # by kind, the most frequent first
    browse: dict[str, BrowseRatio]        # all, correct, wrong, unknown


def summarise(runs: Sequence[Run]) -> Summary:
    groups = by_question(runs)
    k = max(map(len, groups.values()), default=0)
    ks = pass_ks(k)
    turns = sum(run.turns for run in runs)
    return Summary(
        len(groups), len(runs), k, accuracy(runs), averages(runs),
        {i: pass_any(runs, i) for i in ks}, {i: pass_unbiased(runs, i) for i in ks},
        accuracy_by(runs, "hops"), accuracy_by(runs, "source"), terminations(runs),
        [listed(run) for run in runs if not run.finished and run.termination != "error"],
        [listed(run) for run in runs if run.termination == "error"], [listed(run) for run in runs if run.correct is None],
        means(runs), sum(run.malformed for run in runs) / turns if turns else None,
        dict(Counter(kind for run in runs for kind in run.error_kinds).most_common()), browse_ratios(runs))


def pass_ks(k: int) -> list[int]:
    """1, 2, 4, ... and k itself."""
    return [*(1 << i for i in range(k.bit_length()) if 1 << i < k), *([k] if k else [])]


def listed(run: Run) -> Listed:
    return Listed(run.question, run.run, run.termination, run.note)
