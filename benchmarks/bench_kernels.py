"""Kernels beside plain torch, interleaved in one process.

    python -m benchmarks.bench_kernels [--only packed paged logprob gpu] [--threads 1] [--rounds 3] [--cpu-time]

packed    training attention over ragged sequences          peer: one SDPA call on the padded batch with a mask
paged     a chunk of 32 sequences, keys in pages            peer: SDPA on padded contiguous caches with a mask
logprob   log-probs of targets, forward and backward        peer: all logits, log_softmax, gather
gpu       packed and decoding on a GPU, where there is one  peer: SDPA's flash backend
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.timing import main
from minvenus.kernels.attention import attention
from minvenus.kernels.logprob import token_logprobs, token_logprobs_reference
from minvenus.kernels.paged import paged_attention


def both_ways(function, *leaves):
    """A training step's share: forward, then backward into fresh gradients."""
    return lambda: torch.autograd.grad(function().sum(), leaves)


def ragged_lengths(count, low, high):
    lengths = torch.randint(low, high + 1, (count,), generator=torch.Generator().manual_seed(0)).tolist()
    return [high, *lengths[1:]]                                 # the longest one sets the padding


def packed(timing):
    lengths, heads, kv_heads, channels = ragged_lengths(8, 64, 2048), 8, 4, 64
    cu, longest = torch.tensor([0, *lengths]).cumsum(0), max(lengths)
    q, k, v = (torch.randn(sum(lengths), h, channels, requires_grad=True) for h in (heads, kv_heads, kv_heads))
    padded = [torch.randn(len(lengths), h, longest, channels, requires_grad=True) for h in (heads, kv_heads, kv_heads)]
    position = torch.arange(longest)
    mask = (position <= position[:, None]) & (position < torch.tensor(lengths)[:, None, None, None])  # [B, 1, L, L]
    timing.compare("packed attention, 64 to 2048 tokens", {
        "ours": both_ways(lambda: attention(q, k, v, cu), q, k, v),
        "padded": both_ways(lambda: F.scaled_dot_product_attention(*padded, attn_mask=mask, enable_gqa=True), *padded),
    }, {"padded": 1.5})


def pool(lengths, kv_heads, channels, page, **kind):
    """Scattered pages for these lengths: k_pages, v_pages, block_table, lengths."""
    need = [-(-length // page) for length in lengths]
    order = torch.randperm(sum(need), generator=torch.Generator().manual_seed(0)).split(need)
    table = torch.nn.utils.rnn.pad_sequence(list(order), batch_first=True)
    k_pages, v_pages = (torch.randn(sum(need), page, kv_heads, channels, **kind) for _ in range(2))
    return k_pages, v_pages, table.to(k_pages.device), torch.tensor(lengths, device=k_pages.device)


def paged(timing, new=12):
    for name, (heads, kv_heads, channels) in {"tiny": (4, 2, 32), "qwen3-0.6b": (16, 8, 128)}.items():
        lengths = ragged_lengths(32, 100, 2000)
        pages, q = pool(lengths, kv_heads, channels, 16), torch.randn(32 * new, heads, channels)
        cu_queries, batch = torch.arange(33) * new, q.view(32, new, heads, channels).transpose(1, 2)
        caches = [torch.randn(32, kv_heads, max(lengths), channels) for _ in range(2)]
        seen = torch.tensor(lengths)[:, None, None] - new + torch.arange(new)[:, None]
        mask = (torch.arange(max(lengths)) <= seen)[:, None]  # [B, 1, n, L]
        timing.compare(f"paged attention, {new} new tokens, {name}", {
            "ours": lambda pages=pages, q=q, cu=cu_queries: paged_attention(q, *pages, cu),
            "padded": lambda q=batch, kv=caches, mask=mask: F.scaled_dot_product_attention(q, *kv, attn_mask=mask,
                                                                                         enable_gqa=True),
        }, {"padded": 0.77})


def logprob(timing):
    n, vocabulary, channels = 4096, 151_936, 256
    hidden = torch.randn(n, channels, requires_grad=True)
    weight = (torch.randn(vocabulary, channels) * 0.05).requires_grad_()
    targets = torch.randint(0, vocabulary, (n,))
    timing.compare(f"log-probs, {n} x {vocabulary}", {
        "ours": both_ways(lambda: token_logprobs(hidden, weight, targets), hidden, weight),
        "all logits": both_ways(lambda: token_logprobs_reference(hidden, weight, targets), hidden, weight),
    }, {"all logits": 0.83})


def gpu(timing):
    """Head shape of Qwen3-4B, training and decoding."""
    if not torch.cuda.is_available():
        print("gpu: skipped, there is none here (torch.cuda.is_available() is False)")
        return
    heads, kv_heads, channels, count, length = 32, 8, 128, 4, 8192
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    shapes = [(count * length, h, channels) for h in (heads, kv_heads, kv_heads)]
    q, k, v = (torch.randn(shape, **kind, requires_grad=True) for shape in shapes)
    batch = [x.detach().unflatten(0, (count, length)).transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v)]
    cu = torch.arange(count + 1, device="cuda", dtype=torch.int32) * length

    def waited(function):
        return lambda: (function(), torch.cuda.synchronize())

    def flash():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(*batch, is_causal=True, enable_gqa=True)

    timing.compare(f"gpu packed, {count} x {length}", {
        "ours": waited(both_ways(lambda: attention(q, k, v, cu, max_seqlen=length), q, k, v)),
        "flash": waited(both_ways(flash, *batch))})
    pages, one = pool([32_768] * 16, kv_heads, channels, 64, **kind), torch.randn(16, heads, channels, **kind)
    caches = [torch.randn(16, kv_heads, 32_768, channels, **kind) for _ in range(2)]
    each = torch.arange(17, device=one.device)                  # one query each
    timing.compare("gpu decoding, 16 x 32768", {
        "ours": waited(lambda: paged_attention(one, *pages, each, max_queries=1, max_length=32_768)),
        "SDPA": waited(lambda: F.scaled_dot_product_attention(one[:, :, None], *caches, enable_gqa=True))})


if __name__ == "__main__":
    main(__doc__, {"packed": packed, "paged": paged, "logprob": logprob, "gpu": gpu})
