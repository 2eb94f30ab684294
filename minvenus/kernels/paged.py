"""Attention of new tokens over keys and values that are stored in pages. No gradients.

    A sequence s of length L_s has the pages block_table[s]: its token j is in slot j % page of page
    block_table[s, j // page]. Its n_s new tokens are its last ones; query i of them is at position
    p = L_s - n_s + i,
    out[i] = sum_j softmax_j(q[i] . k[j] / sqrt(D)) v[j]     over j <= p;
    query head h reads kv head h // (H / K).

n_s = 1 is a decoding step, n_s = L_s a fresh prompt, anything between a chunk after a cached
prefix: one signature for all. The new keys and values are written with `write_pages` before the
call. Slots from L_s on may hold anything, NaN too, and are never read: a weight of 0 times NaN is
NaN. Sequences may share pages, and block tables may be longer than needed.

A page is [page, K, D]: writing a token is one copy, and gathered pages are [L, K, D], the layout
that attention reads.

Shapes: N new tokens of all sequences, S sequences, P pages, H query heads, K kv heads, D channels.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F

from minvenus.kernels.attention import uses_triton

MASK_NUMBERS = 2**22      # most numbers in the mask of one call: 16 MiB in float32


def write_pages(k, v, k_pages, v_pages, slots):
    """Store k and v [N, K, D] in pages [P, page, K, D].

    slots [N] int64: page * page_size + slot, none twice.
    """
    for x, pages in ((k, k_pages), (v, v_pages)):
        pages.view(-1, *pages.shape[2:]).index_copy_(0, slots, x.to(pages.dtype))


def paged_attention_reference(q, k_pages, v_pages, block_table, lengths, cu_queries):
    """The definition, one query and one slot at a time in float32: slow and obvious."""
    page, kv_heads, channels = k_pages.shape[1:]
    group = q.shape[1] // kv_heads
    out = torch.empty_like(q)
    for s, (start, end) in enumerate(pairwise(cu_queries.tolist())):
        for i in range(start, end):
            position = int(lengths[s]) - (end - i)
            slots = [(int(block_table[s, j // page]), j % page) for j in range(position + 1)]
            keys = torch.stack([k_pages[slot] for slot in slots])              # [p + 1, K, D]
            values = torch.stack([v_pages[slot] for slot in slots])
            keys = keys.repeat_interleave(group, dim=1).float()                # [p + 1, H, D]
            values = values.repeat_interleave(group, dim=1).float()

            scores = torch.einsum("hd,jhd->hj", q[i].float(), keys) * channels**-0.5
            weights = scores.softmax(dim=-1)
            out[i] = torch.einsum("hj,jhd->hd", weights, values).to(q.dtype)
    return out


# --------------------------------------------------------------------------------- the torch path


@torch.no_grad()
def paged_attention_torch(q, k_pages, v_pages, block_table, lengths, cu_queries):
    """For each sequence: gather its pages, then fused attention over exactly its keys.

    A long chunk is cut so that its mask stays small.
    """
    page = k_pages.shape[1]
    table = block_table.long()
    out = torch.empty_like(q)
    for s, (start, end) in enumerate(pairwise(cu_queries.tolist())):
        if start == end:
            continue
        length = int(lengths[s])
        pages = table[s, :-(-length // page)]
        k = k_pages.index_select(0, pages).flatten(0, 1).transpose(0, 1)       # [K, L or more, D]
        v = v_pages.index_select(0, pages).flatten(0, 1).transpose(0, 1)

        step = max(1, MASK_NUMBERS // length)
        for first in range(start, end, step):
            last = min(first + step, end)
            seen = length - (end - last)                     # keys that the last query sees
            part = q[first:last].transpose(0, 1)                               # [H, n, D]
            part_out = attend_last(part, k[:, :seen], v[:, :seen])
            out[first:last] = part_out.transpose(0, 1)
    return out


def attend_last(q, k, v):
    """Causal attention of the last n of L tokens: q [H, n, D], k and v [K, L, D] -> [H, n, D]."""
    queries, keys = q.shape[1], k.shape[1]
    bias = None                                              # one query sees everything
    if 1 < queries < keys:
        # -inf after the query's position
        bias = q.new_full((queries, keys), float("-inf")).triu_(keys - queries + 1)
    causal = queries == keys
    return F.scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=bias, is_causal=causal, enable_gqa=True)[0]


# ----------------------------------------------------------------------------------- the dispatcher


def paged_attention(q, k_pages, v_pages, block_table, lengths, cu_queries, longest=None):
    """Triton on a GPU, plain torch elsewhere (attention.py has the switch).

    q [N, H, D], pages [P, page, K, D], block_table [S, M], lengths [S], cu_queries [S + 1]
    -> [N, H, D]. `longest` is (the largest n_s, the largest L_s) as plain numbers; with it a GPU
    need not be asked for `cu_queries` and `lengths`.
    """
    check_paged_attention(q, k_pages, v_pages, block_table, lengths, cu_queries)
    if not uses_triton(q.device):
        return paged_attention_torch(q, k_pages, v_pages, block_table, lengths, cu_queries)
    # imported here: triton does not exist everywhere
    from minvenus.kernels.paged_triton import paged_attention_triton

    longest = longest or (int(cu_queries.diff().max()), int(lengths.max()))
    return paged_attention_triton(
        q, k_pages, v_pages, block_table, lengths, cu_queries, *longest)


def check_paged_attention(q, k_pages, v_pages, block_table, lengths, cu_queries):
    """Shapes only: values would have to be fetched from the device."""
    kv_heads, channels = k_pages.shape[2:]
    q_fits = q.shape[2] == channels and q.shape[1] % kv_heads == 0
    table_fits = block_table.shape[:1] == lengths.shape and cu_queries.shape == (len(lengths) + 1,)
    if not q_fits or not table_fits or v_pages.shape != k_pages.shape:
        inputs = q, k_pages, v_pages, block_table, lengths, cu_queries
        raise ValueError(
            "need q [N, H, D], k_pages and v_pages [P, page, K, D] with H a multiple of K, "
            "block_table [S, pages], lengths [S] and cu_queries [S + 1]; "
            f"got {[list(x.shape) for x in inputs]}")
