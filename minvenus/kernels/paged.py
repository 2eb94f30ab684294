"""Attention of new tokens over keys and values that live in pages, and writing them there. Inference only: no gradients.

    A sequence s of length L_s owns pages block_table[s]; its token j stands in page block_table[s, j // page], offset j % page.
    Its n_s new tokens are its last ones: query i of them sits at position p = L_s - n_s + i and
    out[i] = sum_j softmax_j(scale * q[i] . k[j]) v[j]     over j <= p;     query head h reads kv head h // (H / K).

n_s = 1 is a decoding step, n_s = L_s a fresh prompt, anything between a chunk appended to a cached prefix: one signature for all.
The new keys and values are written with `write_pages` before the call. Slots past L_s may hold anything, NaN too, and never enter
the sums, because a weight of 0 times NaN is NaN. Pages may be shared between sequences and block tables longer than needed.

A page is [page, K, D], a token's row all its kv heads: writing a token is one copy, gathering tokens gives [L, K, D] which is
attention's own layout, and a run of consecutive pages is a plain view. Whose a page is and when it is free is not known here.

Shapes: N new tokens of all sequences, S sequences, P pages, H query heads, K kv heads, D channels.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy
import torch
import torch.nn.functional as F

GROUP_NUMBERS = 2**19     # keys gathered at once: with the values 4 MiB in float32, which are still in the cache when used
PADDING_NUMBERS = 2**14   # padding that costs less than one more call
MASK_NUMBERS = 2**22      # largest mask of one call: 16 MiB in float32
FEW_QUERIES = 32          # up to so many, the query heads that share a kv head become its queries: keys are read once for all


def write_pages(k, v, k_pages, v_pages, slots):
    """Store k and v [N, K, D] in pages [P, page, K, D]. slots [N] int64: page * page_size + offset, each at most once."""
    for new, pages in ((k, k_pages), (v, v_pages)):
        pages.view(-1, *pages.shape[2:]).index_copy_(0, slots, new.to(pages.dtype))


def paged_attention_reference(q, k_pages, v_pages, block_table, lengths, cu_queries=None, scale=None):
    """The definition, one query and one slot at a time in float32: slow and obvious."""
    cu_queries = one_query_each(lengths) if cu_queries is None else cu_queries
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    page, group = k_pages.shape[1], q.shape[1] // k_pages.shape[2]
    out = torch.empty_like(q)
    for s, (start, end) in enumerate(pairwise(cu_queries.tolist())):
        for i in range(start, end):
            position = int(lengths[s]) - (end - i)
            slots = [(int(block_table[s, j // page]), j % page) for j in range(position + 1)]
            keys = torch.stack([k_pages[slot] for slot in slots]).repeat_interleave(group, dim=1).float()        # [p + 1, H, D]
            values = torch.stack([v_pages[slot] for slot in slots]).repeat_interleave(group, dim=1).float()
            weights = (torch.einsum("hd,jhd->hj", q[i].float(), keys) * scale).softmax(dim=-1)
            out[i] = torch.einsum("hj,jhd->hd", weights, values).to(q.dtype)
    return out


# ------------------------------------------------------------------------------------- what is the same for every layer


@dataclass(frozen=True)
class Group:
    """Sequences of similar length whose keys one call handles. B of them, padded to L keys and n queries."""

    pages: torch.Tensor | slice                         # [B * pages of one], padding repeats a live one; or a run of the pool
    dead: torch.Tensor | None                           # gathered tokens that nobody wrote, to be cleared
    size: int                                           # B
    length: int                                         # L
    causal: bool                                        # fresh prompts of one length: no mask needed
    folded: bool                                        # few queries: heads that share keys count as queries
    calls: list[tuple[torch.Tensor | slice, torch.Tensor | None, torch.Tensor | None]]
    # per call: rows of q [B * n], padded; which of them count [B * n] or None for all; what is added to the scores, 0 for a key
    # that is seen and -inf for others, [B, 1, n, L] or [1, 1, n, L] if it is the same for everybody, or None if all are seen;
    # folded, [B, 1, H / K * n, L], the n queries of one head behind the other


@dataclass(frozen=True)
class PagedPlan:
    """Everything about one step that its layers share. Valid until a length, a block table or a query changes."""

    block_table: torch.Tensor                           # [S, most pages]
    lengths: torch.Tensor                               # [S]
    cu_queries: torch.Tensor                            # [S + 1]
    queries: int                                        # N
    max_queries: int                                    # largest n_s
    max_length: int                                     # largest L_s of a sequence with queries
    groups: list[Group]                                 # of the torch path; empty on a GPU
    scratch: tuple[torch.Tensor, torch.Tensor] | None   # keys and values of one group: pages of fresh memory are slow


def one_query_each(lengths):
    return torch.arange(len(lengths) + 1, device=lengths.device, dtype=torch.int64)


def paged_plan(heads, k_pages, block_table, lengths, cu_queries=None):
    """Check and prepare a step; cu_queries None means one query each. Values leave the device here, so that no layer waits."""
    cu_queries = one_query_each(lengths) if cu_queries is None else cu_queries
    if block_table.shape[:1] != lengths.shape or cu_queries.shape != (len(lengths) + 1,):
        raise ValueError(f"need block_table [S, pages], lengths [S] and cu_queries [S + 1], got {list(block_table.shape)}, "
                         f"{list(lengths.shape)} and {list(cu_queries.shape)}")
    page, room = k_pages.shape[1], block_table.shape[1] * k_pages.shape[1]
    length_S, bounds = lengths.tolist(), cu_queries.tolist()
    new_S = [b - a for a, b in pairwise(bounds)]
    if bounds[0] != 0 or min(new_S, default=0) < 0:
        raise ValueError(f"cu_queries must start at 0 and never fall, got {bounds}")
    for s, (length, new) in enumerate(zip(length_S, new_S, strict=True)):
        if not new <= length <= room:
            raise ValueError(f"sequence {s}: {new} new tokens, length {length}, room for {room} in {block_table.shape[1]} pages "
                             f"of {page}; the length counts the new tokens and must fit its pages")
    active = [s for s in range(len(new_S)) if new_S[s]]
    groups, scratch = [], None
    if not k_pages.is_cuda and active:
        row = k_pages.shape[2] * k_pages.shape[3]
        groups = [prepare_group(members, heads, new_S, length_S, bounds, block_table.numpy(), k_pages)
                  for members in similar(active, new_S, length_S, row)]
        largest = max((len(g.pages) for g in groups if torch.is_tensor(g.pages)), default=0)
        scratch = tuple(k_pages.new_empty((largest, page * row)) for _ in range(2))
    return PagedPlan(block_table, lengths, cu_queries, bounds[-1], max(new_S, default=0),
                     max((length_S[s] for s in active), default=0), groups, scratch)


def similar(active, new_S, length_S, row):
    """Split sequences into groups for one padded call each: of like size, not much padding, and small enough for the cache."""
    groups = []
    for s in sorted(active, key=lambda s: (new_S[s], length_S[s]), reverse=True):
        first = groups[-1][0] if groups else s
        padding = (length_S[first] - length_S[s]) * row
        fits = (groups and new_S[first] <= 2 * new_S[s] and length_S[s] <= length_S[first]
                and padding <= max(PADDING_NUMBERS, length_S[first] * row // 4)
                and (len(groups[-1]) + 1) * length_S[first] * row <= GROUP_NUMBERS)
        fresh = new_S[s] == length_S[s] > 1 or (groups and new_S[first] == length_S[first] > 1)
        if fits and (not fresh or (new_S[s], length_S[s]) == (new_S[first], length_S[first])):
            groups[-1].append(s)
        else:
            groups.append([s])
    return groups


def prepare_group(members, heads, new_S, length_S, bounds, block_table, k_pages):
    """In numpy: these are many small steps, and torch takes several times as long to begin one."""
    columns = ([x[s] for s in members] for x in (length_S, new_S, bounds))
    lengths, new, start = (numpy.array(x)[:, None] for x in columns)            # [B, 1] each
    n, length = int(new.max()), int(lengths.max())
    index = numpy.minimum(numpy.arange(n), new - 1)                             # [B, n]   padded with the last query
    rows = start + index
    counts = numpy.arange(n) < new                                              # [B, n]
    seen = lengths - new + index + 1                                            # [B, n]   keys at or before the query
    alike = all(new_S[s] == n and length_S[s] == length for s in members)
    causal = n == length and alike                                              # all are fresh prompts of this length
    everything = causal or (alike and n == 1)                                   # no mask needed
    seen = seen[:1] if alike else seen
    in_a_row = alike and all(bounds[b] == bounds[a] + n for a, b in pairwise(members))
    folded = n <= FEW_QUERIES and not causal
    repeats = heads // k_pages.shape[2] if folded else 1
    calls = []
    step = n if everything else max(1, MASK_NUMBERS // (len(seen) * length * repeats))
    for i in range(0, n, step):
        part = slice(i, i + step)
        bias = None if everything else key_bias(numpy.tile(seen[:, part], (1, repeats)), length, k_pages.dtype)
        if in_a_row and step >= n:
            calls.append((slice(bounds[members[0]], bounds[members[0]] + n * len(members)), None, bias))
        else:
            mine, wanted = (torch.from_numpy(x[:, part].flatten()) for x in (rows, counts))
            calls.append((mine, None if alike else wanted, bias))
    pages, dead = group_pages(block_table[members].astype(numpy.int64), lengths, length, k_pages.shape[1])
    return Group(pages, dead, len(members), length, causal, folded, calls)


def key_bias(seen, length, dtype):
    """seen [B, n] keys of `length` -> what is added to the scores [B, 1, n, L]."""
    bias = torch.zeros((len(seen), 1, seen.shape[1], length), dtype=dtype)
    first = int(seen.min())                                                     # the keys before it are seen by everybody
    hidden = numpy.arange(first, length) >= seen[:, None, :, None]
    bias[..., first:].masked_fill_(torch.from_numpy(hidden), float("-inf"))
    return bias


def group_pages(table, lengths, length, page):
    """Whole pages are gathered, not tokens: fewer, longer copies. table [B, pages], lengths [B, 1] -> Group.pages, Group.dead."""
    first = numpy.arange(0, length, page)                                       # a page's first token
    own = first < lengths                                                       # [B, pages of the longest]
    pages = numpy.where(own, table[:, :len(first)], table[:, :1])               # entries past the end may be anything
    if len(table) == 1:                                                         # its dead tokens are cut off, not cleared
        start = int(pages[0, 0])
        run = numpy.array_equal(pages[0], numpy.arange(start, start + len(first)))
        return (slice(start, start + len(first)) if run else torch.from_numpy(pages[0])), None
    token = numpy.arange(len(first) * page)
    live_padding = (token >= -(-lengths // page) * page) & (lengths >= page)    # repeats of a full first page
    dead = numpy.flatnonzero((token >= lengths) & (token < length) & ~live_padding)      # from `length` on they are cut off
    return torch.from_numpy(pages.flatten()), torch.from_numpy(dead) if len(dead) else None


# ---------------------------------------------------------------------------------------------------------- the kernels


@torch.no_grad()
def paged_attention_torch(q, k_pages, v_pages, plan, scale=None):
    """Gather keys and values of similar sequences into scratch memory that stays in the cache, then one fused call on them."""
    out = torch.empty_like(q)
    for group in plan.groups:
        k = gather(k_pages, group, plan.scratch[0])                             # [B, K, L, D]
        v = gather(v_pages, group, plan.scratch[1])
        for rows, counts, bias in group.calls:
            queries = q[rows].unflatten(0, (group.size, -1))                                            # [B, n, H, D]
            result = attend(queries, k, v, bias, group, scale).flatten(0, 1)
            if counts is None:
                out[rows] = result
            else:
                out.index_copy_(0, rows[counts], result[counts])
    return out


def gather(pages, group, scratch):
    if torch.is_tensor(group.pages):
        picked = torch.index_select(pages.flatten(1), 0, group.pages, out=scratch[:len(group.pages)])
    else:
        picked = pages[group.pages]                                             # consecutive pages: a view, nothing is copied
    tokens = picked.view(-1, *pages.shape[2:])                                  # [B * pages of one * page, K, D]
    if group.dead is not None:
        tokens.index_fill_(0, group.dead, 0.0)                                  # NaN - inf and 0 * NaN are NaN: no mask helps
    return tokens.view(group.size, -1, *pages.shape[2:])[:, :group.length].transpose(1, 2)


def attend(q, k, v, bias, group, scale):
    """q [B, n, H, D], k and v [B, K, L, D] -> [B, n, H, D]."""
    if not group.folded:
        return F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=bias, is_causal=group.causal, scale=scale,
                                              enable_gqa=True).transpose(1, 2)
    size, n, heads, channels = q.shape
    shared = (size, n, k.shape[1], heads // k.shape[1], channels)                                       # [B, n, K, H / K, D]
    queries = q.reshape(shared).permute(0, 2, 3, 1, 4).flatten(2, 3)                                    # [B, K, H / K * n, D]
    out = F.scaled_dot_product_attention(queries, k, v, attn_mask=bias, scale=scale)
    return out.unflatten(2, (shared[3], n)).permute(0, 3, 1, 2, 4).reshape(q.shape)


def paged_attention(q, k_pages, v_pages, block_table, lengths, cu_queries=None, scale=None, plan=None):
    """q [N, H, D], pages [P, page, K, D], block_table [S, M], lengths [S], cu_queries [S + 1] (None: one each) -> [N, H, D].

    Called once per layer: pass the step's `plan = paged_plan(H, k_pages, block_table, lengths, cu_queries)`, one for all layers.
    """
    plan = paged_plan(q.shape[1], k_pages, block_table, lengths, cu_queries) if plan is None else plan
    _, _, kv_heads, channels = k_pages.shape
    if len(q) != plan.queries or q.shape[2] != channels or q.shape[1] % kv_heads or v_pages.shape != k_pages.shape:
        raise ValueError(f"need q [{plan.queries}, H, D] and pages [P, page, K, D] with H a multiple of K, got {list(q.shape)}, "
                         f"k_pages {list(k_pages.shape)}, v_pages {list(v_pages.shape)}")
    if q.is_cuda:                                                               # the one switch
        from minvenus.kernels.paged_triton import paged_attention_triton  # here: triton does not exist everywhere

        return paged_attention_triton(q, k_pages, v_pages, plan, scale)
    return paged_attention_torch(q, k_pages, v_pages, plan, scale)
