"""A folder of text, Markdown or HTML files as a small offline web: search by BM25, visit by the file's path in the folder.

All files are read once, at the start, and a visit looks into that table and never at the disk: nothing outside the folder can be
reached, whatever the path says. Symbolic links are not followed. Files and folders whose names begin with a dot are left out.
"""

import os
from pathlib import Path, PurePosixPath

from minvenus.config import ConfigError
from minvenus.tools.base import ToolError, ToolResult, search_each, visit_each
from minvenus.tools.bm25 import BM25
from minvenus.tools.extract import plain_extract, snippet
from minvenus.tools.html_text import decode_page, html_to_text

HTML = (".html", ".htm")
SUFFIXES = (".txt", ".md", ".markdown", *HTML)
MAX_RESULTS = 10


class FolderTools:
    def __init__(self, path):
        root = Path(path)
        if not root.is_dir():
            raise ConfigError(f"{root} is not a folder")
        self.documents: dict[str, tuple[str, str]] = {}       # path in the folder -> (title, text)
        self.links: set[str] = set()                          # paths that are symbolic links
        self._read(root)
        if not self.documents:
            raise ConfigError(f"{root} holds no file with one of the endings {' '.join(SUFFIXES)}")
        self.urls = list(self.documents)
        self.index = BM25([f"{title}\n{title}\n{text}" for title, text in self.documents.values()])      # a title counts twice

    def _read(self, root: Path) -> None:
        for folder, names, files in os.walk(root):            # does not follow links to folders
            names.sort()                                      # the same order on every machine
            for name in sorted(names + files):
                file = Path(folder, name)
                url = file.relative_to(root).as_posix()
                if file.is_symlink():
                    self.links.add(url)
                elif not name.startswith(".") and file.suffix.lower() in SUFFIXES and file.is_file():
                    self.documents[url] = read_document(file, url)
            names[:] = [name for name in names if not name.startswith(".")]

    def search(self, queries: list[str]) -> ToolResult:
        return search_each(queries, self.search_one)

    def visit(self, urls: list[str], goal: str) -> ToolResult:
        return visit_each(urls, goal, lambda url: self.visit_one(url, goal))

    def search_one(self, query: str) -> list[dict]:
        found = [self.urls[i] for i, _ in self.index.search(query, MAX_RESULTS)]
        return [{"title": self.documents[url][0], "url": url, "snippet": snippet(self.documents[url][1], query)} for url in found]

    def visit_one(self, url: str, goal: str) -> tuple[str, str]:
        path = PurePosixPath(url.strip())                     # "./a.md" and "a.md" are the same path
        if path.is_absolute() or ".." in path.parts or "://" in url or "\\" in url:
            raise ToolError("refused", "only paths inside the folder can be visited, written as in the search results")
        if self.links & {str(part) for part in (path, *path.parents)}:
            raise ToolError("refused", "it is a symbolic link, which may leave the folder")
        if str(path) not in self.documents:
            raise ToolError("empty", "there is no such document")
        text = self.documents[str(path)][1]
        if not text:
            raise ToolError("empty", "the document has no text")
        return plain_extract(text, goal)


def read_document(file: Path, url: str) -> tuple[str, str]:
    """(title, text) of a file; the title is the page's own, else the first heading or line of a text, else the file's name."""
    text = decode_page(file.read_bytes(), None)
    title = ""
    if file.suffix.lower() in HTML:
        title, text = html_to_text(text, url)
    first = next((line.strip().lstrip("#").strip() for line in text.splitlines() if line.strip("# \t")), "")
    return title or first[:120] or file.stem, text.strip()
