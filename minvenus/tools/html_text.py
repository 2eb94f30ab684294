"""HTML to readable text, in time linear in the page.

Scripts, styles, comments and hidden elements are dropped, blocks become lines, links become [text](url). Nothing is executed and
nothing is fetched. The scanner is our own: html.parser takes quadratic time on unclosed markup (32 KB of "<!--" cost it three
seconds), and a hostile page may be megabytes. Every pattern below runs to the end of the page rather than fail, so no character
is looked at from two starting points; what is left open is closed by the end, as in a browser.
"""

import codecs
import html
import re
from collections import Counter
from urllib.parse import urldefrag, urljoin, urlsplit

TAG = re.compile(r"""
    <!--(?:-?>|.*?(?:--!?>|\Z))                        # a comment
  | <[!?][^>]*(?:>|\Z)                                 # a declaration
  | <(?P<close>/?)(?P<name>[a-z][^\s/>]*)
     (?P<attributes>(?:=\s*+"[^"]*+(?:"|\Z)|=\s*+'[^']*+(?:'|\Z)|[^>])*+)(?:>|\Z)
""", re.VERBOSE | re.IGNORECASE | re.DOTALL | re.ASCII)
ATTRIBUTE = re.compile(r"""([^\s=/"'>]+)(?:\s*+=\s*+(?:"([^"]*+)"?|'([^']*+)'?|([^\s>]*+)))?""")
HIDDEN_STYLE = re.compile(r"(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))", re.IGNORECASE)
HUGE_NUMBER = re.compile(r"&#(?:[0-9]{8,}|x[0-9a-f]{8,});?", re.IGNORECASE)     # no character; Python refuses to read the longest

RAW = {"script", "style", "iframe", "noembed", "noframes", "title", "textarea"}       # what is inside is not markup
DROPPED = {"template", "svg", "object", "canvas", "audio", "video"}
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
BLOCK = {"address", "article", "aside", "blockquote", "body", "dd", "details", "div", "dl", "dt", "fieldset", "figcaption",
         "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre",
         "section", "summary", "table", "tr", "ul"}
CLOSED_BY = {"li": {"li"}, "dt": {"dt", "dd"}, "dd": {"dt", "dd"}, "td": {"td", "th", "tr"}, "th": {"td", "th", "tr"},
             "tr": {"tr"}, "option": {"option"}, "p": BLOCK}       # an open element -> the start tags that end it
# Labels of pages in use. A few other codecs of Python take quadratic time (punycode) or mean something else (unicode_escape).
CHARSETS = re.compile(r"utf-8|utf-16(-[lb]e)?|ascii|iso8859-\d+|cp125\d|cp874|gb\w+|big5\w*|shift_jis\w*|euc_\w+|koi8-\w|mac-\w+")
META_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?([\w.:-]{1,40})""", re.IGNORECASE)


def content_type(header: str | None) -> tuple[str, str | None]:
    """("text/html", "utf-8") of a Content-Type header; ("", None) without one."""
    kind, _, parameters = (header or "").partition(";")
    charset = re.search(r"""charset\s*=\s*["']?([\w.:-]{1,40})""", parameters, re.IGNORECASE)
    return kind.strip().lower(), charset[1] if charset else None


def decode_page(data: bytes, label: str | None) -> str:
    """Bytes to text: byte order mark, then the label of the response, then the page's own <meta>, then UTF-8. Never fails."""
    for mark, name in ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if data.startswith(mark):
            return data[len(mark):].decode(name, "replace")
    meta = META_CHARSET.search(data[:2048])
    for candidate in (label, meta[1].decode("ascii") if meta else None):
        try:
            name = codecs.lookup(candidate).name if candidate else ""
        except (LookupError, ValueError):
            continue
        if CHARSETS.fullmatch(name):
            return data.decode(name, "replace")
    return data.decode("utf-8", "replace")


def html_to_text(markup: str, base: str = "") -> tuple[str, str]:
    """(title, text) of a page. Links are resolved against `base`; only web links and relative ones are kept."""
    page, place = Page(base), 0
    while place < len(markup):
        tag = TAG.search(markup, place)
        page.text(markup[place:tag.start() if tag else len(markup)])
        if tag is None:
            break
        place = tag.end()
        name = (tag["name"] or "").lower()
        if tag["close"]:
            page.close(name)
        elif name in RAW:
            end = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE | re.ASCII).search(markup, place)
            inside = markup[place:end.start() if end else len(markup)]
            place = end.start() if end else len(markup)
            page.raw(name, inside, tag["attributes"])
        elif name:
            page.open(name, tag["attributes"])
    return collapse(page.title), tidy("".join(page.pieces))


class Page:
    """The text of a page while it is read."""

    def __init__(self, base: str):
        self.base, self.title = base, ""
        self.pieces: list[str] = []
        self.stack: list[tuple[str, bool]] = []       # open elements and whether each hides what it holds
        self.open_count: Counter[str] = Counter()     # so that a stray end tag costs nothing
        self.hidden = 0                               # how many open elements hide
        self.link: tuple[int, str] | None = None      # where the open link's text begins in pieces, and its URL

    def text(self, source: str) -> None:
        if source and not self.hidden:
            plain = html.unescape(HUGE_NUMBER.sub("\ufffd", source))
            self.pieces.append(plain if self.open_count["pre"] else re.sub(r"\s+", " ", plain))

    def raw(self, name: str, source: str, attributes: str) -> None:
        if name == "title" and not self.title and not self.hidden:
            self.title = html.unescape(HUGE_NUMBER.sub("\ufffd", source))
        elif name == "textarea" and not hides(name, read_attributes(attributes)):
            self.text(source)

    def open(self, name: str, source: str) -> None:
        while self.stack and name in CLOSED_BY.get(self.stack[-1][0], ()):
            self.pop()
        attributes = read_attributes(source)
        hidden = hides(name, attributes)
        if name not in VOID:
            self.stack.append((name, hidden))
            self.open_count[name] += 1
            self.hidden += hidden
        if self.hidden:
            return
        if name == "a":
            self.end_link()
            url = link_target(self.base, attributes.get("href", ""))
            self.link = (len(self.pieces), url) if url else None
        self.pieces.append({"br": "\n", "li": "\n- ", "td": " | ", "th": " | "}.get(name, "\n" if name in BLOCK else ""))

    def close(self, name: str) -> None:
        if not self.open_count[name]:
            return
        if name == "a":
            self.end_link()
        while self.pop() != name:
            pass
        if name in BLOCK and not self.hidden:
            self.pieces.append("\n")

    def pop(self) -> str:
        name, hidden = self.stack.pop()
        self.open_count[name] -= 1
        self.hidden -= hidden
        return name

    def end_link(self) -> None:
        if self.link:
            start, url = self.link
            text = collapse("".join(self.pieces[start:]))
            self.pieces[start:] = [f"[{text}]({url})"] if text else []
            self.link = None


def read_attributes(source: str) -> dict[str, str]:
    """The attributes of a start tag; of a repeated one the first counts."""
    found: dict[str, str] = {}
    for match in ATTRIBUTE.finditer(source):
        value = match[2] or match[3] or match[4] or ""
        found.setdefault(match[1].lower(), html.unescape(HUGE_NUMBER.sub("\ufffd", value)))
    return found


def hides(name: str, attributes: dict[str, str]) -> bool:
    return (name in DROPPED or "hidden" in attributes or attributes.get("aria-hidden", "").lower() == "true"
            or HIDDEN_STYLE.search(attributes.get("style", "")) is not None)


def link_target(base: str, href: str) -> str | None:
    """The absolute URL of a link (or the relative one if the base is relative); None for the same page, a script, mail."""
    try:
        url = urldefrag(urljoin(base, href.strip()))[0]
        wanted = urlsplit(url).scheme in ("", "http", "https")
    except ValueError:                                # an IPv6 bracket that never closes
        return None
    return url if wanted and url and len(url) <= 500 and url != urldefrag(base)[0] else None


def collapse(text: str) -> str:
    return " ".join(text.split())


def tidy(text: str) -> str:
    """No spaces around a line, no blank lines, no bullets or bars without text."""
    lines = (line.strip().removeprefix("| ") for line in text.splitlines())
    return "\n".join(line for line in lines if line.strip("-| "))
