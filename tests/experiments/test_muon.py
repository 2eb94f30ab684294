"""Muon: what a step on a matrix is, by the definition, and that everything else is AdamW."""

import pytest
import torch

from minvenus.config import ModelConfig
from minvenus.experiments.muon import Muon, orthogonal
from minvenus.model.qwen3 import Qwen3

SHAPES = [(32, 32), (16, 48), (48, 16)]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_singular_value_of_an_orthogonal_step_is_near_one_whatever_its_size_and_the_singular_vectors_stay(shape):
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(gradient, full_matrices=False)
    in_its_basis = u.T @ orthogonal(gradient) @ v.T
    assert in_its_basis.diagonal().min() > 0.5 and in_its_basis.diagonal().max() < 1.3
    assert (in_its_basis - torch.diag(in_its_basis.diagonal())).abs().max() < 1e-4
    torch.testing.assert_close(orthogonal(gradient * 1000), orthogonal(gradient), rtol=1e-3, atol=1e-3)
    assert orthogonal(torch.zeros(shape)).abs().max() == 0


def test_two_steps_on_a_matrix_follow_the_formula_by_hand_and_a_vector_goes_with_adamw():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8))
    optimizer = Muon(model, momentum=0.5)
    optimizer.param_groups[0]["lr"] = 0.01
    weight, bias = model[0].weight.detach().clone(), torch.nn.Parameter(model[0].bias.detach().clone())
    adam = torch.optim.AdamW([bias], lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)
    total = torch.zeros_like(weight)
    for step in range(2):
        gradient = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        model[0].weight.grad = gradient.clone()
        model[0].bias.grad, bias.grad = gradient[:, 0].clone(), gradient[:, 0].clone()
        optimizer.step()
        adam.step()
        total = 0.5 * total + gradient
        weight = weight - 0.01 * 2 ** 0.5 * orthogonal(gradient + 0.5 * total)
    torch.testing.assert_close(model[0].weight.detach(), weight)
    torch.testing.assert_close(model[0].bias.detach(), bias.detach())


def test_the_embedding_and_the_norms_of_the_model_are_left_to_adamw_and_no_parameter_is_left_out():
    model = Qwen3(ModelConfig.preset("tiny"), seed=0)
    optimizer = Muon(model)
    rest = optimizer.adam.param_groups[0]["params"]
    assert any(p is model.model.embed_tokens.weight for p in rest)
    assert len(optimizer.matrices) + len(rest) == len(list(model.parameters()))
    assert all(p.dim() == 2 for p in optimizer.matrices)
