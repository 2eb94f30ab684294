"""The policy loss, per token.

    rho  = pi / pi_old                                               log rho is clamped to +-20
    L    = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high))                       [P eq.10]
           with dual_clip, where A < 0: min(L, -A dual_clip)
    k3   = exp(x) - x - 1,  x = log pi_ref - log pi                  x is clamped to +-20, k3 to 10
    loss = sum_k w_k L_k + kl_coef * sum_k w_k k3_k                  over the sampled tokens k

    aggregate             w of a token in rollout i
    seq-mean-token-mean   1 / (B n_i)     the paper's: every rollout weighs the same
    token-mean            1 / N           every token weighs the same
    seq-mean-token-sum    1 / B           long rollouts weigh more

An optimiser step trains on B rollouts, with n_i sampled tokens in rollout i and N in all. A is the
advantage of the token's turn (advantage.py), pi_old the policy that sampled the token, pi_ref the
start checkpoint.

The weights count the whole optimiser step. So it may be cut into packs of whole rollouts, in any
way: the losses of the packs add up, and so do their gradients. Only log pi carries a gradient.

All tensors are flat, [M]: the sampled tokens of one pack, without padding.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from minvenus.setting import check_settings, setting


@dataclass(frozen=True)
class LossConfig:
    """The settings of the loss."""

    clip_low: float = setting(0.2, "the ratio is clipped to 1 - clip_low ...", least=0, below=1)
    clip_high: float = setting(0.2, "... and 1 + clip_high", least=0)
    dual_clip: float | None = setting(
        None, "cap of the ratio of tokens with A < 0; none = no cap", above=1)
    kl_coef: float = setting(
        0.001, "weight of the KL term to the start checkpoint; 0 = no reference", least=0)
    aggregate: Literal["seq-mean-token-mean", "token-mean", "seq-mean-token-sum"] = setting(
        "seq-mean-token-mean", "how tokens are weighed: see igpo/loss.py")

    def __post_init__(self):
        check_settings(self)


def igpo_loss(
    logprobs: Tensor,                    # log pi: the only one that has a gradient
    old_logprobs: Tensor,
    ref_logprobs: Tensor | None,         # None where kl_coef is 0
    advantages: Tensor,
    weights: Tensor,                     # of token_weights
    config: LossConfig,
) -> Tensor:
    """The loss of a pack, its share of the step's loss."""
    shapes = {x.shape for x in (logprobs, old_logprobs, advantages, weights)}
    if shapes != {logprobs.flatten().shape}:
        raise ValueError(f"need flat tensors of one length, got shapes {sorted(map(list, shapes))}")
    weights = weights.to(logprobs.dtype)
    policy_loss = (weights * policy_losses(logprobs, old_logprobs, advantages, config)).sum()
    if not config.kl_coef:
        return policy_loss

    if ref_logprobs is None or ref_logprobs.shape != logprobs.shape:
        raise ValueError(f"kl_coef is {config.kl_coef}: ref_logprobs must be like logprobs")
    return policy_loss + config.kl_coef * (weights * k3(logprobs, ref_logprobs)).sum()


def token_weights(segments: Tensor, aggregate: str, rollouts: int, tokens: int) -> Tensor:
    """w of every token. `segments` says to which rollout of the pack a token belongs.

    `rollouts` and `tokens` are B and N: they count the whole optimiser step.
    """
    weights = torch.ones_like(segments, dtype=torch.float64)
    if aggregate == "token-mean":
        return weights / tokens
    if aggregate == "seq-mean-token-mean":
        weights = weights / torch.bincount(segments)[segments]
    return weights / rollouts


def log_ratios(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    return (logprobs - old_logprobs.detach()).clamp(-20.0, 20.0)


def policy_losses(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor,
                  config: LossConfig) -> Tensor:
    """L of every token."""
    advantages = advantages.detach()
    ratios = log_ratios(logprobs, old_logprobs).exp()
    unclipped = -advantages * ratios
    clipped = -advantages * ratios.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    losses = torch.maximum(unclipped, clipped)
    if config.dual_clip is None:
        return losses
    ceiling = -advantages * config.dual_clip
    return torch.where((advantages < 0) & (losses > ceiling), ceiling, losses)


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The low-variance estimate of KL(pi || pi_ref) at sampled tokens; unbiased where pi_old is pi,
    but for the clamps. Its gradient there is that of KL(pi_ref || pi).

    It is never negative, and 0 where they agree.
    """
    x = (ref_logprobs.detach() - logprobs).clamp(-20.0, 20.0)
    return (x.expm1() - x).clamp(max=10.0)
