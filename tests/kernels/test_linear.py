"""Packed copies of weights: the same product, and never one of an old weight."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minvenus.kernels.linear import PackedWeight, linear

sizes = st.integers(1, 40)


@given(sizes, sizes, sizes, st.integers(0, 99))
def test_the_packed_product_is_the_plain_one(rows, inputs, outputs, seed):
    generator = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(rows, inputs, generator=generator), torch.randn(outputs, inputs, generator=generator)
    with torch.no_grad():
        torch.testing.assert_close(linear(x, weight, PackedWeight(weight)), x @ weight.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("change", (lambda w: w.mul_(2.0), lambda w: w.copy_(torch.ones(5, 3)),
                                    lambda w: torch.optim.SGD([w], lr=1.0).step()),
                         ids=("in place", "copied", "optimiser"))
def test_a_copy_of_an_older_weight_is_not_used(change):
    weight = torch.nn.Parameter(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)))
    weight.grad = torch.ones(5, 3)
    packed, x = PackedWeight(weight), torch.ones(2, 3)
    with torch.no_grad():
        change(weight)
        torch.testing.assert_close(linear(x, weight, packed), x @ weight.T)


def test_training_uses_the_weight_itself():
    weight, x = torch.nn.Parameter(torch.ones(5, 3)), torch.ones(2, 3)
    linear(x, weight, PackedWeight(weight)).sum().backward()
    assert weight.grad.tolist() == [[2.0] * 3] * 5
