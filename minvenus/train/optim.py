"""The optimiser step: AdamW, and clipping by the gradient's norm."""

import math

import torch
from torch import nn

from minvenus.config import ConfigError
from minvenus.model.precision import whole


class Diverged(ConfigError):
    """Training cannot go on; the message says which number went wrong and what to look at."""


def adamw(model: nn.Module, betas: tuple[float, float], weight_decay: float) -> torch.optim.AdamW:
    """Weight decay on all trained parameters, as in the released training scripts.

    The rate is set at every step.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    fused = parameters[0].is_cuda                # one kernel over all parameters
    return torch.optim.AdamW(
        parameters, lr=0.0, betas=betas, weight_decay=weight_decay, fused=fused
    )


def optimizer_step(model: nn.Module, optimizer: torch.optim.Optimizer, rate: float,
                   clip: float) -> float:
    """Clip, step and reset the gradients; returns their norm before clipping.

    A norm that is not finite raises before anything is changed.
    """
    norm = float(whole(nn.utils.clip_grad_norm_(model.parameters(), clip)))
    if not math.isfinite(norm):
        raise Diverged(f"the gradient's norm is {norm}: lower the learning rate, and look at the "
                       "last lines of metrics.jsonl for when the loss began to grow")
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    model.zero_grad()                            # or the next step would add to this one's
    return norm
