"""Checkpoints: everything comes back, nothing is lost on the way, what does not fit is refused."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minvenus.config import ConfigError, read_json
from minvenus.files import latest_checkpoint, model_fingerprint
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.train import checkpoint
from minvenus.train.optim import adamw
from minvenus.train.settings import IGPOConfig, SFTConfig
from tests.train.runs import SMALL, TINY, made_up_update, parameters


def trained(updates=2, seed=0):
    """A model and an optimiser after some steps on made-up gradients."""
    model = Qwen3(SMALL, seed=seed)
    optimizer = adamw(model, (0.9, 0.95), 0.01)
    for step in range(updates):
        made_up_update(model, optimizer, step)
    return model, optimizer


def save(run, step=2, model_and_optimizer=None):
    state = {"step": step, "data": "data"}
    return checkpoint.save(run, state, *(model_and_optimizer or trained()), TINY.files)


def names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


@pytest.mark.parametrize("config_class", [SFTConfig, IGPOConfig])
def test_a_tokenizer_with_more_ids_than_the_model_is_refused_before_weights_reach_a_device(
    config_class, tmp_path, monkeypatch
):
    shape = replace(SMALL, vocab_size=TINY.size - 1)
    weights.save(Qwen3(shape), tmp_path / "start", TINY.files)
    monkeypatch.setattr(checkpoint, "start_model", lambda *_: pytest.fail("a model is loaded"))
    words = f"tokenizer of .*start has {TINY.size} tokens, the model {TINY.size - 1}: "
    with pytest.raises(ConfigError, match=words):
        checkpoint.load_start(config_class(model=str(tmp_path / "start")))


def test_a_checkpoint_before_the_first_update_has_no_moments_and_restores(tmp_path):
    save(tmp_path, 1, trained(updates=0))
    model, optimizer = trained(updates=0, seed=9)
    checkpoint.restore(latest_checkpoint(tmp_path), model, optimizer)
    assert torch.equal(parameters(model), parameters(Qwen3(SMALL, seed=0))) and not optimizer.state


def test_the_newest_and_the_one_before_are_kept_whatever_a_crash_left_behind(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    save(tmp_path, 10)
    assert names(tmp_path) == ["step-00000010"]
    for orphan in (
        "step-00000040",
        "step-00000050",
        ".step-00000060.new",
    ):  # `latest` never named them
        shutil.copytree(
            tmp_path / "checkpoints" / "step-00000010", tmp_path / "checkpoints" / orphan
        )
    save(tmp_path, 20)
    assert names(tmp_path) == ["step-00000010", "step-00000020"]
    (tmp_path / "checkpoints" / "notes.txt").touch()  # no folder, so it stays
    newest = save(tmp_path, 30)
    assert newest == latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-00000030"
    written = {path: path.stat().st_ino for path in newest.rglob("*")}
    assert save(tmp_path, 30) == newest and written == {
        path: path.stat().st_ino for path in newest.rglob("*")
    }
    assert names(tmp_path) == ["notes.txt", "step-00000020", "step-00000030"], (
        "step 30 is not written again"
    )


def test_the_pointer_is_on_the_disk_before_an_older_checkpoint_is_deleted(tmp_path, monkeypatch):
    for step in (10, 20):
        save(tmp_path, step)
    order = []
    monkeypatch.setattr(checkpoint, "sync", order.append)
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: order.append(path))
    save(tmp_path, 30)
    assert order[-2:] == [tmp_path, tmp_path / "checkpoints" / "step-00000010"]


def test_a_checkpoint_holds_only_safetensors_and_json_and_says_what_made_it(tmp_path):
    folder = save(tmp_path)
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} <= {
        ".safetensors",
        ".json",
    }
    versions = read_json(folder / "state.json")["versions"]
    assert (
        versions["torch"] == torch.__version__
        and {"python", "commit", "safetensors", "numpy"} < versions.keys()
    )


def test_a_damaged_checkpoint_is_refused_with_the_way_back_and_changes_nothing(tmp_path):
    folder = save(tmp_path)
    moments = load_file(folder / "optimizer.safetensors")
    some = next(name for name in moments if name.endswith("exp_avg"))
    damages = {
        "optimizer does not fit": lambda: save_file(
            {k: v for k, v in moments.items() if k != some}, folder / "optimizer.safetensors"
        ),
        "torn state": lambda: (folder / "state.json").write_text("{"),
        "torn optimizer": lambda: (folder / "optimizer.safetensors").write_bytes(b"123"),
        "no optimizer": lambda: (folder / "optimizer.safetensors").unlink(),
        "torn weights": lambda: (folder / "model" / "model.safetensors").write_bytes(b"123"),
    }
    for name, damage in damages.items():
        damage()
        model, optimizer = trained(0, seed=9)
        with pytest.raises(
            ConfigError, match=r"cannot be read: .* write that one's name into .*latest"
        ):
            checkpoint.restore(folder, model, optimizer)
        assert (
            torch.equal(parameters(model), parameters(Qwen3(SMALL, seed=9))) and not optimizer.state
        ), name


def test_a_pointer_to_nothing_is_an_error(tmp_path):
    (tmp_path / "latest").write_text("step-00000009\n")
    with pytest.raises(ConfigError, match="step-00000009, which is not a checkpoint"):
        latest_checkpoint(tmp_path)


def test_a_models_fingerprint_follows_the_content_of_its_files_and_nothing_else(
    tmp_path, monkeypatch
):
    def write(name, tensors):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.safetensors").write_bytes(tensors)
        (folder / "b.safetensors").write_bytes(b"b")
        (folder / "config.json").write_text("{}")
        (folder / "notes.txt").write_text(name)
        return folder

    one, same, other = write("one", b"12"), write("same", b"12"), write("other", b"13")
    first, real = model_fingerprint(one), Path.glob
    monkeypatch.setattr(Path, "glob", lambda *rest: sorted(real(*rest), reverse=True))
    assert model_fingerprint(same) == first != model_fingerprint(other)
    (same / "config.json").write_text("[]")
    assert model_fingerprint(same) != first, "another tokenizer or shape is another model"
    files = [one / "a.safetensors", other / "a.safetensors", "/nowhere"]
    assert len(set(map(model_fingerprint, files))) == 3, "a tokenizer's file, for a served model"
