"""What makes the model fast on a CPU: its matrices, those that read the same input merged into one.

A small model spends more time on starting calls than on arithmetic. A large one spends it on
reading matrices: they are packed in the layout of oneDNN (kernels/linear.py).
benchmarks/bench_engine.py measures what it gains.

N tokens of a step, H query heads, K kv heads, D channels of one.
"""

import os
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from minvenus.kernels.linear import FEW_ROWS, onednn_product
from minvenus.model.qwen3 import Qwen3, frequencies, rotate, rotation

SMALL = 2**20              # numbers in a model whose operations are too short to be divided
LARGEST_COPY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 3    # of the memory



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
