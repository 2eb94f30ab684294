"""Model shapes, recipes, and the refusal of what cannot be used."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import MODELS, ConfigError, InferConfig, ModelConfig, Recipe

QWEN = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 101,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu",
        "attention_bias": False, "sliding_window": None, "use_sliding_window": False, "torch_dtype": "bfloat16"}
OLD = QWEN | {"rope_theta": 5e6, "rope_scaling": None}
NEW = QWEN | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6}}


def write(folder, value) -> str:
    path = folder / "config.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def test_the_old_and_the_new_form_of_config_json_give_the_same_model(tmp_path):
    old, new = ModelConfig.from_json(write(tmp_path, OLD)), ModelConfig.from_json(write(tmp_path, NEW))
    assert old == new
    assert (old.rope_theta, old.head_dim, old.tie_word_embeddings, old.vocab_size) == (5e6, 32, False, 101)
    assert ModelConfig.from_json(tmp_path) == old, "the folder does as well"


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_for_transformers_reads_back_as_the_same_model(name, tmp_path):
    assert ModelConfig.from_json(write(tmp_path, MODELS[name].to_hf())) == MODELS[name]


@pytest.mark.parametrize(("change", "named"), [
    ({"model_type": "llama"}, "model_type 'llama'"),
    ({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}, "Qwen3MoeForCausalLM"),
    ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope scaling yarn"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "rope scaling linear"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "rope scaling yarn"),
    ({"use_sliding_window": True, "sliding_window": 128}, "sliding window"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
    ({"attention_bias": True}, "attention_bias"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
])
def test_what_is_not_implemented_is_refused_by_name(change, named, tmp_path):
    with pytest.raises(ConfigError, match=named):
        ModelConfig.from_json(write(tmp_path, OLD | change))


@pytest.mark.parametrize(("value", "named"), [
    ("{not json", "cannot be read as JSON"),
    ("[1]", "must hold a JSON object"),
    ({k: v for k, v in OLD.items() if k != "hidden_size"}, "lacks hidden_size"),
    (QWEN, "lacks rope_theta"),
    (OLD | {"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
    (OLD | {"head_dim": 31}, "head_dim must be even"),
    (OLD | {"hidden_size": "64"}, "hidden_size must be a positive whole number, got '64'"),
])
def test_a_broken_config_json_gives_one_error_that_names_the_file(value, named, tmp_path):
    with pytest.raises(ConfigError, match=named) as caught:
        ModelConfig.from_json(write(tmp_path, value))
    assert "config.json" in str(caught.value)


def test_a_missing_config_json_says_so(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        ModelConfig.from_json(tmp_path / "nowhere")


def test_a_misspelt_model_preset_names_the_valid_ones():
    with pytest.raises(ConfigError, match="qwen3-4b-thinking-2507"):
        ModelConfig.preset("qwen3-4b-thinking")


def test_the_two_recipes_differ_in_exactly_the_fields_where_paper_and_release_differ():
    paper, released = asdict(Recipe.paper()), asdict(Recipe.released())
    assert {k: (paper[k], released[k]) for k in paper if paper[k] != released[k]} == {
        "browse": ("replicate", "segment"), "discount_over": ("turns", "rewards"), "penalty_scope": ("turn", "segment"),
        "newlines_after_think": (2, 1),
    }
    assert Recipe() == Recipe.paper()
    assert Recipe.released(gamma=1.0, browse="off") == replace(Recipe.released(), gamma=1.0, browse="off")


@pytest.mark.parametrize("change", [
    {"gain": "logprob"}, {"browse": "copy"}, {"discount_over": "tokens"}, {"penalty_scope": "all"}, {"normalize": "batch"},
    {"gamma": 1.01}, {"gamma": -0.1}, {"gamma": float("nan")}, {"format_penalty": -1.0}, {"newlines_after_think": 3},
])
def test_an_impossible_recipe_is_refused(change):
    with pytest.raises(ConfigError, match=next(iter(change))):
        Recipe(**change)


@given(st.integers(-5, 200), st.floats(allow_nan=True))
def test_an_infer_config_exists_only_with_usable_numbers(tokens, temperature):
    usable = tokens >= 1 and 0 <= temperature <= 100
    try:
        InferConfig(max_new_tokens=tokens, temperature=temperature)
    except ConfigError:
        assert not usable
    else:
        assert usable
