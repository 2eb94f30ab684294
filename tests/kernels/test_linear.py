"""The product of a layer: F.linear, whichever library computes it."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from minvenus.kernels import linear as module
from minvenus.kernels.linear import FEW_ROWS, Linear, linear

SIZES = st.integers(1, 40)


@given(st.integers(0, 3 * FEW_ROWS), SIZES, SIZES, st.booleans(), st.booleans(), st.booleans())
def test_values_and_gradients_are_those_of_f_linear(rows, inputs, outputs, biased, strided, flat):
    """Also for inputs and gradients that are not in one piece, or one number for all."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 2 * inputs, generator=generator)
    x = x[:, ::2] if strided else x[:, :inputs].clone()
    weight = torch.randn(outputs, inputs, generator=generator)
    bias = torch.randn(outputs, generator=generator) if biased else None
    dy = torch.randn(outputs, rows, generator=generator).T
    if flat:
        dy = torch.tensor(1.5).expand(rows, outputs)

    results = []
    for function in (linear, F.linear):
        leaves = [leaf.detach().requires_grad_() for leaf in (x, weight, bias) if leaf is not None]
        y = function(*leaves)
        results.append((y, *torch.autograd.grad(y, leaves, dy)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "dtype", "autocast", "used"),
    (
        (FEW_ROWS, torch.float32, False, True),
        (FEW_ROWS - 1, torch.float32, False, False),
        (FEW_ROWS, torch.float64, False, False),
        (FEW_ROWS, torch.bfloat16, False, False),
        (FEW_ROWS, torch.float32, True, False),
    ),
)
def test_onednn_multiplies_several_rows_of_float32(rows, dtype, autocast, used, monkeypatch):
    calls = []
    real = module.onednn_product
    monkeypatch.setattr(module, "onednn_product", lambda *xs: calls.append(xs) or real(*xs))
    layer = Linear(4, 5, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = layer(torch.ones(rows, 4, dtype=dtype))
    y.float().sum().backward()
    assert len(calls) == (2 if used else 0)  # y and dW: nobody asks for dx
    assert y.dtype == (torch.bfloat16 if autocast else dtype)
    assert layer.weight.grad.dtype == dtype


def test_a_frozen_weight_gets_no_gradient_and_its_input_does():
    x = torch.ones(FEW_ROWS, 3, requires_grad=True)
    weight = torch.ones(2, 3)
    linear(x, weight).sum().backward()
    assert weight.grad is None and x.grad.tolist() == [[2.0] * 3] * FEW_ROWS


def test_torchs_switch_turns_onednn_off(monkeypatch):
    monkeypatch.setattr(module, "onednn_product", None)
    with torch.backends.mkldnn.flags(enabled=False):
        assert linear(torch.ones(FEW_ROWS, 2), torch.ones(1, 2)).tolist() == [[2.0]] * FEW_ROWS
