"""y = x W^T, the product that every layer is made of.

On a CPU in float32 it is oneDNN's, forward and backward: it uses AVX-512 on every processor that
has it, while MKL, which F.linear would call, stays with AVX2 on those of AMD and takes twice as
long (benchmarks/bench_train.py, `products`). Everywhere else it is F.linear.

    dx = dy W        dW = dy^T x

Shapes: N tokens, n inputs, m outputs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW_ROWS = 4             # for fewer oneDNN's calls cost more than they save


def uses_onednn(x: Tensor) -> bool:
    """Whether x [N, n] is multiplied by oneDNN."""
    switched_on = bool(torch.backends.mkldnn.enabled)
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.dim() == 2
        and len(x) >= FEW_ROWS
        and torch.backends.mkldnn.is_available()
        and switched_on
        and not torch.is_autocast_enabled("cpu")
    )


def onednn_product(x: Tensor, weight: Tensor) -> Tensor:
    """x [N, n], weight [m, n], perhaps packed -> [N, m]"""
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], "")


class OneDNNProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return onednn_product(x, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        x_trained, weight_trained = ctx.needs_input_grad
        dx = onednn_product(dy, weight.T) if x_trained else None
        d_weight = onednn_product(dy.T, x.T) if weight_trained else None
        return dx, d_weight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., n], weight [m, n], bias [m] -> [..., m]"""
    if not uses_onednn(x):
        return F.linear(x, weight, bias)
    y = OneDNNProduct.apply(x, weight)
    return y if bias is None else y + bias


class Linear(nn.Linear):
    """torch's layer with the product of above."""

    def forward(self, x):
        return linear(x, self.weight, self.bias)
