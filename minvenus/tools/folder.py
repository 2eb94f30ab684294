"""A folder of text and Markdown files as a small offline web: search by BM25, visit by path.

All files are read once, at the start, as UTF-8, and a visit looks into that table, never at the
disk: nothing outside the folder can be reached. Files with other endings than .txt, .md and
.markdown, symbolic links, files without text, and what has a dot at the start of its name are left
out. The title of a page is its first line.

    score(q, d) = sum_{w in q} idf(w) * f(w, d) (k1 + 1) / (f(w, d) + k1 (1 - b + b |d| / mean |d|))
    idf(w)      = ln(1 + (N - n(w) + 1/2) / (n(w) + 1/2))                              Okapi BM25

N texts, n(w) of them with the word w, f(w, d) occurrences of w in text d, |d| words in d. idf is
positive for every word, so a text scores above 0 exactly if it shares a word with the query.
"""

import math
import re
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path, PurePosixPath

from minvenus.config import ConfigError
from minvenus.tools.base import NO_RESULTS, Extract, SearchHit, ToolError

# A word is a run of letters and digits. Chinese and Japanese write no spaces: there every character
# is a word.
UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
# A passage is a line; of a line with more than 300 characters as many sentences as fit, else 300
# characters.
PASSAGE = re.compile(r"\S.{0,299}$|\S.{0,298}(?:[.!?](?=\s)|[。！？])|\S.{0,299}")
K1 = 1.5                      # BM25: the larger, the more further occurrences of a word count
B = 0.75                      # BM25: the larger, the less the words of long texts count
EVIDENCE = 3000               # characters of all passages that a visit shows
TITLE = 120                   # characters
SUFFIXES = (".txt", ".md", ".markdown")
MAX_RESULTS = 10
NO_COMMON_WORD = (
    "No passage shares a word with the goal; the evidence is the beginning of the page.")


def bm25(texts: list[Counter[str]], query: str) -> dict[int, float]:
    """Index and score of all texts that share a word with the query, best first; equal scores keep
    the order of the texts. A text is given by how often each word occurs in it."""
    lengths = [text.total() for text in texts]
    mean = sum(lengths) / max(1, len(lengths))

    scores: dict[int, float] = defaultdict(float)
    for word in dict.fromkeys(words(query)):      # a fixed order: sums of floats depend on it
        matches = [i for i, text in enumerate(texts) if word in text]
        idf = math.log(1 + (len(texts) - len(matches) + 0.5) / (len(matches) + 0.5))
        for i in matches:
            f = texts[i][word]
            scores[i] += idf * f * (K1 + 1) / (f + K1 * (1 - B + B * lengths[i] / mean))
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))


def words(text: str) -> list[str]:
    return WORD.findall(unicodedata.normalize("NFKC", text).casefold())


class Document:
    """A text, and its passages that share rare words with a query or a goal."""

    def __init__(self, text: str):
        self.text = text
        self.title = text.partition("\n")[0].strip("# \t\r")[:TITLE]
        self.passages: list[str] = []
        for line in text.splitlines():
            self.passages += PASSAGE.findall(line.rstrip())

    def ranked(self, query: str) -> list[int]:
        """The passages that share a word with the query, best first."""
        return list(bm25([Counter(words(passage)) for passage in self.passages], query))

    def extract(self, goal: str) -> Extract:
        """The best passages in their order on the page, and the best one as the summary. Without a
        common word the evidence is the beginning, and the summary says so."""
        ranked = self.ranked(goal)
        if ranked:
            summary = self.passages[ranked[0]]
        else:
            ranked = list(range(len(self.passages)))
            summary = NO_COMMON_WORD

        evidence: list[int] = []
        room = EVIDENCE
        for i in ranked:
            room -= len(self.passages[i]) + 1
            if room < 0:
                break
            evidence.append(i)
        return Extract("\n".join(self.passages[i] for i in sorted(evidence)), summary)


class FolderTools:
    """Search and visit in a folder. Its files are read at once, however long that takes."""

    def __init__(self, path: str | Path):
        root = Path(path)
        if not root.is_dir():
            raise ConfigError(f"{root} is not a folder")
        self.documents = read_documents(root)
        if not self.documents:
            raise ConfigError(f"{root} holds no file with text and one of the endings "
                              f"{' '.join(SUFFIXES)}, which are read")
        self.urls = list(self.documents)
        self.counts = [                               # the words of a title count more
            Counter(words(f"{page.title}\n{page.title}\n{page.text}"))
            for page in self.documents.values()
        ]

    def search(self, query: str, deadline: float = math.inf) -> list[SearchHit]:
        hits = []
        for i in list(bm25(self.counts, query))[:MAX_RESULTS]:
            document = self.documents[self.urls[i]]
            # a long word may be cut between two passages, so that none has it
            best, *_ = document.ranked(query) or [0]
            hits.append(SearchHit(document.title, self.urls[i], document.passages[best]))
        if not hits:
            raise ToolError("empty", NO_RESULTS)
        return hits

    def visit(self, url: str, goal: str, deadline: float = math.inf) -> Extract:
        path = str(PurePosixPath(url))                # "./a.md" and "a.md" are the same path
        if path not in self.documents:                # names may begin and end with blanks
            path = str(PurePosixPath(url.strip()))
        if path not in self.documents:
            raise ToolError("empty", "there is no such document: write the path as in the search "
                                     "results")
        return self.documents[path].extract(goal)


def read_documents(root: Path) -> dict[str, Document]:
    """The documents of a folder by their paths in it."""
    documents = {}
    for file in sorted(root.rglob("*")):              # the same order on every machine
        place = file.relative_to(root)
        if file.suffix.lower() not in SUFFIXES or file.is_symlink() or not file.is_file():
            continue
        if any(part.startswith(".") for part in place.parts):
            continue
        text = file.read_bytes().decode("utf-8-sig", "replace").strip()
        if text:
            documents[place.as_posix()] = Document(text)
    return documents
