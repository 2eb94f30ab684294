"""Our forward pass against numbers that transformers computed once (tests/fixtures/make_qwen3_parity.py), and
the proof that they would notice a wrong step. Set MINVENUS_TRANSFORMERS_PYTHON to a python that has
transformers to also let it load what we save."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file

from minvenus.config import ModelConfig
from minvenus.model import qwen3, weights
from minvenus.model.qwen3 import Qwen3

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "qwen3_parity.safetensors"
CASES = ["tied-1-query-per-kv", "untied-2-queries-per-kv", "tied-4-queries-per-kv", "untied-one-kv-head",
         "tied-one-layer-longer"]
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
    own = {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}
    model.load_state_dict(own)
    return model.requires_grad_(False)


def run(model, tokens):
    """Logits, and the output of the embedding, of every layer and of the last norm, each [B, L, ...]."""
    hidden = []
    parts = (model.model.embed_tokens, *model.model.layers, model.model.norm)
    for part in parts:
        part.register_forward_hook(lambda part, args, out: hidden.append(out.view(*tokens.shape, -1)))
    return model(tokens), hidden


def worst(model, stored, case):
    """The largest difference from transformers' logits."""
    return float((model(stored[f"{case}/tokens"]) - stored[f"{case}/logits"]).abs().max())


def test_the_fixture_is_small_and_covers_the_shapes_that_go_wrong(configs):
    assert FIXTURE.stat().st_size < 2_000_000
    assert list(configs) == sorted(CASES)
    shapes = configs.values()
    assert {c.num_attention_heads // c.num_key_value_heads for c in shapes} >= {1, 2, 4}
    assert {c.rope_theta for c in shapes} == {1e6, 5e6} and {c.tie_word_embeddings for c in shapes} == {True, False}
    assert any(c.head_dim * c.num_attention_heads != c.hidden_size for c in shapes)
    assert any(c.vocab_size % 2 and c.intermediate_size % 2 and c.hidden_size % 2 for c in shapes)


@pytest.mark.parametrize("case", CASES)
def test_logits_and_every_layers_hidden_states_agree_with_transformers(case, configs, stored):
    logits, hidden = run(build(configs[case], stored, case), stored[f"{case}/tokens"])
    assert len(hidden) == configs[case].num_hidden_layers + 2
    for i, ours in enumerate(hidden):
        torch.testing.assert_close(ours, stored[f"{case}/hidden/{i}"], rtol=0, atol=LIMIT)
    torch.testing.assert_close(logits, stored[f"{case}/logits"], rtol=0, atol=LIMIT)


@pytest.mark.parametrize("case", CASES)
def test_packed_hidden_states_agree_with_transformers_row_by_row(case, configs, stored):
    tokens, last = stored[f"{case}/tokens"], stored[f"{case}/hidden/{configs[case].num_hidden_layers + 1}"]
    lengths = [tokens.shape[1] - row for row in range(len(tokens))]              # each row one token shorter
    packed = build(configs[case], stored, case).packed(
        torch.cat([row[:n] for row, n in zip(tokens, lengths, strict=True)]), torch.tensor([0, *lengths]).cumsum(0))
    expected = torch.cat([row[:n] for row, n in zip(last, lengths, strict=True)])
    torch.testing.assert_close(packed, expected, rtol=0, atol=LIMIT)


# --------------------------------------------------------------------------- wrong steps that the fixture must notice


def without_norm(name):
    def change(model, patch):
        for layer in model.model.layers:
            patch.setattr(getattr(layer.self_attn, name), "forward", lambda x: x)
    change.__name__ = f"without_{name}"
    return change


def v_normalised_like_k(model, patch):
    for layer in model.model.layers:
        plain, norm = layer.self_attn.v_proj.forward, layer.self_attn.k_norm
        patch.setattr(layer.self_attn.v_proj, "forward", lambda x, plain=plain, norm=norm: norm(
            plain(x).unflatten(-1, (-1, norm.weight.numel()))).flatten(-2))


def norm_after_rope(model, patch):
    """The norm's weight differs from channel to channel, so that it does not commute with the rotation."""
    turn = qwen3.rotate
    for layer in model.model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            patch.setattr(norm, "forward", lambda x, norm=norm: (norm, x))
    patch.setattr(qwen3, "rotate", lambda pair, cos, sin: qwen3.RMSNorm.forward(pair[0], turn(pair[1], cos, sin)))


def interleaved_rope(model, patch):
    def turn(x, cos, sin):
        even, odd = x[..., ::2], x[..., 1::2]
        cos, sin = cos.chunk(2, dim=-1)[0], sin.chunk(2, dim=-1)[1]
        return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    patch.setattr(qwen3, "rotate", turn)


def rope_turning_backwards(model, patch):
    turn = qwen3.rotate
    patch.setattr(qwen3, "rotate", lambda x, cos, sin: turn(x, cos, -sin))


def no_rope(model, patch):
    patch.setattr(qwen3, "rotate", lambda x, cos, sin: x)


def other_theta(model, patch):
    patch.setattr(model.model, "theta", 5e6 if model.config.rope_theta == 1e6 else 1e6)


def scale_of_the_hidden_size(model, patch):
    right = qwen3.attention
    wrong = (model.config.hidden_size / model.config.num_attention_heads) ** -0.5
    patch.setattr(qwen3, "attention", lambda q, k, v, cu, **_: right(q, k, v, cu, scale=wrong))


def query_heads_dealt_round_robin(model, patch):
    right, kv_heads = qwen3.attention, model.config.num_key_value_heads
    def attend(q, k, v, cu, **_):
        group = q.shape[1] // kv_heads
        return right(q, k.repeat(1, group, 1), v.repeat(1, group, 1), cu)
    patch.setattr(qwen3, "attention", attend)


def no_causal_mask(model, patch):
    def attend(q, k, v, cu, **_):
        out = []
        for start, end in zip(cu.tolist(), cu.tolist()[1:], strict=False):
            qs, ks, vs = (x[start:end].transpose(0, 1)[None] for x in (q, k, v))
            out.append(F.scaled_dot_product_attention(qs, ks, vs, enable_gqa=True)[0].transpose(0, 1))
        return torch.cat(out)
    patch.setattr(qwen3, "attention", attend)


def gelu_for_silu(model, patch):
    patch.setattr(qwen3.F, "silu", F.gelu)


def gate_and_up_swapped(model, patch):
    for layer in model.model.layers:
        layer.mlp.gate_proj, layer.mlp.up_proj = layer.mlp.up_proj, layer.mlp.gate_proj


def eps_a_hundredfold(model, patch):
    for part in model.modules():
        if isinstance(part, qwen3.RMSNorm):
            patch.setattr(part, "eps", part.eps * 100)


def head_taken_from_the_embedding(model, patch):
    patch.setattr(model, "config", replace(model.config, tie_word_embeddings=True))


EVERY = set(CASES)
UNTIED = {case for case in CASES if case.startswith("untied")}
WRONG = {
    without_norm("q_norm"): EVERY,
    without_norm("k_norm"): EVERY,
    v_normalised_like_k: EVERY,
    norm_after_rope: EVERY,
    interleaved_rope: EVERY,
    rope_turning_backwards: EVERY,
    no_rope: EVERY,
    other_theta: EVERY,
    scale_of_the_hidden_size: EVERY - {"tied-1-query-per-kv"},  # there head_dim is hidden / heads
    query_heads_dealt_round_robin: EVERY - {"tied-1-query-per-kv", "untied-one-kv-head"},  # there both mappings are one
    no_causal_mask: EVERY,
    gelu_for_silu: EVERY,
    gate_and_up_swapped: EVERY,
    eps_a_hundredfold: EVERY,
    head_taken_from_the_embedding: UNTIED,
}


@pytest.mark.parametrize("change", WRONG, ids=lambda change: change.__name__)
def test_each_wrong_step_moves_the_logits_of_every_case_it_touches(change, configs, stored, monkeypatch):
    for case in CASES:
        model = build(configs[case], stored, case)
        with monkeypatch.context() as patch:
            change(model, patch)
            difference = worst(model, stored, case)
        if case in WRONG[change]:
            assert difference > 10 * LIMIT, f"{case} does not notice: {difference:.1e}"
        else:
            assert difference < LIMIT, f"{case} should not be touched: {difference:.1e}"


# ----------------------------------------------------------------------- the other way: transformers loads our folder

LOAD = """
import sys, torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GenerationConfig
folder, out = sys.argv[1:]
model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
assert not any(info.values()), info
GenerationConfig.from_pretrained(folder)
tokens = torch.arange(35).view(5, 7) % model.config.vocab_size
# logits in float32: odd sizes in bfloat16 crash torch's matrix product on some processors
saved = {n: p.detach().clone() for n, p in model.named_parameters()}
save_file({"logits": model.float()(tokens).logits.detach().contiguous(), **saved}, out)
"""


@pytest.mark.skipif("MINVENUS_TRANSFORMERS_PYTHON" not in os.environ,
                    reason="set MINVENUS_TRANSFORMERS_PYTHON to a python that has transformers")
@pytest.mark.parametrize("case, dtype, shard_bytes", [
    ("tied-4-queries-per-kv", torch.float32, 10**9), ("tied-4-queries-per-kv", torch.bfloat16, 9_000),
    ("untied-2-queries-per-kv", torch.float32, 20_000), ("untied-2-queries-per-kv", torch.bfloat16, 10**9)])
def test_transformers_loads_a_saved_folder_bit_for_bit_with_the_same_logits(case, dtype, shard_bytes, configs, stored,
                                                                            tmp_path):
    model = build(configs[case], stored, case).to(dtype)
    weights.save(model, tmp_path / "saved", shard_bytes=shard_bytes)
    assert (tmp_path / "saved" / "model.safetensors").exists() == (shard_bytes == 10**9)
    out = tmp_path / "theirs.safetensors"
    done = subprocess.run([os.environ["MINVENUS_TRANSFORMERS_PYTHON"], "-c", LOAD, tmp_path / "saved", out],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs = load_file(out)
    logits = theirs.pop("logits")
    ours = model.state_dict()
    assert theirs.keys() == ours.keys()
    assert all(theirs[name].dtype == dtype and torch.equal(theirs[name], ours[name]) for name in ours)
    tokens = torch.arange(35).view(5, 7) % configs[case].vocab_size
    torch.testing.assert_close(model.float()(tokens), logits, rtol=0, atol=LIMIT)
