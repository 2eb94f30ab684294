"""An almanac: a folder of short pages. A search lists titles, a visit shows a whole page.

The files are those of folder.py; the title of a page, its first line, is also its address. Results
are plain text, a few dozen tokens, for models with a short context.
"""

import math
from collections import Counter
from pathlib import Path

from minvenus.tools.base import NO_RESULTS, Text, ToolError
from minvenus.tools.folder import FolderTools, bm25, words

RESULTS = 4  # titles that a search lists


class Almanac:
    """For --tools almanac:FOLDER."""

    def __init__(self, path: str | Path):
        folder = FolderTools(path)
        self.pages = {page.title: page.text for page in folder.documents.values()}
        self.title_words = [Counter(words(title)) for title in self.pages]
        self.text_words = [Counter(words(text)) for text in self.pages.values()]

    def titles(self, query: str) -> list[str]:
        """The best pages: first those whose titles share a word with the query, then others."""
        ranked = [*bm25(self.title_words, query), *bm25(self.text_words, query)]
        names = list(self.pages)
        return [names[i] for i in list(dict.fromkeys(ranked))[:RESULTS]]

    def search(self, query: str, deadline: float = math.inf) -> Text:
        titles = self.titles(query)
        if not titles:
            raise ToolError("empty", NO_RESULTS)
        return Text("\n".join(titles))

    def visit(self, url: str, goal: str, deadline: float = math.inf) -> Text:
        page = self.pages.get(url.strip())
        if page is None:
            raise ToolError("empty", "there is no such page: write a title of the search results")
        return Text(page)
