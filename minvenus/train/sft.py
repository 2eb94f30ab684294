"""One step of supervised fine-tuning on packed trajectories.

    L = sum over the step's packs of sum_j weight_j * -log p(target_j)         [P eq.1], each trajectory weighing the same

The weights make the sum exact under any packing (see sft/dataset.py): a step adds up gradients pack by pack, then moves once.
"""

import time
from collections.abc import Iterable

import torch

from minvenus.kernels.logprob import token_logprobs
from minvenus.model.qwen3 import Qwen3
from minvenus.sft.dataset import Example, Pack, step_packs
from minvenus.train.optim import optimiser_step


def sft_loss(model: Qwen3, pack: Pack) -> torch.Tensor:
    """The pack's share of the step's loss. Parameters stay in float32; on a GPU the products are in bfloat16."""
    device = model.head_weight.device
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        hidden = model.packed(pack.tokens.to(device), pack.cu_seqlens.to(device))
    hidden = hidden[pack.sources.to(device)]                                 # [M, hidden]: only positions that are trained
    logp = token_logprobs(hidden, model.head_weight.to(hidden.dtype), pack.targets.to(device))
    return -(pack.weights.to(device) * logp).sum()


def train_step(model: Qwen3, optimizer, examples: list[Example], rate: float, clip: float, pack_tokens: int,
               reduction: str) -> tuple[dict, dict]:
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
def validation_loss(model: Qwen3, examples: Iterable[Example], pack_tokens: int, reduction: str) -> float:
    """The same loss on trajectories that are never trained on."""
    return sum(sft_loss(model, pack).item() for pack in step_packs(list(examples), pack_tokens, reduction))
