"""Model shapes, recipes, presets, and the refusal of what cannot be used."""

import json
from dataclasses import asdict, fields, replace
from typing import Literal, get_args, get_origin

import pytest

from minvenus.config import MODELS, ConfigError, ModelConfig
from minvenus.experiments.base import BaseConfig
from minvenus.experiments.compare import CompareConfig
from minvenus.experiments.demo import DemoConfig
from minvenus.experiments.lab import LabConfig
from minvenus.files import write_json
from minvenus.igpo.loss import LossConfig
from minvenus.igpo.recipes import Recipe
from minvenus.settings import AgentConfig, EvalConfig, InferConfig
from minvenus.train.presets import IGPO_PRESETS, SFT_PRESETS
from minvenus.train.settings import IGPOConfig, Preset, SFTConfig

QWEN = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 101,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "sliding_window": None,
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
}
OLD = QWEN | {"rope_theta": 5e6, "rope_scaling": None}
NEW = QWEN | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6}}


def write(folder, value) -> str:
    path = folder / "config.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def test_the_old_and_the_new_form_of_config_json_give_the_same_model(tmp_path):
    old = ModelConfig.from_json(write(tmp_path, OLD))
    assert old == ModelConfig.from_json(write(tmp_path, NEW | {"rope_theta": 1e4}))
    assert old == ModelConfig.from_json(tmp_path), "the folder does as well"
    assert old == ModelConfig(
        64,
        96,
        2,
        4,
        2,
        head_dim=32,
        vocab_size=101,
        rope_theta=5e6,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_theta": 1e4,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}


@pytest.mark.parametrize(
    ("raw", "qkv_bias", "positions", "vocabulary"),
    [(LLAMA, False, 2048, 32_000), (QWEN2, True, 32_768, 151_936)],
)
def test_what_a_config_json_leaves_out_has_the_default_of_its_family(
    raw, qkv_bias, positions, vocabulary, tmp_path
):
    shape = ModelConfig.from_json(write(tmp_path, raw))
    assert shape == ModelConfig(
        48,
        96,
        2,
        4,
        2,
        head_dim=12,
        vocab_size=vocabulary,
        rope_theta=1e4,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        qk_norm=False,
        qkv_bias=qkv_bias,
    )
    assert ModelConfig.from_json(write(tmp_path, shape.to_hf())) == shape
    nulls = {"head_dim": None, "rope_parameters": None, "layer_types": None}
    assert ModelConfig.from_json(write(tmp_path, raw | nulls)) == shape, "null is left out, too"
    wide = ModelConfig.from_json(write(tmp_path, raw | {"head_dim": 32, "head_count": 3}))
    assert wide == replace(shape, head_dim=32)
    headless = {key: OLD[key] for key in OLD if key != "head_dim"} | {"qk_norm": False}
    qwen3 = ModelConfig.from_json(write(tmp_path, headless))
    assert (qwen3.head_dim, qwen3.qk_norm) == (128, True), "the family says so"
    with pytest.raises(ConfigError, match="lacks hidden_size"):
        ModelConfig.from_json(write(tmp_path, {k: raw[k] for k in raw if k != "hidden_size"}))


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_for_transformers_reads_back_as_the_same_model(name, tmp_path):
    assert ModelConfig.from_json(write(tmp_path, MODELS[name].to_hf())) == MODELS[name]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gemma"}, "model_type 'gemma'"),
        ({"model_type": None}, "model_type 'missing'"),
        (
            {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]},
            "Qwen3MoeForCausalLM",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling .'yarn'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "rope_scaling .'linear'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "rope_scaling .'yarn'"),
        ({"use_sliding_window": True, "sliding_window": 128}, "use_sliding_window True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"mlp_bias": True}, "mlp_bias True"),
        ({"pretraining_tp": 2}, "pretraining_tp 2"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(change, named, tmp_path):
    for raw in (OLD, LLAMA, QWEN2):
        with pytest.raises(ConfigError, match=named):
            ModelConfig.from_json(write(tmp_path, raw | change))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("{not json", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("[1]", "must hold a JSON object"),
        ({k: v for k, v in OLD.items() if k != "hidden_size"}, "lacks hidden_size"),
        (QWEN, "lacks rope_theta"),
        (OLD | {"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        (OLD | {"head_dim": 31}, "head_dim must be even"),
        (OLD | {"hidden_size": "64"}, "hidden_size must be a whole number from 1 to .*, got '64'"),
        (OLD | {"hidden_size": [64] * 10_000}, "hidden_size must be a whole number"),
        (OLD | {"num_hidden_layers": 10**9}, "num_hidden_layers must be .* 1 to 1,000, got 10+$"),
        (OLD | {"vocab_size": 2**62}, "vocab_size must be .* from 1 to 1,048,576, got 4611"),
        (OLD | {"max_position_embeddings": 2**31}, "must be .* from 1 to 1,073,741,824, got 2147"),
        (OLD | {"layer_types": ["sliding"] * 10_000}, "layer_types"),
        (OLD | {"layer_types": 2}, "int"),
        (OLD | {"rope_scaling": [1]}, "list"),
    ],
)
def test_a_broken_config_json_gives_one_error_that_names_the_file(value, named, tmp_path):
    with pytest.raises(ConfigError, match=named) as caught:
        ModelConfig.from_json(write(tmp_path, value))
    assert "config.json" in str(caught.value) and len(str(caught.value)) < 1000
    with pytest.raises(ConfigError, match="does not exist"):
        ModelConfig.from_json(tmp_path / "nowhere")


def test_a_misspelt_model_preset_names_the_valid_ones():
    with pytest.raises(ConfigError, match="qwen3-4b-thinking-2507"):
        ModelConfig.preset("qwen3-4b-thinking")


def test_the_two_recipes_differ_in_exactly_the_fields_where_paper_and_release_differ():
    paper, released = asdict(Recipe.paper()), asdict(Recipe.released())
    assert {k: (paper[k], released[k]) for k in paper if paper[k] != released[k]} == {
        "browse": ("replicate", "segment"),
        "discount_over": ("turns", "rewards"),
        "penalty_scope": ("turn", "segment"),
        "newlines_after_think": (2, 1),
    }
    assert Recipe() == Recipe.paper()
    changed = replace(Recipe.released(), gamma=1.0, browse="off")
    assert Recipe.released(gamma=1.0, browse="off") == changed


# --------------------------------------------------------------------- every field of every class

CLASSES = {  # with values that make the border of others valid
    ModelConfig: {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
    Recipe: {},
    LossConfig: {},
    AgentConfig: {},
    InferConfig: {},
    EvalConfig: {},
    SFTConfig: {"max_tokens": 1},
    IGPOConfig: {"max_context": 1},
    BaseConfig: {},
    DemoConfig: {},
    CompareConfig: {},
    LabConfig: {},
}
LIMITS = """
ModelConfig: rope_theta above 1, rms_norm_eps above 0
Recipe: format_penalty least 0, gamma least 0 most 1
LossConfig: clip_low least 0 below 1, clip_high least 0, dual_clip above 1, kl_coef least 0
AgentConfig: tool_seconds above 0, max_observation_tokens least 64, max_turns least 1,
    max_context least 1, max_new_tokens least 1, max_malformed least 0, time_limit above 0,
    temperature least 0, top_p above 0 most 1, top_k least 0, retries least 0
InferConfig:
EvalConfig: limit least 1, runs least 1, slack least 0, concurrency least 1, pages least 1
SFTConfig: steps least 1, evaluate_every least 1, save_every least 1, max_tokens least 1,
    validation least 0, batch least 1, learning_rate above 0, warmup least 0 most 1,
    weight_decay least 0, clip above 0, lora_rank least 0, pack_tokens least 1, demonstrations
    least 1, wrong_result least 0 most 1, replay least 0 below 1
IGPOConfig: steps least 1, evaluate_every least 1, save_every least 1, rollouts_every least 1,
    tool_seconds above 0, questions least 1, group least 2, evaluate_questions least 0,
    temperature above 0, top_p above 0 most 1, max_turns least 1, max_turn_tokens least 1,
    max_context least 1, max_observation_tokens least 64, epochs least 1, minibatches least 1,
    learning_rate above 0, weight_decay least 0, clip above 0, lora_rank least 0, pages least 1,
    expected_context least 1, pack_tokens least 1, slack least 0
BaseConfig: steps least 1
DemoConfig: sft_steps least 1, igpo_steps least 1, batch least 1, questions least 1 most 256
CompareConfig: seeds least 1, checkpoints least 1, sft_steps least 1, wrong_result least 0 most
    1, steps least 1, learning_rate above 0, jobs least 1
LabConfig: steps least 1, seeds least 1, learning_rate above 0
"""


def test_the_limits_of_all_numbers_are_the_written_ones():
    lines = []
    for cls in CLASSES:
        parts = []
        for field in fields(cls):
            limits = field.metadata.get("limits", {}).items()
            parts += [" ".join([field.name, *(f"{k} {v:g}" for k, v in limits)])] if limits else []
        lines.append(f"{cls.__name__}: {', '.join(parts)}".strip())
    assert "\n".join(lines) == LIMITS.strip().replace("\n    ", " ")


def make(cls, name, value):
    return cls(**(CLASSES[cls] | {name: value}))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_limit_holds_and_no_field_takes_what_is_none_of_its_values(cls):
    for field in fields(cls):
        step = 1 if int in (field.type, *get_args(field.type)) else 0.001
        for bound, limit in field.metadata.get("limits", {}).items():
            good, bad = {
                "least": (limit, limit - step),
                "above": (limit + step, limit),
                "most": (limit, limit + step),
                "below": (limit - step, limit),
            }[bound]
            assert getattr(make(cls, field.name, good), field.name) == good
            with pytest.raises(ConfigError, match=field.name):
                make(cls, field.name, bad)
        with pytest.raises(ConfigError, match=f"{field.name} must be"):
            make(cls, field.name, [3])
        if get_origin(field.type) is Literal:
            for value in get_args(field.type):
                assert getattr(make(cls, field.name, value), field.name) == value


@pytest.mark.parametrize(
    ("cls", "name", "refused", "accepted"),
    [
        (ModelConfig, "hidden_size", [0, 2**20 + 1, True], [1, 2**20]),
        (ModelConfig, "num_hidden_layers", [0, 1001], [1000]),
        (ModelConfig, "max_position_embeddings", [2**30 + 1], [2**30]),
        (ModelConfig, "num_key_value_heads", [3], [2]),
        (ModelConfig, "head_dim", [0, 3], [2]),
        (ModelConfig, "rope_theta", [float("nan")], [1.001]),
        (Recipe, "ig_weight", [float("nan"), float("inf"), 10**400, True, "1"], [-1, 0, 1e308]),
        (Recipe, "newlines_after_think", [0, 3, True], [1, 2]),
        (AgentConfig, "temperature", [0.0005, 100.1], [0, 0.001, 100]),
        (IGPOConfig, "temperature", [0.0005], [0.001]),
        (AgentConfig, "seed", [0.5, True, "0"], [-1]),
        (AgentConfig, "presence_penalty", [float("inf")], [-2.0]),
        (EvalConfig, "hops", [0, 7, True], [1, 6]),
        (SFTConfig, "max_tokens", [8193], [8192]),
        (IGPOConfig, "max_context", [4097], [4096]),
        (IGPOConfig, "minibatches", [33], [32]),
    ],
)
def test_what_a_number_may_be_beside_its_limits(cls, name, refused, accepted):
    for value in refused:
        with pytest.raises(ConfigError, match=name):
            make(cls, name, value)
    for value in accepted:
        assert getattr(make(cls, name, value), name) == value


LIVE = {"questions": "q.jsonl", "agent": AgentConfig(tools="live")}


@pytest.mark.parametrize(
    ("cls", "values", "words"),
    [
        (
            AgentConfig,
            {"api_base": "http://localhost/v1"},
            "both --api-base and --api-model, and the word none is no name",
        ),
        (
            AgentConfig,
            {"api_base": "http://localhost/v1", "api_model": "m"},
            "needs --model, too: a folder with",
        ),
        (AgentConfig, {"temperature": 0.0, "retries": 1}, "every attempt would be the same"),
        (InferConfig, {"question": "  "}, "question is blank"),
        (EvalConfig, {"judge": True, "score": "f1"}, "leave --score out"),
        (EvalConfig, {"agent": AgentConfig(tools="live")}, "give --questions FILE"),
        (EvalConfig, {"questions": "q.jsonl"}, "choose other --tools"),
        (EvalConfig, LIVE | {"hops": 2}, "are of the toy web"),
        (EvalConfig, {"answer": "x"}, "belong to --xray"),
        (EvalConfig, {"group": "x"}, "belong to --xray"),
        (EvalConfig, LIVE | {"slack": 0}, "are of the toy web"),
        (
            AgentConfig,
            {"top_p": 2.0},
            "top_p must be a number above 0 and of at most 1 or none, got 2.0",
        ),
        (EvalConfig, {"hops": 7}, "hops must be one of 1, 2, 3, 4, 5, 6 or none, got 7"),
        (AgentConfig, {"model": ["x"] * 999}, "model must be text, got"),
        (SFTConfig, {"max_tokens": 2, "pack_tokens": 1}, "must hold a trajectory"),
        (SFTConfig, {"model": "nowhere"}, "model must be"),
        (IGPOConfig, {"max_context": 2, "pack_tokens": 1}, "must hold a rollout"),
        (IGPOConfig, {"model": "nowhere"}, "model must be"),
        (IGPOConfig, {"data": "q.jsonl"}, "choose other --tools"),
        (IGPOConfig, {"tools": "live"}, "give --data FILE"),
        (IGPOConfig, {"data": "q.jsonl", "tools": "live", "slack": 1}, "are of the toy web"),
        (IGPOConfig, {"data": "q.jsonl", "tools": "live", "asks": "last"}, "are of the toy web"),
        (
            EvalConfig,
            LIVE | {"agent": AgentConfig(tools="live", asks="last")},
            "are of the toy web",
        ),
        (IGPOConfig, {"judge": True, "outcome": "f1"}, "leave outcome f1 out"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(cls, values, words):
    with pytest.raises(ConfigError, match=words) as caught:
        cls(**values)
    assert len(str(caught.value)) < 999


def test_questions_held_out_by_default_are_128_of_the_toy_web_and_none_of_a_file():
    assert IGPOConfig().evaluate_questions == 128
    assert IGPOConfig(data="q.jsonl", tools="live").evaluate_questions == 0


@pytest.mark.parametrize("cls", [AgentConfig, IGPOConfig])
def test_a_question_seed_of_0_is_one_and_without_one_it_is_that_of_the_sampling(cls):
    assert cls(seed=5).web_seed == 5
    assert [cls(seed=5, question_seed=seed).web_seed for seed in (0, 7)] == [0, 7]


# ----------------------------------------------------------------------------------------- presets

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
        needed = {"learning_rate", "pack_tokens", "recompute"}
        needed |= {"max_tokens", "max_context", "max_turn_tokens", "max_turns"}
        assert needed & {field.name for field in fields(cls)} <= values.keys()
        longest = getattr(config, "max_tokens", None) or config.max_context
        assert ModelConfig.preset(values["model"]).max_position_embeddings >= longest


def test_one_epoch_is_585_steps_of_the_released_trajectories_and_62_of_a_thousand_questions():
    sft, igpo = SFT_PRESETS["dr-venus-4b"], IGPO_PRESETS["dr-venus-4b"]
    assert sft["steps"] == 18_745 // sft["batch"] and igpo["steps"] == 1000 // igpo["questions"]
    large = IGPOConfig(preset="dr-venus-4b", plan=True, **igpo)  # as in the paper
    assert (large.questions, large.group, large.max_turns) == (16, 8, 200)
    assert (large.temperature, large.top_p, large.recipe) == (1.0, 0.95, Recipe.paper())
    assert (large.learning_rate, large.loss.kl_coef) == (1e-6, 0.001)


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
        words = r"a folder with a config\.json .*, for a --plan also one of tiny, smollm2-135m, .*"
        with pytest.raises(ConfigError, match=words + f"got '{model}'"):
            cls(preset="qwen3-0.6b", model=model, plan=plan)
