"""Adapters: the base at the start and switched off, merged for others, alone in what is trained."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file

from minvenus.engine import Engine, Sampling
from minvenus.model import weights
from minvenus.model.lora import (
    adapters,
    add_adapters,
    base_of,
    plain_weight,
    switched_off,
)
from minvenus.model.qwen3 import Qwen3
from tests.model.checkpoints import QWEN2, TIED, UNTIED
from tests.model.test_parity import NEEDS_TRANSFORMERS, load_by_transformers

SHAPES = {True: TIED, False: UNTIED}
TOKENS, BOUNDS = torch.arange(20), torch.tensor([0, 8, 20], dtype=torch.int32)
SOURCES = torch.tensor([0, 3, 6, 9, 18])


def adapted(trained=False, rank=3, tied=True) -> tuple[Qwen3, Qwen3]:
    """A base, and the same with adapters; `trained` = B is no longer zero."""
    base, model = Qwen3(SHAPES[tied], seed=1), Qwen3(SHAPES[tied], seed=1)
    add_adapters(model, rank, seed=0)
    if trained:
        generator = torch.Generator().manual_seed(5)
        for adapter in adapters(model).values():
            adapter.lora_B.data.normal_(0.0, 0.01, generator=generator)
    return base, model


def merged(model: Qwen3) -> Qwen3:
    """A model without adapters that has the merged weights."""
    plain = Qwen3(model.config)
    plain.load_state_dict({name: plain_weight(model, name) for name in plain.state_dict()})
    return plain


def logprobs(model, **options):
    return model.logprobs(TOKENS, BOUNDS, SOURCES, 0.7, **options)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_at_the_start_and_switched_off_the_log_probs_are_the_bases_to_the_last_bit(tied, dtype):
    base, model = adapted(tied=tied)
    expected = logprobs(base, dtype=dtype)
    assert torch.equal(logprobs(model, dtype=dtype), expected)
    _, trained = adapted(trained=True, tied=tied)
    with switched_off(trained):
        assert torch.equal(logprobs(trained, dtype=dtype), expected)
    assert not torch.equal(logprobs(trained, dtype=dtype), expected), "and on again"


def test_switching_off_ends_with_an_error_too():
    base, model = adapted(trained=True)
    with pytest.raises(KeyError), switched_off(model):
        raise KeyError
    assert not torch.equal(logprobs(model), logprobs(base))


def test_one_adapter_worked_by_hand():
    _, model = adapted(rank=2)
    query = model.model.layers[0].self_attn.q_proj
    query.weight.data.fill_(0.0)
    query.lora_A.data.fill_(0.5)
    query.lora_B.data.copy_(torch.arange(32.0)[:, None].expand(32, 2))
    # s = 32 / 2; A x = 0.5 * (1 + ... + 24) = 150, twice; so y_i = 16 * i * 300,
    # and W + s B A has 16 * i in row i
    assert torch.equal(query(torch.arange(1.0, 25.0)), 4800 * torch.arange(32.0))
    assert torch.equal(query.merged(), 16 * torch.arange(32.0)[:, None].expand(32, 24))


def test_every_matrix_of_the_blocks_has_an_adapter_and_nothing_else_is_trained():
    _, model = adapted()
    kinds = [f"self_attn.{x}_proj" for x in "qkvo"]
    kinds += [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
    assert list(adapters(model)) == [f"model.layers.{i}.{kind}" for i in range(2) for kind in kinds]
    trained = {name.rsplit(".", 1)[1] for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"lora_A", "lora_B"}


def test_the_random_matrix_is_that_of_the_seed():
    def matrices(seed):
        model = Qwen3(TIED)
        add_adapters(model, 3, seed)
        return torch.cat([adapter.lora_A.flatten() for adapter in adapters(model).values()])

    assert torch.equal(matrices(0), matrices(0))
    assert not torch.isin(matrices(0), matrices(1)).any()
    assert len(matrices(0).unique()) > 0.99 * len(matrices(0)), "no two matrices begin alike"


def test_the_random_matrix_is_uniform_up_to_one_over_the_root_of_the_inputs():
    for adapter in adapters(adapted(rank=8)[1]).values():
        bound = adapter.weight.shape[1] ** -0.5
        assert 0.95 * bound < adapter.lora_A.max() <= bound
        assert -0.95 * bound > adapter.lora_A.min() >= -bound


@pytest.mark.parametrize("tied", [True, False])
def test_merged_equals_unmerged(tied):
    _, model = adapted(trained=True, tied=tied)
    torch.testing.assert_close(logprobs(merged(model)), logprobs(model), rtol=0, atol=1e-5)


def test_biases_of_the_base_stay_and_are_saved(tmp_path):
    base = Qwen3(QWEN2, seed=1)
    for name, parameter in base.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_(0.0, 0.5, generator=torch.Generator().manual_seed(2))
    model = copy.deepcopy(base)
    add_adapters(model, rank=3, seed=0)
    assert torch.equal(logprobs(model), logprobs(base))
    for adapter in adapters(model).values():
        adapter.lora_B.data.fill_(0.01)
    assert not torch.allclose(logprobs(model), logprobs(base))
    torch.testing.assert_close(logprobs(merged(model)), logprobs(model))
    weights.save(model, tmp_path / "saved")
    torch.testing.assert_close(logprobs(weights.load(tmp_path / "saved")), logprobs(model))
    with switched_off(model):
        assert torch.equal(logprobs(model), logprobs(base))


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_of_the_adapters_are_those_that_the_merged_weight_gives(recompute):
    """dL/dB = s dL/dW A^T and dL/dA = s B^T dL/dW, with W the weight of the merged model."""
    _, model = adapted(trained=True)
    model.model.recompute = recompute
    plain = merged(model)
    for each in (model, plain):
        logprobs(each).sum().backward()
    close = {"rtol": 1e-4, "atol": 1e-5}
    for name, adapter in adapters(model).items():
        d_w = adapter.scale * plain.get_parameter(f"{name}.weight").grad
        torch.testing.assert_close(adapter.lora_B.grad, d_w @ adapter.lora_A.T, **close)
        torch.testing.assert_close(adapter.lora_A.grad, adapter.lora_B.T @ d_w, **close)
        assert adapter.weight.grad is None


def test_a_base_kept_in_bfloat16_has_adapters_in_float32_that_learn():
    model = Qwen3(TIED).to(torch.bfloat16)
    base = logprobs(model)
    add_adapters(model, 2, seed=0)
    assert torch.equal(logprobs(model), base)
    logprobs(model).sum().backward()
    for adapter in adapters(model).values():
        gradient = adapter.lora_B.grad
        assert gradient.dtype == torch.float32 and gradient.abs().sum() > 0
        assert adapter.merged().dtype == torch.bfloat16


def test_the_base_beside_the_adapters_shares_its_tensors_and_runs_in_the_engine():
    base, model = adapted(trained=True)
    shared = base_of(model)
    for name, parameter in shared.named_parameters():
        assert parameter.data_ptr() == model.get_parameter(name).data_ptr()
        assert not model.get_parameter(name).requires_grad
    prompt, greedy = [[1, 2, 3]], Sampling(6, temperature=0.0)
    [[ours]], [[theirs]] = (Engine(m, 16, 4).generate(prompt, greedy) for m in (shared, base))
    assert ours == theirs


# ----------------------------------------------------------------------------------------- files


def test_a_saved_folder_holds_the_merged_weights_and_the_adapter(tmp_path):
    base, model = adapted(trained=True, rank=3)
    folder = tmp_path / "model"
    weights.save(model, folder)
    torch.testing.assert_close(logprobs(weights.load(folder)), logprobs(model), rtol=0, atol=1e-5)
    settings = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    kinds = ["down", "gate", "k", "o", "q", "up", "v"]
    assert settings == {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 3,
        "lora_alpha": 32.0,
        "bias": "none",
        "target_modules": [f"{kind}_proj" for kind in kinds],
    }
    stored = load_file(folder / "adapter" / "adapter_model.safetensors")
    b = stored["base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"]
    assert b.shape == (37, 3) and len(stored) == 2 * 14
    weights.save(base, folder)
    assert not (folder / "adapter").exists(), "an adapter goes with the weights it belonged to"


@NEEDS_TRANSFORMERS
@pytest.mark.parametrize("tied", [True, False])
def test_transformers_loads_the_merged_folder_with_the_log_probs_of_the_adapted_model(
    tied, tmp_path
):
    _, model = adapted(trained=True, tied=tied)
    weights.save(model, tmp_path / "saved")
    logits = load_by_transformers(tmp_path / "saved")["logits"]
    tokens = torch.arange(35).view(5, 7)
    torch.testing.assert_close(model(tokens), logits, rtol=0, atol=1e-5)
