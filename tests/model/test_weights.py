"""Loading is strict, exact and frugal; saving leaves the old checkpoint or the new one, whatever happens on the way."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from minvenus import files as atomic
from minvenus.config import ConfigError, ModelConfig
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import WeightsError, load, save

TIED = ModelConfig(24, 37, 2, 4, 2, head_dim=8, vocab_size=61, max_position_embeddings=64)
UNTIED = replace(TIED, tie_word_embeddings=False, rope_theta=5e6)
INDEX = "model.safetensors.index.json"


def same(one, other):
    """Bit for bit, types and config included."""
    a, b = one.state_dict(), other.state_dict()
    return one.config == other.config and a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def single(tmp_path):
    save(Qwen3(TIED), tmp_path / "single")
    return tmp_path / "single"


@pytest.fixture
def sharded(tmp_path):
    save(Qwen3(TIED), tmp_path / "sharded", shard_bytes=8_000)
    return tmp_path / "sharded"


def edit_index(folder, change):
    raw = json.loads((folder / INDEX).read_text())
    change(raw)
    (folder / INDEX).write_text(json.dumps(raw))


# --------------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("shard_bytes", [10**9, 8_000, 1])
def test_save_then_load_is_bit_exact(config, dtype, shard_bytes, tmp_path):
    model = Qwen3(config, seed=5).to(dtype)
    save(model, tmp_path / "m", shard_bytes=shard_bytes)
    assert same(load(tmp_path / "m", dtype=dtype), model)


@settings(max_examples=max(5, settings.default.max_examples // 4))
@given(bits=st.lists(st.integers(0, 2**16 - 1), min_size=8, max_size=8))
def test_every_bfloat16_bit_pattern_survives(bits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bits") / "m"
    model = Qwen3(TIED).bfloat16()
    pattern = torch.tensor(bits, dtype=torch.int32).to(torch.int16)
    model.model.layers[0].self_attn.q_norm.weight.data = pattern.view(torch.bfloat16)         # NaN payloads among them
    save(model, folder)
    loaded = load(folder, dtype=torch.bfloat16).model.layers[0].self_attn.q_norm.weight
    assert torch.equal(loaded.view(torch.int16), pattern)


@pytest.mark.parametrize("stored, wanted", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_load_converts_to_the_type_asked_for_and_defaults_to_float32(stored, wanted, single):
    model = Qwen3(TIED).to(stored)
    save(model, single)
    assert same(load(single, dtype=wanted), model.to(wanted))
    assert load(single).head_weight.dtype == torch.float32


def test_a_tensor_longer_than_a_piece_is_read_whole(single, monkeypatch):
    monkeypatch.setattr(weights, "PIECE", 27)
    assert same(load(single), Qwen3(TIED))


def test_loaded_parameters_can_be_trained(single):
    model = load(single)
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    assert all(p.requires_grad and p.grad is not None for p in model.parameters())


def test_loading_draws_no_random_numbers_and_leaves_nothing_on_the_meta_device(single):
    before = torch.get_rng_state()
    model = load(single)
    assert torch.equal(before, torch.get_rng_state()) and not any(p.is_meta for p in model.parameters())


# ----------------------------------------------------------------------------------------------- what is in the folder


def test_a_saved_folder_holds_what_transformers_asks_for(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    save(Qwen3(TIED).bfloat16(), tmp_path / "m", tokenizer_files={"tokenizer.json": tmp_path / "tokenizer.json"})
    assert sorted(os.listdir(tmp_path / "m")) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["dtype"] == config["torch_dtype"] == "bfloat16" and config["architectures"] == ["Qwen3ForCausalLM"]
    assert ModelConfig.from_json(tmp_path / "m") == TIED
    with safe_open(tmp_path / "m" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert sorted(os.listdir(tmp_path)) == ["m", "tokenizer.json"]


def test_a_tokenizer_file_may_get_another_name_in_the_folder(tmp_path):
    (tmp_path / "tiny.json").write_text("{}")
    save(Qwen3(TIED), tmp_path / "m", tokenizer_files={"tokenizer.json": tmp_path / "tiny.json"})
    assert (tmp_path / "m" / "tokenizer.json").read_text() == "{}" and not (tmp_path / "m" / "tiny.json").exists()


def test_whoever_may_read_the_config_may_read_the_weights(sharded):
    assert len({path.stat().st_mode for path in sharded.iterdir()}) == 1


def test_shards_keep_to_the_limit_and_the_index_lists_every_tensor_once(sharded):
    index = json.loads((sharded / INDEX).read_text())
    state, count = Qwen3(TIED).state_dict(), len(set(index["weight_map"].values()))
    assert count > 2 and not (sharded / "model.safetensors").exists()
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in state.values())
    assert index["weight_map"].keys() == state.keys()
    for i in range(count):
        name = f"model-{i + 1:05}-of-{count:05}.safetensors"
        held = load_file(sharded / name)
        assert sum(t.nbytes for t in held.values()) <= 8_000
        assert {n for n, file in index["weight_map"].items() if file == name} == held.keys()


def test_a_tied_model_has_one_copy_on_disk_and_in_memory(single):
    assert "lm_head.weight" not in load_file(single / "model.safetensors")
    model = load(single)
    assert model.head_weight is model.model.embed_tokens.weight
    assert (single / "model.safetensors").stat().st_size < 1.1 * sum(p.nbytes for p in model.parameters()) + 4_000


def test_a_second_copy_of_the_embedding_is_ignored_when_tied(single):
    tensors = load_file(single / "model.safetensors")
    save_file(tensors | {"lm_head.weight": torch.zeros(61, 24)}, single / "model.safetensors")
    assert same(load(single), Qwen3(TIED))


def test_generation_ids_are_written_only_for_a_vocabulary_that_has_them(single, tmp_path):
    assert json.loads((single / "generation_config.json").read_text()) == {
        "do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
    big = weights.default_generation(replace(TIED, vocab_size=151_936))
    assert big["eos_token_id"] == [151_645, 151_643] and big["pad_token_id"] == 151_643


# ------------------------------------------------------------------------------------------------- damaged checkpoints


def test_everything_missing_unexpected_or_misshapen_is_listed_in_one_error(single):
    tensors = load_file(single / "model.safetensors")
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.2.mlp.up_proj.weight"] = tensors["model.extra"] = torch.zeros(1)
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(4)
    tensors["model.layers.0.self_attn.o_proj.weight"] = tensors["model.layers.0.self_attn.o_proj.weight"].T.contiguous()
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, single / "model.safetensors")
    with pytest.raises(WeightsError) as error:
        load(single)
    assert sorted(str(error.value).split("\n  ")[1:]) == sorted([
        "missing model.norm.weight", "missing model.layers.1.mlp.up_proj.weight",
        "unexpected model.extra", "unexpected model.layers.2.mlp.up_proj.weight",
        "model.layers.0.self_attn.q_norm.weight is [4], the config says [8]",
        "model.layers.0.self_attn.o_proj.weight is [32, 24], the config says [24, 32]"])


def test_an_untied_model_without_a_head_is_refused(tmp_path):
    save(Qwen3(UNTIED), tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "m" / "model.safetensors")
    with pytest.raises(WeightsError, match=r"missing lm_head\.weight"):
        load(tmp_path / "m")


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 0.5, -1])
@pytest.mark.parametrize("layout", ["single", "sharded"])
def test_a_truncated_file_is_named(keep, layout, request):
    folder = request.getfixturevalue(layout)
    path = sorted(folder.glob("*.safetensors"))[-1]
    size = path.stat().st_size
    os.truncate(path, int(size * keep) if keep == 0.5 else size - 1 if keep == -1 else keep)
    with pytest.raises(WeightsError, match=f"{path.name} is not a complete safetensors file"):
        load(folder)


@settings(max_examples=settings.default.max_examples * 2)
@given(place=st.integers(0, 3000), value=st.integers(0, 255))
def test_one_wrong_byte_in_the_header_never_crashes_or_loads_another_shape(place, value, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "flipped"
    if not folder.exists():
        save(Qwen3(TIED), folder)
        shutil.copyfile(folder / "model.safetensors", folder.parent / "intact")
    raw = bytearray((folder.parent / "intact").read_bytes())
    place %= 8 + int.from_bytes(raw[:8], "little")
    raw[place] = value
    (folder / "model.safetensors").write_bytes(raw)
    try:
        model = load(folder)
    except WeightsError as error:
        assert "flipped" in str(error)
    else:  # a byte of padding or of the file's own remarks, or two equal shapes
        assert {n: t.shape for n, t in model.state_dict().items()} == {
            n: t.shape for n, t in Qwen3(TIED).state_dict().items()
        }


def test_a_file_that_is_cut_while_it_is_read_is_noticed(single, monkeypatch):
    monkeypatch.setattr(weights, "PIECE", 27)
    opened = []

    def cut_after_some(path, *args):
        opened.append(path)
        if len(opened) == 9:
            os.truncate(path, path.stat().st_size - 1)
        return safe_open(path, *args)
    monkeypatch.setattr(weights, "safe_open", cut_after_some)
    with pytest.raises(WeightsError, match="changed while it was read"):
        load(single)


def test_integer_weights_are_refused_by_name(single):
    tensors = load_file(single / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, single / "model.safetensors")
    with pytest.raises(WeightsError, match=r"only F64, F32, F16, BF16.*model\.norm\.weight \(I8\)"):
        load(single)
    with pytest.raises(WeightsError, match=r"not torch\.int8"):
        load(single, dtype=torch.int8)


def move_a_tensor(raw):
    first = raw["weight_map"]["model.embed_tokens.weight"]
    raw["weight_map"]["model.norm.weight"] = first


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda raw: raw.pop("weight_map"), "has no weight_map"),
        (lambda raw: raw.update(weight_map=[]), "has no weight_map"),
        (lambda raw: raw.update(weight_map={}), "has no weight_map"),
        (
            lambda raw: raw["weight_map"].update({"model.norm.weight": "../other/model.safetensors"}),
            r"plain name.*'\.\./other",
        ),
        (lambda raw: raw["weight_map"].update({"model.norm.weight": "/etc/model.safetensors"}), "plain name.*'/etc"),
        (lambda raw: raw["weight_map"].update({"model.norm.weight": "..\\model.safetensors"}), "plain name"),
        (lambda raw: raw["weight_map"].update({"model.norm.weight": "model.bin"}), "plain name.*'model.bin'"),
        (lambda raw: raw["weight_map"].update({"model.norm.weight": None}), "plain name.*None"),
        (
            lambda raw: raw["weight_map"].update({"model.norm.weight": "gone.safetensors"}),
            "lacks 1 of .* shards.*gone.safetensors",
        ),
        (
            lambda raw: raw["weight_map"].update({"model.more": "model-00001-of-00006.safetensors"}),
            "lacks|look at model.more",
        ),
        (move_a_tensor, r"does not match its shards, look at model\.norm\.weight$"),
        (
            lambda raw: raw["weight_map"].pop("model.norm.weight"),
            r"does not match its shards, look at model\.norm\.weight$",
        ),
    ],
)
def test_a_bad_index_is_refused_with_its_reason(change, message, sharded):
    edit_index(sharded, change)
    with pytest.raises(WeightsError, match=message):
        load(sharded)


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_an_index_that_is_not_a_json_object_is_refused(text, sharded):
    (sharded / INDEX).write_bytes(text)
    with pytest.raises(WeightsError, match=INDEX):
        load(sharded)


def test_missing_pieces_of_a_folder_are_named(single, sharded, tmp_path):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(WeightsError, match=f"lacks 1 of .* shards that its index names: {shard.name}"):
        load(sharded)
    shutil.copyfile(sharded / INDEX, single / INDEX)
    with pytest.raises(WeightsError, match="holds both"):
        load(single)
    (single / INDEX).unlink()
    (single / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="holds neither"):
        load(single)
    (single / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"config\.json does not exist"):
        load(single)
    with pytest.raises(WeightsError, match="nowhere is not a folder"):
        load(tmp_path / "nowhere")


# ---------------------------------------------------------------------------------------------------- refusals of save


def test_save_refuses_to_delete_files_that_are_not_a_checkpoints(single, tmp_path):
    (single / "diary.txt").write_text("dear diary")
    with pytest.raises(WeightsError, match=r"would delete diary\.txt"):
        save(Qwen3(TIED, seed=1), single)
    assert (single / "diary.txt").exists() and same(load(single), Qwen3(TIED))
    assert os.listdir(tmp_path) == ["single"]


def test_save_again_with_fewer_shards_or_the_same_tokenizer_replaces_everything(sharded):
    (sharded / "tokenizer.json").write_text("{}")
    save(Qwen3(TIED, seed=1), sharded, tokenizer_files={"tokenizer.json": sharded / "tokenizer.json"})
    assert sorted(os.listdir(sharded)) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert same(load(sharded), Qwen3(TIED, seed=1))


def test_save_refuses_what_it_cannot_do(single, tmp_path):
    with torch.device("meta"):
        nothing = Qwen3(TIED)
    with pytest.raises(WeightsError, match="meta device"):
        save(nothing, single)
    with pytest.raises(WeightsError, match=r"do not exist: .*gone\.json"):
        save(Qwen3(TIED), single, tokenizer_files={"gone.json": tmp_path / "gone.json"})
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightsError, match="is a file, not a folder"):
        save(Qwen3(TIED), tmp_path / "file")


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
@pytest.mark.parametrize("fresh", [True, False], ids=["no-folder-before", "replacing"])
def test_a_crash_at_any_step_leaves_the_old_checkpoint_or_the_new_one(for_good, fresh, tmp_path, monkeypatch):
    old, new = Qwen3(TIED, seed=1), Qwen3(UNTIED, seed=2)
    step, outcomes, done = 0, [], False
    while not done:
        step += 1
        root = tmp_path / str(step)
        root.mkdir()
        vocab, folder = root / "tokenizer.json", root / "m"
        vocab.write_text("old")
        if not fresh:
            save(old, folder, {"tokenizer.json": vocab})
        vocab.write_text("new")
        with monkeypatch.context() as patch:
            die_at(step, patch, for_good)
            try:
                save(new, folder, {"tokenizer.json": vocab}, shard_bytes=9_000)
                done = True
            except Death:
                pass
        outcomes.append(what_is_there(folder, old, new))
        assert fresh or for_good or folder.exists()          # a process that lives on puts the old one back itself
        save(old, folder, {"tokenizer.json": vocab})                           # and life goes on
        assert same(load(folder), old) and sorted(os.listdir(root)) == ["m", "tokenizer.json"]
    before = "nothing" if fresh else "old"
    assert step > 15 and outcomes == sorted(outcomes, key=[before, "new"].index) and {*outcomes} == {before, "new"}


def what_is_there(folder, old, new):
    """Which checkpoint `load` finds, every file of it; a mix or a ruin fails."""
    if not folder.exists() and not atomic.beside(folder, "old").exists():
        with pytest.raises(WeightsError, match="is not a folder"):
            load(folder)
        return "nothing"
    if folder.exists():
        model, place = load(folder), folder
    else:
        with pytest.warns(UserWarning, match="was interrupted; using what it held before"):
            model, place = load(folder), atomic.beside(folder, "old")
    found = "old" if same(model, old) else "new"
    assert same(model, old if found == "old" else new)
    assert (place / "tokenizer.json").read_text() == found
    assert (place / INDEX).exists() == (found == "new")
    return found


def test_between_the_two_renames_load_reads_the_old_one_and_the_next_save_puts_it_back_first(single, tmp_path):
    os.rename(single, tmp_path / ".single.old")
    save(Qwen3(TIED, seed=9), tmp_path / "other")
    os.rename(tmp_path / "other", tmp_path / ".single.new")
    with pytest.warns(UserWarning, match="was interrupted"):
        assert same(load(single), Qwen3(TIED))
    assert not single.exists()                               # reading renames nothing
    nothing = Qwen3(TIED).to("meta")
    with pytest.raises(WeightsError, match="meta device"):
        save(nothing, single)
    assert same(load(single), Qwen3(TIED)) and os.listdir(tmp_path) == ["single"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads the names of open files from /proc")
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
    assert single.parent in synced, "and the new name is on the disk before the old folder is deleted"


def test_a_failed_save_frees_the_disk_at_once(single, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(weights, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save(Qwen3(TIED, seed=1), single)
    assert os.listdir(tmp_path) == ["single"] and same(load(single), Qwen3(TIED))


# -------------------------------------------------------------------------------------------------------------- memory

MEASURE = """
import sys, torch
from minvenus.model.weights import load
def status(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))
load(sys.argv[1])                                  # every library page that loading needs is in memory now
before = status("VmRSS")
for dtype in (torch.bfloat16, torch.float32):      # the larger one last: the peak of a process never falls
    model = load(sys.argv[2], dtype=dtype)
    print((status("VmHWM") - before) / sum(p.nbytes for p in model.parameters()))
    del model
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc, which only Linux has"
)
def test_peak_memory_while_loading_stays_under_1_2_times_the_weights(single, tmp_path):
    """Peak resident memory (VmHWM, which counts mapped file pages too) of a fresh process, less what it held before
    the load.

    Half of this model is its embedding: in bfloat16, converting whole tensors would take 2 times the weights, mapping
    the file 3.
    """
    config = ModelConfig(512, 1024, 10, 8, 4, head_dim=64, vocab_size=50_000)
    with torch.device("meta"):
        model = Qwen3(config)
    save(model.to_empty(device="cpu"), tmp_path / "big")     # what the numbers are does not matter here
    assert 180e6 < (tmp_path / "big" / "model.safetensors").stat().st_size < 400e6
    done = subprocess.run([sys.executable, "-c", MEASURE, single, tmp_path / "big"], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])})
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "big")
    halves, wholes = map(float, done.stdout.split())
    assert 0.9 < halves < 1.2 and 0.9 < wholes < 1.2, f"bfloat16 {halves:.2f} x, float32 {wholes:.2f} x the weights"
