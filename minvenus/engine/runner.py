"""The tensors of the engine: the pages of keys and values, and one run of the model over them.

It turns the scheduler's work into flat tokens, positions and slots; the attention over pages is the kernels' business, the rest
of the forward pass is the model's. Which tokens run and what happens with the result is not known here.

N tokens of all sequences in a step, S sequences, P pages, K kv heads, D channels of one, V vocabulary.
"""

from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from minvenus.engine.dense import DenseCache
from minvenus.engine.pages import Table
from minvenus.engine.scheduler import Work
from minvenus.engine.sequence import Sequence
from minvenus.kernels.logprob import accumulator, matmul, multiplicand, token_logprobs
from minvenus.kernels.paged import paged_attention, paged_plan, write_pages
from minvenus.model.fused import FusedDecoder, fusible

PIECE = 1024      # tokens that a CPU runs at once: what a layer computes for them stays in the cache


class Chunk(NamedTuple):
    """The `count` tokens of a sequence from `start` on; hidden states are asked for of the last `asked` of them."""

    sequence: Sequence
    start: int
    count: int                       # type: ignore[assignment]
    asked: int


def decodes(work: list[Work]) -> bool:
    """One token of every sequence, and what follows it is asked for."""
    return all(count == 1 and sequence.asked(1) for sequence, count, _ in work)


def pieces(work: list[Work], limit: int) -> list[list[Chunk]]:
    """A step in parts of at most `limit` tokens, to be run one after the other. Only what is longer than a part is cut."""
    parts: list[list[Chunk]] = []
    room = 0
    for sequence, new, _ in work:
        start, end = sequence.table.length, sequence.table.length + new
        first_asked = end - sequence.asked(new)
        while start < end:
            count = min(end - start, limit)
            if count > room:
                parts.append([])
                room = limit
            parts[-1].append(Chunk(sequence, start, count, max(0, start + count - max(start, first_asked))))
            start, room = start + count, room - count
    return parts


def bounds(counts: numpy.ndarray) -> numpy.ndarray:
    """counts [S] -> where each begins, and the end [S + 1]."""
    return numpy.concatenate(([0], counts.cumsum()))


class Runner:
    def __init__(self, model, pages: int, page_size: int):
        config, weight = model.config, model.head_weight
        self.model, self.page_size, self.device, self.heads = model, page_size, weight.device, config.num_attention_heads
        shape = (config.num_hidden_layers, pages, page_size, config.num_key_value_heads, config.head_dim)
        self.k_pages = torch.empty(shape, dtype=weight.dtype, device=weight.device)       # [layers, P, page, K, D]
        self.v_pages = torch.empty_like(self.k_pages)
        self.dense: Any = DenseCache(self.k_pages, self.v_pages, self.heads) if weight.device.type == "cpu" else None
        self._fusible = fusible(model)
        self._fused: Any = None                                        # copies of the weights, made with the first step
        self._blocks = numpy.zeros((1, 1), dtype=numpy.int32)          # [rows, pages]: the page list of every table, by its row

    def run(self, work: list[Work]) -> tuple[list[Work], Tensor]:
        """Compute the tokens of a step and store their keys and values. Returns the work in the order in which it ran, which is
        the cheapest, and the hidden states that its jobs ask for, in that order [M, hidden]."""
        self._copy([pair for _, _, copies in work for pair in copies])
        if not self.dense:
            return work, self._piece(*pieces(work, sum(w.new for w in work)))
        if decodes(work):
            work = [work[i] for i in self.dense.arrange([sequence.table for sequence, _, _ in work])]
            tables = [sequence.table for sequence, _, _ in work]
            if self.dense.hold(tables):
                return work, self._decode([s.tokens[s.table.length] for s, _, _ in work], tables)
        work = sorted(work, key=lambda w: (w.new, w.sequence.table.length), reverse=True)        # like ones into one piece
        return work, torch.cat([self._piece(piece) for piece in pieces(work, PIECE)])

    def _decode(self, tokens: list[int], tables: list[Table]) -> Tensor:
        """One token of every sequence, on a CPU."""
        size = self.page_size
        slots = self._tensor([t.pages[t.length // size] * size + t.length % size for t in tables])
        positions = self._tensor([t.length for t in tables])
        attention = self.dense.attention(positions)

        def attend(layer, q, k, v):
            write_pages(k, v, self.k_pages[layer], self.v_pages[layer], slots)
            return attention(layer, q, k, v)

        hidden = self._model(self._tensor(tokens), positions, attend)
        self.dense.advance()
        return hidden

    def _piece(self, piece: list[Chunk]) -> Tensor:
        """Some tokens of some sequences. Where they go is worked out in numpy, in which many small steps cost less."""
        size = self.page_size
        tokens: list[int] = []
        for sequence, start, count, _ in piece:
            if sequence.table.changed < len(sequence.table.pages):
                self._note(sequence.table)
            tokens += sequence.tokens[start:start + count]
        starts, counts, asked = numpy.array([chunk[1:] for chunk in piece]).T                   # [S] each
        lengths, cu_counts = starts + counts, bounds(counts)
        owner = numpy.repeat(numpy.arange(len(piece)), counts)                                  # [N]   whose token
        positions = numpy.arange(len(tokens)) + (starts - cu_counts[:-1])[owner]                # [N]
        blocks = self._blocks[[c.sequence.table.row for c in piece], :-(-lengths.max() // size)]                # [S, pages]
        slots = self._tensor(blocks[owner, positions // size].astype(numpy.int64) * size + positions % size)
        block_table, device_lengths = torch.from_numpy(blocks).to(self.device), self._tensor(lengths)
        plan = paged_plan(self.heads, self.k_pages[0], block_table, device_lengths, self._tensor(cu_counts))
        rows, last_plan = None, plan
        if (asked != counts).any():                                    # in the last layer, only some of the tokens are queries
            rows = self._tensor(numpy.flatnonzero(positions >= (lengths - asked)[owner]))
            last_plan = paged_plan(self.heads, self.k_pages[0], block_table, device_lengths, self._tensor(bounds(asked)))

        def attend(layer, q, k, v):
            k_pages, v_pages = self.k_pages[layer], self.v_pages[layer]
            write_pages(k, v, k_pages, v_pages, slots)
            own = plan if len(q) == len(k) else last_plan
            return paged_attention(q, k_pages, v_pages, block_table, device_lengths, plan=own) if len(q) else q

        return self._model(self._tensor(numpy.array(tokens)), self._tensor(positions), attend, rows)

    def _model(self, tokens: Tensor, positions: Tensor, attend, rows: Tensor | None = None) -> Tensor:
        if not self._fusible:
            return self.model.paged(tokens, positions, attend, rows)
        self._fused = self._fused or FusedDecoder(self.model)
        return self._fused(tokens, positions, attend, rows)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [B, hidden] -> [B, V] in float32, added up as the trainer does it."""
        weight = self.model.head_weight
        out = torch.empty((len(hidden), len(weight)), dtype=accumulator(hidden), device=self.device)
        matmul(multiplicand(hidden), multiplicand(weight).T, out)
        return out

    def logprobs(self, hidden: Tensor, targets, temperature: float) -> list[float]:
        """Log-prob of one target behind each hidden state [M, hidden]."""
        return token_logprobs(hidden, self.model.head_weight, self._tensor(targets), temperature).tolist()

    def forget(self) -> None:
        """The weights have changed: no copy of old ones may stay, nor of old keys and values."""
        self._fused = None
        if self.dense:
            self.dense.forget()

    def nothing_written(self) -> Tensor:
        """For presence penalties: no id is written yet. [V]"""
        return torch.zeros(len(self.model.head_weight), device=self.device)

    def _copy(self, copies: list[tuple[int, int]]) -> None:
        if copies:
            source, target = self._tensor([a for a, _ in copies]), self._tensor([b for _, b in copies])
            for pages in (self.k_pages, self.v_pages):
                pages[:, target] = pages[:, source]                    # everything is read before anything is written

    def _note(self, table: Table) -> None:
        """Bring a table's row of the matrix up to date."""
        rows, width = self._blocks.shape
        if table.row >= rows or len(table.pages) > width:
            bigger = numpy.zeros((max(rows, 2 * table.row + 1), max(width, 2 * len(table.pages))), dtype=numpy.int32)
            bigger[:rows, :width] = self._blocks
            self._blocks = bigger
        self._blocks[table.row, table.changed:len(table.pages)] = table.pages[table.changed:]
        table.changed = len(table.pages)

    def _tensor(self, values) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)
