"""The page pool: which sequence holds which page of the key-value cache, and what it contains.

A page is `page_size` consecutive token slots. A sequence's block table lists its pages in order:
token i of the sequence is in slot i % page_size of page pages[i // page_size]. A page is only a
number here; the tensors are in runner.py.

    open    a block table that shares the full pages of a prefix that was computed before
    extend  make room for more tokens. A page that another table holds is never written: it is
            copied first
    commit  the tokens are computed: from now on full pages can be found by their content
    fork    a second block table on the same pages, up to any computed length
    free    give the pages back; they can still be found until they are reused, the last pages of a
            sequence first

Every full page has a content id, a number that stands for all tokens from the start of the sequence
to the end of the page. The index finds a page by the pair (content id of the page before it, its
own tokens). A dictionary compares keys, not hashes only, so a collision of hashes cannot return a
wrong page.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

START = 0        # content id before the first page of a sequence


@dataclass(eq=False, slots=True)
class BlockTable:
    """The pages of one sequence, in order. Only the pool changes it."""

    pages: list[int] = field(default_factory=list)
    num_computed: int = 0                        # tokens whose keys and values are in the pages


class PagePool:
    def __init__(self, pages: int, page_size: int):
        if pages < 1 or page_size < 1:
            raise ValueError("a pool needs at least one page of one token, got "
                             f"{pages} pages of {page_size}")
        self.count = pages
        self.page_size = page_size
        self._holders = [0] * pages              # number of block tables that hold the page
        self._content: list = [None] * pages     # content id; None = partial or unknown
        self._key: list = [None] * pages         # where the index has the page; None = nowhere
        self._index: dict[tuple, int] = {}
        self._free = OrderedDict.fromkeys(range(pages))   # held by none; the first is reused next
        self._last_content = START               # last content id given out

    @property
    def used(self) -> int:
        return self.count - len(self._free)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def open(self, tokens: list[int]) -> BlockTable:
        """A table that starts with the known full pages of `tokens`. At least one token is always
        left to run: the caller wants the distribution after the last token, and a cache of keys and
        values does not contain that."""
        size = self.page_size
        table = BlockTable()
        content = START
        for start in range(0, len(tokens) - size, size):
            page = self._index.get((content, tuple(tokens[start:start + size])))
            if page is None:
                break
            self._take(page)
            table.pages.append(page)
            content = self._content[page]
        table.num_computed = len(table.pages) * size
        return table

    def extend(self, table: BlockTable, count: int) -> list[tuple[int, int]] | None:
        """Make room for `count` more tokens. Returns (from, to) pairs: pages to copy before any is
        written. None if there are too few free pages; then nothing was changed."""
        place, filled = divmod(table.num_computed, self.page_size)   # of the first new token
        missing = max(0, self.pages_for(table.num_computed + count) - len(table.pages))
        shared = filled > 0 and self._holders[table.pages[place]] > 1
        if missing + shared > len(self._free):
            return None

        copies = []
        if shared:
            old, new = table.pages[place], self._reuse()
            copies.append((old, new))
            self._release(old)
            table.pages[place] = new
        elif filled:
            self._remove_from_index(table.pages[place])     # its content is about to change
        for _ in range(missing):
            table.pages.append(self._reuse())
        return copies

    def commit(self, table: BlockTable, tokens: list[int], count: int) -> None:
        """`count` more tokens are computed; `tokens` is the whole sequence. Pages that became full
        enter the index."""
        size = self.page_size
        first = table.num_computed // size
        table.num_computed += count
        for i in range(first, table.num_computed // size):
            page = table.pages[i]
            before = self._content[table.pages[i - 1]] if i else START
            key = (before, tuple(tokens[i * size:(i + 1) * size]))
            same_page = self._index.get(key)     # another sequence has computed these tokens
            if same_page is None:
                self._last_content += 1
                self._index[key] = page
                self._key[page] = key
                self._content[page] = self._last_content
            else:
                self._content[page] = self._content[same_page]

    def fork(self, table: BlockTable, length: int) -> BlockTable:
        """A table on the same pages for the first `length` tokens."""
        copy = BlockTable(table.pages[:self.pages_for(length)], length)
        for page in copy.pages:
            self._take(page)
        return copy

    def free(self, table: BlockTable) -> None:
        """Give the pages back, the last one first, so that the beginnings that sequences share are
        kept longest."""
        for page in reversed(table.pages):
            self._release(page)
        table.pages = []
        table.num_computed = 0

    def clear_index(self) -> None:
        """Empty the index: the pages were computed with other weights. Every table must be free
        before."""
        self._index.clear()
        self._key = [None] * self.count
        self._content = [None] * self.count

    # --------------------------------------------------------------------------- one page at a time

    def _take(self, page: int) -> None:
        if self._holders[page] == 0:
            del self._free[page]
        self._holders[page] += 1

    def _release(self, page: int) -> None:
        self._holders[page] -= 1
        if self._holders[page] == 0:
            self._free[page] = None
            if self._key[page] is None:          # it cannot be found, so it is the first to reuse
                self._free.move_to_end(page, last=False)

    def _reuse(self) -> int:
        """The first free page, without its old content."""
        page, _ = self._free.popitem(last=False)
        self._remove_from_index(page)
        self._holders[page] = 1
        return page

    def _remove_from_index(self, page: int) -> None:
        """Take the page out of the index."""
        if self._key[page] is not None:
            del self._index[self._key[page]]
        self._key[page] = None
        self._content[page] = None
