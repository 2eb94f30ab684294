"""Which examples a step trains on: a pure function of the seed and the step, so that a resumed run needs no saved position."""

import torch


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
