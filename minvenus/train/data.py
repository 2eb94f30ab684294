"""Which trajectories are trained on, and when: pure functions of the data, the seed and the step, so that a resumed run needs no
saved position. Knows no text and no packing."""

import hashlib
from collections.abc import Sequence

import torch

from minvenus.config import ConfigError
from minvenus.sft.dataset import Example


def split(examples: Sequence[Example], held_out: int) -> tuple[list[Example], list[Example]]:
    """(training, validation): the last `held_out` different trajectories are for validation, all others for training.
    Resampling repeats long trajectories: a copy of one that is held out is trained on nowhere."""
    digests = [digest(example) for example in examples]
    chosen: dict[bytes, Example] = {}
    for key, example in zip(reversed(digests), reversed(examples), strict=True):
        if len(chosen) == held_out:
            break
        chosen.setdefault(key, example)
    training = [example for key, example in zip(digests, examples, strict=True) if key not in chosen]
    if not training or len(chosen) < held_out:
        raise ConfigError(f"{len(set(digests))} different trajectories are not enough to hold {held_out} out for validation and "
                          "train on others: give more, or lower validation")
    return training, list(chosen.values())[::-1]


def fingerprint(examples: Sequence[Example]) -> str:
    """Tells whether a resumed run has the data it began with, in the same order."""
    return hashlib.sha256(b"".join(digest(example) for example in examples)).hexdigest()


def digest(example: Example) -> bytes:
    return hashlib.sha256(example.tokens.numpy().tobytes() + example.sampled.numpy().tobytes()).digest()


def batch_indices(step: int, batch: int, total: int, seed: int) -> list[int]:
    """Indices of the `batch` examples of 0-based step `step`: every epoch is a new permutation, and batches run across epochs."""
    if total < 1:
        raise ValueError("there are no examples to train on")
    places = range(step * batch, (step + 1) * batch)
    order = {epoch: permutation(total, seed, epoch) for epoch in {place // total for place in places}}
    return [order[place // total][place % total] for place in places]


def permutation(total: int, seed: int, epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(total, generator=generator).tolist()
