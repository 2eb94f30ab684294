"""Adapters: the base at the start and switched off, merged for everybody else, alone in what is trained."""

import json
import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file

from minvenus.config import ConfigError, ModelConfig
from minvenus.engine import Engine, Sampling
from minvenus.model import weights
from minvenus.model.lora import (
    adapter_rank,
    adapters,
    add_adapters,
    base_of,
    load_adapter,
    plain_weight,
    switched_off,
)
from minvenus.model.qwen3 import Qwen3
from tests.model.test_parity import LOAD

SHAPES = {
    tied: ModelConfig(
        24,
        40,
        2,
        4,
        2,
        head_dim=8,
        vocab_size=50,
        rope_theta=1e3,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )
    for tied in (True, False)
}
TOKENS, BOUNDS = torch.arange(20) % 50, torch.tensor([0, 8, 20], dtype=torch.int32)
SOURCES = torch.tensor([0, 3, 6, 9, 18])


def adapted(trained=False, rank=3, tied=True, seed=1) -> tuple[Qwen3, Qwen3]:
    """A base, and the same with adapters; `trained` = B is no longer zero."""
    base, model = Qwen3(SHAPES[tied], seed=seed), Qwen3(SHAPES[tied], seed=seed)
    add_adapters(model, rank, alpha=6.0, seed=0)
    if trained:
        generator = torch.Generator().manual_seed(5)
        for adapter in adapters(model).values():
            adapter.lora_B.data.normal_(0.0, 0.05, generator=generator)
    return base, model


def logprobs(model, **options):
    return model.logprobs(TOKENS, BOUNDS, SOURCES, TOKENS[SOURCES + 1], 0.7, **options)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_at_the_start_and_switched_off_the_log_probs_are_the_bases_to_the_last_bit(tied, dtype):
    base, model = adapted(tied=tied)
    assert torch.equal(logprobs(model, dtype=dtype), logprobs(base, dtype=dtype))
    _, trained = adapted(trained=True, tied=tied)
    assert not torch.equal(logprobs(trained, dtype=dtype), logprobs(base, dtype=dtype))
    with switched_off(trained):
        assert torch.equal(logprobs(trained, dtype=dtype), logprobs(base, dtype=dtype))
    assert not torch.equal(logprobs(trained, dtype=dtype), logprobs(base, dtype=dtype)), (
        "and on again"
    )


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
    # s = 6 / 2; A x = 0.5 * (1 + ... + 24) = 150, twice; so y_i = 3 * i * 300, and W + s B A has 3 * i in row i
    assert torch.equal(query(torch.arange(1.0, 25.0)), 900 * torch.arange(32.0))
    assert torch.equal(query.merged(), 3 * torch.arange(32.0)[:, None].expand(32, 24))


def test_every_matrix_of_the_blocks_has_an_adapter_and_nothing_else_is_trained():
    _, model = adapted()
    kinds = [f"self_attn.{x}_proj" for x in "qkvo"] + [
        f"mlp.{x}_proj" for x in ("gate", "up", "down")
    ]
    assert list(adapters(model)) == [f"model.layers.{i}.{kind}" for i in range(2) for kind in kinds]
    trained = {name.rsplit(".", 1)[1] for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"lora_A", "lora_B"}


def test_the_random_matrix_is_that_of_the_seed():
    def drawn(seed):
        model = Qwen3(adapted()[0].config)
        add_adapters(model, 3, 6.0, seed=seed)
        return torch.cat([adapter.lora_A.flatten() for adapter in adapters(model).values()])

    assert torch.equal(drawn(0), drawn(0)) and not torch.isin(drawn(0), drawn(1)).any()


def test_merged_equals_unmerged():
    for tied in (True, False):
        _, model = adapted(trained=True, tied=tied)
        plain = Qwen3(SHAPES[tied])
        plain.load_state_dict({name: plain_weight(model, name) for name in plain.state_dict()})
        torch.testing.assert_close(logprobs(plain), logprobs(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_of_the_adapters_are_those_that_the_merged_weight_gives(recompute):
    """dL/dB = s dL/dW A^T and dL/dA = s B^T dL/dW, with W the merged weight of a model without adapters."""
    _, model = adapted(trained=True)
    model.model.recompute = recompute
    plain = Qwen3(SHAPES[True])
    plain.load_state_dict({name: plain_weight(model, name) for name in plain.state_dict()})
    for each in (model, plain):
        logprobs(each).sum().backward()
    for name, adapter in adapters(model).items():
        d_w = plain.get_parameter(f"{name}.weight").grad
        torch.testing.assert_close(
            adapter.lora_B.grad, adapter.scale * d_w @ adapter.lora_A.T, rtol=1e-4, atol=1e-6
        )
        torch.testing.assert_close(
            adapter.lora_A.grad, adapter.scale * adapter.lora_B.T @ d_w, rtol=1e-4, atol=1e-6
        )
        assert adapter.weight.grad is None


def test_a_base_kept_in_bfloat16_has_adapters_in_float32_that_learn():
    model = Qwen3(SHAPES[True]).to(torch.bfloat16)
    base = logprobs(model)
    add_adapters(model, 2, 4.0, seed=0)
    assert torch.equal(logprobs(model), base)
    logprobs(model).sum().backward()
    assert all(
        a.lora_B.grad.dtype == torch.float32 and a.lora_B.grad.abs().sum() > 0
        for a in adapters(model).values()
    )
    assert all(a.merged().dtype == torch.bfloat16 for a in adapters(model).values())


def test_the_base_beside_the_adapters_shares_its_tensors_and_runs_in_the_engine():
    base, model = adapted(trained=True)
    shared = base_of(model)
    assert all(
        p.data_ptr() == model.get_parameter(name).data_ptr()
        for name, p in shared.named_parameters()
    )
    prompt, greedy = [[1, 2, 3]], Sampling(6, temperature=0.0)
    [[ours]], [[theirs]] = (Engine(m, 16, 4).generate(prompt, greedy) for m in (shared, base))
    assert ours == theirs


# -------------------------------------------------------------------------------------------------------------- files


def test_a_saved_folder_holds_the_merged_weights_and_the_adapter(tmp_path):
    base, model = adapted(trained=True, rank=3)
    weights.save(model, tmp_path / "model", shard_bytes=4000)
    torch.testing.assert_close(
        logprobs(weights.load(tmp_path / "model")), logprobs(model), rtol=0, atol=1e-5
    )
    assert adapter_rank(tmp_path / "model") == 3 and adapter_rank(tmp_path) == 0
    settings = json.loads((tmp_path / "model" / "adapter" / "adapter_config.json").read_text())
    assert (settings["peft_type"], settings["r"], settings["lora_alpha"]) == ("LORA", 3, 6.0)
    assert settings["target_modules"] == [
        "down_proj",
        "gate_proj",
        "k_proj",
        "o_proj",
        "q_proj",
        "up_proj",
        "v_proj",
    ]
    stored = load_file(tmp_path / "model" / "adapter" / "adapter_model.safetensors")
    b = stored["base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"]
    assert b.shape == (40, 3) and len(stored) == 2 * 14
    _, again = adapted()
    load_adapter(again, tmp_path / "model" / "adapter")
    assert torch.equal(logprobs(again), logprobs(model))
    weights.save(model, tmp_path / "model")
    weights.save(base, tmp_path / "model")
    assert not (tmp_path / "model" / "adapter").exists(), (
        "an adapter goes with the weights that it belonged to"
    )


def test_an_adapter_of_another_rank_or_shape_does_not_load(tmp_path):
    _, model = adapted(rank=3)
    weights.save(model, tmp_path / "model")
    _, other = adapted(rank=4)
    with pytest.raises(ConfigError, match="adapter of rank 3"):
        load_adapter(other, tmp_path / "model" / "adapter")


@pytest.mark.skipif(
    "MINVENUS_TRANSFORMERS_PYTHON" not in os.environ,
    reason="set MINVENUS_TRANSFORMERS_PYTHON to a python that has transformers",
)
@pytest.mark.parametrize("tied", [True, False])
def test_transformers_loads_the_merged_folder_with_the_log_probs_of_the_adapted_model(
    tied, tmp_path
):
    _, model = adapted(trained=True, tied=tied)
    weights.save(model, tmp_path / "saved")
    out = tmp_path / "theirs.safetensors"
    done = subprocess.run(
        [os.environ["MINVENUS_TRANSFORMERS_PYTHON"], "-c", LOAD, tmp_path / "saved", out],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tokens = torch.arange(35).view(5, 7) % 50
    torch.testing.assert_close(model(tokens), load_file(out)["logits"], rtol=0, atol=1e-5)
