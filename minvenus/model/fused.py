"""The decoder of qwen3.py in fewer and larger calls, for small models on a CPU, where calls and copies cost more than arithmetic.

qwen3.py is the definition; this gives the same hidden states up to rounding, and a test compares the two. What is different:

    one product gives q, k and v, one gives gate and up; the outputs of attention and of the MLP are added to x in place
    norm(x) = x / hypot(|x|, sqrt(n eps)) * sqrt(n) weight                 n channels; sqrt(n) weight goes into the next matrix
    rope is one complex product: channels i and i + D/2 of q and k are moved next to each other and are one complex number. Sums
    over channels such as q . k do not notice. A cache does: whoever stores k must compare it with q of this file only.

The matrices are copies. They are made once, hold until the weights change, and are refused where they would cost much memory:
in a large model the arithmetic costs more than the calls, so nothing would be won.

N tokens, M of them asked for; H query heads, K kv heads, D channels of one, I channels inside the MLP.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from minvenus.model.qwen3 import Qwen3

LARGEST = 2**24      # numbers in the copies: 64 MiB


class Layer(NamedTuple):
    qkv: Tensor          # [hidden, (H + 2 K) D]
    qk_norm: Tensor      # [H + K, D]
    out: Tensor          # [H D, hidden]
    gate_up: Tensor      # [hidden, 2 I]
    down: Tensor         # [I, hidden]


def fusible(model) -> bool:
    """A small Qwen3 in float32 on a CPU; models that only look like one run as they are."""
    return (isinstance(model, Qwen3) and model.head_weight.device.type == "cpu" and model.head_weight.dtype == torch.float32
            and sum(p.numel() for p in model.model.layers.parameters()) <= LARGEST)


class FusedDecoder:
    """tokens [N], positions [N], attend, rows [M] or None -> hidden states [N or M, hidden], as Decoder. Checks nothing."""

    @torch.no_grad()
    def __init__(self, model):
        config, core = model.config, model.model
        self.heads, self.kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.embedding, self.eps = core.embed_tokens.weight, config.rms_norm_eps
        self.least_hidden, self.least_heads = (torch.tensor(n * self.eps).sqrt() for n in (config.hidden_size, self.head_dim))
        self.norm = core.norm.weight * config.hidden_size**0.5
        self.layers = [self._fuse(layer) for layer in core.layers]
        exponents = torch.arange(0, self.head_dim, 2).float() / self.head_dim
        self.frequencies = 1.0 / config.rope_theta**exponents                                    # [D/2]

    def _fuse(self, layer) -> Layer:
        attention, mlp, dim = layer.self_attn, layer.mlp, self.head_dim
        before_attention, before_mlp = (norm.weight * len(norm.weight)**0.5
                                        for norm in (layer.input_layernorm, layer.post_attention_layernorm))
        pairs = torch.arange(dim).view(2, -1).T.flatten()                                        # 0, D/2, 1, D/2 + 1, ...
        q, k = (x.weight.unflatten(0, (-1, dim))[:, pairs].flatten(0, 1) for x in (attention.q_proj, attention.k_proj))
        qkv = torch.cat((q, k, attention.v_proj.weight)) * before_attention
        q_norm, k_norm = (norm.weight[pairs] * dim**0.5 for norm in (attention.q_norm, attention.k_norm))
        qk_norm = torch.cat((q_norm.expand(self.heads, -1), k_norm.expand(self.kv_heads, -1)))
        gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)) * before_mlp
        return Layer(qkv.T.contiguous(), qk_norm, attention.o_proj.weight.T.contiguous(), gate_up.T.contiguous(),
                     mlp.down_proj.weight.T.contiguous())

    def __call__(self, tokens, positions, attend, rows=None):
        angles = positions[:, None, None] * self.frequencies                                     # [N, 1, D/2]
        rotation = torch.polar(torch.ones_like(angles), angles)
        x = self.embedding[tokens]                                                               # [N, hidden]
        for index, layer in enumerate(self.layers):
            normed = self._normalise(x)
            if rows is None or index + 1 < len(self.layers):
                q, k, v = self._project(normed, layer, rotation)
            else:
                q, k, v = self._project_some(normed, layer, rotation, rows)
                x = x[rows]
            x.addmm_(attend(index, q, k, v).flatten(1), layer.out)
            gate, up = torch.mm(self._normalise(x), layer.gate_up).chunk(2, dim=1)               # [M, I] each
            x.addmm_(F.silu(gate, inplace=True).mul_(up), layer.down)
        return self._normalise(x).mul_(self.norm)

    def _project(self, x, layer, rotation):
        """x [N, hidden], normalised -> q [N, H, D], k and v [N, K, D]"""
        qkv = torch.mm(x, layer.qkv).view(len(x), -1, self.head_dim)                             # [N, H + 2 K, D]
        qk, v = qkv.split((self.heads + self.kv_heads, self.kv_heads), dim=1)
        q, k = self._turn(qk, layer.qk_norm, rotation).split((self.heads, self.kv_heads), dim=1)
        return q, k, v

    def _project_some(self, x, layer, rotation, rows):
        """The same with q of some rows only [M, H, D]."""
        width = self.heads * self.head_dim
        q = torch.mm(x[rows], layer.qkv[:, :width]).view(len(rows), self.heads, self.head_dim)
        kv = torch.mm(x, layer.qkv[:, width:]).view(len(x), -1, self.head_dim)
        k, v = kv.chunk(2, dim=1)
        return (self._turn(q, layer.qk_norm[:self.heads], rotation[rows]),
                self._turn(k, layer.qk_norm[self.heads:], rotation), v)

    def _turn(self, x, weight, rotation):
        """Norm and rope of heads: x [N, heads, D], pairs of channels side by side."""
        x = self._normalise(x).mul_(weight)
        torch.view_as_complex(x.view(*x.shape[:2], self.head_dim // 2, 2)).mul_(rotation)
        return x

    def _normalise(self, x):
        """x / sqrt(sum x^2 + n eps): of length 1, where the definition gives sqrt(n)."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / length.hypot_(self.least_heads if x.dim() == 3 else self.least_hidden)
