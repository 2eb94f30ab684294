"""What a page says about a goal, by words alone: the passages that share rare words with the goal, in the page's own words.

This is the extraction when no language model is configured, and the snippet of a local search. Knows no network.
"""

import re

from minvenus.tools.bm25 import BM25

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
EVIDENCE, SUMMARY, SNIPPET = 3000, 500, 240          # characters


def passages(text: str, size: int = 400) -> list[str]:
    """The lines of a text; a line longer than `size` is divided at sentence ends, and hard where a sentence is longer."""
    parts: list[str] = []
    for line in text.splitlines():
        line, part = line.strip(), ""
        for sentence in SENTENCE_END.split(line) if len(line) > size else [line]:
            if part and len(part) + 1 + len(sentence) > size:
                parts.append(part)
                part = ""
            part = f"{part} {sentence}" if part else sentence
            while len(part) > size:
                parts.append(part[:size])
                part = part[size:]
        parts.append(part)
    return [part for part in parts if part.strip()]


def plain_extract(text: str, goal: str) -> tuple[str, str]:
    """(evidence, summary) of a page for a goal. Without a common word the evidence is the beginning, and the summary says so."""
    parts = passages(text)
    ranked = [i for i, _ in BM25(parts).search(goal)]
    if not ranked:
        return (in_page_order(parts, within(parts, list(range(len(parts))), EVIDENCE)),
                "No passage shares a word with the goal; the evidence is the beginning of the page.")
    best = within(parts, ranked, SUMMARY)
    return in_page_order(parts, within(parts, ranked, EVIDENCE)), "\n".join(parts[i] for i in best)


def snippet(text: str, query: str) -> str:
    """The best matching lines of a text in one line, or its beginning."""
    parts = passages(text, SNIPPET // 2)
    ranked = [i for i, _ in BM25(parts).search(query)] or list(range(len(parts)))
    return " ... ".join(parts[i] for i in sorted(within(parts, ranked, SNIPPET)))


def within(parts: list[str], ranked: list[int], budget: int) -> list[int]:
    """The first of the ranked passages that fit the budget together; at least one."""
    chosen: list[int] = []
    for i in ranked:
        budget -= len(parts[i]) + 1
        if budget < 0 and chosen:
            break
        chosen.append(i)
    return chosen


def in_page_order(parts: list[str], chosen: list[int]) -> str:
    lines: list[str] = []
    for last, i in zip([None, *sorted(chosen)], sorted(chosen), strict=False):
        if last is not None and i != last + 1:
            lines.append("[...]")                    # something stands between these two on the page
        lines.append(parts[i])
    return "\n".join(lines)
