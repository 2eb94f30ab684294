"""One step of supervised fine-tuning on packed trajectories.

    L = sum over the step's packs of sum_j weight_j * -log p(target_j)         [P eq.1]

The weights (all tokens alike, or all trajectories) make the sum exact under any packing (see sft/dataset.py): a step adds up
gradients pack by pack, then moves once.
"""

import time
from collections.abc import Sequence

import torch

from minvenus.kernels.logprob import token_logprobs
from minvenus.model.qwen3 import Qwen3
from minvenus.sft.dataset import Example, Pack, Reduction, step_packs
from minvenus.train.optim import optimiser_step


def sft_loss(model: Qwen3, pack: Pack, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The pack's share of the step's loss. Parameters stay in float32; products are in `dtype`, by default bfloat16 on a GPU
    and float32 elsewhere."""
    device = model.head_weight.device
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        hidden = model.packed(pack.tokens.to(device), pack.cu_seqlens.to(device))
    hidden = hidden[pack.sources.to(device)].to(dtype)                       # [M, hidden]: only positions that are trained
    logp = token_logprobs(hidden, model.head_weight.to(dtype), pack.targets.to(device))
    return -(pack.weights.to(device) * logp).sum()


def train_step(model: Qwen3, optimizer, examples: Sequence[Example], rate: float, clip: float, pack_tokens: int,
               reduction: Reduction) -> tuple[dict, dict]:
    """Returns (metrics, timing)."""
    start = time.perf_counter()
    loss = 0.0
    for pack in step_packs(examples, pack_tokens, reduction):
        part = sft_loss(model, pack)
        part.backward()
        loss += part.item()
    norm = optimiser_step(model, optimizer, rate, clip)
    tokens = sum(len(example) for example in examples)
    metrics = {"loss": loss, "grad_norm": norm, "learning_rate": rate, "tokens": tokens,
               "trained_tokens": sum(example.trained for example in examples)}
    seconds = time.perf_counter() - start
    return metrics, {"seconds": seconds, "tokens_per_second": tokens / seconds}


@torch.no_grad()
def validation_loss(model: Qwen3, examples: Sequence[Example], pack_tokens: int, reduction: Reduction) -> float:
    """The same loss on trajectories that are never trained on."""
    return sum(float(sft_loss(model, pack)) for pack in step_packs(examples, pack_tokens, reduction))
