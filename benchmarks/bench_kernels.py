"""Kernels beside plain torch, interleaved in one process.

    python -m benchmarks.bench_kernels [--only packed paged logprob] [--threads 1] [--rounds 3]

packed    training attention over ragged sequences     peer: one SDPA call, padded, with a mask
paged     a chunk of 32 sequences, keys in pages       peer: SDPA on padded contiguous caches
logprob   log-probs of targets, forward and backward   peer: all logits, log_softmax, gather
"""

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from benchmarks.timing import main
from minvenus.kernels.attention import attention
from minvenus.kernels.logprob import token_logprobs, token_logprobs_reference
from minvenus.kernels.paged import paged_attention


def both_ways(function, *leaves):
    """A training step's share: forward, then backward into fresh gradients."""
    return lambda: torch.autograd.grad(function().sum(), leaves)


def ragged_lengths(count, low, high):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(low, high + 1, (count,), generator=generator).tolist()
    return [high, *lengths[1:]]  # the longest one sets the padding


def packed(timing):
    lengths = ragged_lengths(8, 64, 2048)
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    q, k, v = (torch.randn(sum(lengths), h, 64, requires_grad=True) for h in (8, 4, 4))

    longest = max(lengths)
    padded = [torch.randn(8, h, longest, 64, requires_grad=True) for h in (8, 4, 4)]
    position = torch.arange(longest)
    inside = position < torch.tensor(lengths)[:, None, None, None]
    mask = (position <= position[:, None]) & inside  # [B, 1, L, L]

    def run_padded():
        return F.scaled_dot_product_attention(*padded, attn_mask=mask, enable_gqa=True)

    sides = {
        "ours": both_ways(lambda: attention(q, k, v, cu_seqlens), q, k, v),
        "padded": both_ways(run_padded, *padded),
    }
    timing.compare("packed attention, 64 to 2048 tokens", sides, {"padded": 1.5})


def scattered_pages(lengths, kv_heads, channels, page):
    """Pages for these lengths in random order: k_pages, v_pages, block_table, lengths."""
    need = [-(-length // page) for length in lengths]
    order = torch.randperm(sum(need), generator=torch.Generator().manual_seed(0)).split(need)
    table = pad_sequence(list(order), batch_first=True)
    k_pages, v_pages = torch.randn(2, sum(need), page, kv_heads, channels)
    return k_pages, v_pages, table, torch.tensor(lengths)


def paged(timing, new=12):
    shapes = {"tiny": (4, 2, 32), "qwen3-0.6b": (16, 8, 128)}
    for name, (heads, kv_heads, channels) in shapes.items():
        lengths = ragged_lengths(32, 100, 2000)
        q = torch.randn(32 * new, heads, channels)
        pages = scattered_pages(lengths, kv_heads, channels, 16)
        cu_queries = torch.arange(33) * new

        padded_q = q.view(32, new, heads, channels).transpose(1, 2)
        caches = torch.randn(2, 32, kv_heads, max(lengths), channels)
        seen = torch.tensor(lengths)[:, None, None] - new + torch.arange(new)[:, None]
        mask = (torch.arange(max(lengths)) <= seen)[:, None]  # [B, 1, n, L]

        def run_ours(q=q, pages=pages, cu_queries=cu_queries):
            paged_attention(q, *pages, cu_queries)

        def run_padded(q=padded_q, caches=caches, mask=mask):
            F.scaled_dot_product_attention(q, *caches, attn_mask=mask, enable_gqa=True)

        sides = {"ours": run_ours, "padded": run_padded}
        timing.compare(f"paged attention, {new} new tokens, {name}", sides, {"padded": 0.77})


def logprob(timing):
    n, vocabulary, channels = 4096, 151_936, 256
    hidden = torch.randn(n, channels, requires_grad=True)
    weight = (torch.randn(vocabulary, channels) * 0.05).requires_grad_()
    targets = torch.randint(0, vocabulary, (n,))
    inputs = hidden, weight, targets
    sides = {
        "ours": both_ways(lambda: token_logprobs(*inputs), hidden, weight),
        "all logits": both_ways(lambda: token_logprobs_reference(*inputs), hidden, weight),
    }
    timing.compare(f"log-probs, {n} x {vocabulary}", sides, {"all logits": 0.83})


if __name__ == "__main__":
    main(__doc__, {"packed": packed, "paged": paged, "logprob": logprob})
