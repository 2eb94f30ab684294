"""Attention of new tokens over keys and values that are stored in pages. Inference only: no gradients.

    A sequence s of length L_s owns the pages block_table[s]: its token j is in slot j % page of page
    block_table[s, j // page]. Its n_s new tokens are its last ones; query i of them is at position p = L_s - n_s + i,
    out[i] = sum_j softmax_j(q[i] . k[j] / sqrt(D)) v[j]     over j <= p;     query head h reads kv head h // (H / K).

n_s = 1 is a decoding step, n_s = L_s a fresh prompt, anything between a chunk after a cached prefix: one signature
for all. The new keys and values are written with `write_pages` before the call. Slots from L_s on may hold anything,
NaN too, and are never read: a weight of 0 times NaN is NaN. Sequences may share pages, and block tables may be longer
than needed.

A page is [page, K, D]: writing a token is one copy, and gathered pages are [L, K, D], the layout that attention reads.

Shapes: N new tokens of all sequences, S sequences, P pages, H query heads, K kv heads, D channels.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F

from minvenus.kernels.attention import uses_triton

MASK_NUMBERS = 2**22      # most numbers in the mask of one call: 16 MiB in float32
GROUP_NUMBERS = 2**19     # most keys that are gathered for several sequences: with the values 4 MiB in float32


def write_pages(k, v, k_pages, v_pages, slots):
    """Store k and v [N, K, D] in pages [P, page, K, D]. slots [N] int64: page * page_size + slot, none twice."""
    k_pages.view(-1, *k_pages.shape[2:]).index_copy_(0, slots, k.to(k_pages.dtype))
    v_pages.view(-1, *v_pages.shape[2:]).index_copy_(0, slots, v.to(v_pages.dtype))


def paged_attention_reference(q, k_pages, v_pages, block_table, lengths, cu_queries):
    """The definition, one query and one slot at a time in float32: slow and obvious."""
    scale, page, group = q.shape[-1] ** -0.5, k_pages.shape[1], q.shape[1] // k_pages.shape[2]
    out = torch.empty_like(q)
    for s, (start, end) in enumerate(pairwise(cu_queries.tolist())):
        for i in range(start, end):
            position = int(lengths[s]) - (end - i)
            slots = [(int(block_table[s, j // page]), j % page) for j in range(position + 1)]
            keys, values = (torch.stack([pages[slot] for slot in slots]).repeat_interleave(group, dim=1).float()
                            for pages in (k_pages, v_pages))                             # [p + 1, H, D]
            weights = (torch.einsum("hd,jhd->hj", q[i].float(), keys) * scale).softmax(dim=-1)
            out[i] = torch.einsum("hj,jhd->hd", weights, values).to(q.dtype)
    return out


@torch.no_grad()
def paged_attention_torch(q, k_pages, v_pages, block_table, lengths, cu_queries):
    """Gather the pages of like sequences into memory that stays in the CPU's cache, then fused attention over exactly
    their keys, so nothing is padded. A long chunk is cut so that its mask stays small."""
    page, kv_heads, channels = k_pages.shape[1:]
    bounds, table, out = cu_queries.tolist(), block_table.long(), torch.empty_like(q)
    page_numbers = page * kv_heads * channels
    runs = list(like_sequences(bounds, lengths.tolist(), page, GROUP_NUMBERS // page_numbers))
    most_pages = max((len(own) * -(-length // page) for own, _, length in runs), default=0)
    memory = k_pages.new_empty(2, most_pages, page_numbers)                              # used again: fresh is slow
    for own, queries, length in runs:
        pages = table[own.start:own.stop, :-(-length // page)].flatten()
        k, v = (torch.index_select(x.flatten(1), 0, pages, out=into[:len(pages)])
                .view(len(own), -1, kv_heads, channels).transpose(1, 2)
                for x, into in ((k_pages, memory[0]), (v_pages, memory[1])))  # [B, K, L rounded up to pages, D]
        q_own, out_own = (x[bounds[own.start]:bounds[own.stop]].unflatten(0, (len(own), queries)) for x in (q, out))
        rows = max(1, MASK_NUMBERS // length)
        for first in range(0, queries, rows):
            last = min(first + rows, queries)
            seen = length - (queries - last)  # keys that the last query sees
            part = q_own[:, first:last].transpose(1, 2)                                  # [B, H, n, D]
            out_own[:, first:last] = attend_last(part, k[:, :, :seen], v[:, :, :seen]).transpose(1, 2)
    return out


def like_sequences(bounds, lengths, page, most_pages):
    """Neighbours with the same number of queries, not 0, and of keys, as long as their pages stay in the CPU's cache:
    (range of sequences, queries, length)."""
    start = 0
    shapes = [(end - begin, length) for (begin, end), length in zip(pairwise(bounds), lengths, strict=True)]
    for s, (queries, length) in enumerate(shapes):
        full = (s + 2 - start) * -(-length // page) > most_pages
        if full or shapes[s + 1:s + 2] != [shapes[s]]:
            if queries:
                yield range(start, s + 1), queries, length
            start = s + 1


def attend_last(q, k, v):
    """Causal attention of the last n of L tokens: q [B, H, n, D], k and v [B, K, L, D] -> [B, H, n, D]."""
    queries, keys = q.shape[2], k.shape[2]
    bias = None                                                                           # one query sees everything
    if 1 < queries < keys:
        bias = q.new_full((queries, keys), float("-inf")).triu_(keys - queries + 1)  # -inf after the query's position
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=queries == keys, enable_gqa=True)


def paged_attention(q, k_pages, v_pages, block_table, lengths, cu_queries, max_queries=None, max_length=None):
    """q [N, H, D], pages [P, page, K, D], block_table [S, M], lengths [S], cu_queries [S + 1] -> [N, H, D].

    Triton on a GPU, plain torch elsewhere (attention.py has the switch). `max_queries` and `max_length`, the largest
    n_s and L_s as plain numbers, save a GPU the wait for `cu_queries` and `lengths`.
    """
    check(q, k_pages, v_pages, block_table, lengths, cu_queries)
    if not uses_triton(q.device):
        return paged_attention_torch(q, k_pages, v_pages, block_table, lengths, cu_queries)
    from minvenus.kernels.paged_triton import (
        paged_attention_triton,  # here: triton does not exist everywhere
    )

    max_queries = int(cu_queries.diff().max()) if max_queries is None else max_queries
    max_length = int(lengths.max()) if max_length is None else max_length
    return paged_attention_triton(q, k_pages, v_pages, block_table, lengths, cu_queries, max_queries, max_length)


def check(q, k_pages, v_pages, block_table, lengths, cu_queries):
    """Shapes everywhere; values on a CPU only, because a GPU would have to wait for them."""
    _, page, kv_heads, channels = k_pages.shape
    if (q.shape[2] != channels or q.shape[1] % kv_heads or v_pages.shape != k_pages.shape
            or block_table.shape[:1] != lengths.shape or cu_queries.shape != (len(lengths) + 1,)):
        shapes = [list(x.shape) for x in (q, k_pages, v_pages, block_table, lengths, cu_queries)]
        raise ValueError("need q [N, H, D], k_pages and v_pages [P, page, K, D] with H a multiple of K, block_table "
                         f"[S, pages], lengths [S] and cu_queries [S + 1]; got {shapes}")
    if q.is_cuda:
        return
    new, room = cu_queries.diff(), block_table.shape[1] * page
    if cu_queries[0] != 0 or cu_queries[-1] != len(q) or not ((new >= 0) & (new <= lengths) & (lengths <= room)).all():
        raise ValueError(f"cu_queries must rise from 0 to the number of queries, {len(q)}, and every length, with its "
                         f"new tokens, must fit {room} slots; got {cu_queries.tolist()}, lengths {lengths.tolist()}")
