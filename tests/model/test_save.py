"""A saved folder is whole or not there, whatever happens; nothing else is deleted."""

import os
import shutil
from pathlib import Path

import pytest

from minvenus import files as atomic
from minvenus.config import ConfigError
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import load, save
from tests.model.checkpoints import TIED, UNTIED, same

# ------------------------------------------------------------------------------ refusals of save


def test_save_refuses_to_delete_files_that_are_not_a_checkpoints(single, tmp_path):
    diary = single / "diary.txt"
    diary.write_text("dear diary")
    with pytest.raises(ConfigError, match=r"would delete diary\.txt"):
        save(Qwen3(TIED, seed=1), single)
    assert same(load(single), Qwen3(TIED)) and os.listdir(tmp_path) == ["single"]
    with pytest.raises(NotADirectoryError):
        save(Qwen3(TIED, seed=1), diary)
    assert diary.read_text() == "dear diary"


def test_saving_through_a_link_replaces_everything_in_the_folder_and_keeps_the_link(
    single, tmp_path
):
    tokenizer = single / "tokenizer.json"
    tokenizer.write_text("{}")
    (tmp_path / "latest").symlink_to(single)
    save(Qwen3(TIED, seed=1), tmp_path / "latest", {"tokenizer.json": tokenizer})
    assert (tmp_path / "latest").is_symlink() and same(load(single), Qwen3(TIED, seed=1))
    assert sorted(os.listdir(single)) == ["config.json", "model.safetensors", "tokenizer.json"]


# --------------------------------------------------------------------------------------- crashes


class Death(BaseException):
    """The process ends here: nothing after it may take effect."""


def die_at(step, patch, for_good):
    """Let the step-th touch of the disk fail, half done where it can be; `for_good`, every later
    one too."""
    touches = 0

    def wrap(module, name, half=None):
        real = getattr(module, name)

        def touch(*args, **kwargs):
            nonlocal touches
            touches += 1
            if touches == step and half:
                half(*args)
            if touches == step or (for_good and touches > step):
                raise Death(name)
            return real(*args, **kwargs)

        patch.setattr(module, name, touch)

    wrap(os, "rename")
    wrap(os, "fsync")
    wrap(Path, "mkdir")
    wrap(Path, "write_text", lambda path, *_: path.write_bytes(b"{"))
    wrap(weights, "save_file", lambda tensors, path: Path(path).write_bytes(b"half a file"))
    wrap(shutil, "copyfile", lambda source, target: Path(target).write_bytes(b""))
    wrap(shutil, "rmtree", lambda folder, *_: (folder / "config.json").unlink(missing_ok=True))


@pytest.mark.parametrize("for_good", [True, False], ids=["process-dies", "one-error"])
def test_a_crash_at_any_step_leaves_the_old_checkpoint_or_the_new_one(
    for_good, tmp_path, monkeypatch
):
    old, new = Qwen3(TIED, seed=1), Qwen3(UNTIED, seed=2)
    outcomes, done = [], False
    while not done:
        root = tmp_path / str(len(outcomes))
        root.mkdir()
        vocab, folder = root / "tokenizer.json", root / "m"
        vocab.write_text("old")
        save(old, folder, {"tokenizer.json": vocab})
        vocab.write_text("new")
        with monkeypatch.context() as patch:
            die_at(len(outcomes) + 1, patch, for_good)
            try:
                save(new, folder, {"tokenizer.json": vocab})
                done = True
            except Death:
                pass
        outcomes.append(what_is_there(folder, old, new))
        save(old, folder, {"tokenizer.json": vocab})  # and life goes on
        assert same(load(folder), old) and sorted(os.listdir(root)) == ["m", "tokenizer.json"]
    order = ["old", "beside", "new"]
    assert len(outcomes) > 12 and outcomes == sorted(outcomes, key=order.index)
    assert {*outcomes} == {*order} and outcomes.count("beside") == 2


def what_is_there(folder, old, new):
    """Which checkpoint is there, every file of it; "beside" = the new one, not renamed yet."""
    place, outcome = folder, "new"
    if not (folder / "config.json").exists() or not (folder / "tokenizer.json").exists():
        place, outcome = atomic.unfinished(folder), "beside"
    elif (folder / "tokenizer.json").read_text() == "old":
        outcome = "old"
    assert same(load(place), old if outcome == "old" else new)
    return outcome


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="reads the names of open files from /proc"
)
def test_every_file_is_on_the_disk_before_the_folder_gets_its_name(single, monkeypatch):
    synced, real_sync, real_rename = set(), os.fsync, os.rename

    def fsync(handle):
        synced.add(Path(os.readlink(f"/proc/self/fd/{handle}")))
        real_sync(handle)

    def rename(source, target):
        if target == single:
            assert {*source.iterdir(), source} <= synced and len(synced) >= 4
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    save(Qwen3(TIED, seed=1), single)
    assert single.parent in synced


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    order, real = [], Path.replace
    monkeypatch.setattr(atomic, "sync", lambda path: order.append(path.name))
    monkeypatch.setattr(
        Path, "replace", lambda new, path: order.append(path.name) or real(new, path)
    )
    atomic.write_text(tmp_path / "latest", "step 1")
    assert order == [".latest.new", "latest"] and (tmp_path / "latest").read_text() == "step 1"


def test_a_failed_save_frees_the_disk_at_once(single, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save(Qwen3(TIED, seed=1), single)
    assert os.listdir(tmp_path) == ["single"] and same(load(single), Qwen3(TIED))
