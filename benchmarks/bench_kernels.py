"""Kernels beside plain torch, interleaved in one process.

    python -m benchmarks.bench_kernels [--only packed paged logprob] [--threads 1] [--rounds 3] [--cpu-time]

packed    training attention over ragged sequences          peer: one SDPA call on the padded batch with a mask
paged     a chunk of 32 sequences, keys in pages            peer: SDPA on padded contiguous caches with a mask
logprob   log-probs of targets, forward and backward        peer: all logits, log_softmax, gather
"""

import torch
import torch.nn.functional as F

from benchmarks.timing import main
from minvenus.kernels.attention import attention
from minvenus.kernels.logprob import token_logprobs, token_logprobs_reference
from minvenus.kernels.paged import paged_attention


def both_ways(function, *leaves):
    """A training step's share: forward, then backward into fresh gradients."""
    return lambda: torch.autograd.grad(function().sum(), leaves)


def ragged_lengths(count, low, high):
    lengths = torch.randint(
        low, high + 1, (count,), generator=torch.Generator().manual_seed(0)
    ).tolist()
    return [high, *lengths[1:]]  # the longest one sets the padding


def packed(timing):
    lengths, heads, kv_heads, channels = ragged_lengths(8, 64, 2048), 8, 4, 64
    cu, longest = torch.tensor([0, *lengths]).cumsum(0), max(lengths)
    q, k, v = (
        torch.randn(sum(lengths), h, channels, requires_grad=True)
        for h in (heads, kv_heads, kv_heads)
    )
    padded = [
        torch.randn(len(lengths), h, longest, channels, requires_grad=True)
        for h in (heads, kv_heads, kv_heads)
    ]
    position = torch.arange(longest)
    mask = (position <= position[:, None]) & (
        position < torch.tensor(lengths)[:, None, None, None]
    )  # [B, 1, L, L]
    timing.compare(
        "packed attention, 64 to 2048 tokens",
        {
            "ours": both_ways(lambda: attention(q, k, v, cu), q, k, v),
            "padded": both_ways(
                lambda: F.scaled_dot_product_attention(*padded, attn_mask=mask, enable_gqa=True),
                *padded,
            ),
        },
        {"padded": 1.5},
    )


def pool(lengths, kv_heads, channels, page):
    """Scattered pages for these lengths: k_pages, v_pages, block_table, lengths."""
    need = [-(-length // page) for length in lengths]
    order = torch.randperm(sum(need), generator=torch.Generator().manual_seed(0)).split(need)
    table = torch.nn.utils.rnn.pad_sequence(list(order), batch_first=True)
    k_pages, v_pages = (torch.randn(sum(need), page, kv_heads, channels) for _ in range(2))
    return k_pages, v_pages, table, torch.tensor(lengths)


def paged(timing, new=12):
    for name, (heads, kv_heads, channels) in {
        "tiny": (4, 2, 32),
        "qwen3-0.6b": (16, 8, 128),
    }.items():
        lengths = ragged_lengths(32, 100, 2000)
        pages, q = pool(lengths, kv_heads, channels, 16), torch.randn(32 * new, heads, channels)
        cu_queries, batch = torch.arange(33) * new, q.view(32, new, heads, channels).transpose(1, 2)
        caches = [torch.randn(32, kv_heads, max(lengths), channels) for _ in range(2)]
        seen = torch.tensor(lengths)[:, None, None] - new + torch.arange(new)[:, None]
        mask = (torch.arange(max(lengths)) <= seen)[:, None]  # [B, 1, n, L]
        timing.compare(
            f"paged attention, {new} new tokens, {name}",
            {
                "ours": lambda pages=pages, q=q, cu=cu_queries: paged_attention(q, *pages, cu),
                "padded": lambda q=batch, kv=caches, mask=mask: F.scaled_dot_product_attention(
                    q, *kv, attn_mask=mask, enable_gqa=True
                ),
            },
            {"padded": 0.77},
        )


def logprob(timing):
    n, vocabulary, channels = 4096, 151_936, 256
    hidden = torch.randn(n, channels, requires_grad=True)
    weight = (torch.randn(vocabulary, channels) * 0.05).requires_grad_()
    targets = torch.randint(0, vocabulary, (n,))
    timing.compare(
        f"log-probs, {n} x {vocabulary}",
        {
            "ours": both_ways(lambda: token_logprobs(hidden, weight, targets), hidden, weight),
            "all logits": both_ways(
                lambda: token_logprobs_reference(hidden, weight, targets), hidden, weight
            ),
        },
        {"all logits": 0.83},
    )


if __name__ == "__main__":
    main(__doc__, {"packed": packed, "paged": paged, "logprob": logprob})
