"""Search and visit on the live web, over endpoints named by the environment:

    SERPER_API_KEY, SERPER_BASE_URL         search: a Serper-compatible endpoint (default: Serper itself)
    JINA_API_KEY, JINA_BASE_URL             visit through a Jina-reader-compatible endpoint; with neither set, pages are fetched
                                            directly (direct.py)
    EXTRACT_BASE_URL, EXTRACT_MODEL,        goal-directed extraction by an OpenAI-compatible endpoint (".../v1"); without it, the
    EXTRACT_API_KEY                         passages around the goal's words (extract.py)

All are read at call time. In both ways of visiting, a URL must pass safe_url.py first. Tools keep no state between calls, so any
number of threads may use one object.
"""

import re
import time
from urllib.parse import quote, urldefrag

from minvenus.config import ConfigError
from minvenus.tools.base import ToolFailure, ToolResult, search_each, visit_each
from minvenus.tools.direct import fetch_text
from minvenus.tools.endpoint import Service, as_json, ask, setting
from minvenus.tools.extract import plain_extract
from minvenus.tools.html_text import decode_page
from minvenus.tools.model_extract import EXTRACTION, model_extract
from minvenus.tools.retry import Limits
from minvenus.tools.safe_url import URL_CHARACTERS, Allow, check_url

SEARCH = Service("search endpoint", "SERPER_BASE_URL", "SERPER_API_KEY", "https://google.serper.dev/search", "X-API-KEY")
READER = Service("reader endpoint", "JINA_BASE_URL", "JINA_API_KEY", "https://r.jina.ai", kinds=("text/plain", "text/markdown"))
IDEOGRAPH = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
MAX_RESULTS = 10


def check_environment() -> None:
    """Raise a ConfigError that names the missing variable, before a run begins rather than in its first search."""
    if not setting("SERPER_API_KEY") and not setting("SERPER_BASE_URL"):
        raise ConfigError("live search needs SERPER_API_KEY (or SERPER_BASE_URL, for a compatible endpoint without a key)")
    if bool(setting("EXTRACT_BASE_URL")) != bool(setting("EXTRACT_MODEL")):
        raise ConfigError("extraction by a model needs both EXTRACT_BASE_URL and EXTRACT_MODEL; unset both for the plain extract")
    for service in (SEARCH, READER, *([EXTRACTION] if setting("EXTRACT_BASE_URL") else [])):
        service.url()
        service.authorise()


class LiveTools:
    """The live web as a tool set. `allow` lets tests reach a server of their own on this machine: a predicate over
    (address, port) that is not public. It exists as this argument only, so that no flag, config or variable can open the door."""

    def __init__(self, limits: Limits | None = None, allow: Allow | None = None):
        self.limits = limits or Limits()
        self.allow = allow

    def search(self, queries: list[str]) -> ToolResult:
        deadline = time.monotonic() + self.limits.seconds
        return search_each(queries, lambda query: search_one(query, self.limits, deadline))

    def visit(self, urls: list[str], goal: str) -> ToolResult:
        deadline = time.monotonic() + self.limits.seconds
        return visit_each(urls, goal, lambda url: self.visit_one(url, goal, deadline))

    def visit_one(self, url: str, goal: str, deadline: float) -> tuple[str, str]:
        """(evidence, summary) of one page; the summary says if only a part of the page was read."""
        if setting("JINA_API_KEY") or setting("JINA_BASE_URL"):
            text, cut = read_through(url, self.limits, deadline, self.allow), False
        else:
            text, cut = fetch_text(url, self.limits, deadline, self.allow)
        if not text.strip():
            raise ToolFailure("empty", "the page has no text")
        if setting("EXTRACT_BASE_URL"):
            evidence, summary = model_extract(text[:self.limits.page_chars], goal, self.limits, deadline)
        else:
            evidence, summary = plain_extract(text[:self.limits.page_chars], goal)
        if cut or len(text) > self.limits.page_chars:
            summary += f"\n[cut: only the first {min(len(text), self.limits.page_chars):,} characters of the page were read]"
        return evidence, summary


def search_one(query: str, limits: Limits, deadline: float) -> list[dict]:
    """Results of one query. Chinese results for a query with an ideograph, English ones else, as in the released system."""
    country, language = ("cn", "zh-cn") if IDEOGRAPH.search(query) else ("us", "en")
    reply = as_json(ask(SEARCH, "", limits, deadline, {"q": query, "gl": country, "hl": language}), SEARCH)
    found = reply.get("organic", [])
    if not isinstance(found, list):
        raise ToolFailure("http", 'the search endpoint answered with an "organic" that is not a list')
    pages = [{"title": as_text(item.get("title")), "url": as_text(item.get("link")), "snippet": as_text(item.get("snippet"))}
             for item in found if isinstance(item, dict)]
    return [page for page in pages if page["title"] and page["url"]][:MAX_RESULTS]


def as_text(value) -> str:
    return value.strip() if isinstance(value, str) else ""


def read_through(url: str, limits: Limits, deadline: float, allow: Allow | None) -> str:
    """The text of a page as the reader gives it. It resolves the name, so only the spelling of the URL can be checked here."""
    check_url(url, allow)
    path = "/" + quote(urldefrag(url.strip())[0], safe=URL_CHARACTERS)
    return decode_page(ask(READER, path, limits, deadline), "utf-8")
