"""Scoring without a cache: a trajectory and every continuation of its prefixes in one forward pass.

    tokens that run:   x_1 .. x_L   |   x_{n_1}  c_1 .. c_{R-1}   |   x_{n_2}  c_1 .. c_{R-1}   |  ...
    position:          0 .. L-1     |   n_1 - 1  ..  n_1 + R - 2  |   ...
    sees:              causally     |   x_1 .. x_{n_1 - 1} and, causally, its own row only

The last token of a prefix runs once more at the head of its row, because what it gives is the distribution of c_1. T rows of R
tokens behind a trajectory of L are L + T R tokens, where a forward per prefix would run about L T / 2. For a trainer that has the
weights at hand but no engine; an engine that still holds the trajectory's pages runs the T R tokens alone.

N tokens in all, H query heads, K kv heads, D channels.
"""

from itertools import accumulate

import torch
import torch.nn.functional as F

from minvenus.kernels.attention import attention
from minvenus.kernels.logprob import token_logprobs


@torch.no_grad()
def score_packed(model, tokens: list[int], prefix_lengths: list[int], continuations: list[list[int]],
                 temperature: float = 1.0) -> list[list[float]]:
    """Log-probs of the tokens of continuations[i] behind tokens[:prefix_lengths[i]], for every i."""
    check(len(tokens), prefix_lengths, continuations)
    device, length = model.head_weight.device, len(tokens)
    rows = [[tokens[n - 1], *c[:-1]] for n, c in zip(prefix_lengths, continuations, strict=True)]
    bounds = list(accumulate((len(row) for row in rows), initial=length))
    flat = torch.tensor(tokens + [token for row in rows for token in row], device=device)                     # [N]
    positions = torch.cat([torch.arange(length, device=device),
                           *(torch.arange(n - 1, n - 1 + len(row), device=device)
                             for n, row in zip(prefix_lengths, rows, strict=True))])                          # [N]
    cu_seqlens = torch.tensor([0, length], device=device, dtype=torch.int32)
    spans = list(zip(prefix_lengths, bounds[:-1], bounds[1:], strict=True))

    def attend(layer, q, k, v):
        """q [N, H, D], k and v [N, K, D] -> [N, H, D]"""
        out = [attention(q[:length], k[:length], v[:length], cu_seqlens)]
        out += [attend_row(q[a:b], torch.cat((k[:n - 1], k[a:b])), torch.cat((v[:n - 1], v[a:b]))) for n, a, b in spans]
        return torch.cat(out)

    hidden = model.paged(flat, positions, attend)[length:]                                                    # [T * R, hidden]
    targets = torch.tensor([token for c in continuations for token in c], device=device)
    scores = token_logprobs(hidden, model.head_weight, targets, temperature).tolist()
    return [scores[a - length:b - length] for _, a, b in spans]


def attend_row(q, k, v):
    """R queries behind a prefix: q [R, H, D]; k and v [prefix + R, K, D], the row's own last -> [R, H, D]."""
    count, total = len(q), len(k)
    seen = torch.ones(count, total, dtype=torch.bool, device=q.device).tril(total - count)                    # [R, prefix + R]
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))                                                    # [1, heads, .., D]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)[0].transpose(0, 1)


def check(length: int, prefix_lengths: list[int], continuations: list[list[int]]) -> None:
    if len(prefix_lengths) != len(continuations) or not continuations:
        raise ValueError(f"one continuation for every prefix, and at least one: {len(prefix_lengths)} prefixes, "
                         f"{len(continuations)} continuations")
    if not 1 <= min(prefix_lengths) <= max(prefix_lengths) <= length:
        raise ValueError(f"lengths of prefixes must lie in 1 to {length}, the number of tokens; got {prefix_lengths}")
    if not all(continuations):
        raise ValueError(f"continuation {[bool(c) for c in continuations].index(False)} is empty")
