"""A contiguous copy of the keys and values of the sequences that are decoding, for the CPU.

Attention over pages has to gather them first. On a CPU that reads and writes the whole context of every sequence once more per
token, which costs more than attention itself; here a token is added in place and attention reads every number once. The pages
stay the truth: they are written all the same, and whatever is missing here is taken from them. So sequences may come, go, be
preempted or prefilled in between, and nothing has to be told.

Row r of the copy belongs to `tables[r]`; the first `lengths[r]` of its tokens are here. What lies behind them is finite, old or
zero, and masked.

S running sequences, K kv heads, H query heads, D channels, L tokens of the longest, C room for tokens in a row.
"""

import math

import numpy
import torch
from torch import Tensor

from minvenus.engine.pages import Table

ROOM = 32        # a row is at least this much longer than needed when the copy is laid out anew


class DenseCache:
    def __init__(self, k_pages: Tensor, v_pages: Tensor, heads: int):
        self.k_pages, self.v_pages, self.heads = k_pages, v_pages, heads          # [layers, P, page, K, D], H
        self.k = self.v = k_pages.new_zeros(0)
        self.spare = self.k, self.v                                               # memory to use again: fresh memory is slow
        self.forget()

    @torch.inference_mode()
    def forget(self) -> None:
        """As if new, room included: a sum may round differently in another layout, and no step should depend on those before."""
        self.tables: list[Table] = []
        self.lengths: list[int] = []
        if self.k.numel():
            self.spare = self.k.flatten(), self.v.flatten()
        layers, _, _, heads, channels = self.k_pages.shape
        self.k = self.k_pages.new_zeros((layers, 0, heads, channels, 0))          # [layers, rows, K, D, C]: as attention reads it
        self.v = self.v_pages.new_zeros((layers, 0, heads, 0, channels))          # [layers, rows, K, C, D]

    def arrange(self, tables: list[Table]) -> list[int]:
        """An order of the tables in which those that are here stay in their rows as far as possible."""
        if tables == self.tables:
            return list(range(len(tables)))
        place = {table: i for i, table in enumerate(tables)}
        order = [place.pop(table, None) for table in self.tables[:len(tables)]]
        order += [None] * (len(tables) - len(order))
        others = iter(place.values())
        return [next(others) if i is None else i for i in order]

    def hold(self, tables: list[Table]) -> bool:
        """Bring the tables' tokens here, with room for one more each; False where padding or sharing make the copy too large."""
        if tables != self.tables:
            longest = max(t.length for t in tables) + 1
            padded, tokens = len(tables) * longest, sum(t.length for t in tables)
            if padded > max(2 * tokens, 4096) or padded > self.k_pages.shape[1] * self.k_pages.shape[2]:
                return False
            self._replace(tables)
        if max(t.length for t in tables) >= self.v.shape[3] or len(tables) > self.v.shape[1]:
            self._lay_out(len(tables), max(t.length for t in tables))
        missing = [r for r, t in enumerate(tables) if self.lengths[r] != t.length]
        if missing:
            self._fetch(missing)
        return True

    def attention(self, positions: Tensor):
        """One new token of every table, at these positions: attend(layer, q [S, H, D], k and v [S, K, D]) -> [S, H, D]."""
        size, longest = len(self.tables), max(self.lengths) + 1
        _, _, heads, room, channels = self.v.shape
        scores = self.scores[:size * self.heads * longest].view(size * heads, -1, longest)                     # [S * K, H / K, L]
        mask, alike = None, min(self.lengths) + 1 == longest                      # of one length: nothing to mask
        if not alike:
            k_places = (torch.arange(size * heads * channels).view(size, -1) * room + positions[:, None]).flatten()  # [S * K * D]
            v_places = (torch.arange(size * heads).view(size, -1) * room + positions[:, None]).flatten()             # [S * K]
            behind = torch.arange(longest) > positions[:, None]                   # [S, L]
            mask = torch.zeros_like(behind, dtype=self.k.dtype).masked_fill_(behind, -torch.inf)                   # [S, L]
            mask = mask.repeat_interleave(heads, dim=0)[:, None]                                                  # [S * K, 1, L]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if alike:
                self.k[layer, :size, :, :, longest - 1], self.v[layer, :size, :, longest - 1] = k, v
            else:
                self.k[layer].view(-1).scatter_(0, k_places, k.flatten())
                self.v[layer].view(-1, channels).index_copy_(0, v_places, v.reshape(-1, channels))
            keys = self.k[layer, :size, :, :, :longest].flatten(0, 1)             # [S * K, D, L]
            values = self.v[layer, :size, :, :longest].flatten(0, 1)              # [S * K, L, D]
            folded = (q * channels**-0.5).reshape(size * heads, -1, channels)     # [S * K, H / K, D]: a group's heads are queries
            product(folded, keys, out=scores)
            if mask is not None:
                scores.add_(mask)
            return product(torch.softmax(scores, dim=-1, out=scores), values, out=torch.empty_like(folded)).view(q.shape)

        return attend

    def advance(self) -> None:
        """The new tokens are in every layer."""
        self.lengths = [length + 1 for length in self.lengths]

    def _replace(self, tables: list[Table]) -> None:
        """Rows for these tables, in this order; rows that stay in place keep their tokens."""
        known = dict(zip(self.tables, self.lengths, strict=True))
        moved = [r for r, t in enumerate(tables) if t in known and (r >= len(self.tables) or self.tables[r] is not t)]
        if moved:
            source = {t: r for r, t in enumerate(self.tables)}
            old = [source[tables[r]] for r in moved]
            if max(moved) < self.v.shape[1]:
                for copy in (self.k, self.v):
                    copy[:, moved] = copy[:, old]                                 # everything is read before anything is written
            else:
                known = {}
        self.tables, self.lengths = tables, [known.get(t, 0) for t in tables]

    def _lay_out(self, rows: int, longest: int) -> None:
        """Larger tensors, with what the old ones hold. An eighth of room: more would spread the keys, which costs every step,
        and less would move a growing context too often."""
        layers, old_rows, heads, old_room, channels = self.v.shape
        rows, room = max(rows, old_rows), max(longest + longest // 8 + ROOM, old_room)
        k = zeros((layers, rows, heads, channels, room), self.spare[0])
        v = zeros((layers, rows, heads, room, channels), self.spare[1])
        self.spare = self.spare[0][:0], self.spare[1][:0]
        k[:, :old_rows, :, :, :old_room] = self.k
        v[:, :old_rows, :, :old_room] = self.v
        self.k, self.v = k, v
        self.scores = v.new_empty(rows * self.heads * room)                       # of one layer at a time

    def _fetch(self, missing: list[int]) -> None:
        """Copy from the pages what the rows lack, n tokens each."""
        page = self.k_pages.shape[2]
        for row in missing:
            table, start = self.tables[row], self.lengths[row]
            first = start // page
            pages = torch.tensor(table.pages[first:-(-table.length // page)])
            span = slice(start - first * page, table.length - first * page)
            keys, values = (x.index_select(1, pages).flatten(1, 2)[:, span]                                    # [layers, n, K, D]
                            for x in (self.k_pages, self.v_pages))
            self.k[:, row, :, :, start:table.length] = keys.permute(0, 2, 3, 1)
            self.v[:, row, :, start:table.length] = values.transpose(1, 2)
            self.lengths[row] = table.length


def zeros(shape: tuple[int, ...], spare: Tensor) -> Tensor:
    """In spare memory [n] that nobody needs, if it is enough."""
    count = math.prod(shape)
    return spare[:count].zero_().view(shape) if len(spare) >= count else spare.new_zeros(shape)


def product(rows: Tensor, matrices: Tensor, out: Tensor) -> Tensor:
    """rows [B, n, x] @ matrices [B, x, y] -> out [B, n, y] for few rows, where the time goes into reading the matrices. torch
    packs each of them first; numpy multiplies row by row, the next while the matrix is in the cache, but has one thread only."""
    if torch.get_num_threads() > 1 or out.dtype == torch.bfloat16:
        return torch.bmm(rows, matrices, out=out)
    numpy.matmul(rows[:, :, None].numpy(), matrices[:, None].numpy(), out=out[:, :, None].numpy())
    return out
