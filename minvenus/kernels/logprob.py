"""Log-probs of given targets straight from hidden states, without the matrix of all logits.

    z = hidden @ weight.T / temperature        logp = z[target] - logsumexp(z)      p = softmax(z)
    H = logsumexp(z) - sum_v p_v z_v           the entropy, on request, without a gradient

    for the upstream gradient g of logp:
        dz_v = g ([v = target] - p_v)
        dhidden = dz @ weight / temperature    dweight = dz.T @ hidden / temperature

Both passes walk over the positions in chunks; the backward pass computes z again instead of
keeping it. So logits take two [chunk, V] tiles at most, whatever the number of positions. Callers
select the positions that count before the call; no others are computed.

Shapes: N positions, d channels, V vocabulary.
"""

import torch

from minvenus.kernels.linear import linear, uses_onednn

# Logits held at once when no chunk is given: 256 MiB in float32, 441 tokens of Qwen3's vocabulary.
TILE = 2**26


def token_logprobs_reference(hidden, weight, targets, temperature=1.0, entropy=False):
    """The definition, with all logits at once.

    hidden [N, d], weight [V, d], targets [N] -> log-probs [N], and entropies [N] if asked for.
    """
    dtype = accumulator(hidden)
    logits = hidden.to(dtype) @ weight.to(dtype).T / temperature
    logp = logits.log_softmax(dim=-1)                                          # [N, V]
    target_logp = logp.gather(1, targets[:, None])[:, 0]
    if not entropy:
        return target_logp
    return target_logp, -(logp.exp() * logp).sum(dim=-1)


def token_logprobs(hidden, weight, targets, temperature=1.0, chunk=None, entropy=False):
    """hidden [N, d], weight [V, d], targets [N] -> log-probs [N], and entropies [N] if asked for.

    The results are float32 (float64 for float64 inputs). `chunk` is the number of positions whose
    logits exist at the same time: it changes memory and speed, and the result only by rounding.
    """
    check_logprobs(hidden, weight, targets, temperature)
    tile = TILE // 2 if uses_onednn(hidden) else TILE        # oneDNN's product is a second tile
    chunk = chunk or max(1, tile // len(weight))
    logp, entropies = ChunkedLogprob.apply(
        hidden, weight, targets, float(temperature), chunk, entropy)
    return (logp, entropies) if entropy else logp


def check_logprobs(hidden, weight, targets, temperature):
    same_type = hidden.dtype == weight.dtype and targets.dtype == torch.int64
    weight_fits = hidden.dim() == 2 and weight.shape[1:] == hidden.shape[1:]
    if not same_type or not weight_fits or targets.shape != hidden.shape[:1]:
        inputs = ", ".join(f"{list(x.shape)} {x.dtype}" for x in (hidden, weight, targets))
        raise ValueError("need hidden [N, d] and weight [V, d] of one dtype, targets [N] int64; "
                         f"got {inputs}")
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}; "
                         "greedy decoding has no log-probs to train on")


def accumulator(x):
    """The dtype in which sums are taken: float32, or float64 for float64 inputs."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def multiplicand(x):
    """The operand of a matrix product.

    As it is on a GPU, whose tensor cores add in float32; at least float32 on a CPU.
    """
    return x if x.is_cuda else x.to(accumulator(x))


def matmul(a, b, out, add=False, factor=1.0):
    """out = factor * a @ b, or added to out; summed in the dtype of `out`, whatever a has."""
    if a.dtype == out.dtype:
        product = linear(a, b.T)
    else:
        product = torch.mm(a, b, out_dtype=out.dtype)
    if add:
        out.add_(product, alpha=factor)
    else:
        torch.mul(product, factor, out=out)


def logit_chunks(hidden, weight, temperature, chunk):
    """(rows, z [chunk, V]) of every chunk of positions; all z are in one piece of memory."""
    n = len(hidden)
    tile = hidden.new_empty((min(chunk, n), len(weight)), dtype=accumulator(hidden))
    for start in range(0, n, chunk):
        end = min(start + chunk, n)
        rows = slice(start, end)
        z = tile[:end - start]
        matmul(hidden[rows], weight.T, z, factor=1 / temperature)
        yield rows, z


class ChunkedLogprob(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature, chunk, entropy):
        h, w = multiplicand(hidden), multiplicand(weight)
        logp = h.new_empty(len(h), dtype=accumulator(hidden))
        lse = torch.empty_like(logp)
        entropies = torch.empty_like(logp)

        for rows, z in logit_chunks(h, w, temperature, chunk):
            target_z = z.gather(1, targets[rows, None])[:, 0]
            highest = z.amax(dim=1)
            z.sub_(highest[:, None])                         # so that exp cannot overflow
            exp = z.exp() if entropy else z.exp_()
            total = exp.sum(dim=1)
            lse[rows] = highest + total.log()
            logp[rows] = target_z - lse[rows]
            if entropy:
                mean_z = exp.mul_(z).sum(dim=1) / total      # of z minus its maximum
                entropies[rows] = total.log() - mean_z

        ctx.save_for_backward(hidden, weight, targets, lse)
        ctx.options = temperature, chunk
        ctx.mark_non_differentiable(entropies)
        return logp, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_logp, _):
        hidden, weight, targets, lse = ctx.saved_tensors
        temperature, chunk = ctx.options
        hidden_trained, weight_trained = ctx.needs_input_grad[:2]
        h, w = multiplicand(hidden), multiplicand(weight)
        d_hidden = torch.empty_like(h, dtype=lse.dtype) if hidden_trained else None
        d_weight = torch.zeros_like(w, dtype=lse.dtype) if weight_trained else None

        for rows, z in logit_chunks(h, w, temperature, chunk):
            g = grad_logp[rows, None]                                          # [chunk, 1]
            z.sub_(lse[rows, None]).exp_()                   # p
            z.mul_(-g).scatter_add_(1, targets[rows, None], g)           # dz
            dz = z.to(h.dtype)
            if hidden_trained:
                matmul(dz, w, d_hidden[rows], factor=1 / temperature)
            if weight_trained:                               # summed over all chunks, rounded once
                matmul(dz.T, h[rows], d_weight, add=True, factor=1 / temperature)

        if hidden_trained:
            d_hidden = d_hidden.to(hidden.dtype)
        if weight_trained:
            d_weight = d_weight.to(weight.dtype)
        return d_hidden, d_weight, None, None, None, None
