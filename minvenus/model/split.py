"""Tensors whose rows are split over processes (FSDP2's DTensor), and plain ones alike. DTensor is known by what it can
do: its class takes half a second to import."""

from typing import Any

from torch import Tensor, nn


def own_rows(tensor: Any) -> tuple[Tensor, int]:
    """The rows that this process has of a tensor, and the number of the first."""
    if not hasattr(tensor, "to_local"):
        return tensor, 0
    mesh = tensor.device_mesh
    return tensor.to_local(), min(len(tensor), -(-len(tensor) // mesh.size()) * mesh.get_local_rank())


def whole(tensor: Any) -> Tensor:
    """The tensor with the rows of all processes, which all have to ask for it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def is_split(model: nn.Module) -> bool:
    return any(hasattr(parameter, "full_tensor") for parameter in model.parameters())
