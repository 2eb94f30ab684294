"""Layouts of a model's matrices on a CPU, and the products with them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Matrices(NamedTuple):
    """How a model's matrices are stored, and multiplied."""

    store: Callable[[Tensor], Tensor]                    # weight [out, in] -> as it is multiplied
    product: Callable[[Tensor, Tensor], Tensor]          # x [N, in], stored -> [N, out]
    add_product: Callable[[Tensor, Tensor, Tensor], object]      # the same, added to a total


def transposed(weight: Tensor) -> Tensor:
    return weight.T.contiguous()


def packed_for_one(weight: Tensor) -> Tensor:
    """In the layout that oneDNN finds best for a product with one row."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, 1)


def packed(weight: Tensor) -> Tensor:
    """In the layout that oneDNN finds best for several rows."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, 8)


def packed_product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def add_packed_product(total: Tensor, x: Tensor, weight: Tensor) -> None:
    total += packed_product(x, weight)


PLAIN = Matrices(transposed, torch.mm, Tensor.addmm_)
PACKED = Matrices(packed, packed_product, add_packed_product)
PACKED_FOR_ONE = Matrices(packed_for_one, packed_product, add_packed_product)
