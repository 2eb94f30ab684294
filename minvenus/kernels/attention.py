"""Causal grouped-query attention over packed sequences.

    out[i] = sum_j softmax_j(q[i] . k[j] / sqrt(D)) v[j]     over j <= i of the same sequence;
    query head h reads kv head h // (H / K).

Shapes: N tokens of all sequences together, H query heads, K kv heads, D channels, S sequences.
`cu_seqlens` holds S + 1 cumulative lengths: sequence s is tokens cu_seqlens[s]:cu_seqlens[s + 1].
"""

from itertools import pairwise

import torch
import torch.nn.functional as F

# Devices that run Triton kernels, here and in paged.py. Tests add "cpu", for Triton's interpreter.
TRITON_DEVICES = {"cuda"}


def uses_triton(device) -> bool:
    return device.type in TRITON_DEVICES


def attention_reference(q, k, v, cu_seqlens):
    """The definition, one query at a time in float32.

    q [N, H, D], k and v [N, K, D] -> [N, H, D].
    """
    scale = q.shape[-1] ** -0.5
    group = q.shape[1] // k.shape[1]
    rows = []
    for start, end in pairwise(cu_seqlens.tolist()):
        for i in range(start, end):
            seen = slice(start, i + 1)
            keys = k[seen].float().repeat_interleave(group, dim=1)             # [seen, H, D]
            values = v[seen].float().repeat_interleave(group, dim=1)
            scores = torch.einsum("hd,jhd->hj", q[i].float(), keys) * scale
            weights = scores.softmax(dim=-1)
            row = torch.einsum("hj,jhd->hd", weights, values)
            rows.append(row.to(q.dtype))
    return torch.stack(rows)


def attention_torch(q, k, v, cu_seqlens):
    """One fused call per sequence: no padding and no mask, so no work on masked pairs."""
    lengths = cu_seqlens.diff().tolist()
    # split, not slices: the backward pass of a slice fills a whole [N, ...] tensor per sequence
    parts = [x.split(lengths) for x in (q, k, v)]
    outputs = []
    for qkv in zip(*parts, strict=True):
        qs, ks, vs = (x.transpose(0, 1)[None] for x in qkv)                    # [1, heads, L, D]
        out = F.scaled_dot_product_attention(qs, ks, vs, is_causal=True, enable_gqa=True)
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


def attention_triton(q, k, v, cu_seqlens, max_seqlen=None):
    """The kernels of attention_triton.py.

    Without `max_seqlen` the host waits for the device to read cu_seqlens.
    """
    if not 16 <= q.shape[2] <= 128:
        raise ValueError(f"the Triton kernels take a head_dim from 16 to 128, got {q.shape[2]}")
    if max_seqlen is None:
        max_seqlen = int(cu_seqlens.diff().max())
    # imported here: triton does not exist everywhere
    from minvenus.kernels.attention_triton import PackedAttention

    return PackedAttention.apply(q, k, v, cu_seqlens, max_seqlen)


def attention(q, k, v, cu_seqlens, max_seqlen=None):
    """q [N, H, D], k and v [N, K, D], cu_seqlens [S + 1] -> [N, H, D].

    Triton on a GPU, plain torch elsewhere. `max_seqlen` is the length of the longest sequence, or
    more; with it a GPU need not be asked for cu_seqlens.
    """
    check_attention(q, k, v, cu_seqlens)
    if uses_triton(q.device):
        return attention_triton(q, k, v, cu_seqlens, max_seqlen)
    return attention_torch(q, k, v, cu_seqlens)


def check_attention(q, k, v, cu_seqlens):
    """Shapes only: values would have to be fetched from the device."""
    tokens, heads, channels = q.shape
    kv_heads = k.shape[1]
    k_fits = k.shape == (tokens, kv_heads, channels) and heads % kv_heads == 0
    if not k_fits or v.shape != k.shape or cu_seqlens.dim() != 1:
        inputs = q, k, v, cu_seqlens
        raise ValueError("need q [N, H, D], k and v [N, K, D] with H a multiple of K, "
                         f"cu_seqlens [S + 1]; got {[list(x.shape) for x in inputs]}")
