"""Muon: gradient descent with orthogonal steps on matrices; AdamW for all other parameters.

    M <- mu M + G,   U = orthogonal(G + mu M),   W <- W - lr * sqrt(max(1, rows / columns)) * U

orthogonal(X) moves every singular value of X close to 1 by five rounds of  X <- a X + (b XX' + c (XX')^2) X. A
direction with a small gradient gets as large a step as one with a large gradient: so a small model finds look-up by
attention early, where AdamW stays with the frequencies of words for long. In float32, unlike torch's own, which
computes in bfloat16. Used for the tiny base model only; demonstrations and RL are trained with AdamW.
"""

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 5


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest matrix with singular values of about 1 (from 0.7 to 1.2); a zero matrix stays zero."""
    a, b, c = COEFFICIENTS
    wide = matrix.size(0) <= matrix.size(1)
    x = matrix if wide else matrix.T
    x = x / (x.norm() + 1e-7)
    for _ in range(ROUNDS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x if wide else x.T


class Muon:
    """`param_groups[0]["lr"]` is the rate of all parameters."""

    def __init__(self, model: nn.Module, momentum: float = 0.95):
        rest: list[nn.Parameter] = []
        self.matrices: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            inner = parameter.dim() == 2 and "embed" not in name and "head" not in name
            (self.matrices if inner else rest).append(parameter)
        self.momentum = momentum
        self.sums = [torch.zeros_like(p) for p in self.matrices]
        self.adam = torch.optim.AdamW(rest, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
        self.param_groups = [{"lr": 0.0}]

    @torch.no_grad()
    def step(self) -> None:
        rate = self.param_groups[0]["lr"]
        for p, total in zip(self.matrices, self.sums, strict=True):
            assert p.grad is not None                 # every matrix takes part in every forward pass
            total.mul_(self.momentum).add_(p.grad)
            step = orthogonal(p.grad + self.momentum * total)
            p.sub_(step, alpha=rate * max(1.0, p.size(0) / p.size(1)) ** 0.5)
        self.adam.param_groups[0]["lr"] = rate
        self.adam.step()
