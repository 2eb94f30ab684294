"""Our forward pass against numbers that transformers computed once.

tests/fixtures/make_qwen3_parity.py made them; tests/mutants/model.py shows that they notice a wrong
step. Set MINVENUS_TRANSFORMERS_PYTHON to a python that has transformers to also let it load what we
save.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from minvenus.config import ModelConfig
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "qwen3_parity.safetensors"
CASES = [
    "tied-1-query-per-kv",
    "untied-2-queries-per-kv",
    "tied-4-queries-per-kv",
    "untied-one-kv-head",
    "tied-one-layer-longer",
    "llama-tied",
    "llama-untied-wide-heads",
    "qwen2-tied",
    "qwen2-untied",
]
LIMIT = 1e-5


@pytest.fixture(scope="module")
def stored():
    return load_file(FIXTURE)


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    """Case -> ModelConfig, read from the config.json text that transformers wrote."""
    path = tmp_path_factory.mktemp("configs") / "config.json"
    configs = {}
    with safe_open(FIXTURE, "pt") as file:
        texts = json.loads(file.metadata()["configs"])
    for case, raw in texts.items():
        path.write_text(json.dumps(raw))
        configs[case] = ModelConfig.from_json(path)
    return configs


def build(config, stored, case):
    model = Qwen3(config)
    model.load_state_dict({name: stored[f"{case}/weights/{name}"] for name in model.state_dict()})
    return model.requires_grad_(False)


def run(model, tokens):
    """Logits, and the outputs of the embedding, every layer and the last norm, each [B, L, ...]."""
    hidden = []
    for part in (model.model.embed_tokens, *model.model.layers, model.model.norm):
        part.register_forward_hook(lambda *args: hidden.append(args[-1].view(*tokens.shape, -1)))
    return model(tokens), hidden


@pytest.mark.parametrize("case", CASES)
def test_logits_and_every_layers_hidden_states_agree_with_transformers(case, configs, stored):
    logits, hidden = run(build(configs[case], stored, case), stored[f"{case}/tokens"])
    assert len(hidden) == configs[case].num_hidden_layers + 2
    for i, ours in enumerate(hidden):
        torch.testing.assert_close(ours, stored[f"{case}/hidden/{i}"], rtol=0, atol=LIMIT)
    torch.testing.assert_close(logits, stored[f"{case}/logits"], rtol=0, atol=LIMIT)


# --------------------------------------------------- the other way: transformers loads our folder

LOAD = """
import sys, torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
folder, out = sys.argv[1:]
model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
assert not any(info.values()), info
tokens = torch.arange(35).view(5, 7) % model.config.vocab_size
# logits in float32: odd sizes in bfloat16 crash torch's matrix product on some processors
saved = {n: p.detach().clone() for n, p in model.named_parameters()}
save_file({"logits": model.float()(tokens).logits.detach().contiguous(), **saved}, out)
"""
PYTHON = os.environ.get("MINVENUS_TRANSFORMERS_PYTHON")
NEEDS_TRANSFORMERS = pytest.mark.skipif(
    not PYTHON, reason="set MINVENUS_TRANSFORMERS_PYTHON to a python that has transformers"
)


def load_by_transformers(folder):
    """The parameters that transformers loads, and its "logits" of some tokens."""
    out = folder.parent / "theirs.safetensors"
    done = subprocess.run([PYTHON, "-c", LOAD, folder, out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return load_file(out)


@NEEDS_TRANSFORMERS
@pytest.mark.parametrize(
    "case, dtype",
    [
        ("tied-4-queries-per-kv", torch.float32),
        ("tied-4-queries-per-kv", torch.bfloat16),
        ("untied-2-queries-per-kv", torch.float32),
        ("untied-2-queries-per-kv", torch.bfloat16),
        ("llama-untied-wide-heads", torch.float32),
        ("qwen2-tied", torch.float32),
        ("qwen2-untied", torch.bfloat16),
    ],
)
def test_transformers_loads_a_saved_folder_bit_for_bit_with_the_same_logits(
    case, dtype, configs, stored, tmp_path
):
    model = build(configs[case], stored, case).to(dtype)
    weights.save(model, tmp_path / "saved")
    theirs = load_by_transformers(tmp_path / "saved")
    logits = theirs.pop("logits")
    ours = model.state_dict()
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        assert tensor.dtype == dtype and torch.equal(tensor, ours[name])
    tokens = torch.arange(35).view(5, 7) % configs[case].vocab_size
    torch.testing.assert_close(model.float()(tokens), logits, rtol=0, atol=LIMIT)
