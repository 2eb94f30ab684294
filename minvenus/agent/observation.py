"""Results of tools as the text that a model reads.

    search    JSON in one line:
              [{"query": q, "web_page_info_list": [{"title", "url", "snippet"}, ...]}, ...]
              a failed query has an empty list and one more key, "error"
    visit     The useful information in URL for user goal GOAL as follows: / Evidence in page: /
              Summary: / a line of seven "=" between URLs; a failed URL is "ERROR: URL: reason"

Models that were trained on other texts of failures see those instead (ResultFormat). A Text, as the
toy web has it, is shown as it is.
"""

import json
import re
from dataclasses import dataclass

from minvenus.config import check
from minvenus.text.json_repair import whole_characters
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.base import Extract, Failure, SearchHit, Text, ToolResult

CHARACTERS_PER_TOKEN = 16         # of a result at most: blanks and rules have many in one token
PAGE = ("The useful information in {url} for user goal {goal} as follows: \n\n"
        "Evidence in page: \n{evidence}\n\nSummary: \n{summary}\n\n")


@dataclass(frozen=True)
class ResultFormat:
    """How results are shown, where models differ: part of what a model was trained on."""

    dates: bool = False           # a snippet begins with the page's date and source, if known
    failed_queries: bool = True   # queries without a result are listed, with the reason
    unread_page: str = "ERROR: {url}: {error}"     # in the place of a page; {goal} is the goal
    failed_call: str = "ERROR: {error}"            # of a call that failed as a whole

    def __post_init__(self):
        check(self)


PLAIN = ResultFormat()


@dataclass(frozen=True)
class Observation:
    text: str
    error: str | None = None      # the kind, if the call failed as a whole


def observe(
    result: ToolResult, result_format: ResultFormat, tokenizer: Tokenizer, limit: int
) -> Observation:
    """What the model sees of a call, at most `limit` tokens of it, and the call's kind of error."""
    text = result_text(result, result_format)
    if not text.strip():
        return Observation("ERROR: empty tool result", "empty")
    return Observation(cap_text(text, tokenizer, limit), result.error)


def result_text(result: ToolResult, result_format: ResultFormat = PLAIN) -> str:
    """The result of a call in a model's format."""
    if result.failure:
        text = filled(result_format.failed_call, error=result.failure.reason)
    elif any(isinstance(content, Text) for _, content in result.entries):
        text = plain_text(result)
    elif result.name == "search":
        text = search_text(result, result_format)
    else:
        text = visit_text(result, result_format)
    return whole_characters(text)


def plain_text(result: ToolResult) -> str:
    lines = []
    for _, content in result.entries:
        if isinstance(content, Text):
            lines.append(content.text)
        elif isinstance(content, Failure):
            lines.append(f"ERROR: {content.reason}")
    return "\n".join(lines)


def search_text(result: ToolResult, result_format: ResultFormat) -> str:
    rows: list[dict] = []
    reasons = []
    for query, content in result.entries:
        if isinstance(content, list):
            hits = [hit_row(hit, result_format.dates) for hit in content]
            rows.append({"query": query, "web_page_info_list": hits})
        elif isinstance(content, Failure) and result_format.failed_queries:
            rows.append({"query": query, "web_page_info_list": [], "error": content.reason})
            reasons.append(f"search for {query!r}: {content.reason}")
    if reasons and len(reasons) == len(result.entries):
        return "ERROR: " + "\n".join(reasons)
    return json.dumps(rows, ensure_ascii=False)


def hit_row(hit: SearchHit, dates: bool) -> dict:
    lines = []
    if dates and hit.date:
        lines.append(f"Date published: {hit.date}")
    if dates and hit.source:
        lines.append(f"Source: {hit.source}")
    if hit.snippet:
        lines.append(hit.snippet)
    return {"title": hit.title, "url": hit.url, "snippet": "\n".join(lines)}


def visit_text(result: ToolResult, result_format: ResultFormat) -> str:
    pages = []
    for url, content in result.entries:
        if isinstance(content, Failure):
            frame, values = result_format.unread_page, {"error": content.reason}
        elif isinstance(content, Extract):
            frame, values = PAGE, {"evidence": content.evidence, "summary": content.summary}
        pages.append(filled(frame, url=url, goal=result.goal, **values))
    return "\n=======\n".join(pages).strip()


def filled(frame: str, **values: str) -> str:
    """The frame with the value of every {name}; what a value spells stays as it is."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), frame)


def cap_text(text: str, tokenizer: Tokenizer, limit: int) -> str:
    """The text if it has at most `limit` tokens, and not more than CHARACTERS_PER_TOKEN for each.

    Else a prefix of whole characters, a few tokens short of the limit, and the mark
    "[cut: 1,234 of 5,678 characters shown]". The mark itself must fit: settings ask for at least
    64 tokens."""
    def cut_at(end: int) -> str:
        return f"{text[:end]}\n[cut: {end:,} of {len(text):,} characters shown]"

    longest = CHARACTERS_PER_TOKEN * limit
    starts = [start for _, start, _ in tokenizer.untrusted_offsets(text[:longest])]
    if len(starts) <= limit and len(text) <= longest:
        return text

    mark = cut_at(len(text))[len(text):]
    room = limit - len(tokenizer.encode_untrusted(mark))
    end = starts[room] if room < len(starts) else longest     # the first token that has no room
    while True:
        excess = len(tokenizer.encode_untrusted(cut_at(end))) - limit
        if excess <= 0:
            return cut_at(end)
        end -= excess                                         # a cut word may have more tokens
