"""What makes the model fast on a CPU: its matrices, those that read the same input merged into one.

A small model spends more time on starting calls than on arithmetic. A large one spends it on
reading matrices: they are packed in the layouts of oneDNN, one for a single row and one for several
(0.6B shape, one thread: a row takes 0.65 of the time in its own layout, eight rows 0.7 in theirs).
benchmarks/bench_engine.py measures what it gains.

N tokens of a step, H query heads, K kv heads, D channels of one.
"""

import math
import os
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from minvenus.model.qwen3 import Qwen3, frequencies, rotate, rotation

LARGEST_PLAIN = 2**24      # numbers in a small model's matrices: 64 MiB
LARGEST_COPY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 3    # of the memory


class MergedLayer(NamedTuple):
    qkv: Tensor          # hidden -> (H + 2 K) D, times the weight of the norm before it
    qkv_bias: Tensor | None      # [(H + 2 K) D], in Qwen2
    qk_norm: Tensor | None       # [H + K, D], in Qwen3
    out: Tensor          # H D -> hidden
    gate_up: Tensor      # hidden -> 2 * intermediate, times the weight of the norm before it
    down: Tensor         # intermediate -> hidden


class MergedModel:
    """A copy of a Qwen3 with the same `model` and `logits`, up to rounding, until the weights
    change. It is fast for steps of up to `best_rows` sequences, and right for any.

        norm(x) = x / hypot(|x|, sqrt(n eps)) * sqrt(n) weight      n channels; sqrt(n) weight is in
                                                                    the next matrix
    """

    @staticmethod
    def fits(model) -> bool:
        """A Qwen3 in float32 on a CPU, and memory for the copy."""
        if not isinstance(model, Qwen3):
            return False
        weight = model.head_weight
        if weight.dtype != torch.float32 or weight.device.type != "cpu":
            return False
        return sum(parameter.nbytes for parameter in model.parameters()) <= LARGEST_COPY

    @torch.no_grad()
    def __init__(self, model: Qwen3, sequences: int):
        self.config = config = model.config
        self.embedding = model.model.embed_tokens.weight
        numbers = sum(parameter.numel() for parameter in model.parameters())
        if numbers > LARGEST_PLAIN and torch.backends.mkldnn.is_available():
            self.matrices = PACKED_FOR_ONE if sequences == 1 else PACKED
            self.best_rows = 1 if sequences == 1 else math.inf
        else:
            self.matrices = PLAIN
            self.best_rows = math.inf

        self.norm = scaled_weight(model.model.norm)
        self.layers = [self._merge(layer) for layer in model.model.layers]
        self.head = self.matrices.store(model.head_weight)
        self.frequencies = frequencies(config.head_dim, config.rope_theta)
        self.least = {}                          # sqrt(n eps), by the number of channels
        for n in (config.hidden_size, config.head_dim):
            self.least[n] = torch.tensor(n * config.rms_norm_eps).sqrt()

    def _merge(self, layer) -> MergedLayer:
        attention, mlp, config = layer.self_attn, layer.mlp, self.config
        store = self.matrices.store
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
            qkv=store(qkv * scaled_weight(layer.input_layernorm)),
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            out=store(attention.o_proj.weight),
            gate_up=store(gate_up * scaled_weight(layer.post_attention_layernorm)),
            down=store(mlp.down_proj.weight),
        )

    def logits(self, hidden: Tensor) -> Tensor:
        return self.matrices.product(hidden, self.head)

    def model(self, tokens: Tensor, positions: Tensor, attend,
              rows: Tensor | None = None) -> Tensor:
        """Hidden states of tokens [N] -> [N, hidden], or of `rows` of them."""
        config = self.config
        _, product, add_product = self.matrices
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        cos, sin = rotation(positions, self.frequencies)
        x = self.embedding[tokens]                                                   # [N, hidden]
        for index, layer in enumerate(self.layers):
            qkv = product(self._normalise(x), layer.qkv)
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
            add_product(x, mixed, layer.out)

            gate_up = product(self._normalise(x), layer.gate_up)
            gate, up = gate_up.chunk(2, dim=1)
            activated = F.silu(gate, inplace=True).mul_(up)
            add_product(x, activated, layer.down)
        return self._normalise(x).mul_(self.norm)

    def _normalise(self, x: Tensor) -> Tensor:
        """To length 1, in fewer calls than F.rms_norm."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / length.hypot_(self.least[x.shape[-1]])


def scaled_weight(norm) -> Tensor:
    return norm.weight * len(norm.weight) ** 0.5


# ------------------------------------------------------------------------ layouts of the matrices


class Matrices(NamedTuple):
    """How a model's matrices are stored, and multiplied."""

    store: Callable[[Tensor], Tensor]                    # weight [out, in] -> as it is multiplied
    product: Callable[[Tensor, Tensor], Tensor]          # x [N, in], stored -> [N, out]
    add_product: Callable[[Tensor, Tensor, Tensor], object]      # the same, added to a total


def transposed(weight: Tensor) -> Tensor:
    return weight.T.contiguous()


def packed_for_one(weight: Tensor) -> Tensor:
    """In the layout that oneDNN finds best for a product with one row."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, 1)


def packed(weight: Tensor) -> Tensor:
    """In the layout that oneDNN finds best for several rows."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, 8)


def packed_product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def add_packed_product(total: Tensor, x: Tensor, weight: Tensor) -> None:
    total += packed_product(x, weight)


PLAIN = Matrices(transposed, torch.mm, Tensor.addmm_)
PACKED = Matrices(packed, packed_product, add_packed_product)
PACKED_FOR_ONE = Matrices(packed_for_one, packed_product, add_packed_product)
