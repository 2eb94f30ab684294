"""Small checkpoints for the tests of loading and saving."""

import json
from dataclasses import replace

import torch

from minvenus.config import ModelConfig

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


def edit_index(folder, change):
    raw = json.loads((folder / INDEX).read_text())
    change(raw)
    (folder / INDEX).write_text(json.dumps(raw))
