"""The optimiser step: AdamW, linear warm-up and cosine or constant learning rate, clipping by the gradient's norm.

    lr(k) = peak * (k + 1) / warm-up                                        for the first steps, k counted from 0
    lr(k) = peak * (1 + cos(pi * (k - warm-up) / (steps - warm-up))) / 2    after them; or just peak
"""

import math

import torch
from torch import nn


class Diverged(RuntimeError):
    """Training cannot go on; the message says which number went wrong and what to look at. `moved`: the weights have changed
    since the last whole step, so they are no state to keep."""

    def __init__(self, message: str, moved: bool = False):
        super().__init__(message)
        self.moved = moved


def learning_rate(step: int, steps: int, peak: float, warmup: int, cosine: bool = True) -> float:
    """The rate of 0-based step `step` out of `steps`."""
    if step < warmup:
        return peak * ((step + 1) / warmup)
    if not cosine:
        return peak
    return peak * 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def adamw(model: nn.Module, betas: tuple[float, float], weight_decay: float) -> torch.optim.AdamW:
    """Weight decay on all parameters, as in the released training scripts. The rate is set at every step."""
    return torch.optim.AdamW(model.parameters(), lr=0.0, betas=betas, weight_decay=weight_decay)


def optimiser_step(model: nn.Module, optimizer: torch.optim.Optimizer, rate: float, clip: float) -> float:
    """Clip, step and reset the gradients; returns their norm before clipping. A norm that is not finite changes nothing."""
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), clip))
    if not math.isfinite(norm):
        raise Diverged(f"the gradient's norm is {norm}: lower the learning rate, and look at the last lines of metrics.jsonl for "
                       "when the loss began to grow")
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)       # or the next step would add to this one's
    return norm
