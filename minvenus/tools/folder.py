"""A folder of text, Markdown or HTML files as a small offline web: search by BM25, visit by the path of a file
in the folder.

All files are read once, at the start, as UTF-8, and a visit looks into that table, never at the disk: nothing
outside the folder can be reached. Symbolic links, files without text, and what has a dot at the start of its name
are left out. The title of a page is its first line.

    score(q, d) = sum_{w in q} idf(w) * f(w, d) (k1 + 1) / (f(w, d) + k1 (1 - b + b |d| / mean |d|))         Okapi BM25
    idf(w)      = ln(1 + (N - n(w) + 1/2) / (n(w) + 1/2))

N texts, n(w) of them with the word w, f(w, d) occurrences of w in text d, |d| words in d. idf is positive for
every word, so a text scores above 0 exactly if it shares a word with the query.
"""

import html
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from minvenus.config import ConfigError
from minvenus.tools.base import ToolError, ToolResult, search_each, visit_each

# A word is a run of letters and digits; Chinese and Japanese write no spaces, so there every character is one.
UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
# A passage is a line; of a line with more than 300 characters as many sentences as fit, else 300 characters.
PASSAGE = re.compile(r"\S.{0,299}$|\S.{0,298}(?:[.!?](?=\s)|[。！？])|\S.{0,299}")
K1 = 1.5                      # BM25: the larger, the more further occurrences of a word count
B = 0.75                      # BM25: the larger, the less the words of long texts count
EVIDENCE = 3000               # characters of all passages that a visit shows
HTML = (".html", ".htm")
SUFFIXES = (".txt", ".md", ".markdown", *HTML)
MAX_RESULTS = 10


class BM25:
    """An index over texts. Deterministic: equal scores keep the order of the texts."""

    def __init__(self, texts: Sequence[str]):
        counts = [Counter(words(text)) for text in texts]
        lengths = [count.total() for count in counts]
        mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
        self.norm = [K1 * (1 - B + B * length / mean) for length in lengths]
        self.postings: dict[str, list[tuple[int, int]]] = defaultdict(list)       # word -> (text, occurrences) in order
        for i, count in enumerate(counts):
            for word, n in count.items():
                self.postings[word].append((i, n))

    def search(self, query: str) -> dict[int, float]:
        """Index and score of all texts that share a word with the query, best first."""
        scores: dict[int, float] = defaultdict(float)
        for word in dict.fromkeys(words(query)):      # each word once, in a fixed order: sums of floats depend on it
            found = self.postings.get(word, [])
            idf = math.log(1 + (len(self.norm) - len(found) + 0.5) / (len(found) + 0.5))
            for i, n in found:
                scores[i] += idf * n * (K1 + 1) / (n + self.norm[i])
        return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))


def words(text: str) -> list[str]:
    return WORD.findall(unicodedata.normalize("NFKC", text).casefold())


class Document:
    """A text and what it says about a query or a goal, by words alone: its passages that share rare words with it."""

    def __init__(self, text: str):
        self.text = text
        self.title = text.partition("\n")[0].strip("# \t\r")[:120]
        self.passages = [passage for line in text.splitlines() for passage in PASSAGE.findall(line.rstrip())]

    @cached_property
    def index(self) -> BM25:
        return BM25(self.passages)

    def snippet(self, query: str) -> str:
        """The passage that matches best, or the first one."""
        return self.passages[next(iter(self.index.search(query)), 0)]

    def extract(self, goal: str) -> list[str]:
        """[evidence, summary]: the best passages in their order on the page, and the best one. Without a common
        word the evidence is the beginning, and the summary says so."""
        ranked = list(self.index.search(goal))
        summary = self.snippet(goal)
        if not ranked:
            ranked = list(range(len(self.passages)))
            summary = "No passage shares a word with the goal; the evidence is the beginning of the page."
        chosen: list[int] = []
        room = EVIDENCE
        for i in ranked:
            room -= len(self.passages[i]) + 1
            if room < 0:
                break
            chosen.append(i)
        return ["\n".join(self.passages[i] for i in sorted(chosen)), summary]


class FolderTools:
    def __init__(self, path: str | Path):
        root = Path(path)
        if not root.is_dir():
            raise ConfigError(f"{root} is not a folder")
        self.documents: dict[str, Document] = {}              # by path in the folder
        for file in sorted(root.rglob("*")):                  # the same order on every machine
            place = file.relative_to(root)
            hidden = any(part.startswith(".") for part in place.parts)
            if file.suffix.lower() in SUFFIXES and file.is_file() and not file.is_symlink() and not hidden:
                text = file.read_bytes().decode("utf-8-sig", "replace").strip()
                text = html_to_text(text) if file.suffix.lower() in HTML else text
                if text:
                    self.documents[place.as_posix()] = Document(text)
        if not self.documents:
            raise ConfigError(f"{root} holds no file with text and one of the endings {' '.join(SUFFIXES)}")
        # the words of a title count more
        self.index = BM25([f"{page.title}\n{page.title}\n{page.text}" for page in self.documents.values()])

    def search(self, queries: list[str]) -> ToolResult:
        return search_each(queries, self._search)

    def visit(self, urls: list[str], goal: str) -> ToolResult:
        return visit_each(urls, goal, lambda url: self._visit(url, goal))

    def _search(self, query: str) -> list[dict]:
        pages = []
        for i in list(self.index.search(query))[:MAX_RESULTS]:
            url, document = list(self.documents.items())[i]
            pages.append({"title": document.title, "url": url, "snippet": document.snippet(query)})
        return pages

    def _visit(self, url: str, goal: str) -> list[str]:
        document = self.documents.get(str(PurePosixPath(url.strip())))        # "./a.md" and "a.md" are the same path
        if document is None:
            raise ToolError("empty", "there is no such document: write the path as in the search results")
        return document.extract(goal)


# Hostile pages take linear time: an expression stops at the next "<" or drops all that it has read.
DROPPED = re.compile(r"""<!--.*?(?:-->|$) | <(script|style|template|svg|object|iframe)\b
                         (?: [^<>]*/> | .*?(?:</\1\s*>|$) )""", re.IGNORECASE | re.DOTALL | re.VERBOSE)
TAG = re.compile(r"""</?([a-z]\w*|[!?])(?:[^<>"']|"[^<"]*"|'[^<']*')*>""", re.IGNORECASE)
INLINE = ("a", "abbr", "b", "cite", "code", "em", "font", "i", "img", "mark", "q", "small", "span", "strong", "sub",
          "sup", "u", "wbr")


def html_to_text(markup: str) -> str:
    """The text of a page: blocks become lines, the title the first one; scripts and styles are dropped."""
    markup = re.sub(r"&#\w{8,};?", "\ufffd", markup)         # no such character; Python refuses to read the longest
    text = re.sub(r"\s+", " ", DROPPED.sub(" ", markup))     # line ends of the source mean nothing
    text = TAG.sub(lambda tag: "" if tag[1].lower() in INLINE else "\n", text)
    lines = (" ".join(line.split()) for line in html.unescape(text).splitlines())
    return "\n".join(line for line in lines if line)
