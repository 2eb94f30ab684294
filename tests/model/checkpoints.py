"""Small checkpoints for the tests of loading and saving."""

import json
from dataclasses import replace

import torch
from safetensors.torch import load_file, save_file

from minvenus.config import ModelConfig
from minvenus.files import write_json

TIED = ModelConfig(24, 37, 2, 4, 2, head_dim=8, vocab_size=61, max_position_embeddings=64)
UNTIED = replace(TIED, tie_word_embeddings=False, rope_theta=5e6)
QWEN2 = replace(TIED, qk_norm=False, qkv_bias=True)
INDEX = "model.safetensors.index.json"


def same(one, other):
    """Bit for bit, types and config included."""
    a, b = one.state_dict(), other.state_dict()
    return (
        one.config == other.config
        and a.keys() == b.keys()
        and all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)
    )


def split_files(folder):
    """The weights of a folder in files of three tensors each, as others save large models."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, weight_map = list(tensors), {}
    for start in range(0, len(names), 3):
        file = f"model-{start:05}-of-{len(names):05}.safetensors"
        part = {name: tensors[name] for name in names[start : start + 3]}
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    write_json(folder / INDEX, {"weight_map": weight_map})
    return folder


def edit_index(folder, change):
    raw = json.loads((folder / INDEX).read_text())
    change(raw)
    (folder / INDEX).write_text(json.dumps(raw))
