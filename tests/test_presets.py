"""A model and its settings belong together: presets, and what happens to a real model without one."""

from dataclasses import fields
from typing import get_args

import pytest

from minvenus.config import MODELS, ConfigError, ModelConfig
from minvenus.files import write_json
from minvenus.presets import IGPO_PRESETS, SFT_PRESETS
from minvenus.settings import IGPOConfig, Preset, SFTConfig

REAL = [name for name in get_args(Preset) if name != "tiny"]
BOTH = [(SFTConfig, SFT_PRESETS), (IGPOConfig, IGPO_PRESETS)]


def real_model(folder, name="qwen3-0.6b") -> str:
    write_json(folder / "config.json", MODELS[name].to_hf())
    return str(folder)


@pytest.mark.parametrize(("cls", "presets"), BOTH)
def test_every_preset_is_valid_and_sets_what_must_not_be_the_toys(cls, presets, tmp_path):
    assert list(presets) == list(get_args(Preset)) and presets["tiny"] == {}
    for name in REAL:
        values = presets[name]
        config = cls(preset=name, **values | {"model": real_model(tmp_path, values["model"])})
        context = {"max_tokens", "max_context", "max_turn_tokens", "max_turns"} & {f.name for f in fields(cls)}
        assert {"learning_rate", "pack_tokens", "recompute", *context} <= values.keys()
        longest = getattr(config, "max_tokens", None) or config.max_context
        assert ModelConfig.preset(values["model"]).max_position_embeddings >= longest


def test_one_epoch_is_585_steps_of_the_released_trajectories_and_62_of_a_thousand_questions():
    sft, igpo = SFT_PRESETS["dr-venus-4b"], IGPO_PRESETS["dr-venus-4b"]
    assert sft["steps"] == 18_745 // sft["batch"] and igpo["steps"] == 1000 // igpo["questions"]


@pytest.mark.parametrize("cls", [SFTConfig, IGPOConfig])
def test_a_real_model_without_a_preset_is_refused_and_the_presets_are_named(cls, tmp_path):
    model = real_model(tmp_path)
    with pytest.raises(ConfigError) as caught:
        cls(model=model)
    assert all(word in str(caught.value) for word in (model, *REAL))
    assert cls(model=model, preset="qwen3-0.6b").model == model


@pytest.mark.parametrize("cls", [SFTConfig, IGPOConfig])
def test_a_shape_by_name_is_for_a_plan_only(cls):
    assert cls(preset="qwen3-0.6b", model="qwen3-8b", plan=True).model == "qwen3-8b"
    for model, plan in (("qwen3-8b", False), ("qwen4", True)):
        words = rf"a folder with a config\.json, for a --plan also one of tiny, qwen3-0\.6b.*got '{model}'"
        with pytest.raises(ConfigError, match=words):
            cls(preset="qwen3-0.6b", model=model, plan=plan)
