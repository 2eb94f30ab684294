"""What the model is shown after a turn: the result of its call, and the notices of limits.

    search    JSON in one line:
              [{"query": q, "web_page_info_list": [{"title", "url", "snippet"}, ...]}, ...]
              a failed query has an empty list and one more key, "error"
    visit     The useful information in URL for user goal GOAL as follows: / Evidence in page: /
              Summary: / a line of seven "=" between URLs; a failed URL is "ERROR: URL: reason"

Models that were trained on other texts of failures see those instead (prompt.ResultFormat). A Text,
as the toy web has it, is shown as it is.

A turn begins only where enough of the context is free for it (the reserve). So every rollout that
meets the context limit gets a chance to answer, and none is ever longer than max_context.
"""

import json
import re

from minvenus.agent.episode import Episode
from minvenus.agent.prompt import PAGE, PLAIN, AgentFormat, ResultFormat
from minvenus.config import ConfigError
from minvenus.text.chat import observation_ids, prompt_ids
from minvenus.text.tokenizer import Tokenizer, whole_characters
from minvenus.tools.base import Extract, Failure, SearchHit, Text, ToolResult
from minvenus.types import Question, Rollout, Turn

CHARACTERS_PER_TOKEN = 16         # of a result at most: blanks and rules have many in one token
Label = tuple[str, int]           # of a visited page: kind and hop


# -------------------------------------------------------------------------------- results of tools


def filled(frame: str, **values: str) -> str:
    """The frame with the value of every {name}; what a value spells stays as it is."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), frame)


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


# ------------------------------------------------------------------------- limits and their notices


class Limits:
    """The limits of a rollout, context and turns, and the notices that tell the model of them."""

    def __init__(self, tokenizer: Tokenizer, agent_format: AgentFormat, room: int | None):
        """`room`: the most tokens that the model and its cache can hold, if that is known."""
        if room is not None and agent_format.max_context > room:
            raise ConfigError(
                f"max_context {agent_format.max_context} is more than the {room} tokens that the "
                "model and the cache have room for: lower it, or raise the number of pages")
        self.tokenizer = tokenizer
        self.format = agent_format
        self.system = agent_format.prompt
        self.notice_tokens = self._tokens(agent_format.notices.context)

        # of any turn, and of the last: one more than is sampled, for the im_end of one that is cut
        last_turn = agent_format.last_turn_tokens or agent_format.max_new_tokens
        self.turn_tokens = agent_format.max_new_tokens + 1
        self.last_tokens = min(last_turn + 1, self.turn_tokens)

    def reserve(self, last: bool) -> int:
        """How many tokens of the context must be free where a turn begins.

        The last turn needs its own tokens. A turn before it needs more: whatever it writes, the
        context notice and a last turn must still fit.
        """
        if last:
            return self.last_tokens
        return self.turn_tokens + self.notice_tokens + self.last_tokens

    def check_room(self, question: Question, max_turns: int) -> None:
        """Refuse a question whose prompt leaves no room for its first turn."""
        prompt = len(prompt_ids(self.tokenizer, self.system, question.text))
        needed = prompt + self.reserve(last=max_turns == 1)
        if needed > self.format.max_context:
            raise ConfigError(
                f"question {question.id!r}: with its prompt of {prompt} tokens max_context must be "
                f"at least {needed}, not {self.format.max_context} (the server may have room for "
                "no more); or allow fewer tokens per turn")

    def turn_room(self, episode: Episode) -> int:
        """How many tokens the next turn may have."""
        room = self.format.max_context - len(episode.stream.ids) - 1
        return min(self.format.max_new_tokens, room)

    def with_notice(self, episode: Episode, observation: str) -> tuple[str, str | None]:
        """(the text to show, with its notice; the limit that makes the next turn the last).

        The notice stands after the observation if both fit, else in its place. With
        notices.replace it always stands in its place. The limit is None if there is no notice.
        """
        notices = self.format.notices
        if len(episode.turns) + 1 == episode.max_turns:
            shown = self._with(notices.last_turn, observation)
            if self._fits(episode, shown, last=True):
                return shown, "max_steps"
        elif self._fits(episode, observation, last=False):
            return observation, None

        shown = self._with(notices.context, observation)
        if not self._fits(episode, shown, last=True):
            shown = notices.context
        return shown, "token_limit"

    def _with(self, notice: str, observation: str) -> str:
        return notice if self.format.notices.replace else f"{observation}\n\n{notice}"

    def _fits(self, episode: Episode, observation: str, last: bool) -> bool:
        """Whether the turn after this observation may begin."""
        length = len(episode.stream.ids) + self._tokens(observation)
        answer_from = self.format.answer_from or self.format.max_context
        if not last and length > answer_from:
            return False
        return length + self.reserve(last) <= self.format.max_context

    def _tokens(self, observation: str) -> int:
        return len(observation_ids(self.tokenizer, observation))


# ------------------------------------------------------------------- which pages a model was shown


def visit_labels(rollout: Rollout, right_pages: list[str]) -> list[list[Label]]:
    """Per turn, (kind, hop) of each page that it visited, where the right pages of the question are
    known. Kinds are right, wrong, repeated, failed; hop 1 is the first of the right pages. A right
    page counts at its own hop, every other visit at the first hop whose page has not been read yet.
    """
    read: set[str] = set()
    labels: list[list[Label]] = []
    for turn in rollout.turns:
        turn_labels = []
        for url, shown in visited_pages(turn):
            unread = [page for page in right_pages if page not in read]
            hop_page = unread[0] if unread else right_pages[-1]
            if not shown:
                kind = "failed"
            elif url in read:
                kind = "repeated"
            elif url in right_pages:
                kind = "right"
                hop_page = url
            else:
                kind = "wrong"
            turn_labels.append((kind, right_pages.index(hop_page) + 1))
            if shown:
                read.add(url)
        labels.append(turn_labels)
    return labels


def visited_pages(turn: Turn) -> list[tuple[str, bool]]:
    """(address, whether it was shown) of each page that a turn asked for. A page that is shown
    begins with its address, then a blank, a full stop or the end of the line; a page that could not
    be opened, or for which there was no room, does not appear."""
    urls = turn.tool["arguments"].get("url", []) if turn.tool else []
    starts = [f"{line} " for line in (turn.observation or "").splitlines()]
    pages = []
    for url in map(str.strip, urls):
        shown = any(start.startswith((f"{url} ", f"{url}.")) for start in starts)
        pages.append((url, shown))
    return pages
