"""The pool of pages: who holds which page of the key-value cache, how often it is shared, and what stands in it.

A page is `page_size` consecutive token slots. A sequence's `Table` lists its pages in order: token i of the sequence stands in
slot i % page_size of page pages[i // page_size]. Here a page is a number; the tensors are elsewhere, without torch.

    open    a table that shares every full page of a prefix that some sequence has computed before
    extend  room for more tokens; answers which pages must be copied first, because a page that others read is never written
    commit  the tokens are computed: full pages can be found by their content from now on
    fork    a second table on the same pages, up to any length
    free    give the pages back; they stay findable until they are reused, and the tail of a sequence is reused first

A full page is found by (content id of the page before it, its tokens). The dictionary hashes that pair and then compares it, so a
key stands for the whole chain of tokens from the start of the sequence, and a collision of hashes cannot give a wrong page.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

START = 0        # content id of "nothing before": the first page of every sequence


class OutOfPages(RuntimeError):
    """The pool has too few free pages; nothing was changed."""


@dataclass(eq=False, slots=True)
class Table:
    """The pages of one sequence, in order. Only the pool changes it."""

    row: int                                          # a small number of its own while it lives, for tables kept as a matrix
    pages: list[int] = field(default_factory=list)
    length: int = 0                                   # tokens that are computed and stand in the pages
    changed: int = 0                                  # pages[changed:] differ from what a reader has seen; the reader resets it


class PagePool:
    def __init__(self, pages: int, page_size: int):
        if pages < 1 or page_size < 1:
            raise ValueError(f"a pool needs at least one page of one token, got {pages} pages of {page_size}")
        self.count, self.page_size = pages, page_size
        self.peak = 0                                            # most pages held at once
        self._references = [0] * pages                           # tables that hold the page
        self._content: list = [None] * pages                     # content id of a full page; None = partial, or unknown
        self._key: list = [None] * pages                         # under which key the index finds the page; None = it does not
        self._index: dict[tuple, int] = {}
        self._free = OrderedDict.fromkeys(range(pages))          # pages nobody holds; the next to be reused stands first
        self._tables: set[Table] = set()
        self._rows: list[int] = []                               # rows given back
        self._contents = START                                   # last content id given

    @property
    def available(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.count - len(self._free)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def open(self, tokens: list[int]) -> Table:
        """A table that starts with the known full pages of `tokens`. At least one token is always left to run: the caller wants
        what follows the last one, and a cache holds keys and values, not that."""
        table, content = self._new_table(), START
        for start in range(0, len(tokens) - self.page_size, self.page_size):
            page = self._index.get((content, tuple(tokens[start:start + self.page_size])))
            if page is None:
                break
            self._take(page)
            table.pages.append(page)
            content = self._content[page]
        table.length = len(table.pages) * self.page_size
        return table

    def extend(self, table: Table, count: int) -> list[tuple[int, int]]:
        """Make room for `count` more tokens. Returns (from, to) pairs: pages to copy before anything is written."""
        first, filled = divmod(table.length, self.page_size)
        missing = max(0, -(-(table.length + count) // self.page_size) - len(table.pages))
        shared = filled > 0 and self._references[table.pages[first]] > 1
        if not missing and not shared and (not filled or self._content[table.pages[first]] is None):
            return []                                            # the usual case: the page is the table's own and has room
        if missing + shared > len(self._free):
            raise OutOfPages(f"{missing + shared} pages needed for {count} more tokens, {len(self._free)} of {self.count} "
                             "are free")
        copies = []
        if shared:
            copies.append((table.pages[first], self._reuse()))
            self._release(table.pages[first])
            table.pages[first] = copies[0][1]
            table.changed = min(table.changed, first)
        elif filled:
            self._unlist(table.pages[first])                     # about to be written, so no longer what the index says
        for _ in range(missing):
            table.pages.append(self._reuse())
        self.peak = max(self.peak, self.used)
        return copies

    def commit(self, table: Table, tokens: list[int], count: int) -> None:
        """`count` tokens after table.length are computed; `tokens` is the whole sequence. Pages that became full are listed."""
        size = self.page_size
        before, table.length = table.length // size, table.length + count
        if table.length > len(table.pages) * size:
            raise ValueError(f"{table.length} tokens committed, room was made for {len(table.pages) * size}")
        for i in range(before, table.length // size):
            page = table.pages[i]
            key = (self._content[table.pages[i - 1]] if i else START, tuple(tokens[i * size:(i + 1) * size]))
            twin = self._index.get(key)                          # the same tokens were computed twice, side by side
            if twin is None:
                self._contents += 1
                self._index[key], self._key[page], self._content[page] = page, key, self._contents
            else:
                self._content[page] = self._content[twin]

    def fork(self, table: Table, length: int | None = None) -> Table:
        """A table on the same pages for the first `length` tokens (default: all)."""
        length = table.length if length is None else length
        if not 0 <= length <= table.length:
            raise ValueError(f"cannot fork at {length} tokens, {table.length} are computed")
        copy = self._new_table()
        copy.pages, copy.length = table.pages[:self.pages_for(length)], length
        for page in copy.pages:
            self._references[page] += 1
        return copy

    def content(self, table: Table, pages: int) -> int:
        """Stands for all tokens in the first `pages` full pages: equal ids, equal tokens."""
        return self._content[table.pages[pages - 1]] if pages else START

    def free(self, table: Table) -> None:
        """Give the pages back, the last first, so that the shared beginning of sequences is what survives longest."""
        self._tables.remove(table)                               # a second free is a KeyError
        self._rows.append(table.row)
        for page in reversed(table.pages):
            if self._references[page] > 1:                       # the usual case of a fork that only scored
                self._references[page] -= 1
            else:
                self._release(page)
        table.pages, table.length = [], 0

    def forget(self) -> None:
        """Unlist everything: what stands in the pages was computed with other weights. Every table must be free by now."""
        if self._tables:
            raise RuntimeError(f"{len(self._tables)} tables are still open: free them before their content is forgotten")
        self._index.clear()
        self._key, self._content = [None] * self.count, [None] * self.count

    # ------------------------------------------------------------------------------------------------ one page at a time

    def _new_table(self) -> Table:
        table = Table(self._rows.pop() if self._rows else len(self._tables))
        self._tables.add(table)
        return table

    def _take(self, page: int) -> None:
        if self._references[page] == 0:
            del self._free[page]
            self.peak = max(self.peak, self.used)
        self._references[page] += 1

    def _release(self, page: int) -> None:
        self._references[page] -= 1
        if self._references[page] == 0:
            self._free[page] = None
            if self._key[page] is None:                          # nobody can find it: the first to be reused
                self._free.move_to_end(page, last=False)

    def _reuse(self) -> int:
        """The free page that was given back longest ago, with nothing left of what it held."""
        page, _ = self._free.popitem(last=False)
        self._unlist(page)
        self._references[page] = 1
        return page

    def _unlist(self, page: int) -> None:
        if self._key[page] is not None:
            del self._index[self._key[page]]
        self._key[page] = self._content[page] = None

    def check(self) -> None:
        """Every invariant of the pool, or an AssertionError that names the one that does not hold."""
        held = Counter(page for table in self._tables for page in table.pages)
        assert all(self._references[p] == held[p] for p in range(self.count)), "references differ from the holding tables"
        assert set(self._free) == {p for p in range(self.count) if not held[p]}, "free pages are not those that nobody holds"
        assert {k: p for p, k in enumerate(self._key) if k is not None} == self._index, "index and keys differ"
        assert all(self._content[p] is not None for p in self._index.values()), "a listed page has no content id"
        assert len({t.row for t in self._tables}) == len(self._tables), "two tables have one row"
        for table in self._tables:
            assert len(set(table.pages)) == len(table.pages), "a table holds a page twice"
            assert table.length <= len(table.pages) * self.page_size, "more tokens than room"
            content = START
            for page in table.pages[:table.length // self.page_size]:
                assert self._content[page] is not None, "a full page has no content id"
                assert self._key[page] is None or self._key[page][0] == content, "a page is listed behind the wrong one"
                content = self._content[page]
