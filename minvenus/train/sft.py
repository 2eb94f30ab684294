"""Supervised fine-tuning: its data and its update.

    L = sum_k w_k * -log p(x_k)                                       trained tokens k   [P eq.1]

    lr(k) = peak * k / warm-up                             for the first steps, k = 1, 2, ...
    lr(k) = peak * (1 + cos(pi * (k - 1 - warm-up) / (steps - warm-up))) / 2       after them

The weights w (igpo/loss.py) count the whole step, so the losses of its packs add up.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from minvenus.config import ConfigError
from minvenus.igpo.loss import token_weights
from minvenus.model.qwen3 import Qwen3
from minvenus.sft.dataset import Example
from minvenus.train.optim import optimizer_step
from minvenus.train.pack import pack_logprobs, rank_packs
from minvenus.train.parallel import gather
from minvenus.train.settings import SFTConfig

# ---------------------------------------------------------------------------------------- data


def hold_out(examples: Sequence[Example], count: int) -> tuple[list[Example], list[Example]]:
    """(training, held out): the last `count` different trajectories are held out.

    Resampling repeats long trajectories: a copy of one that is held out is not trained on either.
    """
    different = {example_digest(example): example for example in reversed(examples)}
    if count >= len(different):
        raise ConfigError(f"{len(different)} different trajectories are not enough to hold {count} "
                          "out for validation and train on others: give more, or lower "
                          "--validation")
    held_out = [*different][:count]
    training = [example for example in examples if example_digest(example) not in held_out]
    return training, [different[key] for key in reversed(held_out)]


def fingerprint(examples: Sequence[Example]) -> str:
    """Tells whether a resumed run has the data it began with, in the same order."""
    return hashlib.sha256(b"".join(map(example_digest, examples))).hexdigest()


def example_digest(example: Example) -> bytes:
    content = example.tokens.numpy().tobytes() + example.sampled.numpy().tobytes()
    return hashlib.sha256(content).digest()


# -------------------------------------------------------------------------------------- update


def learning_rate(step: int, steps: int, peak: float, warmup: int) -> float:
    """The rate of step 1, 2, ... `steps`."""
    if step <= warmup:
        return peak * (step / warmup)
    done = (step - 1 - warmup) / max(1, steps - warmup)
    return peak * 0.5 * (1.0 + math.cos(math.pi * done))


def sft_losses(model: Qwen3, examples: list[Example], config: SFTConfig) -> Iterator[Tensor]:
    """The loss of every pack of this rank; together they are the loss of the step."""
    aggregate = "token-mean" if config.reduction == "token-mean" else "seq-mean-token-mean"
    tokens = sum(example.trained for example in examples)
    for pack in rank_packs(examples, config.pack_tokens):
        weights = token_weights(pack.segments, aggregate, len(examples), tokens)
        logprobs = pack_logprobs(model, pack)
        yield -(weights.to(logprobs, non_blocking=True) * logprobs).sum()


def sft_step(model: Qwen3, optimizer, examples: list[Example], rate: float,
             config: SFTConfig) -> dict[str, float]:
    """One optimiser step on trajectories; returns its statistics."""
    losses = []
    for loss in sft_losses(model, examples, config):
        loss.backward()
        losses.append(loss.item())
    norm = optimizer_step(model, optimizer, rate, config.clip)
    return {
        "loss": sum(gather(losses)),
        "grad_norm": norm,
        "learning_rate": rate,
        "tokens": sum(len(example) for example in examples),
        "trained_tokens": sum(example.trained for example in examples),
    }


@torch.no_grad()
def validation_loss(model: Qwen3, examples: list[Example], config: SFTConfig) -> float:
    """The same loss on trajectories that are never trained on."""
    return sum(gather([loss.item() for loss in sft_losses(model, examples, config)]))
