"""The live web: search by a Serper-compatible endpoint, pages through a reader service.

Set by the environment:

    SERPER_API_KEY, SERPER_BASE_URL     search (default: Serper itself)
    JINA_API_KEY, JINA_BASE_URL         the reader (default: r.jina.ai, which works without a key at
                                        a low rate)
    EXTRACT_BASE_URL, EXTRACT_MODEL, EXTRACT_API_KEY, EXTRACT_TEMPERATURE
                                        a model that extracts what a page says about the goal
                                        (extract.py); without one, the passages that share words
                                        with the goal (folder.py)

This machine opens no page itself, but the model chooses the URLs, and a reader of one's own
(JINA_BASE_URL) may reach a private network: then every address of the page's host must be public.
(The reader looks the name up again and follows redirects; only it can refuse where these lead.)

A URL that is refused, a page that the reader cannot open and a page that answered the reader with
an error are no failures of a service: the guard against failures does not count them (base.FAULTS).
"""

import re
import socket
from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from minvenus.config import ConfigError
from minvenus.tools.almanac import Almanac
from minvenus.tools.base import NO_RESULTS, Extract, SearchHit, ToolError
from minvenus.tools.cassette import Cassette
from minvenus.tools.endpoint import Endpoint, environment
from minvenus.tools.extract import Extractor
from minvenus.tools.folder import Document, FolderTools

IMMEDIATE = ("toyweb", "folder", "almanac", "replay")     # tools that cannot hang
IDEOGRAPH = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
MAX_RESULTS = 10
DETAILS = ("snippet", "date", "source")
HOSTED_SEARCH = "https://google.serper.dev/search"
HOSTED_READER = "https://r.jina.ai"
READER_ATTEMPTS = 8                   # as often as the released system asks its reader
# Of the reader about a page: it is too large (200), or the reader cannot open it. Others are about
# the reader itself: its key, its payment, its rate.
ABOUT_PAGE = (200, 400, 403, 404, 405, 406, 408, 409, 410, 413, 415, 422, 451)
PAGE_STATUS = re.compile(r"^Warning: Target URL returned error ([^\n]{,100})", re.MULTILINE)
PAGE_BYTES = 4 * 95_000               # that are read: 95,000 tokens, as in the released system


def describe_tools(spec: str) -> str:
    """What the tools that --tools names will use, without any address: it may hold a secret."""
    kind, _, path = spec.partition(":")
    if kind == "toyweb":
        return "the toy web"
    if kind not in ("live", "record"):
        return f"{kind} {path}"
    extractor = environment("EXTRACT_MODEL") or "passages that share words with the goal"
    recording = f", recorded in {path}" if path else ""
    return f"the live web, extracts by {extractor}{recording}"


def make_tools(spec: str):
    """The tool set that --tools names, but for the toy web, which has one per question."""
    kind, _, path = spec.partition(":")
    if kind == "folder" and path:
        return FolderTools(path)
    if kind == "almanac" and path:
        return Almanac(path)
    if kind == "replay" and path:
        return LiveTools(Cassette(path, record=False))
    if spec != "live" and not (kind == "record" and path):
        raise ConfigError("tools must be one of toyweb, folder:PATH, almanac:PATH, live, "
                          f"record:FILE, replay:FILE; got {spec!r}")
    if not environment("SERPER_API_KEY") and not environment("SERPER_BASE_URL"):
        raise ConfigError("live search needs SERPER_API_KEY (or SERPER_BASE_URL, for an endpoint "
                          "without a key)")
    return LiveTools(Cassette(path) if path else None)


class LiveTools:
    """The live web; with a cassette its results are recorded, or replayed without any request.

    Each service has a limit of its own as well: search and reader 120 seconds, the extractor 300.
    Nothing changes between calls, so any number of threads may use one object."""

    def __init__(self, cassette: Cassette | None = None):
        self.cassette = cassette
        if cassette and not cassette.record:
            return                    # a replay needs no service
        self.searcher = Endpoint(
            "search endpoint", environment("SERPER_BASE_URL") or HOSTED_SEARCH, "SERPER_API_KEY",
            url_source="SERPER_BASE_URL", key_header="X-API-KEY")
        self.reader = Endpoint(
            "reader endpoint", environment("JINA_BASE_URL") or HOSTED_READER, "JINA_API_KEY",
            url_source="JINA_BASE_URL", attempts=READER_ATTEMPTS)
        self.extractor = None
        if environment("EXTRACT_BASE_URL") or environment("EXTRACT_MODEL"):
            self.extractor = Extractor()

    def close(self) -> None:
        if self.cassette:
            self.cassette.close()

    def search(self, query: str, deadline: float) -> list[SearchHit]:
        hits = self._result("search", self._search, deadline, query=query)
        return [SearchHit(**hit) for hit in hits]

    def visit(self, url: str, goal: str, deadline: float) -> Extract:
        texts = self._result("visit", self._visit, deadline, url=url, goal=goal)
        return Extract(*texts)

    def _result(self, name: str, ask: Callable[..., list], deadline: float, **arguments) -> list:
        """The result of ask(deadline, **arguments), or the recorded one."""
        call = partial(ask, deadline, **arguments)
        return self.cassette.fetch(name, arguments, call) if self.cassette else call()

    def _search(self, deadline: float, query: str) -> list[dict]:
        """Chinese results for a query with an ideograph, else English ones, as in the release."""
        country, language = "us", "en"
        if IDEOGRAPH.search(query):
            country, language = "cn", "zh-cn"
        reply = self.searcher.post("", {"q": query, "gl": country, "hl": language}, deadline)
        hits = []
        for item in reply.get("organic") or []:
            match item:
                case {"title": str(title), "link": str(url)}:
                    details = {key: str(item.get(key) or "") for key in DETAILS}
                    hits.append({"title": title, "url": url} | details)
        if not hits:
            raise ToolError("empty", NO_RESULTS)      # an error, so that a recording asks again
        return hits[:MAX_RESULTS]

    def _visit(self, deadline: float, url: str, goal: str) -> list[str]:
        """[evidence, summary] of one page; the summary says if only a part of it was read."""
        text = self._read(url.strip(), deadline)
        page = text.encode()[:PAGE_BYTES].decode(errors="ignore")
        if self.extractor:
            extract = self.extractor.extract(page, goal, deadline)
        else:
            extract = Document(page).extract(goal)
        summary = extract.summary
        if len(text) > len(page):
            summary += f"\n[cut: only the first {len(page):,} characters of the page were read]"
        return [extract.evidence, summary]

    def _read(self, url: str, deadline: float) -> str:
        """The text of a page. An error about the page itself has the kind "page"."""
        hosted = self.reader.base_url.rstrip("/") == HOSTED_READER
        if not is_public_url(url, look_up=not hosted):
            raise ToolError("refused", "this address is not allowed: it must be http://HOST/... or "
                                       "https://HOST/... of a public host that exists, without "
                                       "user name and password, with spaces percent-encoded")
        try:
            data = self.reader.request(f"/{url}", None, deadline)
        except ToolError as error:
            if error.status in ABOUT_PAGE:
                raise ToolError("page", str(error)) from None
            raise
        text = data.decode("utf-8", "replace").strip()
        page_status = PAGE_STATUS.search(text.partition("Markdown Content:")[0])
        if page_status:
            raise ToolError("page", f"the page answered with HTTP status {page_status[1]}")
        if not text:
            raise ToolError("empty", "the page has no text")
        return text


# --------------------------------------------------------------------------------------- addresses

# Not public, though some versions of Python's ipaddress call them global: protocol assignments,
# metadata of a cloud, 6to4, documentation.
SPECIAL = [ip_network(network) for network in (
    "192.0.0.0/24", "168.63.129.16/32", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20")]
PUBLIC_V6 = ip_network("2000::/3")      # with one of IPv4 inside it lies elsewhere, or is 6to4
UNSAFE = re.compile(                    # "/.." would lead to other pages of the reader itself
    r"[\x00-\x20\x7f-\xa0\\\u2028\u2029]|/(\.|%2e){2}([/?#]|$)", re.IGNORECASE)


def is_public_url(url: str, look_up: bool) -> bool:
    """Whether this is the URL of a public page. With `look_up` the addresses of its host decide."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not host or port == 0:
        return False
    if re.search("[@%]", parts.netloc) or UNSAFE.search(url):
        return False

    host = host.removesuffix(".")                     # the root of all names
    flags = 0 if look_up else socket.AI_NUMERICHOST
    try:
        # getaddrinfo also reads numbers: 2130706433, 0x7f.1, 127.1
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError):
        return not look_up                            # a name, which a hosted reader looks up
    except ValueError:
        return False
    addresses = [str(entry[4][0]).split("%")[0] for entry in entries]
    return all(is_public(ip_address(address)) for address in addresses)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    if not address.is_global or address.is_multicast:
        return False
    if any(address in network for network in SPECIAL):
        return False
    return address.version == 4 or address in PUBLIC_V6
