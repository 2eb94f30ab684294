"""What makes decoding on a CPU fast: a copy of keys and values, and a copy of the matrices.

Keys and values of the decoding sequences lie side by side in DecodeCache. Attention over pages has
to gather them first, which reads and writes the whole context once more for every token. The pages
stay complete: they are written as well, and whatever is missing here is read from them. So
sequences may come, go, be preempted or prefilled in between without telling this cache.

Matrices that read the same input are merged into one in MergedModel. A small model spends more time
on starting calls than on arithmetic. A large one spends it on reading matrices: they are packed in
the layout of oneDNN (kernels/linear.py).

benchmarks/bench_engine.py measures what each gains.

S sequences, N tokens of a step, H query heads, K kv heads, G query heads of one, D channels,
L tokens of the longest sequence, C room for tokens in a row.
"""

import os
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from minvenus.engine.pages import BlockTable
from minvenus.engine.scheduler import Work
from minvenus.kernels.linear import FEW_ROWS, onednn_product
from minvenus.model.qwen3 import Qwen3, frequencies, rotate, rotation

SMALL = 2**20              # numbers in a model whose operations are too short to be divided
LARGEST_COPY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 3    # of the memory


# ---------------------------------------------------------------------------------- keys and values


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

    def attend(self, positions: Tensor):
        """attend(layer, q [S, H, D], k and v [S, K, D]) -> [S, H, D] for the tables held, whose new
        tokens are at `positions` [S]."""
        count = len(self.tables)
        longest = max(self.lengths)
        keys = self.k[:, :count, :, :longest].unbind()                   # of a layer: [S, K, L, D]
        values = self.v[:, :count, :, :longest].unbind()
        bias = None
        if min(self.lengths) < longest:
            unseen = torch.arange(longest) > positions[:, None]                      # [S, L]
            bias = torch.zeros_like(unseen, dtype=self.k.dtype)
            bias.masked_fill_(unseen, -torch.inf)
            bias = bias[:, None, None]
            rows = torch.arange(count)

        def write(x: Tensor, cache: Tensor) -> None:
            if bias is None:
                cache[:, :, -1] = x                      # the same place in all rows
            else:
                cache[rows, :, positions] = x

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            write(k, keys[layer])
            write(v, values[layer])
            scale = q.shape[-1] ** -0.5
            queries = (q * scale).unflatten(1, (k.shape[1], -1))                     # [S, K, G, D]
            scores = queries @ keys[layer].transpose(2, 3)                           # [S, K, G, L]
            if bias is not None:
                scores += bias
            weights = scores.softmax(dim=-1)
            return (weights @ values[layer]).flatten(1, 2)

        return attend


# ----------------------------------------------------------------------------------------- matrices


def is_small(model) -> bool:
    return sum(parameter.numel() for parameter in model.parameters()) <= SMALL


class Matrix:
    """A matrix [out, in] as it is multiplied: in the layout that oneDNN finds best for several
    rows, and if the model is small also transposed, for steps of few rows."""

    def __init__(self, weight: Tensor, small: bool):
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, FEW_ROWS)
        self.transposed = weight.T.contiguous() if small else None

    def product(self, x: Tensor) -> Tensor:
        """x [N, in] -> [N, out]"""
        if self.transposed is None or len(x) >= FEW_ROWS:
            return onednn_product(x, self.packed)
        return torch.mm(x, self.transposed)

    def add_product(self, total: Tensor, x: Tensor) -> None:
        """The same, added to total [N, out]."""
        if self.transposed is None or len(x) >= FEW_ROWS:
            total += onednn_product(x, self.packed)
        else:
            total.addmm_(x, self.transposed)


class MergedLayer(NamedTuple):
    qkv: Matrix          # hidden -> (H + 2 K) D, times the weight of the norm before it
    qkv_bias: Tensor | None      # [(H + 2 K) D], in Qwen2
    qk_norm: Tensor | None       # [H + K, D], in Qwen3
    out: Matrix          # H D -> hidden
    gate_up: Matrix      # hidden -> 2 * intermediate, times the weight of the norm before it
    down: Matrix         # intermediate -> hidden


class MergedModel:
    """A copy of a Qwen3 with the same `model` and `logits`, up to rounding, until the weights
    change.

        norm(x) = x / hypot(|x|, sqrt(n eps)) * sqrt(n) weight      n channels; sqrt(n) weight is in
                                                                    the next matrix
    """

    @staticmethod
    def fits(model) -> bool:
        """A Qwen3 in float32 on a CPU, and memory for the copy."""
        if not isinstance(model, Qwen3) or not torch.backends.mkldnn.is_available():
            return False
        weight = model.head_weight
        if weight.dtype != torch.float32 or weight.device.type != "cpu":
            return False
        return sum(parameter.nbytes for parameter in model.parameters()) <= LARGEST_COPY

    @torch.no_grad()
    def __init__(self, model: Qwen3):
        self.config = config = model.config
        self.embedding = model.model.embed_tokens.weight
        self.small = is_small(model)
        self.norm = scaled_weight(model.model.norm)
        self.layers = [self._merge(layer) for layer in model.model.layers]
        self.head = Matrix(model.head_weight, self.small)
        self.frequencies = frequencies(config.head_dim, config.rope_theta)
        self.least = {}                          # sqrt(n eps), by the number of channels
        for n in (config.hidden_size, config.head_dim):
            self.least[n] = torch.tensor(n * config.rms_norm_eps).sqrt()

    def _merge(self, layer) -> MergedLayer:
        attention, mlp, config = layer.self_attn, layer.mlp, self.config
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        qkv = torch.cat([projection.weight for projection in projections])
        qkv_bias = qk_norm = None
        if config.qkv_bias:
            qkv_bias = torch.cat([projection.bias for projection in projections])
        if config.qk_norm:
            q_norm = scaled_weight(attention.q_norm).expand(config.num_attention_heads, -1)
            k_norm = scaled_weight(attention.k_norm).expand(config.num_key_value_heads, -1)
            qk_norm = torch.cat((q_norm, k_norm))
        gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))
        return MergedLayer(
            qkv=Matrix(qkv * scaled_weight(layer.input_layernorm), self.small),
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            out=Matrix(attention.o_proj.weight, self.small),
            gate_up=Matrix(gate_up * scaled_weight(layer.post_attention_layernorm), self.small),
            down=Matrix(mlp.down_proj.weight, self.small),
        )

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head.product(hidden)

    def model(self, tokens: Tensor, positions: Tensor, attend,
              rows: Tensor | None = None) -> Tensor:
        """Hidden states of tokens [N] -> [N, hidden], or of `rows` of them."""
        config = self.config
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        cos, sin = rotation(positions, self.frequencies)
        x = self.embedding[tokens]                                                   # [N, hidden]
        for index, layer in enumerate(self.layers):
            qkv = layer.qkv.product(self._normalise(x))
            if layer.qkv_bias is not None:
                qkv += layer.qkv_bias
            qkv = qkv.unflatten(1, (-1, config.head_dim))                    # [N, H + 2 K, D]
            qk, v = qkv.split((heads + kv_heads, kv_heads), dim=1)
            if layer.qk_norm is not None:
                qk = self._normalise(qk).mul_(layer.qk_norm)
            q, k = rotate(qk, cos, sin).split((heads, kv_heads), dim=1)
            if rows is not None and index + 1 == len(self.layers):
                q = q[rows]
                x = x[rows]
            mixed = attend(index, q, k, v).flatten(1)
            layer.out.add_product(x, mixed)

            gate_up = layer.gate_up.product(self._normalise(x))
            gate, up = gate_up.chunk(2, dim=1)
            activated = F.silu(gate, inplace=True).mul_(up)
            layer.down.add_product(x, activated)
        return self._normalise(x).mul_(self.norm)

    def _normalise(self, x: Tensor) -> Tensor:
        """To length 1, in fewer calls than F.rms_norm."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / length.hypot_(self.least[x.shape[-1]])


def scaled_weight(norm) -> Tensor:
    return norm.weight * len(norm.weight) ** 0.5
