"""What makes decoding on a CPU fast: the keys and values of the decoding sequences side by side.

Attention over pages has to gather them first, which reads and writes the whole context once more
for every token. The pages stay complete: they are written as well, and whatever is missing here is
read from them. So sequences may come, go, be preempted or prefilled in between without telling this
cache. benchmarks/bench_engine.py measures what it gains.

S sequences, K kv heads, G query heads of one, D channels, L tokens of the longest sequence, C room
for tokens in a row.
"""

import numpy
import torch
from torch import Tensor

from minvenus.engine.pages import BlockTable
from minvenus.engine.scheduler import Work


class DecodeCache:
    """Row r holds the first lengths[r] tokens of tables[r]. The slots after them are finite (old or
    zero) and masked."""

    def __init__(self, k_pages: Tensor, v_pages: Tensor):
        layers, pages, self.page_size, heads, channels = k_pages.shape
        self.k_pages = k_pages
        self.v_pages = v_pages
        self.most_tokens = pages * self.page_size
        self.k = k_pages.new_zeros((layers, 0, heads, 0, channels))      # [layers, rows, K, C, D]
        self.v = self.k
        self.tables: list[BlockTable] = []
        self.lengths: list[int] = []

    def arrange(self, work: list[Work]) -> list[Work]:
        """The work in an order in which sequences keep their rows, as far as possible."""
        newcomers = {item.sequence.block_table: item for item in work}
        rows = []
        for table in self.tables[:len(work)]:
            rows.append(newcomers.pop(table, None))
        others = iter(newcomers.values())
        return [item or next(others) for item in rows] + list(others)

    def hold(self, tables: list[BlockTable]) -> bool:
        """Read what is missing from the pages, with room for one more token in each row. False
        where padding or shared pages would make this copy too large."""
        lengths = [table.num_computed for table in tables]
        longest = max(lengths) + 1
        most_tokens = min(2 * sum(lengths) + 4096, self.most_tokens)
        if len(tables) * longest > most_tokens:
            return False

        _, rows, _, room, _ = self.k.shape
        if len(tables) > rows or longest > room:
            self._grow(len(tables), longest)
        for row, table in enumerate(tables):
            known = 0
            if row < len(self.tables) and self.tables[row] is table:
                known = self.lengths[row]
            if known < table.num_computed:
                self._fetch(row, table, known)
        self.tables = tables
        self.lengths = [length + 1 for length in lengths]        # with the token that runs now
        return True

    def _grow(self, sequences: int, longest: int) -> None:
        """A larger copy, which is empty: all is read from the pages again."""
        layers, rows, heads, room, channels = self.k.shape
        ample = longest + longest // 2 + 64
        rows = max(rows, sequences)
        room = max(room, ample)
        if rows * room > self.most_tokens:                       # never more than the pages
            rows = sequences
            room = min(ample, self.most_tokens // sequences)
        self.k = self.k.new_zeros((layers, rows, heads, room, channels))
        self.v = torch.zeros_like(self.k)
        self.tables = []

    def _fetch(self, row: int, table: BlockTable, start: int) -> None:
        """Copy the tokens from `start` on from their pages."""
        size = self.page_size
        end = table.num_computed
        first = start // size
        pages = torch.tensor(table.pages[first:-(-end // size)])
        span = slice(start - first * size, end - first * size)
        for source, target in ((self.k_pages, self.k), (self.v_pages, self.v)):
            tokens = source.index_select(1, pages).flatten(1, 2)     # [layers, slots, K, D]
            tokens = tokens[:, span].transpose(1, 2)
            target[:, row, :, start:end] = tokens

    def attend(self, positions: Tensor, rows: slice):
        """attend(layer, q [S, H, D], k and v [S, K, D]) -> [S, H, D] for some rows of the tables
        held, whose new tokens are at `positions` [S]."""
        longest = max(self.lengths)
        keys = self.k[:, rows, :, :longest].unbind()                     # of a layer: [S, K, L, D]
        values = self.v[:, rows, :, :longest].unbind()
        bias = None
        if min(self.lengths) < longest:
            unseen = torch.arange(longest) > positions[:, None]                      # [S, L]
            bias = torch.zeros_like(unseen, dtype=self.k.dtype)
            bias.masked_fill_(unseen, -torch.inf)
            bias = bias[:, None, None]
            own_rows = torch.arange(len(positions))

        def write(x: Tensor, cache: Tensor) -> None:
            if bias is None:
                cache[:, :, -1] = x                      # the same place in all rows
            else:
                cache[own_rows, :, positions] = x

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            write(k, keys[layer])
            write(v, values[layer])
            scale = q.shape[-1] ** -0.5
            queries = (q * scale).unflatten(1, (k.shape[1], -1))                     # [S, K, G, D]
            scores = query_key_products(queries, keys[layer])                        # [S, K, G, L]
            if bias is not None:
                scores += bias
            weights = scores.softmax(dim=-1)
            return weighted_values(weights, values[layer]).flatten(1, 2)

        return attend


# With one thread numpy is faster: torch packs each matrix first, numpy multiplies vector by vector
# while the matrix is in the CPU's cache.


def query_key_products(queries: Tensor, keys: Tensor) -> Tensor:
    """[S, K, G, D] and [S, K, L, D] -> [S, K, G, L]: each query times each key."""
    if torch.get_num_threads() > 1:
        return torch.matmul(keys, queries.transpose(2, 3)).transpose(2, 3)
    out = queries.new_empty(*queries.shape[:-1], keys.shape[2])
    matrices = keys[:, :, None].numpy()
    columns = queries[..., None].numpy()
    numpy.matmul(matrices, columns, out=out[..., None].numpy())
    return out


def weighted_values(weights: Tensor, values: Tensor) -> Tensor:
    """[S, K, G, L] and [S, K, L, D] -> [S, K, G, D]: sums of values."""
    if torch.get_num_threads() > 1:
        return torch.matmul(weights, values)
    out = weights.new_empty(*weights.shape[:-1], values.shape[3])
    rows = weights[..., None, :].numpy()
    matrices = values[:, :, None].numpy()
    numpy.matmul(rows, matrices, out=out[..., None, :].numpy())
    return out
