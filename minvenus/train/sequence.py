"""One pack on P ranks (Ulysses): each holds the activations of 1/P of its tokens.

Only attention mixes tokens. Around it the ranks exchange all heads of their own tokens for some heads of all tokens:

    q [m, H, D], k and v [m, K, D]  ->  [n, H/P, D], [n, K/P, D]  ->  attention  ->  [n, H/P, D]  ->  [m, H, D]

n tokens of the pack, m of them here; H query heads, K kv heads, D channels of one.
"""

from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from minvenus.kernels.attention import attention
from minvenus.model.qwen3 import Qwen3, packed_positions


def split_sequences(model: Qwen3, width: int) -> None:
    """`model.logprobs` is called with the same pack on `width` ranks, each runs its part of the tokens, and all return
    the log-probs of the whole pack."""
    group, _ = dist.new_subgroups(width)
    place = dist.get_rank(group)
    own_logprobs = model.logprobs

    def logprobs(tokens, cu_seqlens, sources, targets, temperature=1.0, entropy=False, **options):
        longest = model.check_packed(tokens, cu_seqlens)
        cu_seqlens = cu_seqlens.to(tokens.device, non_blocking=True)
        bounds = [len(tokens) * i // width for i in range(width + 1)]
        lengths = [end - start for start, end in pairwise(bounds)]
        start, end = bounds[place:place + 2]
        here = ((sources >= start) & (sources < end)).nonzero()[:, 0]
        mine = here.to(tokens.device, non_blocking=True)

        def mix(q, k, v):
            q, k, v = to_heads(q, k, v, lengths, place, group)
            return to_tokens(attention(q, k, v, cu_seqlens, max_seqlen=longest), lengths, place, group)

        def packed(tokens, cu_seqlens, rows=None):
            return model.mixed_by(mix, tokens, packed_positions(cu_seqlens, start, end), rows)

        logp, entropies = own_logprobs(tokens[start:end], cu_seqlens, sources[here] - start, targets[mine], temperature,
                                       entropy=True, packed=packed, **options)
        logp = Join.apply(logp, mine, len(sources), group)
        return (logp, Join.apply(entropies, mine, len(sources), group)) if entropy else logp

    setattr(model, "logprobs", logprobs)  # noqa: B010  mypy knows it as a method
    model.width = width


def to_heads(q, k, v, lengths: list[int], place: int, group) -> tuple[Tensor, ...]:
    """All heads of the tokens here to some heads of all tokens: [m, H, D], [m, K, D] -> [n, H/P, D], [n, K/P, D]. P
    divides K, so query heads stay with their kv heads."""
    width = len(lengths)
    heads = [x.shape[1] // width for x in (q, k, v)]
    parts = torch.cat([x.unflatten(1, (width, -1)) for x in (q, k, v)], dim=2)              # [m, P, (H + 2K)/P, D]
    sent = parts.transpose(0, 1).flatten(0, 1)                                              # [P m, (H + 2K)/P, D]
    return Exchange.apply(sent, [lengths[place]] * width, lengths, group).split(heads, dim=1)


def to_tokens(out, lengths: list[int], place: int, group) -> Tensor:
    """The way back: [n, H/P, D] -> [m, H, D]."""
    width, own = len(lengths), lengths[place]
    parts = Exchange.apply(out, lengths, [own] * width, group)                              # [P m, H/P, D]
    return parts.unflatten(0, (width, own)).transpose(0, 1).flatten(1, 2)


class Exchange(torch.autograd.Function):
    """Rows for every rank of the group, and the rows received from each; gradients take the way back."""

    @staticmethod
    def forward(ctx, x, sent: list[int], received: list[int], group):
        ctx.options = received, sent, group
        out = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return Exchange.apply(grad, *ctx.options), None, None, None


class Join(torch.autograd.Function):
    """The values of all ranks of the group, those from here at `mine`. Every rank computes the whole loss from them,
    so its own values have their gradient there: nothing is summed on the way back."""

    @staticmethod
    def forward(ctx, own, mine, total: int, group):
        ctx.save_for_backward(mine)
        out = own.new_zeros(total).index_copy(0, mine, own)
        dist.all_reduce(out, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad[ctx.saved_tensors[0]], None, None, None
