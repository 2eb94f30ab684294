"""The policy loss, per token.

    rho  = pi / pi_old                                                    log rho is clamped to +-20       [P eq.10]
    L    = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high))         with dual clip c, where A < 0: min(L, -A c)
    k3   = exp(x) - x - 1,  x = log pi_ref - log pi                       >= 0, capped at 10; x is clamped to +-20
    loss = agg(L) + kl_coef * agg(k3)                                     over the tokens that the policy sampled

    agg  seq-mean-token-mean   1/B sum_i 1/n_i sum_k      the paper's: every rollout weighs the same
         token-mean            1/sum_i n_i sum_i sum_k    every token weighs the same
         seq-mean-token-sum    1/B sum_i sum_k            long rollouts weigh more

B rollouts i with n_i sampled tokens k each. A is the advantage of the token's turn (advantage.py), pi_old the policy
that sampled the token, pi_ref the start checkpoint.

Every aggregation is a sum over tokens with fixed weights. So a step may be cut into micro-batches of whole rollouts of
any sizes: pass the counts of the whole step, add the losses up, and the gradient is the same. Only log pi carries a
gradient.
"""

import torch

AGGREGATIONS = ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum")


def igpo_loss(logp, old_logp, ref_logp, advantages, mask, *, clip_low=0.2, clip_high=0.2, dual_clip=None,
              kl_coef=0.001, aggregate="seq-mean-token-mean", step_sequences=None, step_tokens=None):
    """(loss, stats). All tensors are [B, L]; `mask` is True where the policy sampled the token; what the others hold
    elsewhere does not matter. `ref_logp` may be None when kl_coef is 0.

    `step_sequences` and `step_tokens` count what the whole optimiser step trains on, for a call that sees a part of it.
    The losses in stats add up over micro-batches; the fractions and means are over the `tokens` of this call.
    """
    if kl_coef and ref_logp is None:
        raise ValueError(f"kl_coef is {kl_coef}, so ref_logp is needed")
    _check_shapes(logp=logp, old_logp=old_logp, ref_logp=ref_logp, advantages=advantages, mask=mask)
    mask = mask.bool()
    weight = token_weights(mask, aggregate, step_sequences, step_tokens).to(logp.dtype)
    # 0 outside the mask before any arithmetic: 0 * NaN would be NaN, in the gradient too
    logp, old_logp, advantages = (torch.where(mask, x, 0.0) for x in (logp, old_logp.detach(), advantages.detach()))

    log_ratio = (logp - old_logp).clamp(-20.0, 20.0)                                     # [B, L]
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(unclipped, clipped)
    dual = torch.zeros_like(mask)
    if dual_clip is not None:
        ceiling = -advantages * dual_clip
        dual = (advantages < 0) & (loss > ceiling)
        loss = torch.where(dual, ceiling, loss)
    policy_loss = (weight * loss).sum()

    kl = torch.zeros_like(policy_loss)
    if kl_coef:
        kl = (weight * k3(logp, torch.where(mask, ref_logp.detach(), 0.0))).sum()

    tokens = int(mask.sum())
    count = max(1, tokens)
    sampled_ratios = ratio.detach()[mask] if tokens else torch.ones(1)
    return policy_loss + kl_coef * kl, {
        "policy_loss": policy_loss.item(),
        "kl": kl.item(),
        "tokens": tokens,
        "clip_fraction": ((clipped > unclipped) & mask).sum().item() / count,
        "dual_clip_fraction": (dual & mask).sum().item() / count,
        "approx_kl": -log_ratio.sum().item() / count,                 # mean of log pi_old - log pi
        "ratio_min": sampled_ratios.min().item(),
        "ratio_max": sampled_ratios.max().item(),
    }


def k3(logp, ref_logp):
    """The low-variance estimate of KL(pi || pi_ref) at tokens sampled from pi: never negative, 0 where they agree."""
    x = (ref_logp - logp).clamp(-20.0, 20.0)
    return (x.expm1() - x).clamp(max=10.0)


def token_weights(mask, aggregate, step_sequences, step_tokens):
    """The weight of every token in the loss [B, L], 0 outside the mask. A row without a sampled token is padding."""
    if aggregate not in AGGREGATIONS:
        raise ValueError(f"aggregate must be one of {', '.join(AGGREGATIONS)}; got {aggregate!r}")
    tokens_B = mask.sum(dim=1)
    weight = mask.double()
    if aggregate == "token-mean":
        return weight / max(1, int(tokens_B.sum()) if step_tokens is None else step_tokens)
    if aggregate == "seq-mean-token-mean":
        weight = weight / tokens_B.clamp(min=1)[:, None]
    return weight / max(1, int((tokens_B > 0).sum()) if step_sequences is None else step_sequences)


def _check_shapes(**tensors):
    """A single row of advantages for two rollouts would broadcast, and train both with the wrong credit."""
    shapes = {name: list(x.shape) for name, x in tensors.items() if x is not None}
    if any(len(shape) != 2 or shape != shapes["logp"] for shape in shapes.values()):
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"need tensors of one shape [B, L], got {found}")
