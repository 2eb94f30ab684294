"""The tables and numbers of an audit: visits of pages, and what the model's belief gained by them.

    right       a page of the question's path, at its hop
    wrong       another page
    repeated    a page again
    failed      a page that could not be opened
    unrelated   a page that nothing led to; in scripted visits only (audit_pages.py)
"""

import math
from collections import defaultdict
from statistics import correlation, fmean, pstdev
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


def follows_progress(visits: list[Visit]) -> str:
    gains = [visit.gain for visit in visits]
    progress = [visit.progress for visit in visits]
    return f"rank correlation of gain and progress {correlated(ranks(gains), ranks(progress)):.2f}"


def ranks(numbers: list[float]) -> list[float]:
    """1 for the lowest; equal numbers share the mean of their ranks."""
    shared = []
    for number in numbers:
        lower = sum(other < number for other in numbers)
        shared.append(lower + (numbers.count(number) + 1) / 2)
    return shared


def correlated(a: list[float], b: list[float]) -> float:
    """Pearson's correlation; nan where one side does not vary."""
    varies = len(set(a)) > 1 and len(set(b)) > 1
    return correlation(a, b) if varies else math.nan
