"""Loading is exact and frugal; a saved folder holds what transformers asks for."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from minvenus.config import MODELS, ConfigError, ModelConfig
from minvenus.model import weights
from minvenus.model.precision import device_of
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import load, save, start_model
from tests.model.checkpoints import QWEN2, TIED, UNTIED, same, split_files

# ----------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("config", [TIED, UNTIED, QWEN2], ids=["tied", "untied", "qwen2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_save_then_load_is_bit_exact_from_one_file_or_several(config, dtype, tmp_path):
    model = Qwen3(config, seed=5).to(dtype)
    for i, parameter in enumerate(model.parameters()):
        parameter.data += i  # fresh norms and biases are all alike
    save(model, tmp_path / "m")
    assert same(load(tmp_path / "m", dtype=dtype), model)
    assert same(load(split_files(tmp_path / "m"), dtype=dtype), model)


@pytest.mark.parametrize(
    "stored, dtype", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)]
)
def test_load_converts_to_the_type_asked_for_and_defaults_to_float32(stored, dtype, single):
    model = Qwen3(TIED).to(stored)
    save(model, single)
    assert same(load(single, dtype=dtype), model.to(dtype))
    assert load(single).head_weight.dtype == torch.float32


def test_a_tensor_longer_than_a_piece_is_read_whole(single, monkeypatch):
    monkeypatch.setattr(weights, "PIECE", 27)
    assert same(load(single), Qwen3(TIED))


def test_loading_draws_no_random_numbers_and_its_parameters_can_be_trained(single):
    before = torch.get_rng_state()
    model = load(single)
    assert torch.equal(before, torch.get_rng_state())
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    assert all(p.requires_grad and p.grad is not None for p in model.parameters())


# ------------------------------------------------------------------------- what is in the folder


def test_a_saved_folder_holds_what_transformers_asks_for(tmp_path):
    (tmp_path / "tiny.json").write_text("{}")
    folder = tmp_path / "m"
    save(Qwen3(TIED).bfloat16(), folder, {"tokenizer.json": tmp_path / "tiny.json"})
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors", "tokenizer.json"]
    config = json.loads((folder / "config.json").read_text())
    assert config["dtype"] == config["torch_dtype"] == "bfloat16"
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert ModelConfig.from_json(folder) == TIED
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert sorted(os.listdir(tmp_path)) == ["m", "tiny.json"]


def test_whoever_may_read_the_config_may_read_the_weights(single):
    assert len({path.stat().st_mode for path in single.iterdir()}) == 1


def test_a_second_copy_of_the_embedding_is_ignored_when_tied(single):
    tensors = load_file(single / "model.safetensors")
    save_file(tensors | {"lm_head.weight": torch.zeros(61, 24)}, single / "model.safetensors")
    assert same(load(single), Qwen3(TIED))


# ---------------------------------------------------------------------------------------- memory

MEASURE = """
import sys, torch
from minvenus.model.weights import load
def status(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return int(line.split()[1]) * 1024
load(sys.argv[1])  # every library page that loading needs is in memory now
before = status("VmRSS")
for dtype in (torch.bfloat16, torch.float32):  # the larger one last: a peak never falls
    model = load(sys.argv[2], dtype=dtype)
    print((status("VmHWM") - before) / sum(p.nbytes for p in model.parameters()))
    del model
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc"
)
def test_peak_memory_while_loading_stays_under_1_2_times_the_weights(single, tmp_path):
    """Peak resident memory (VmHWM, which counts mapped file pages too) of a fresh process, less
    what it held before the load.

    Half of this model is its embedding: in bfloat16, converting whole tensors would take 2 times
    the weights, mapping the file 3.
    """
    config = ModelConfig(512, 1024, 10, 8, 4, head_dim=64, vocab_size=50_000)
    with torch.device("meta"):
        model = Qwen3(config)
    zeros = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    model.load_state_dict(zeros, assign=True)
    save(model, tmp_path / "big")
    assert 180e6 < (tmp_path / "big" / "model.safetensors").stat().st_size < 400e6
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, single, tmp_path / "big"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "big")
    for ratio in done.stdout.split():
        assert 0.9 < float(ratio) < 1.2


# ------------------------------------------------------------- which model, and on which device


def test_the_start_model_has_the_type_and_the_seed_asked_for():
    assert start_model("tiny-base", "cpu", 0, torch.bfloat16).head_weight.dtype == torch.bfloat16
    assert same(start_model("tiny", "cpu", 3), Qwen3(MODELS["tiny"], 3))
    assert same(start_model("tiny", "cpu", 0, torch.bfloat16), Qwen3(MODELS["tiny"]).bfloat16())


@pytest.mark.parametrize("gpu", [True, False])
def test_auto_is_a_gpu_if_there_is_one_and_cuda_without_one_is_refused(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert device_of("cpu") == "cpu" and device_of("auto") == ("cuda" if gpu else "cpu")
    if gpu:
        assert device_of("cuda") == "cuda"
    else:
        with pytest.raises(ConfigError, match="torch sees no GPU"):
            device_of("cuda")
