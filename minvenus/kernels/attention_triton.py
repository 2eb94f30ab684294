"""Causal grouped-query attention over packed sequences, as Triton kernels.

They never store a [length, length] matrix.

    forward     s = scale * log2(e) * q k^T with scale = 1 / sqrt(D)
                2^s, one instruction, is e^(scale * q k^T)
                over blocks of keys with a running maximum peak and sum total:
                out = sum_j 2^(s_j - peak) v_j / total      lse = peak + log2 total
    backward    p = 2^(s - lse)      delta_i = do_i . o_i      ds = p * (do v^T - delta)
                dv = p^T do          dk = scale * ds^T q       dq = scale * ds k

The backward pass has three kernels: delta; dq by blocks of queries; dk and dv by blocks of keys,
over every query head of their kv head. No two programs write to the same place, so there are no
atomics and the same inputs give the same bits. Every block is masked, though only those on the
diagonal need it: loops without the mask would be a little faster, and twice the code.

Sums are float32 whatever the inputs. float32 inputs are multiplied as three TF32 products on NVIDIA
(tensor cores, with nearly float32's accuracy) and as they are on AMD, whose matrix cores take
float32. Token offsets are int64: 262,144 tokens of many heads, packed several times over, pass 2^31
numbers. Any head_dim from 16 to 128; one that is no power of 2 is padded in registers.

Never run on a GPU. Tests compute in Triton's interpreter, in float32 and float16: the interpreter
is wrong for bfloat16, so that arithmetic has never run. Tests also compile every kernel for four
GPUs, in bfloat16 and float32.

This module imports triton, so it is imported only when a kernel runs. Shapes as in attention.py,
but [M, N] is a tile of BLOCK_M queries and BLOCK_N keys, and KV is the number of kv heads.
cu_seqlens and names with a capital are pointers or constants of the compilation. The others, in
all kernels:

    start, length      first token of the program's sequence in the pack, and its length
    first              first row of the program's own block: queries, or in dkv keys;
                       counted from `start`
    m, n               first query, first key of the inner loop's block, counted from `start`
    scale2             scale * log2(e)
"""

import torch
import triton
import triton.language as tl

LOG2E = 1.4426950408889634


@triton.jit
def block_offsets(valid, HEADS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    """Offsets inside a block of rows of one head, and a mask: rows before `valid`, channels < D."""
    BLOCK_D: tl.constexpr = triton.next_power_of_2(D)
    rows = tl.arange(0, ROWS)
    channels = tl.arange(0, BLOCK_D)
    mask = (rows < valid)[:, None]
    if D != BLOCK_D:
        mask = mask & (channels < D)[None, :]
    return rows[:, None] * (HEADS * D) + channels[None, :], mask


@triton.jit
def load_block(X, row, valid, HEADS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    """Rows row ... row + ROWS of one head of X [N, HEADS, D] -> [ROWS, BLOCK_D]; 0 after `valid`.

    X points at the head.
    """
    offsets, mask = block_offsets(valid, HEADS, D, ROWS)
    return tl.load(X + row * (HEADS * D) + offsets, mask=mask, other=0.0)


@triton.jit
def store_block(X, value, row, valid, HEADS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    offsets, mask = block_offsets(valid, HEADS, D, ROWS)
    tl.store(X + row * (HEADS * D) + offsets, value.to(X.dtype.element_ty), mask=mask)


@triton.jit
def load_numbers(X, start, first, length, other, ROWS: tl.constexpr):
    """One number per query first ... first + ROWS; X points at the head. `other` past the end."""
    rows = first + tl.arange(0, ROWS)
    return tl.load(X + start + rows, mask=rows < length, other=other)


@triton.jit
def sequence(cu_seqlens, s):
    """First token (int64) and length (int32) of sequence s."""
    start = tl.load(cu_seqlens + s).to(tl.int64)
    end = tl.load(cu_seqlens + s + 1).to(tl.int64)
    return start, (end - start).to(tl.int32)


@triton.jit
def causal(first, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """[M, N]: whether query first + i sees key n + j."""
    queries = first + tl.arange(0, BLOCK_M)
    keys = n + tl.arange(0, BLOCK_N)
    return keys[None, :] <= queries[:, None]


# --------------------------------------------------------------------------------------- kernels
# Numbers that change from step to step are not specialised: a kernel is compiled once.


@triton.jit(do_not_specialize=["tokens"])
def forward_kernel(
        Q, K, V, Out, Lse, cu_seqlens, tokens, scale2,
        H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr):
    """One program per (block of queries, query head, sequence)."""
    first = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1)
    start, length = sequence(cu_seqlens, tl.program_id(2))
    if first >= length:
        return

    kv = head // (H // KV)
    q = load_block(Q + head * D, start + first, length - first, H, D, BLOCK_M)
    acc = tl.zeros(q.shape, tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)

    for n in range(0, tl.minimum(first + BLOCK_M, length), BLOCK_N):
        k = load_block(K + kv * D, start + n, length - n, KV, D, BLOCK_N)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale2    # [M, N]
        scores = tl.where(causal(first, n, BLOCK_M, BLOCK_N), scores, float("-inf"))

        # finite: every row sees key 0, which is in the first block
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        p = tl.math.exp2(scores - new_peak[:, None])
        shrink = tl.math.exp2(peak - new_peak)

        v = load_block(V + kv * D, start + n, length - n, KV, D, BLOCK_N)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        total = total * shrink + tl.sum(p, 1)
        peak = new_peak

    out = acc / total[:, None]
    store_block(Out + head * D, out, start + first, length - first, H, D, BLOCK_M)
    rows = first + tl.arange(0, BLOCK_M)
    lse = peak + tl.math.log2(total)
    tl.store(Lse + start + head * tokens + rows, lse, mask=rows < length)


@triton.jit(do_not_specialize=["tokens"])
def delta_kernel(
        Out, DOut, Delta, tokens, H: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr):
    """delta [H, N]: one program per (block of tokens, head); sequences do not matter here."""
    first = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1)
    row = first.to(tl.int64)
    o = load_block(Out + head * D, row, tokens - first, H, D, BLOCK_M).to(tl.float32)
    do = load_block(DOut + head * D, row, tokens - first, H, D, BLOCK_M).to(tl.float32)
    rows = first + tl.arange(0, BLOCK_M)
    tl.store(Delta + head * tokens + rows, tl.sum(o * do, 1), mask=rows < tokens)


@triton.jit(do_not_specialize=["tokens"])
def dq_kernel(
        Q, K, V, DOut, Lse, Delta, DQ, cu_seqlens, tokens, scale, scale2,
        H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr):
    """One program per (block of queries, query head, sequence), over the keys that they see."""
    first = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1)
    start, length = sequence(cu_seqlens, tl.program_id(2))
    if first >= length:
        return

    kv = head // (H // KV)
    q = load_block(Q + head * D, start + first, length - first, H, D, BLOCK_M)
    do = load_block(DOut + head * D, start + first, length - first, H, D, BLOCK_M)
    lse = load_numbers(Lse + head * tokens, start, first, length, float("inf"), BLOCK_M)
    delta = load_numbers(Delta + head * tokens, start, first, length, 0.0, BLOCK_M)
    dq = tl.zeros(q.shape, tl.float32)

    for n in range(0, tl.minimum(first + BLOCK_M, length), BLOCK_N):
        k = load_block(K + kv * D, start + n, length - n, KV, D, BLOCK_N)
        v = load_block(V + kv * D, start + n, length - n, KV, D, BLOCK_N)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale2    # [M, N]
        p = tl.math.exp2(scores - lse[:, None])
        p = tl.where(causal(first, n, BLOCK_M, BLOCK_N), p, 0.0)
        dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)

    store_block(DQ + head * D, dq * scale, start + first, length - first, H, D, BLOCK_M)


@triton.jit(do_not_specialize=["tokens"])
def dkv_kernel(
        Q, K, V, DOut, Lse, Delta, DK, DV, cu_seqlens, tokens, scale, scale2,
        H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr):
    """One program per (block of keys, kv head, sequence).

    It adds over the query heads of the kv head and over the queries that see the keys. Scores are
    transposed, [keys, queries]: p and ds are left operands without a trip through memory.
    """
    first = tl.program_id(0) * BLOCK_N
    kv = tl.program_id(1)
    start, length = sequence(cu_seqlens, tl.program_id(2))
    if first >= length:
        return

    k = load_block(K + kv * D, start + first, length - first, KV, D, BLOCK_N)
    v = load_block(V + kv * D, start + first, length - first, KV, D, BLOCK_N)
    dk = tl.zeros(k.shape, tl.float32)
    dv = tl.zeros(k.shape, tl.float32)

    for head in range(kv * (H // KV), (kv + 1) * (H // KV)):
        for m in range(first // BLOCK_M * BLOCK_M, length, BLOCK_M):
            q = load_block(Q + head * D, start + m, length - m, H, D, BLOCK_M)
            do = load_block(DOut + head * D, start + m, length - m, H, D, BLOCK_M)
            lse = load_numbers(Lse + head * tokens, start, m, length, float("inf"), BLOCK_M)
            delta = load_numbers(Delta + head * tokens, start, m, length, 0.0, BLOCK_M)
            scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale2    # [N, M]
            p = tl.math.exp2(scores - lse[None, :])
            p = tl.where(tl.trans(causal(m, first, BLOCK_M, BLOCK_N)), p, 0.0)
            dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
            dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)
            ds = p * (dp - delta[None, :])
            dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)

    store_block(DK + kv * D, dk * scale, start + first, length - first, KV, D, BLOCK_N)
    store_block(DV + kv * D, dv, start + first, length - first, KV, D, BLOCK_N)


# ------------------------------------------------------------------------------------- launching

# pass -> (BLOCK_M, BLOCK_N, warps, stages): for 2-byte inputs with head_dim over 64, the same up
# to 64, and for float32. Found by compiling: the largest tiles tried that spill nothing on any of
# sm_80, sm_90, sm_100 and gfx942.
TILES = {
    "forward": ((128, 64, 8, 2), (128, 64, 8, 2), (16, 32, 4, 1)),
    "dq": ((64, 64, 8, 2), (64, 32, 4, 2), (16, 32, 4, 1)),
    "dkv": ((32, 64, 8, 2), (32, 64, 4, 2), (32, 16, 8, 1)),
}
DELTA_ROWS = 64


def tiles(which, dtype, channels, amd=torch.version.hip is not None):
    """Launch options of a pass.

    On AMD: half the warps (they have 64 lanes), one stage (it prefetches into registers).
    """
    wide, narrow, single = TILES[which]
    half = wide if channels > 64 else narrow
    block_m, block_n, warps, stages = single if dtype.itemsize == 4 else half
    return {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "PRECISION": "ieee" if amd else "tf32x3",
        "num_warps": warps // 2 if amd else warps,
        "num_stages": 1 if amd else stages,
    }


class PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, cu_seqlens, max_seqlen):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        tokens, heads, channels = q.shape
        out = torch.empty_like(q)
        lse = q.new_empty((heads, tokens), dtype=torch.float32)

        options = tiles("forward", q.dtype, channels)
        blocks = triton.cdiv(max_seqlen, options["BLOCK_M"])
        scale2 = channels**-0.5 * LOG2E
        forward_kernel[blocks, heads, len(cu_seqlens) - 1](
            q, k, v, out, lse, cu_seqlens, tokens, scale2,
            H=heads, KV=k.shape[1], D=channels, **options)

        ctx.save_for_backward(q, k, v, out, lse, cu_seqlens)
        ctx.max_seqlen = max_seqlen
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do):
        q, k, v, out, lse, cu_seqlens = ctx.saved_tensors
        tokens, heads, channels = q.shape
        kv_heads, sequences = k.shape[1], len(cu_seqlens) - 1
        scale = channels**-0.5
        do = do.contiguous()
        delta, dq, dk, dv = (torch.empty_like(x) for x in (lse, q, k, v))
        inputs = q, k, v, do, lse, delta
        shape = cu_seqlens, tokens, scale, scale * LOG2E, heads, kv_heads, channels

        blocks = triton.cdiv(tokens, DELTA_ROWS)
        delta_kernel[blocks, heads](out, do, delta, tokens, heads, channels, DELTA_ROWS)

        options = tiles("dq", q.dtype, channels)
        blocks = triton.cdiv(ctx.max_seqlen, options["BLOCK_M"])
        dq_kernel[blocks, heads, sequences](*inputs, dq, *shape, **options)

        options = tiles("dkv", q.dtype, channels)
        blocks = triton.cdiv(ctx.max_seqlen, options["BLOCK_N"])
        dkv_kernel[blocks, kv_heads, sequences](*inputs, dk, dv, *shape, **options)
        return dq, dk, dv, None, None
