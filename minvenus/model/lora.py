"""Low-rank adapters (LoRA): weights stay, and two small matrices beside each are trained.

    y = W x + s B A x        A [r, inputs] random, B [outputs, r] zero at the start, s = alpha / r;
                             W: all matrices of a block

At the start the model is the base, to the last bit. Switched off it is the base at any time, which
is the reference policy without a second copy. Engine and checkpoints get W + s B A (`plain_weight`)
and know nothing of adapters. The adapter is also saved by itself, in the format of the library
PEFT, in the folder `adapter` of the checkpoint.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from minvenus.files import write_json
from minvenus.kernels.linear import linear
from minvenus.model.qwen3 import MLP, Attention, Qwen3

ALPHA = 32.0
SETTINGS = "adapter_config.json"
TENSORS = "adapter_model.safetensors"


class AdaptedLinear(nn.Module):
    def __init__(self, linear: nn.Linear, rank: int, generator: torch.Generator):
        super().__init__()
        weight = linear.weight
        outputs, inputs = weight.shape
        bound = inputs ** -0.5
        a = torch.empty(rank, inputs).uniform_(-bound, bound, generator=generator)
        b = torch.zeros(outputs, rank)
        self.weight = weight
        self.bias = linear.bias                              # None, except in Qwen2
        self.lora_A = nn.Parameter(a.to(weight.device))      # float32, whatever type the weight has
        self.lora_B = nn.Parameter(b.to(weight.device))
        self.scale = ALPHA / rank
        self.active = True

    def forward(self, x):
        y = linear(x, self.weight, self.bias)
        if not self.active:
            return y
        inner = linear(x, self.lora_A.to(x.dtype))                           # [..., r]
        return y + self.scale * linear(inner, self.lora_B.to(x.dtype))

    @torch.no_grad()
    def merged(self) -> Tensor:
        merged = self.weight + self.scale * (self.lora_B @ self.lora_A)
        return merged.to(self.weight.dtype)


def add_adapters(model: Qwen3, rank: int, seed: int) -> None:
    """From now on only adapters are trained."""
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)          # of a CPU: the same on every device
    for part in list(model.modules()):
        if not isinstance(part, Attention | MLP):
            continue
        for name, child in list(part.named_children()):
            if isinstance(child, nn.Linear):
                setattr(part, name, AdaptedLinear(child, rank, generator))


def adapters(model: nn.Module) -> dict[str, AdaptedLinear]:
    modules = model.named_modules()
    return {name: module for name, module in modules if isinstance(module, AdaptedLinear)}


@contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """Within this `with` block the model is its base; one without adapters stays as it is."""
    for adapter in adapters(model).values():
        adapter.active = False
    try:
        yield
    finally:
        for adapter in adapters(model).values():
            adapter.active = True


def plain_weight(model: Qwen3, name: str) -> Tensor:
    """The tensor that a model without adapters has under this name: W + s B A for W."""
    path, _, kind = name.rpartition(".")
    module = model.get_submodule(path)
    if isinstance(module, AdaptedLinear) and kind == "weight":
        return module.merged()
    return model.get_parameter(name).detach()


def base_of(model: Qwen3) -> Qwen3:
    """The model without its adapters, on the same tensors."""
    with torch.device("meta"):
        base = Qwen3(model.config)
    weights = {name: model.get_parameter(name) for name in base.state_dict()}
    base.load_state_dict(weights, assign=True)
    return base.requires_grad_(False)


# ---------------------------------------------------------------------------------------- files


def adapter_tensors(model: Qwen3) -> dict[str, Tensor]:
    """A and B of every matrix, by PEFT's names."""
    tensors: dict[str, Tensor] = {}
    for name, adapter in adapters(model).items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = adapter.lora_A
        tensors[f"base_model.model.{name}.lora_B.weight"] = adapter.lora_B
    return tensors


def save_adapter(model: Qwen3, folder: Path, tensors: dict[str, Tensor]) -> None:
    """`tensors` has those of adapter_tensors, gathered if the model is split over processes."""
    folder.mkdir()
    tensors = {name: tensors[name] for name in adapter_tensors(model)}
    save_file(tensors, folder / TENSORS, metadata={"format": "pt"})

    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "lora_alpha": ALPHA, "bias": "none"}
    for adapter in adapters(model).values():
        settings["r"] = len(adapter.lora_A)
    settings["target_modules"] = sorted({name.split(".")[-1] for name in adapters(model)})
    write_json(folder / SETTINGS, settings)
