"""What train_sft.py starts from and trains on by default: the tiny base, the toy web's demonstrations, and a share of
replay."""

from dataclasses import replace
from pathlib import Path

import pytest

import train_sft
from minvenus.config import ModelConfig
from minvenus.model import weights
from minvenus.settings import SFTConfig
from minvenus.tools.toyweb_lessons import Teacher, notes
from minvenus.train.batch import digest
from tests.train.runs import TINY, small_config, write_inputs


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("inputs"))


def test_the_default_data_and_model_are_the_toy_web_and_the_tiny_base(inputs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(weights, "TINY_BASE", Path(inputs["model"]))
    settings = SFTConfig(steps=1, batch=2, demonstrations=8, validation=2, device="cpu", learning_rate=1e-9)
    folder = train_sft.main(settings)
    out = capsys.readouterr().out
    assert f"next        python train_igpo.py --model {folder}" in out and "            python infer.py" in out
    trained, base = weights.load(folder), weights.load(inputs["model"])
    assert all((p - q).abs().max() < 1e-6 for p, q in zip(trained.parameters(), base.parameters(), strict=True))


def test_the_model_tiny_has_random_weights_of_the_seed():
    one, two, other = (train_sft.prepare(SFTConfig(model="tiny", seed=seed, device="cpu"))[0] for seed in (1, 1, 2))
    assert sum(p.numel() for p in one.parameters()) == 492_288 and one.config == ModelConfig.preset("tiny")
    assert one.head_weight.equal(two.head_weight) and not one.head_weight.equal(other.head_weight)


def test_texts_of_the_bases_training_are_mixed_in_at_their_share_and_are_never_held_out(inputs, capsys, monkeypatch):
    """Six demonstrations are trained on: three notes make a third of nine, and none stands in the validation."""
    settings = small_config({"model": "tiny"}, "unused", data="toyweb", demonstrations=8, hops=1)
    monkeypatch.setattr(train_sft, "TEACHER", Teacher())
    alone, held_out = train_sft.load_examples(replace(settings, replay=0.0), TINY)
    assert "texts like those" not in capsys.readouterr().out
    mixed, still = train_sft.load_examples(replace(settings, replay=1 / 3), TINY)
    assert "and 3 texts like those of the base's training" in capsys.readouterr().out
    assert [digest(e) for e in held_out] == [digest(e) for e in still] and len(held_out) == 2
    assert [digest(e) for e in mixed[:6]] == [digest(e) for e in alone]
    assert [TINY.decode(e.tokens.tolist()) for e in mixed[6:]] == [
        "".join(text for text, _ in notes(settings.seed + 1, i)) for i in range(3)]
    real, _ = train_sft.load_examples(small_config(inputs, "unused", replay=1 / 3), TINY)
    assert len(real) == 6, "a file of trajectories is trained on as it is"


def test_the_teachers_rates_reach_the_demonstrations(monkeypatch):
    settings = small_config({"model": "tiny"}, "unused", data="toyweb", demonstrations=8, replay=0.0, max_tokens=2000,
                            pack_tokens=2000)

    def visits(**rates):
        monkeypatch.setattr(train_sft, "TEACHER", Teacher(**rates))
        training, _ = train_sft.load_examples(settings, TINY)
        return sum(TINY.decode(e.tokens.tolist()).count('"visit"') for e in training)

    assert visits() == 1 + 2 + 3 + 4 + 1 + 2                             # two of three and four hops are held out
    assert visits(wrong_result=1.0) == 2 * 13 and visits(wrong_relation=1.0) == 13 + 7
    assert visits(at_once=1.0) == 0 and 6 <= visits(stop_early=1.0) < 13 and visits(cut_off=1.0) < 13
