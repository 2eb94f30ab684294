"""Attention of new tokens over pages, as Triton kernels.

The context is cut into splits, so that one long sequence fills a GPU.

    in split c, over its keys j:   m = max_j s_j   l = sum_j 2^(s_j - m)
                                   o_c = sum_j 2^(s_j - m) v_j / l       lse_c = m + log2 l
    second pass:                   w_c = 2^(lse_c - max lse)      out = sum_c w_c o_c / sum_c w_c
    where s = log2(e) / sqrt(D) * q . k

One program per (block of new tokens of a sequence, kv head, split). Its rows are all query heads of
the kv head for these tokens, so a page is read once per group of heads, not once per head. A row
knows its own position and sees no key after it: decoding, chunks and prompts are the same kernel.
Only slots below the sequence's length are loaded, keys and values both: what lies beyond may be
NaN, and 0 * NaN is NaN. Slot offsets are int64: a pool of 2^21 tokens with 8 heads of 128 is 2^31
numbers.

Never run on a GPU; the arithmetic in bfloat16 has never run at all (attention_triton.py says why).

This module imports triton, so it is imported only when a kernel runs. Shapes as in paged.py.
"""

import torch
import triton
import triton.language as tl

from minvenus.kernels.attention_triton import LOG2E, sequence


@triton.jit
def load_slots(Pages, slots, live, kv, KV: tl.constexpr, D: tl.constexpr):
    """One kv head of the tokens in `slots` of Pages [P * page, KV, D] -> [N, D].

    What is not live is 0 and never read.
    """
    BLOCK_D: tl.constexpr = triton.next_power_of_2(D)
    channels = tl.arange(0, BLOCK_D)
    mask = live[:, None]
    if D != BLOCK_D:
        mask = mask & (channels < D)[None, :]
    offsets = (slots * KV + kv) * D
    return tl.load(Pages + offsets[:, None] + channels[None, :], mask=mask, other=0.0)


@triton.jit
def find_slots(Table, keys, live, PAGE: tl.constexpr):
    """Where the keys are, int64; Table points at the row of the sequence."""
    page = tl.load(Table + keys // PAGE, mask=live, other=0).to(tl.int64)
    return page * PAGE + keys % PAGE


@triton.jit
def softmax_step(scores, peak):
    """2^(scores - new peak), the factor that brings older sums to the new peak, the new peak."""
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    # a row that sees no key of this split yet has peak -inf, and -inf - -inf is NaN
    finite = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    p = tl.math.exp2(scores - finite[:, None])
    return p, tl.math.exp2(peak - finite), new_peak


@triton.jit(do_not_specialize=["tokens", "table_width", "split_length"])
def split_kernel(
        Q, KPages, VPages, Table, lengths, cu_queries, Out, Lse,
        tokens, table_width, split_length, scale2,
        H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
        BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr):
    """Out [splits, N, H, D], Lse [splits, N, H]. Row r is query r // GROUP, head r % GROUP."""
    GROUP: tl.constexpr = H // KV
    PER_BLOCK: tl.constexpr = BLOCK_R // GROUP       # new tokens of a program; other rows are idle
    first = tl.program_id(0) * PER_BLOCK
    s = tl.program_id(1) // KV
    kv = tl.program_id(1) % KV
    split = tl.program_id(2)
    start, new = sequence(cu_queries, s)
    if first >= new:
        return

    length = tl.load(lengths + s).to(tl.int32)
    r = tl.arange(0, BLOCK_R)
    channels = tl.arange(0, triton.next_power_of_2(D))
    query = first + r // GROUP
    exists = (query < new) & (r < PER_BLOCK * GROUP)
    position = length - new + query                                            # [R]
    row = (start + query) * H + (kv * GROUP + r % GROUP)                       # [R]  int64
    mask = exists[:, None] & (channels < D)[None, :]
    q = tl.load(Q + (row * D)[:, None] + channels[None, :], mask=mask, other=0.0)
    acc = tl.zeros(q.shape, tl.float32)
    peak = tl.full([BLOCK_R], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_R], tl.float32)

    lowest = split * split_length
    seen = length - new + tl.minimum(first + PER_BLOCK, new)     # keys of the block's last token
    highest = tl.minimum(lowest + split_length, seen)
    for n in range(lowest, highest, BLOCK_N):
        keys = n + tl.arange(0, BLOCK_N)
        live = keys < highest
        slots = find_slots(Table + s.to(tl.int64) * table_width, keys, live, PAGE)
        k = load_slots(KPages, slots, live, kv, KV, D)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale2    # [R, N]
        visible = live[None, :] & (keys[None, :] <= position[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        p, shrink, peak = softmax_step(scores, peak)
        v = load_slots(VPages, slots, live, kv, KV, D)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        total = total * shrink + tl.sum(p, 1)

    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    row += split.to(tl.int64) * tokens * H
    out = Out + (row * D)[:, None] + channels[None, :]
    tl.store(out, acc.to(Out.dtype.element_ty), mask=mask)
    tl.store(Lse + row, peak + tl.math.log2(total), mask=exists)     # -inf for a split without keys


@triton.jit(do_not_specialize=["rows", "splits"])
def combine_kernel(Parts, Lse, Out, rows, splits, D: tl.constexpr, BLOCK_S: tl.constexpr):
    """Parts [splits, N * H, D] weighted by their sums -> Out [N * H, D]. One program per row."""
    BLOCK_D: tl.constexpr = triton.next_power_of_2(D)
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, BLOCK_S)
    channels = tl.arange(0, BLOCK_D)
    place = split.to(tl.int64) * rows + row
    lse = tl.load(Lse + place, mask=split < splits, other=float("-inf"))
    weight = tl.math.exp2(lse - tl.max(lse, 0))      # some split has keys: the maximum is finite
    mask = (split < splits)[:, None] & (channels < D)[None, :]
    parts = tl.load(Parts + (place * D)[:, None] + channels[None, :], mask=mask, other=0.0)
    out = tl.sum(parts * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(Out + row * D + channels, out.to(Out.dtype.element_ty), mask=channels < D)


# ------------------------------------------------------------------------------------- launching

# (inputs of 2 bytes?, many rows?) -> BLOCK_R, BLOCK_N, warps, stages.
# Few rows are a decoding step, which mostly reads keys.
TILES = {
    (True, False): (16, 64, 4, 3),
    (True, True): (64, 64, 8, 2),
    (False, False): (16, 32, 4, 1),
    (False, True): (32, 32, 8, 1),
}
MOST_SPLITS = 128
SHORTEST_SPLIT = 256      # keys; below this the second pass costs more than it gains


def tiles(dtype, rows, group, amd=torch.version.hip is not None):
    """Launch options for `rows` query rows (new tokens * heads per kv head).

    AMD's waves have 64 lanes: half the warps.
    """
    block_r, block_n, warps, stages = TILES[dtype.itemsize == 2, rows > 16]
    return {
        "BLOCK_R": max(block_r, triton.next_power_of_2(group)),
        "BLOCK_N": block_n,
        "PRECISION": "ieee" if amd else "tf32x3",
        "num_warps": warps // 2 if amd else warps,
        "num_stages": stages,
    }


def choose_splits(programs, longest, processors):
    """Enough splits for two programs per processor, none shorter than it is worth."""
    enough = -(-2 * processors // max(1, programs))
    return max(1, min(enough, MOST_SPLITS, longest // SHORTEST_SPLIT))


@torch.no_grad()
def paged_attention_triton(
    q, k_pages, v_pages, block_table, lengths, cu_queries, most_queries, most_keys
):
    """As `paged_attention`; the largest n_s and the largest L_s are plain numbers."""
    tokens, heads, channels = q.shape
    _, page, kv_heads, _ = k_pages.shape
    if tokens == 0:
        return torch.empty_like(q)

    # the grid: blocks of new tokens, kv heads of sequences, splits of the context
    group = heads // kv_heads
    options = tiles(q.dtype, most_queries * group, group)
    blocks = triton.cdiv(most_queries, options["BLOCK_R"] // group)
    columns = len(lengths) * kv_heads
    processors = 1
    if q.is_cuda:
        processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    splits = choose_splits(blocks * columns, most_keys, processors)
    per_split = triton.cdiv(most_keys, splits)
    split_length = triton.cdiv(per_split, options["BLOCK_N"]) * options["BLOCK_N"]
    splits = triton.cdiv(most_keys, split_length)

    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    parts = out
    if splits > 1:
        parts = q.new_empty((splits, *q.shape), dtype=torch.float32)
    lse = q.new_empty((splits, tokens, heads), dtype=torch.float32)
    split_kernel[blocks, columns, splits](
        q.contiguous(), k_pages, v_pages, block_table, lengths, cu_queries, parts, lse,
        tokens, block_table.stride(0), split_length, channels**-0.5 * LOG2E,
        H=heads, KV=kv_heads, D=channels, PAGE=page, **options)
    if splits > 1:
        rows = tokens * heads
        block = triton.next_power_of_2(splits)
        combine_kernel[(rows,)](parts, lse, out, rows, splits, channels, block)
    return out
