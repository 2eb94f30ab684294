"""A folder that is saved is complete or not there, whatever happens on the way; nothing else is deleted."""

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

# ---------------------------------------------------------------------------------------------------- refusals of save


def test_save_refuses_to_delete_files_that_are_not_a_checkpoints(single, tmp_path):
    (single / "diary.txt").write_text("dear diary")
    with pytest.raises(ConfigError, match=r"would delete diary\.txt"):
        save(Qwen3(TIED, seed=1), single)
    assert (single / "diary.txt").exists() and same(load(single), Qwen3(TIED))
    assert os.listdir(tmp_path) == ["single"]
    with pytest.raises(NotADirectoryError):
        save(Qwen3(TIED, seed=1), single / "diary.txt")
    assert (single / "diary.txt").read_text() == "dear diary"


def test_save_again_with_fewer_shards_or_the_same_tokenizer_replaces_everything(sharded):
    (sharded / "tokenizer.json").write_text("{}")
    save(
        Qwen3(TIED, seed=1), sharded, tokenizer_files={"tokenizer.json": sharded / "tokenizer.json"}
    )
    assert sorted(os.listdir(sharded)) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert same(load(sharded), Qwen3(TIED, seed=1))


def test_saving_through_a_link_replaces_the_folder_and_keeps_the_link(single, tmp_path):
    (tmp_path / "latest").symlink_to(single)
    save(Qwen3(TIED, seed=1), tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink() and same(load(single), Qwen3(TIED, seed=1))


# ------------------------------------------------------------------------------------------------------------- crashes


class Death(BaseException):
    """The process ends here: nothing after it may take effect."""


def die_at(step, patch, for_good):
    """Let the step-th touch of the disk fail, half done where it can be; `for_good`, every later one too."""
    count = [0]

    def wrap(module, name, half=None):
        real = getattr(module, name)

        def touch(*args, **kwargs):
            count[0] += 1
            if count[0] == step or (for_good and count[0] > step):
                if half and count[0] == step:
                    half(*args)
                raise Death(name)
            return real(*args, **kwargs)

        patch.setattr(module, name, touch)

    def half_deleted(folder, *args, **kwargs):
        next(Path(folder).iterdir()).unlink()

    wrap(os, "rename")
    wrap(os, "fsync")
    wrap(Path, "mkdir")
    wrap(Path, "write_text", lambda path, *a: path.write_bytes(b"{"))
    wrap(weights, "save_file", lambda tensors, path: Path(path).write_bytes(b"half a file"))
    wrap(shutil, "copyfile", lambda source, target: Path(target).write_bytes(b""))
    wrap(shutil, "rmtree", half_deleted)
    return count


@pytest.mark.parametrize("for_good", [True, False], ids=["process-dies", "one-error"])
def test_a_crash_at_any_step_leaves_no_folder_or_a_whole_one(for_good, tmp_path, monkeypatch):
    model, vocab = Qwen3(UNTIED, seed=2), tmp_path / "tokenizer.json"
    vocab.write_text("new")
    step, outcomes, done = 0, [], False
    while not done:
        step += 1
        folder = tmp_path / str(step) / "m"
        with monkeypatch.context() as patch:
            die_at(step, patch, for_good)
            try:
                save(model, folder, {"tokenizer.json": vocab}, shard_bytes=9_000)
                done = True
            except Death:
                pass
        outcomes.append(folder.exists())
        if folder.exists():
            assert same(load(folder), model) and (folder / "tokenizer.json").read_text() == "new"
        save(model, folder, {"tokenizer.json": vocab})  # and life goes on
        assert same(load(folder), model) and os.listdir(folder.parent) == ["m"]
    assert step > 10 and outcomes == sorted(outcomes) and {*outcomes} == {False, True}


def test_an_error_on_the_way_leaves_the_folder_that_was_there(single, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.json"):
        save(Qwen3(TIED, seed=9), single, tokenizer_files={"gone.json": tmp_path / "gone.json"})
    assert same(load(single), Qwen3(TIED)) and os.listdir(tmp_path) == ["single"]


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
    assert single.parent in synced, "and the new name itself"


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
