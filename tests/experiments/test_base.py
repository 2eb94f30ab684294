"""The base model's training: its texts, its seed, that no half model is left; Muon."""

import hashlib
import os
import signal
import subprocess
import sys
from statistics import fmean

import pytest
import torch

from minvenus.agent.prompt import TOYWEB, read_format
from minvenus.config import ModelConfig
from minvenus.experiments import base
from minvenus.experiments.base import BaseConfig, Muon, orthogonal, start, texts
from minvenus.model import weights
from minvenus.model.weights import TINY_BASE
from minvenus.sft.dataset import encode_pieces
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.toyweb_lessons import reading

TINY = Tokenizer.tiny()


def config(folder, steps=2) -> BaseConfig:
    return BaseConfig(out=str(folder / "model"), steps=steps)


# ---------------------------------------------------------------------------------------- its texts


def test_the_texts_are_those_that_the_shipped_base_was_trained_on():
    """At the steps where each kind of text begins, and at the first and the last. `make base` takes
    minutes; this hash tells in a second whether it could still give the model in the repository."""
    digest = hashlib.sha256()
    for step in (0, 119, 120, 249, 250, 999):
        for e in texts(0, step, TINY):
            digest.update(e.tokens.numpy().tobytes() + e.sampled.numpy().tobytes())
    first, other = (texts(seed, 0, TINY)[0].tokens.tolist() for seed in (0, 1))
    assert first != other
    assert digest.hexdigest() == "a296c4ef5879279efe0ccf8b8e31d6c8f2fbfb5efb38c7db87d23b8e7e088c0e"


# ------------------------------------------------------------------------------------- its training


def test_at_the_start_attention_and_mlp_add_nothing_and_all_embeddings_share_their_first_number():
    model = start(0)
    assert (model.model.embed_tokens.weight[:, 0] == base.SHARED).all()
    tokens = torch.randint(0, 700, (1, 9), generator=torch.Generator().manual_seed(0))
    alone = model(tokens[:, -1:])[0, -1]  # context is not read
    torch.testing.assert_close(model(tokens)[0, -1], alone)


def test_the_same_seed_gives_the_same_weights_to_the_last_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "BATCH", 2)
    one, two = (base.main(config(tmp_path / name)) for name in ("one", "two"))
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    assert Tokenizer.from_file(one).encode(" Bob") == TINY.encode(" Bob")
    model, before = weights.load(one), start(0)
    for trained, parameter in zip(model.parameters(), before.parameters(), strict=True):
        assert not torch.equal(trained, parameter), "all are trained"
    assert not torch.equal(before.head_weight, start(1).head_weight)


def test_the_rate_rises_over_20_steps_and_falls_over_the_last_40_percent(tmp_path, monkeypatch):
    rates = []
    monkeypatch.setattr(base, "texts", lambda *_: [])
    monkeypatch.setattr(base, "sft_step", lambda *given: rates.append(given[3]) or {})
    base.main(config(tmp_path, steps=100))
    assert rates[:2] == pytest.approx([0.001, 0.002])
    assert rates[19:61] == pytest.approx([0.02] * 42)
    assert (rates[18], rates[61], rates[99]) == pytest.approx((0.019, 0.0195, 0.0005))
    matrix = start(0).model.layers[0].self_attn.q_proj.weight.detach()
    assert float(matrix.std()) == pytest.approx(0.08, 0.1)


def test_a_folder_that_holds_other_things_is_refused_before_the_training(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.txt").write_text("years of work")
    monkeypatch.setattr(base, "sft_step", lambda *_: pytest.fail("it has begun to train"))
    with pytest.raises(ValueError, match=r"would delete thesis.txt"):
        base.main(config(tmp_path))


def test_a_termination_is_one_line_and_exit_code_130_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "minvenus.experiments", "base"]
    command += ["--out", str(tmp_path / "model")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr.readline().startswith("base 1/1000")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
        assert process.stderr.read().splitlines()[-1].startswith("base: stopped at once;")
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------------------------- Muon


@pytest.mark.parametrize("shape", [(32, 32), (16, 48), (48, 16)])
def test_every_singular_value_of_an_orthogonal_step_is_near_one_and_the_singular_vectors_stay(
    shape,
):
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(gradient, full_matrices=False)
    in_its_basis = u.T @ orthogonal(gradient) @ v.T
    assert in_its_basis.diagonal().min() > 0.5 and in_its_basis.diagonal().max() < 1.3
    assert (in_its_basis - torch.diag(in_its_basis.diagonal())).abs().max() < 1e-4
    larger = orthogonal(gradient * 1000)
    torch.testing.assert_close(larger, orthogonal(gradient), rtol=1e-3, atol=1e-3)
    assert orthogonal(torch.zeros(shape)).abs().max() == 0


def test_two_steps_on_a_matrix_follow_the_formula_by_hand_and_a_vector_goes_with_adamw():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8))
    optimizer = Muon(model)
    optimizer.param_groups[0]["lr"] = 0.01
    weight = model[0].weight.detach().clone()
    bias = torch.nn.Parameter(model[0].bias.detach().clone())
    adam = torch.optim.AdamW([bias], lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)
    total = torch.zeros_like(weight)
    for step in range(2):
        gradient = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        model[0].weight.grad = gradient.clone()
        model[0].bias.grad, bias.grad = gradient[:, 0].clone(), gradient[:, 0].clone()
        optimizer.step()
        adam.step()
        total = 0.95 * total + gradient
        weight = weight - 0.01 * 2**0.5 * orthogonal(gradient + 0.95 * total)
    torch.testing.assert_close(model[0].weight.detach(), weight)
    torch.testing.assert_close(model[0].bias.detach(), bias.detach())


# ------------------------------------------------------------------------ the one in the repository


def test_the_shipped_base_has_the_shape_and_the_tokenizer_of_this_code():
    assert weights.load(TINY_BASE).config == ModelConfig.preset("tiny")
    assert read_format(TINY_BASE) == TOYWEB
    assert (TINY_BASE / "tokenizer.json").read_bytes() == TINY.files["tokenizer.json"].read_bytes()


def test_the_shipped_base_looks_up_what_it_has_just_read():
    """Pets and names that follow from the text above them, on texts of another seed."""
    model = weights.load(TINY_BASE)
    hits = []
    for i in range(12):
        e = encode_pieces(reading(77, i), TINY)
        with torch.no_grad():
            best = model(e.tokens.long()[None])[0].argmax(-1)  # [L]: of the token after each
        hits += (best[:-1] == e.tokens[1:])[e.sampled[1:]].tolist()
    assert len(hits) > 100 and fmean(hits) > 0.95
