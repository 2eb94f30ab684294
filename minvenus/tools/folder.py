"""A folder of text, Markdown or HTML files as a small offline web: search by BM25, visit by the path of a file
in the folder.

All files are read once, at the start, as UTF-8, and a visit looks into that table, never at the disk: nothing
outside the folder can be reached. Symbolic links, and files and folders with a dot at the start of their names,
are left out.

    score(q, d) = sum_{w in q} idf(w) * f(w, d) (k1 + 1) / (f(w, d) + k1 (1 - b + b |d| / mean |d|))         Okapi BM25
    idf(w)      = ln(1 + (N - n(w) + 1/2) / (n(w) + 1/2))

N texts, n(w) of them with the word w, f(w, d) occurrences of w in text d, |d| words in d. idf is positive for
every word, so a text scores above 0 exactly if it shares a word with the query.
"""

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath

from minvenus.config import ConfigError
from minvenus.tools.base import ToolError, ToolResult, search_each, visit_each

# A word is a run of letters and digits; Chinese and Japanese write no spaces, so there every character is one.
UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
K1 = 1.5                      # BM25: the larger, the more further occurrences of a word count
B = 0.75                      # BM25: the larger, the less the words of long texts count
PASSAGE = 300                 # characters of a passage at most
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

    def search(self, query: str) -> list[tuple[int, float]]:
        """(index of the text, score) of all that share a word with the query, best first."""
        scores: dict[int, float] = defaultdict(float)
        for word in dict.fromkeys(words(query)):      # each word once, in a fixed order: sums of floats depend on it
            found = self.postings.get(word, [])
            idf = math.log(1 + (len(self.norm) - len(found) + 0.5) / (len(found) + 0.5))
            for i, n in found:
                scores[i] += idf * n * (K1 + 1) / (n + self.norm[i])
        return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def words(text: str) -> list[str]:
    return WORD.findall(unicodedata.normalize("NFKC", text).casefold())


# ----------------------------------------------------------------------------- passages of a text


class Document:
    """A text and what it says about a query or a goal, by words alone: its passages that share rare words with it."""

    def __init__(self, text: str, title: str = ""):
        self.text, self.title = text, title

    @cached_property
    def passages(self) -> list[str]:
        return split_passages(self.text)

    @cached_property
    def index(self) -> BM25:
        return BM25(self.passages)

    def snippet(self, query: str) -> str:
        """The passage that matches best, or the first one."""
        ranked = self.index.search(query)
        return self.passages[ranked[0][0] if ranked else 0] if self.passages else ""

    def extract(self, goal: str) -> list[str]:
        """[evidence, summary]: the best passages in their order on the page, and the best one. Without a common
        word the evidence is the beginning, and the summary says so."""
        ranked = [i for i, _ in self.index.search(goal)]
        summary = self.snippet(goal)
        if not ranked:
            ranked = list(range(len(self.passages)))
            summary = "No passage shares a word with the goal; the evidence is the beginning of the page."
        chosen: set[int] = set()
        room = EVIDENCE
        for i in ranked:
            room -= len(self.passages[i]) + 1
            if room < 0:
                break
            chosen.add(i)
        lines: list[str] = []
        for i in sorted(chosen):
            if lines and i - 1 not in chosen:
                lines.append("[...]")                # something is left out here
            lines.append(self.passages[i])
        return ["\n".join(lines), summary]


def split_passages(text: str) -> list[str]:
    """The lines of a text; one longer than PASSAGE is divided at sentence ends, and anywhere where a sentence
    is longer."""
    parts: list[str] = []
    for line in text.splitlines():
        line, part = line.strip(), ""
        for sentence in SENTENCE_END.split(line) if len(line) > PASSAGE else [line]:
            for start in range(0, len(sentence), PASSAGE):
                piece = sentence[start:start + PASSAGE]
                if part and len(part) + 1 + len(piece) > PASSAGE:
                    parts.append(part)
                    part = ""
                part = f"{part} {piece}" if part else piece
        if part:
            parts.append(part)
    return parts


# ------------------------------------------------------------------------------------- the folder


class FolderTools:
    def __init__(self, path):
        root = Path(path)
        if not root.is_dir():
            raise ConfigError(f"{root} is not a folder")
        self.documents: dict[str, Document] = {}              # by path in the folder
        for file in sorted(root.rglob("*")):                  # the same order on every machine
            place = file.relative_to(root)
            hidden = any(part.startswith(".") for part in place.parts)
            if file.suffix.lower() in SUFFIXES and file.is_file() and not file.is_symlink() and not hidden:
                self.documents[place.as_posix()] = read_document(file)
        if not self.documents:
            raise ConfigError(f"{root} holds no file with one of the endings {' '.join(SUFFIXES)}")
        self.urls = list(self.documents)
        documents = self.documents.values()
        self.index = BM25([f"{d.title}\n{d.title}\n{d.text}" for d in documents])        # a title counts twice

    def search(self, queries: list[str]) -> ToolResult:
        return search_each(queries, self._search)

    def visit(self, urls: list[str], goal: str) -> ToolResult:
        return visit_each(urls, goal, lambda url: self._visit(url, goal))

    def _search(self, query: str) -> list[dict]:
        found = []
        for i, _ in self.index.search(query)[:MAX_RESULTS]:
            document = self.documents[self.urls[i]]
            found.append({"title": document.title, "url": self.urls[i], "snippet": document.snippet(query)})
        return found

    def _visit(self, url: str, goal: str) -> list[str]:
        document = self.documents.get(str(PurePosixPath(url.strip())))        # "./a.md" and "a.md" are the same path
        if document is None:
            raise ToolError("empty", "there is no such document: write the path as in the search results")
        if not document.text:
            raise ToolError("empty", "the document has no text")
        return document.extract(goal)


def read_document(file: Path) -> Document:
    """Its title is that of the HTML page, else the first heading or line, else the name of the file."""
    text, title = file.read_bytes().decode("utf-8-sig", "replace"), ""
    if file.suffix.lower() in HTML:
        text, title = html_to_text(text)
    first = next((line.strip("# \t") for line in text.splitlines() if line.strip("# \t")), "")
    return Document(text.strip(), title or first[:120] or file.stem)


# ------------------------------------------------------------------------------------------- HTML

DROPPED = ("script", "style", "template", "svg", "object", "iframe")
INLINE = ("a", "abbr", "b", "cite", "code", "em", "font", "i", "img", "mark", "q", "small", "span", "strong", "sub",
          "sup", "u", "wbr")


class TextReader(HTMLParser):
    """Collects the text of a page: blocks become lines, scripts and styles are dropped."""

    def __init__(self):
        super().__init__()
        self.title = ""
        self.pieces: list[str] = []
        self.open_tags: Counter[str] = Counter()

    def handle_starttag(self, tag, attributes):
        self.open_tags[tag] += 1
        if tag not in INLINE:
            self.pieces.append("\n")

    def handle_endtag(self, tag):
        self.open_tags[tag] = max(0, self.open_tags[tag] - 1)
        if tag not in INLINE:
            self.pieces.append("\n")

    def handle_data(self, data):
        if self.open_tags["title"]:
            self.title += data
        elif not any(self.open_tags[tag] for tag in DROPPED):
            self.pieces.append(data if self.open_tags["pre"] else re.sub(r"\s+", " ", data))


def html_to_text(markup: str) -> tuple[str, str]:
    """(text, title) of a page."""
    reader = TextReader()
    reader.feed(re.sub(r"&#\w{8,};?", "\ufffd", markup))      # no such character; Python refuses to read the longest
    reader.close()
    lines = (line.strip() for line in "".join(reader.pieces).splitlines())
    return "\n".join(line for line in lines if line), " ".join(reader.title.split())
