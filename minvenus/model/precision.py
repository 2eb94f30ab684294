"""Precision: the types of parameters, products and engine on a device, and how far log-probs may
then lie apart.

            parameters    products     engine                  mean gap of new and stored log-probs
    CPU     float32       float32      the same module         <= 1e-4
    CUDA    float32       bfloat16     a bfloat16 copy of it   <= 0.02 + 0.1 / sqrt(tokens)

With the demo's model the mean gap is 4e-4 when engine and trainer compute in bfloat16, and 3e-4
when only one of them does: a float32 engine would buy no agreement, and take twice the cache. The
largest gap is logged and stops nothing: among millions of tokens some always lie far apart.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from minvenus.config import ConfigError
from minvenus.model.lora import adapters, plain_weight
from minvenus.model.qwen3 import Qwen3


@dataclass(frozen=True)
class Precision:
    compute: torch.dtype | None    # of matrix products in training; None = that of the parameters
    engine: torch.dtype            # of the engine's weights and pages, and of frozen weights
    mean_gap: float                # of log-probs that the trainer computes again; more is an error
    spread: float = 0.0            # over sqrt(n) it is added for the mean of n tokens


PRECISION = {
    "cpu": Precision(None, torch.float32, 1e-4),
    "cuda": Precision(torch.bfloat16, torch.bfloat16, 0.02, 0.1),
}


def device_of(name: str) -> Literal["cpu", "cuda"]:
    """auto = a GPU if there is one."""
    if name == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if name == "cuda":
        raise ConfigError("device cuda: torch sees no GPU here")
    return "cpu"


def precision_of(model: Qwen3) -> Precision:
    return PRECISION[model.head_weight.device.type]


def engine_model(model: Qwen3) -> Qwen3:
    """The model for the engine: the trained one itself, or a copy in the engine's type.

    It is a copy where the types differ, where there are adapters, which are merged, and where the
    model is split over processes: they write different numbers of turns, so they cannot run its
    layers together.
    """
    dtype = precision_of(model).engine
    split = any(hasattr(parameter, "full_tensor") for parameter in model.parameters())
    if model.head_weight.dtype == dtype and not adapters(model) and not split:
        return model

    with torch.device("meta"):
        copy = Qwen3(model.config)
    copy = copy.to(dtype).to_empty(device=model.head_weight.device)
    copy.requires_grad_(False)
    fill(copy, model)
    return copy


@torch.no_grad()
def fill(copy: Qwen3, model: Qwen3) -> None:
    """Copy the weights, one parameter at a time: never a second whole copy."""
    for name, parameter in copy.named_parameters():
        parameter.copy_(whole(plain_weight(model, name)))


def whole(tensor: Any) -> Tensor:
    """A tensor with the rows of all processes (FSDP2's DTensor), which all have to ask for it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
