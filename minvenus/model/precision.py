"""Precision: the types of parameters, products and engine on a device, and how far log-probs may then lie apart.

            parameters    products           engine                       mean gap of new and stored log-probs
    CPU     float32       float32            the same module              <= 1e-4
    CUDA    float32       bfloat16           a bfloat16 copy of it        <= 0.02

With the demo's model the mean gap is 4e-4 when engine and trainer compute in bfloat16, and 3e-4 when only one of them
does: a float32 engine would buy no agreement, and take twice the cache. The largest gap is logged and stops nothing:
among millions of tokens some always lie far apart.
"""

from dataclasses import dataclass

import torch

from minvenus.model.lora import adapters, plain_weight
from minvenus.model.qwen3 import Qwen3
from minvenus.model.split import is_split, whole


@dataclass(frozen=True)
class Precision:
    compute: torch.dtype | None    # of matrix products in training; None = the parameters' own
    engine: torch.dtype            # of the engine's weights and pages, and of weights that are not trained
    mean_gap: float                # of log-probs that the trainer computes again; more means another model


PRECISION = {
    "cpu": Precision(None, torch.float32, 1e-4),
    "cuda": Precision(torch.bfloat16, torch.bfloat16, 0.02),
}


def precision_of(model: Qwen3) -> Precision:
    return PRECISION[model.head_weight.device.type]


def engine_model(model: Qwen3) -> Qwen3:
    """The model for the engine: the trained one itself where it has the engine's type and no adapters, else a copy in
    that type, adapters merged. One that is split over processes could not write turns: each has its own number."""
    device, dtype = model.head_weight.device, precision_of(model).engine
    if model.head_weight.dtype == dtype and not adapters(model) and not is_split(model):
        return model
    with torch.device("meta"):
        copy = Qwen3(model.config)
    copy = copy.to(dtype).to_empty(device=device).requires_grad_(False)
    fill(copy, model)
    return copy


@torch.no_grad()
def fill(copy: Qwen3, model: Qwen3) -> None:
    """One parameter at a time: never a second whole copy."""
    for name, parameter in copy.named_parameters():
        parameter.copy_(whole(plain_weight(model, name)))
