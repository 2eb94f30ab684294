"""The tables and numbers of an audit: visits of pages, and what the model's belief gained by them.

    right       a page of the question's path, at its hop
    wrong       another page
    repeated    a page again
    failed      a page that could not be opened
    unrelated   a page that nothing led to; in scripted visits only (audit_pages.py)
"""

from collections import defaultdict
from statistics import StatisticsError, correlation, fmean, pstdev
from typing import NamedTuple

from minvenus.experiments.results import Table

KINDS = ("right", "wrong", "repeated", "failed", "unrelated")


class Visit(NamedTuple):
    kind: str                         # of KINDS
    hop: int
    gain: float
    progress: float                   # 1 for a new right page that was asked for its pet, else 0


def visit_table(visits: list[Visit]) -> Table:
    rows = [["visit", "hop", "count", "mean", "spread", "positive"]]
    for kind in KINDS:
        by_hop: dict[str, list[float]] = defaultdict(list)
        for visit in sorted(visits):
            if visit.kind == kind:
                by_hop[str(visit.hop)].append(visit.gain)
        if len(by_hop) > 1:
            by_hop["all"] = [visit.gain for visit in visits if visit.kind == kind]
        for hop, gains in by_hop.items():
            rows.append(table_row(kind, hop, gains, pstdev(gains)))
    return rows


def table_row(kind: str, hop: str, numbers: list[float], spread: float) -> list[str]:
    """Count, mean, spread and share of positive ones of some numbers."""
    positive = fmean(number > 0 for number in numbers)
    row = [kind, hop, str(len(numbers))]
    return [*row, f"{fmean(numbers):+.2f}", f"{spread:.2f}", f"{positive:.0%}"]


def rank_correlation(gains: list[float], progress: list[float]) -> str:
    return in_words(correlated(ranks(gains), ranks(progress)))


def ranks(numbers: list[float]) -> list[float]:
    """1 for the lowest; equal numbers share the mean of their ranks."""
    shared = []
    for number in numbers:
        lower = sum(other < number for other in numbers)
        shared.append(lower + (numbers.count(number) + 1) / 2)
    return shared


def correlated(a: list[float], b: list[float]) -> float | None:
    """Pearson's correlation; None where one side does not vary."""
    try:
        return correlation(a, b)
    except StatisticsError:
        return None


def in_words(statistic: float | None) -> str:
    return "not known" if statistic is None else f"{statistic:.2f}"
