"""Low-rank adapters (LoRA): the weights of a model stay as they are, two small matrices beside each are trained.

    y = W x + s B A x        A [r, inputs] random, B [outputs, r] zero at the start, s = alpha / r;  W: all of a block's

At the start the model is the base, to the last bit. Switched off it is the base at any time, which is the reference
policy without a second copy. Engine and checkpoints get W + s B A (`plain_weight`) and know nothing of adapters. The
adapter is also saved by itself, in the format of the library PEFT, in the folder `adapter` of the checkpoint.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from minvenus.config import ConfigError, read_json
from minvenus.files import write_json
from minvenus.model.qwen3 import MLP, Attention, Linear, Qwen3
from minvenus.model.split import own_rows

SETTINGS, TENSORS = "adapter_config.json", "adapter_model.safetensors"


class AdaptedLinear(nn.Module):
    def __init__(self, weight: nn.Parameter, rank: int, alpha: float, generator: torch.Generator):
        super().__init__()
        self.weight = weight
        self.scale, self.active = alpha / rank, True
        outputs, inputs = weight.shape
        a = torch.empty(rank, inputs).uniform_(-inputs ** -0.5, inputs ** -0.5, generator=generator)
        self.lora_A = nn.Parameter(a.to(weight.device))      # float32, in whatever type the weight is kept
        self.lora_B = nn.Parameter(torch.zeros(outputs, rank, device=weight.device))

    def forward(self, x):
        y = F.linear(x, self.weight)
        if not self.active:
            return y
        return y + self.scale * F.linear(F.linear(x, self.lora_A.to(x.dtype)), self.lora_B.to(x.dtype))

    @torch.no_grad()
    def merged(self) -> Tensor:
        return (self.weight + self.scale * (self.lora_B @ self.lora_A)).to(self.weight.dtype)


def add_adapters(model: Qwen3, rank: int, alpha: float, seed: int) -> None:
    """From now on only adapters are trained."""
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)          # of a CPU: the same on every device
    for part in [module for module in model.model.modules() if isinstance(module, Attention | MLP)]:
        for name, linear in list(part.named_children()):
            if isinstance(linear, Linear):
                setattr(part, name, AdaptedLinear(linear.weight, rank, alpha, generator))


def adapters(model: nn.Module) -> dict[str, AdaptedLinear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, AdaptedLinear)}


@contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """For the time of a `with` the model is its base; one without adapters is what it is."""
    own = adapters(model).values()
    for adapter in own:
        adapter.active = False
    try:
        yield
    finally:
        for adapter in own:
            adapter.active = True


def plain_weight(model: Qwen3, name: str) -> Tensor:
    """The tensor that a model without adapters has under this name: W + s B A for W."""
    module = model.get_submodule(name.removesuffix(".weight"))
    return module.merged() if isinstance(module, AdaptedLinear) else model.get_parameter(name).detach()


def base_of(model: Qwen3) -> Qwen3:
    """The model without its adapters, on the same tensors."""
    with torch.device("meta"):
        base = Qwen3(model.config)
    base.load_state_dict({name: model.get_parameter(name) for name in base.state_dict()}, assign=True)
    return base.requires_grad_(False)


# -------------------------------------------------------------------------------------------------------------- files


def adapter_tensors(model: Qwen3) -> dict[str, Tensor]:
    """A and B of every matrix, by PEFT's names."""
    found: dict[str, Tensor] = {}
    for name, adapter in adapters(model).items():
        found[f"base_model.model.{name}.lora_A.weight"] = adapter.lora_A
        found[f"base_model.model.{name}.lora_B.weight"] = adapter.lora_B
    return found


def save_adapter(model: Qwen3, folder: Path, gathered: dict[str, Tensor] | None = None) -> None:
    folder.mkdir()
    tensors = {name: gathered[name] if gathered else tensor for name, tensor in adapter_tensors(model).items()}
    save_file(tensors, folder / TENSORS, metadata={"format": "pt"})
    own = adapters(model)
    rank = next(iter(own.values())).lora_A.shape[0]
    alpha = next(iter(own.values())).scale * rank
    write_json(folder / SETTINGS, {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha,
                                   "target_modules": sorted({name.split(".")[-1] for name in own}), "bias": "none"})


def load_adapter(model: Qwen3, folder: Path) -> None:
    """Fill the adapters of a model from a checkpoint's folder `adapter`."""
    own, stored = adapter_tensors(model), load_file(folder / TENSORS)
    if {name: x.shape for name, x in own.items()} != {name: x.shape for name, x in stored.items()}:
        raise ConfigError(f"{folder} holds an adapter of rank {adapter_rank(folder.parent)}, which does not fit")
    with torch.no_grad():
        for name, parameter in own.items():
            rows, first = own_rows(parameter)
            rows.copy_(stored[name][first:first + len(rows)])


def adapter_rank(checkpoint: Path) -> int:
    """The rank of the adapter in a checkpoint's folder; 0 where there is none."""
    path = checkpoint / "adapter" / SETTINGS
    return read_json(path)["r"] if path.is_file() else 0
