"""A damaged checkpoint is refused with the file or the tensor and what was expected."""

import json
import math
import os
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from minvenus.config import ConfigError
from minvenus.files import write_json
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import load, save
from tests.model.checkpoints import INDEX, TIED, edit_index


def test_everything_missing_unexpected_misshapen_or_quantised_is_listed_in_one_error(single):
    tensors = load_file(single / "model.safetensors")
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.2.mlp.up_proj.weight"] = tensors["model.extra"] = torch.zeros(1)
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(4)
    tensors["model.layers.0.self_attn.o_proj.weight"] = tensors[
        "model.layers.0.self_attn.o_proj.weight"
    ].T.contiguous()
    tensors["model.layers.0.self_attn.k_norm.weight"] = torch.ones(8, dtype=torch.int8)
    save_file(
        {name: tensor.clone() for name, tensor in tensors.items()}, single / "model.safetensors"
    )
    with pytest.raises(ConfigError) as error:
        load(single)
    assert sorted(str(error.value).split("\n  ")[1:]) == sorted(
        [
            "missing model.norm.weight",
            "missing model.layers.1.mlp.up_proj.weight",
            "unexpected model.extra",
            "unexpected model.layers.2.mlp.up_proj.weight",
            "model.layers.0.self_attn.q_norm.weight is [4], the config says [8]",
            "model.layers.0.self_attn.o_proj.weight is [32, 24], the config says [24, 32]",
            "model.layers.0.self_attn.k_norm.weight is I8, only F64, F32, F16, BF16 can be read",
        ]
    )


def test_the_list_of_what_is_wrong_is_short_and_says_how_much_is_left_out(single):
    raw = json.loads((single / "config.json").read_text())
    (single / "config.json").write_text(json.dumps(raw | {"num_hidden_layers": 12}))
    with pytest.raises(ConfigError) as error:
        load(single)
    shown = str(error.value).split("\n  ")[1:]
    assert shown[0] == "missing model.layers.2.input_layernorm.weight"
    assert len(shown) == 21 and shown[-1] == "and 90 more"  # of 10 layers with 11 tensors each


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("layout", ["single", "sharded"])
@pytest.mark.parametrize("row", [0, -1])
def test_a_weight_that_is_no_finite_number_is_refused_with_the_file_and_the_tensor(
    row, layout, value, request, monkeypatch
):
    """In the first of the pieces that are read, or in the last."""
    folder = request.getfixturevalue(layout)
    name = "model.layers.1.mlp.up_proj.weight"
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        if name in tensors:
            tensors[name][row, -1] = value
            save_file(tensors, path, metadata={"format": "pt"})
            damaged = path
    monkeypatch.setattr(weights, "PIECE", 270)
    with pytest.raises(ConfigError, match=f"{damaged}: {name} has numbers that are not finite"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 0.5, -1])
@pytest.mark.parametrize("layout", ["single", "sharded"])
def test_a_truncated_file_is_named(keep, layout, request):
    folder = request.getfixturevalue(layout)
    path = sorted(folder.glob("*.safetensors"))[-1]
    size = path.stat().st_size
    os.truncate(path, int(size * keep) if keep == 0.5 else size - 1 if keep == -1 else keep)
    with pytest.raises(ConfigError, match=f"{path.name} is not a complete safetensors file"):
        load(folder)


@settings(max_examples=settings.default.max_examples * 2)
@given(place=st.integers(0, 3000), value=st.integers(0, 255))
def test_one_wrong_byte_in_the_header_never_crashes_or_loads_another_shape(
    place, value, tmp_path_factory
):
    folder = tmp_path_factory.getbasetemp() / "flipped"
    if not folder.exists():
        save(Qwen3(TIED), folder)
        shutil.copyfile(folder / "model.safetensors", folder.parent / "intact")
    raw = bytearray((folder.parent / "intact").read_bytes())
    place %= 8 + int.from_bytes(raw[:8], "little")
    raw[place] = value
    (folder / "model.safetensors").write_bytes(raw)
    try:
        shapes = {name: tensor.shape for name, tensor in load(folder).state_dict().items()}
    except ConfigError as error:
        assert "flipped" in str(error)
    else:  # a byte of padding or of the file's own remarks, or two equal shapes
        assert shapes == {name: tensor.shape for name, tensor in Qwen3(TIED).state_dict().items()}


PLAIN, MISSING = "plain name of a .safetensors file", r"missing model\.norm\.weight$"


@pytest.mark.parametrize(
    "file, message",
    [
        ("../other/model.safetensors", PLAIN),
        ("/etc/model.safetensors", PLAIN),
        ("..\\model.safetensors", PLAIN),
        ("model.bin", PLAIN),
        (None, PLAIN),
        ("gone.safetensors", "gone.safetensors is not a complete"),
        ("first", MISSING),
        ("nowhere", MISSING),
    ],
)
def test_a_tensor_with_a_wrong_place_in_the_index_is_refused(file, message, sharded):
    def change(raw):
        if file == "nowhere":
            del raw["weight_map"]["model.norm.weight"]
        else:
            first = raw["weight_map"]["model.embed_tokens.weight"]
            raw["weight_map"]["model.norm.weight"] = first if file == "first" else file

    edit_index(sharded, change)
    with pytest.raises(ConfigError, match=message):
        load(sharded)


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", '{"weight_map": []}'])
def test_an_index_without_a_map_is_refused(text, sharded):
    (sharded / INDEX).write_text(text)
    with pytest.raises(ConfigError, match=INDEX):
        load(sharded)


def test_a_folder_with_two_layouts_or_none_is_refused(single, sharded, tmp_path):
    shutil.copyfile(sharded / INDEX, single / INDEX)
    with pytest.raises(ConfigError, match="must hold either"):
        load(single)
    (single / INDEX).unlink()
    (single / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="must hold either"):
        load(single)
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        load(tmp_path / "nowhere")


def test_the_folder_of_a_training_run_is_no_model_and_the_error_names_its_newest_one(tmp_path):
    checkpoint = tmp_path / "checkpoints" / "step-00000003"
    write_json(checkpoint / "state.json", {})
    (tmp_path / "latest").write_text(checkpoint.name)
    with pytest.raises(
        ConfigError, match=f"a training run: its newest model is {checkpoint}/model"
    ):
        load(tmp_path)
