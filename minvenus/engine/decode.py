"""What makes a CPU fast: two copies. benchmarks/bench_engine.py measures what each of them gains.

    DecodeCache   the keys and values of the decoding sequences side by side. Attention over pages has to gather them
                  first, which reads and writes the whole context once more for every token. The pages
                  stay complete: they are written as well, and whatever is missing here is read from them. So
                  sequences may come, go, be preempted or prefilled in between without telling this cache.
    MergedModel   the matrices, those that read the same input merged into one. A small model spends more time on
                  starting calls than on arithmetic. A large one spends it on reading matrices: they are packed in the
                  layouts of oneDNN, one for a single row and one for several (0.6B shape, one thread: a row takes 0.65
                  of the time in its own layout, eight rows 0.7 in theirs).

S sequences, K kv heads, G query heads of one, D channels, L tokens of the longest sequence, C room for tokens in a row.
"""

import ctypes
import math
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor

from minvenus.engine.pages import BlockTable
from minvenus.engine.scheduler import Work
from minvenus.model.qwen3 import Qwen3, frequencies, rotate, rotation

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3              # of mallopt
LARGEST_PLAIN = 2**24      # numbers in a small model's matrices: 64 MiB
LARGEST_COPY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 3          # bytes: a third of the memory


class DecodeCache:
    """Row r holds the first lengths[r] tokens of tables[r]. The slots after them are finite (old or zero) and
    masked."""

    def __init__(self, k_pages: Tensor, v_pages: Tensor):
        layers, pages, self.page_size, heads, channels = k_pages.shape
        self.k_pages, self.v_pages, self.most_tokens = k_pages, v_pages, pages * self.page_size
        self.k = self.v = k_pages.new_zeros((layers, 0, heads, 0, channels))             # [layers, rows, K, C, D]
        self.tables: list[BlockTable] = []
        self.lengths: list[int] = []

    def arrange(self, work: list[Work]) -> list[Work]:
        """The work in an order in which sequences keep their rows, as far as possible."""
        by_table = {item.sequence.block_table: item for item in work}
        kept = [by_table.pop(table, None) for table in self.tables[:len(work)]]
        others = iter(by_table.values())
        return [item or next(others) for item in kept] + list(others)

    def hold(self, tables: list[BlockTable]) -> bool:
        """Read what is missing from the pages, with room for one more token in each row. False where padding or
        shared pages would make this copy too large."""
        lengths = [table.num_computed for table in tables]
        longest = max(lengths) + 1
        if len(tables) * longest > min(2 * sum(lengths) + 4096, self.most_tokens):
            return False
        layers, rows, heads, room, channels = self.v.shape
        if len(tables) > rows or longest > room:             # larger and empty: all is read from the pages again
            rows, room = max(rows, len(tables)), max(room, longest + longest // 2 + 64)
            if rows * room > self.most_tokens:               # never more than the pages
                rows, room = len(tables), min(longest + longest // 2 + 64, self.most_tokens // len(tables))
            self.k, self.v = (self.v.new_zeros((layers, rows, heads, room, channels)) for _ in range(2))
            self.tables = []
        for row, table in enumerate(tables):
            kept = row < len(self.tables) and self.tables[row] is table
            held = self.lengths[row] if kept else 0
            if held < table.num_computed:
                self._fetch(row, table, held)
        self.tables, self.lengths = tables, [length + 1 for length in lengths]           # with the token that runs now
        return True

    def attend(self, positions: Tensor):
        """For the tables held: attend(layer, q [S, H, D], k and v [S, K, D] of the new tokens at `positions`) -> [S,
        H, D]."""
        count, longest, heads = len(self.tables), max(self.lengths), self.v.shape[2]
        rows: slice | Tensor = slice(count)
        place: int | Tensor = longest - 1                                                # the same in all rows
        bias = None
        if min(self.lengths) < longest:
            rows, place = torch.arange(count), positions
            unseen = torch.arange(longest) > positions[:, None]                          # [S, L]
            bias = torch.zeros_like(unseen, dtype=self.k.dtype).masked_fill_(unseen, -torch.inf)[:, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.k[layer][rows, :, place] = k
            self.v[layer][rows, :, place] = v
            grouped = (q * q.shape[-1] ** -0.5).unflatten(1, (heads, -1))  # [S, K, G, D]: G queries of one kv head
            scores = scores_of(grouped, self.k[layer, :count, :, :longest])              # [S, K, G, L]
            if bias is not None:
                scores += bias
            return mixed(scores.softmax(dim=-1), self.v[layer, :count, :, :longest]).flatten(1, 2)

        return attend

    def _fetch(self, row: int, table: BlockTable, start: int) -> None:
        """Copy the tokens from `start` on from their pages."""
        first, end = start // self.page_size, table.num_computed
        pages = torch.tensor(table.pages[first:-(-end // self.page_size)])
        span = slice(start - first * self.page_size, end - first * self.page_size)
        k, v = (x.index_select(1, pages).flatten(1, 2)[:, span] for x in (self.k_pages, self.v_pages))
        self.k[:, row, :, start:end] = k.transpose(1, 2)                                 # from [layers, n, K, D]
        self.v[:, row, :, start:end] = v.transpose(1, 2)


# With one thread numpy is faster: torch packs each matrix first, numpy multiplies vector by vector while the matrix is
# in the CPU's cache.


def scores_of(queries: Tensor, keys: Tensor) -> Tensor:
    """[S, K, G, D] and [S, K, L, D] -> [S, K, G, L]: each query times each key."""
    if torch.get_num_threads() > 1:
        return torch.matmul(keys, queries.transpose(2, 3)).transpose(2, 3)
    out = queries.new_empty(*queries.shape[:-1], keys.shape[2])
    numpy.matmul(keys[:, :, None].numpy(), queries[..., None].numpy(), out=out[..., None].numpy())
    return out


def mixed(weights: Tensor, values: Tensor) -> Tensor:
    """[S, K, G, L] and [S, K, L, D] -> [S, K, G, D]: sums of values."""
    if torch.get_num_threads() > 1:
        return torch.matmul(weights, values)
    out = weights.new_empty(*weights.shape[:-1], values.shape[3])
    numpy.matmul(weights[..., None, :].numpy(), values[:, :, None].numpy(), out=out[..., None, :].numpy())
    return out


class MergedLayer(NamedTuple):
    qkv: Tensor          # hidden -> (H + 2 K) D, times the weight of the norm before it
    qk_norm: Tensor      # [H + K, D]
    out: Tensor          # H D -> hidden
    gate_up: Tensor      # hidden -> 2 * intermediate, times the weight of the norm before it
    down: Tensor         # intermediate -> hidden


class MergedModel:
    """A copy of a Qwen3 with the same `model` and `logits`, up to rounding, until the weights change. It is fast for
    steps of up to `best_rows` sequences, and right for any.

        norm(x) = x / hypot(|x|, sqrt(n eps)) * sqrt(n) weight          n channels; sqrt(n) weight is in the next matrix
    """

    @staticmethod
    def fits(model) -> bool:
        """A Qwen3 in float32 on a CPU, and memory for the copy."""
        if not isinstance(model, Qwen3) or model.head_weight.dtype != torch.float32:
            return False
        return model.head_weight.device.type == "cpu" and sum(p.nbytes for p in model.parameters()) <= LARGEST_COPY

    @torch.no_grad()
    def __init__(self, model: Qwen3, sequences: int):
        self.config, self.embedding = model.config, model.model.embed_tokens.weight
        large = sum(p.numel() for p in model.parameters()) > LARGEST_PLAIN and torch.backends.mkldnn.is_available()
        if large:
            keep_freed_memory()
        self.best_rows = 1 if large and sequences == 1 else math.inf
        self._product: Callable[[Tensor, Tensor], Tensor] = packed_product if large else torch.mm
        self._add_product = add_packed_product if large else Tensor.addmm_
        self._copied = partial(packed, rows=1 if sequences == 1 else 8) if large else transposed
        self.norm = scaled_weight(model.model.norm)
        self.layers = [self._merge(layer) for layer in model.model.layers]
        self.head = self._copied(model.head_weight)
        self.frequencies = frequencies(model.config.head_dim, model.config.rope_theta)
        sizes = model.config.hidden_size, model.config.head_dim
        self.least = {n: torch.tensor(n * model.config.rms_norm_eps).sqrt() for n in sizes}

    def _merge(self, layer) -> MergedLayer:
        attention, mlp, config = layer.self_attn, layer.mlp, self.config
        qkv = torch.cat([x.weight for x in (attention.q_proj, attention.k_proj, attention.v_proj)])
        qk_norm = torch.cat((scaled_weight(attention.q_norm).expand(config.num_attention_heads, -1),
                             scaled_weight(attention.k_norm).expand(config.num_key_value_heads, -1)))
        gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))
        return MergedLayer(
            qkv=self._copied(qkv * scaled_weight(layer.input_layernorm)),
            qk_norm=qk_norm,
            out=self._copied(attention.o_proj.weight),
            gate_up=self._copied(gate_up * scaled_weight(layer.post_attention_layernorm)),
            down=self._copied(mlp.down_proj.weight))

    def logits(self, hidden: Tensor) -> Tensor:
        return self._product(hidden, self.head)

    def model(self, tokens: Tensor, positions: Tensor, attend, rows: Tensor | None = None) -> Tensor:
        config, product, add_product = self.config, self._product, self._add_product
        heads, kv_heads, channels = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        cos, sin = rotation(positions, self.frequencies)
        x = self.embedding[tokens]                                                       # [N, hidden]
        for index, layer in enumerate(self.layers):
            qkv = product(self._normalise(x), layer.qkv).unflatten(1, (-1, channels))    # [N, H + 2 K, D]
            qk, v = qkv.split((heads + kv_heads, kv_heads), dim=1)
            q, k = rotate(self._normalise(qk).mul_(layer.qk_norm), cos, sin).split((heads, kv_heads), dim=1)
            if rows is not None and index + 1 == len(self.layers):
                q, x = q[rows], x[rows]
            add_product(x, attend(index, q, k, v).flatten(1), layer.out)
            gate, up = product(self._normalise(x), layer.gate_up).chunk(2, dim=1)        # [M, intermediate] each
            add_product(x, F.silu(gate, inplace=True).mul_(up), layer.down)
        return self._normalise(x).mul_(self.norm)

    def _normalise(self, x: Tensor) -> Tensor:
        """To length 1, in fewer calls than F.rms_norm."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / length.hypot_(self.least[x.shape[-1]])


def keep_freed_memory() -> None:
    """Else glibc gives large tensors back to the system when they are freed, and every page of the next one costs a
    fault: 3 to 5 % of a prefill of the 0.6B shape. Up to 512 MiB are kept."""
    with suppress(OSError, AttributeError):                  # another C library
        for name in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(name, 2**29)


def scaled_weight(norm) -> Tensor:
    return norm.weight * len(norm.weight) ** 0.5


def transposed(weight: Tensor) -> Tensor:
    return weight.T.contiguous()


def packed(weight: Tensor, rows: int) -> Tensor:
    """In the layout that oneDNN finds best for a product with so many rows."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows)


def packed_product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def add_packed_product(total: Tensor, x: Tensor, weight: Tensor) -> None:
    total += packed_product(x, weight)
