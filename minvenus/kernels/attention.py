"""Causal grouped-query attention over packed sequences.

    out[i] = sum_j softmax_j(scale * q[i] . k[j]) v[j]     over j <= i of the same sequence;
    query head h reads kv head h // (H / K).

Shapes: N tokens of all sequences together, H query heads, K kv heads, D channels, S sequences.
`cu_seqlens` holds S + 1 cumulative lengths: sequence s is tokens cu_seqlens[s]:cu_seqlens[s + 1].
"""

from itertools import pairwise

import torch
import torch.nn.functional as F


def attention_reference(q, k, v, cu_seqlens, scale=None):
    """The definition, one query at a time in float32: slow and obvious. q [N, H, D], k and v [N, K, D] -> [N, H, D]."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[1] // k.shape[1]
    bounds = cu_seqlens.tolist()
    rows = []
    for start, end in pairwise(bounds):
        for i in range(start, end):
            keys = k[start:i + 1].repeat_interleave(group, dim=1).float()        # [i + 1 - start, H, D]
            values = v[start:i + 1].repeat_interleave(group, dim=1).float()
            scores = torch.einsum("hd,jhd->hj", q[i].float(), keys) * scale
            rows.append(torch.einsum("hj,jhd->hd", scores.softmax(dim=-1), values).to(q.dtype))
    return torch.stack(rows) if rows else torch.empty_like(q)


def attention_torch(q, k, v, cu_seqlens, scale=None):
    """One fused call per sequence: no padding and no mask, so no work on pairs that do not count."""
    out = []
    bounds = cu_seqlens.tolist()
    for start, end in pairwise(bounds):
        qs, ks, vs = (x[start:end].transpose(0, 1)[None] for x in (q, k, v))     # [1, heads, L, D]
        o = F.scaled_dot_product_attention(qs, ks, vs, is_causal=True, scale=scale, enable_gqa=True)
        out.append(o[0].transpose(0, 1))
    return torch.cat(out) if out else torch.empty_like(q)


def attention(q, k, v, cu_seqlens, scale=None):
    """q [N, H, D], k and v [N, K, D], cu_seqlens [S + 1] -> [N, H, D]."""
    return attention_torch(q, k, v, cu_seqlens, scale)
