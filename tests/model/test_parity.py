"""Our forward pass against numbers that transformers computed once (tests/fixtures/make_qwen3_parity.py);
tests/mutants/model.py shows that they notice a wrong step. Set MINVENUS_TRANSFORMERS_PYTHON to a python that has
transformers to also let it load what we save."""

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
]
LIMIT = 1e-5


@pytest.fixture(scope="module")
def stored():
    return load_file(FIXTURE)


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    """Case -> ModelConfig, read from the config.json text that transformers wrote."""
    path = tmp_path_factory.mktemp("configs") / "config.json"
    found = {}
    with safe_open(FIXTURE, "pt") as file:
        texts = json.loads(file.metadata()["configs"])
    for case, raw in texts.items():
        path.write_text(json.dumps(raw))
        found[case] = ModelConfig.from_json(path)
    return found


def build(config, stored, case):
    model = Qwen3(config)
    prefix = f"{case}/weights/"
    own = {
        name.removeprefix(prefix): tensor
        for name, tensor in stored.items()
        if name.startswith(prefix)
    }
    model.load_state_dict(own)
    return model.requires_grad_(False)


def run(model, tokens):
    """Logits, and the output of the embedding, of every layer and of the last norm, each [B, L, ...]."""
    hidden = []
    parts = (model.model.embed_tokens, *model.model.layers, model.model.norm)
    for part in parts:
        part.register_forward_hook(
            lambda part, args, out: hidden.append(out.view(*tokens.shape, -1))
        )
    return model(tokens), hidden


@pytest.mark.parametrize("case", CASES)
def test_logits_and_every_layers_hidden_states_agree_with_transformers(case, configs, stored):
    logits, hidden = run(build(configs[case], stored, case), stored[f"{case}/tokens"])
    assert len(hidden) == configs[case].num_hidden_layers + 2
    for i, ours in enumerate(hidden):
        torch.testing.assert_close(ours, stored[f"{case}/hidden/{i}"], rtol=0, atol=LIMIT)
    torch.testing.assert_close(logits, stored[f"{case}/logits"], rtol=0, atol=LIMIT)


# ----------------------------------------------------------------------- the other way: transformers loads our folder

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


@pytest.mark.skipif(
    "MINVENUS_TRANSFORMERS_PYTHON" not in os.environ,
    reason="set MINVENUS_TRANSFORMERS_PYTHON to a python that has transformers",
)
@pytest.mark.parametrize(
    "case, dtype, shard_bytes",
    [
        ("tied-4-queries-per-kv", torch.float32, 10**9),
        ("tied-4-queries-per-kv", torch.bfloat16, 9_000),
        ("untied-2-queries-per-kv", torch.float32, 20_000),
        ("untied-2-queries-per-kv", torch.bfloat16, 10**9),
    ],
)
def test_transformers_loads_a_saved_folder_bit_for_bit_with_the_same_logits(
    case, dtype, shard_bytes, configs, stored, tmp_path
):
    model = build(configs[case], stored, case).to(dtype)
    weights.save(model, tmp_path / "saved", shard_bytes=shard_bytes)
    assert (tmp_path / "saved" / "model.safetensors").exists() == (shard_bytes == 10**9)
    out = tmp_path / "theirs.safetensors"
    done = subprocess.run(
        [os.environ["MINVENUS_TRANSFORMERS_PYTHON"], "-c", LOAD, tmp_path / "saved", out],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    theirs = load_file(out)
    logits = theirs.pop("logits")
    ours = model.state_dict()
    assert theirs.keys() == ours.keys()
    assert all(
        theirs[name].dtype == dtype and torch.equal(theirs[name], ours[name]) for name in ours
    )
    tokens = torch.arange(35).view(5, 7) % configs[case].vocab_size
    torch.testing.assert_close(model.float()(tokens), logits, rtol=0, atol=LIMIT)
