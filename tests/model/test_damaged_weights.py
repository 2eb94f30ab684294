"""A damaged checkpoint is refused with the file or the tensor and what was expected."""

import os
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from minvenus.config import ConfigError
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import WeightsError, load, save
from tests.model.checkpoints import INDEX, TIED, UNTIED, edit_index


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


@pytest.mark.parametrize("weight_map, message", [
    (None, "has no weight_map"), ([], "has no weight_map"), ({}, "has no weight_map")])
def test_an_index_without_a_map_is_refused(weight_map, message, sharded):
    edit_index(sharded, lambda raw: raw.update(weight_map=weight_map))
    with pytest.raises(WeightsError, match=message):
        load(sharded)


MISMATCH = r"does not match its shards, look at model\.norm\.weight$"


@pytest.mark.parametrize("file, message", [
    ("../other/model.safetensors", r"plain name.*'\.\./other"),
    ("/etc/model.safetensors", "plain name.*'/etc"),
    ("..\\model.safetensors", "plain name"),
    ("model.bin", "plain name.*'model.bin'"),
    (None, "plain name.*None"),
    ("gone.safetensors", "lacks 1 of .* shards.*gone.safetensors"),
    ("first", MISMATCH),
    ("nowhere", MISMATCH),
])
def test_a_tensor_with_a_wrong_place_in_the_index_is_refused(file, message, sharded):
    def change(raw):
        if file == "nowhere":
            del raw["weight_map"]["model.norm.weight"]
        else:
            first = raw["weight_map"]["model.embed_tokens.weight"]
            raw["weight_map"]["model.norm.weight"] = first if file == "first" else file

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


