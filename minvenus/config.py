"""Configuration: the shape of a model, the recipe of the rewards, and how any frozen dataclass becomes command-line flags.

One frozen dataclass per entry point. The comment behind a field is its help text; an unknown flag, an impossible value or a
misspelt preset is an error that names the valid ones. Nothing here imports torch.
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import ClassVar, Literal


class ConfigError(ValueError):
    """A configuration that cannot be used; the message says which field and what would be valid."""


def one_of(name: str, value, valid) -> None:
    """Raise unless `value` is among `valid`; the message lists them."""
    if value not in valid:
        raise ConfigError(f"{name} must be one of {', '.join(map(str, valid))}; got {value!r}")


# ------------------------------------------------------------------------------------------------- the shape of a model


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Qwen3 model, in Hugging Face's names. The defaults are those that all Qwen3 models share."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 128                       # independent of hidden_size / num_attention_heads
    vocab_size: int = 151_936
    rope_theta: float = 1e6
    max_position_embeddings: int = 40_960
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-6

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and (type(value) is not int or value < 1):
                raise ConfigError(f"{field.name} must be a positive whole number, got {value!r}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(f"num_attention_heads ({self.num_attention_heads}) must be a multiple of num_key_value_heads "
                              f"({self.num_key_value_heads})")
        if self.head_dim % 2:
            raise ConfigError(f"head_dim must be even, rotary embedding pairs its channels; got {self.head_dim}")
        if self.rope_theta <= 1 or self.rms_norm_eps <= 0:
            raise ConfigError(f"rope_theta must be > 1 and rms_norm_eps > 0, got {self.rope_theta} and {self.rms_norm_eps}")

    @classmethod
    def preset(cls, name: str) -> "ModelConfig":
        one_of("model preset", name, MODELS)
        return MODELS[name]

    @classmethod
    def from_json(cls, path) -> "ModelConfig":
        """Read a Hugging Face config.json (the file, or its folder), old form (`rope_theta`) or new (`rope_parameters`)."""
        path = Path(path)
        path = path / "config.json" if path.is_dir() else path
        raw = read_json(path)
        refuse_unsupported(raw, path)
        rope = raw.get("rope_parameters") or {}
        values = {f.name: raw[f.name] for f in fields(cls) if raw.get(f.name) is not None}
        if "rope_theta" in rope:
            values["rope_theta"] = rope["rope_theta"]
        needed = [f.name for f in fields(cls) if f.name not in values and f.name.startswith(("hidden", "inter", "num_"))]
        if "rope_theta" not in values:
            needed.append("rope_theta (or rope_parameters.rope_theta)")     # 1e6 or 5e6: a wrong guess gives a wrong model
        if needed:
            raise ConfigError(f"{path} lacks {', '.join(needed)}")
        try:
            return cls(**values)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def to_hf(self) -> dict:
        """The config.json that transformers reads, old versions and new ones."""
        return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **asdict(self),
                "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
                "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "use_sliding_window": False,
                "sliding_window": None, "initializer_range": 0.02, "use_cache": True}


def refuse_unsupported(raw: dict, path: Path) -> None:
    """Name everything in a config.json that this implementation would silently get wrong."""
    rope = raw.get("rope_parameters") or {}
    scaling = raw.get("rope_scaling") or {}
    kinds = {scaling.get("rope_type", scaling.get("type", "default")), rope.get("rope_type", "default")}
    wrong = []
    if raw.get("model_type") != "qwen3":
        wrong.append(f"model_type {raw.get('model_type')!r} (only 'qwen3')")
    if raw.get("architectures") not in (None, [], ["Qwen3ForCausalLM"]):
        wrong.append(f"architectures {raw['architectures']} (only Qwen3ForCausalLM)")
    if kinds != {"default"}:
        wrong.append(f"rope scaling {', '.join(sorted(k for k in kinds if k != 'default'))}")
    if raw.get("use_sliding_window") or "sliding_attention" in (raw.get("layer_types") or []):
        wrong.append("sliding window attention")
    if raw.get("attention_bias"):
        wrong.append("attention_bias")
    if raw.get("hidden_act", "silu") != "silu":
        wrong.append(f"hidden_act {raw['hidden_act']!r} (only 'silu')")
    if raw.get("quantization_config"):
        wrong.append("quantization_config (quantised weights)")
    if wrong:
        raise ConfigError(f"{path} asks for what minvenus does not implement: {'; '.join(wrong)}")


MODELS = {
    "tiny": ModelConfig(128, 384, 2, 4, 2, head_dim=32, vocab_size=768, rope_theta=1000.0, max_position_embeddings=4096),
    "qwen3-0.6b": ModelConfig(1024, 3072, 28, 16, 8),
    "qwen3-1.7b": ModelConfig(2048, 6144, 28, 16, 8),
    "qwen3-4b": ModelConfig(2560, 9728, 36, 32, 8),
    "qwen3-4b-thinking-2507": ModelConfig(2560, 9728, 36, 32, 8, rope_theta=5e6, max_position_embeddings=262_144),
    "qwen3-8b": ModelConfig(4096, 12_288, 36, 32, 8, tie_word_embeddings=False),
}


# --------------------------------------------------------------------------------------------- the recipe of the rewards


@dataclass(frozen=True)
class Recipe:
    """How rewards become advantages: `paper` (the defaults) and `released` by name, or every field on its own."""

    NAMES: ClassVar[tuple[str, ...]] = ("paper", "released")

    gain: Literal["log_prob", "prob"] = "log_prob"                 # value of the truth: mean log-prob, or its exponential
    browse: Literal["replicate", "segment", "off"] = "replicate"   # a visit's gain on its searches too, on it only, or one a turn
    discount_over: Literal["turns", "rewards"] = "turns"           # what costs a factor gamma: every turn, or rewarded turns only
    penalty_scope: Literal["turn", "segment"] = "turn"             # a malformed turn is penalised alone, or with its segment
    normalize: Literal["scaled", "separate", "joint", "none"] = "scaled"   # z-scores and IG-Scale, no scale, pooled, raw
    center_gain: bool = True              # subtract the group's mean from gains; outcomes are always centred
    gamma: float = 0.95                   # discount, in [0, 1]
    ig_weight: float = 1.0                # factor on normalised gains
    use_gain: bool = True                 # off = GRPO with the same outcome normalisation
    format_penalty: float = 1.0           # a malformed turn's reward is minus this
    newlines_after_think: int = 2         # in the scored answer's wrapper: 2 as the template renders, 1 as released
    lead_in: str = "Now there's enough information to answer"      # the thought in the scored answer's wrapper

    def __post_init__(self):
        for field in fields(self):
            if hasattr(field.type, "__args__"):
                one_of(field.name, getattr(self, field.name), field.type.__args__)
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"gamma must lie in [0, 1], got {self.gamma}")
        if not 0.0 <= self.format_penalty < float("inf"):
            raise ConfigError(f"format_penalty is the size of a penalty, finite and >= 0; got {self.format_penalty}")
        one_of("newlines_after_think", self.newlines_after_think, (1, 2))

    @classmethod
    def paper(cls, **changes) -> "Recipe":
        return cls(**changes)

    @classmethod
    def released(cls, **changes) -> "Recipe":
        """The released code as its own training script runs it."""
        return replace(cls(browse="segment", discount_over="rewards", penalty_scope="segment", newlines_after_think=1), **changes)


# ------------------------------------------------------------------------------------------- one class per entry point


@dataclass(frozen=True)
class InferConfig:
    """infer.py: let the agent answer a question. What is none here depends on the model: see `resolved`."""

    model: str = "tiny"                       # folder of a Qwen3 checkpoint; "tiny" = the newest under runs/, else random weights
    question: str | None = None               # what to ask; on the toy web one of its own, such as test-7 (none = test-1)
    tools: str = "toyweb"                     # toyweb, folder:PATH, live, record:FILE or replay:FILE
    api_base: str | None = None               # a completion endpoint, such as http://localhost:8000/v1; none = run the model here
    api_model: str | None = None              # the endpoint's name for its model; --model then gives the tokenizer only
    system_prompt: str | None = None          # a text file, or a trajectory whose prompt to use; none = minvenus's own
    max_turns: int | None = None              # turns of the model; none = 200, on the toy web what the question needs
    max_context: int | None = None            # tokens of the whole conversation; none = 240,000 at an endpoint, else up to 40,960
    max_new_tokens: int | None = None         # tokens of one turn; none = 8192, 64 for the tiny model
    max_observation_tokens: int = 8192        # longer results of tools are cut
    time_limit: float | None = None           # seconds for the whole rollout; none = no limit
    tool_seconds: float = 150.0               # seconds for one tool call
    temperature: float | None = None          # 0 = always the most probable token; none = 1, for the tiny model 0
    top_p: float | None = None                # sample from the most probable tokens with this mass; none = 0.95, tiny 1
    top_k: int | None = None                  # and from so many of them, 0 = all; none = 20, tiny 0
    presence_penalty: float | None = None     # subtracted from the logits of what the turn has written; none = 1.1, tiny 0
    retries: int | None = None                # more attempts at a turn that is malformed or repeats itself; none = 4, tiny 0
    seed: int = 0                             # of the toy web, of random weights and of the sampling
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto = a GPU if there is one
    json: bool = False                        # print the trajectory as one line of JSON, and nothing else
    save: str | None = None                   # write the trajectory to this file, too
    out: str = "runs/infer"                   # folder for the resolved settings and the trajectory

    def __post_init__(self):
        one_of("device", self.device, ("auto", "cpu", "cuda"))
        if self.question is not None and not self.question.strip():
            raise ConfigError("question is blank")
        if (self.api_base is None) != (self.api_model is None):
            raise ConfigError("an endpoint needs both --api-base and --api-model")
        for name, least in (("max_turns", 1), ("max_context", 1), ("max_new_tokens", 1), ("top_k", 0), ("retries", 0)):
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.temperature is not None and not 0 <= self.temperature <= 100:
            raise ConfigError(f"temperature must lie in [0, 100], got {self.temperature}")
        if self.temperature == 0 and self.retries:
            raise ConfigError(f"retries {self.retries} with temperature 0: every attempt would be the same")

    @property
    def tiny(self) -> bool:
        """Whether the model learned from the toy web's lessons: its vocabulary is the tiny tokenizer's."""
        path = Path(self.model) / "config.json"
        toy = path.is_file() and ModelConfig.from_json(path).vocab_size == MODELS["tiny"].vocab_size
        return (toy or self.model == "tiny") and self.api_base is None

    def resolved(self) -> "InferConfig":
        """Where nothing else was asked for: the sampling that the paper evaluates with, or the plainest for the tiny model."""
        defaults: dict = {"max_new_tokens": 64, "max_context": 1024, "temperature": 0.0, "top_p": 1.0, "top_k": 0,
                          "presence_penalty": 0.0, "retries": 0}
        if not self.tiny:
            defaults = {"max_new_tokens": 8192, "max_context": 40_960 if self.api_base is None else 240_000, "temperature": 1.0,
                        "top_p": 0.95, "top_k": 20, "presence_penalty": 1.1, "retries": 0 if self.temperature == 0 else 4}
        return replace(self, **{name: value for name, value in defaults.items() if getattr(self, name) is None})


def read_json(path) -> dict:
    """The JSON object in a file, or one clear error."""
    path = Path(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value
