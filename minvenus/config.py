"""The shape of a model, and how every settings dataclass checks itself.

A class calls `check` when it is built: types, choices and the limits of numbers come from its annotations. A value that
cannot be used is a ConfigError that names what would be valid. The comment after a field is its help text on the
command line (flags.py). The scripts' own settings are in settings.py. Nothing here imports torch.
"""

import json
import re
import sys
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin


class ConfigError(ValueError):
    """A setting or a file that cannot be used; the message says what would be valid."""


# Numbers with limits: the type, the limit in words, and how it is checked
Count = Annotated[int, "of at least 1", lambda v: v >= 1]
CountOrZero = Annotated[int, "of at least 0", lambda v: v >= 0]
GroupSize = Annotated[int, "of at least 2", lambda v: v >= 2]
NotNegative = Annotated[float, "of at least 0", lambda v: v >= 0]
Positive = Annotated[float, "above 0", lambda v: v > 0]
AboveOne = Annotated[float, "above 1", lambda v: v > 1]
Share = Annotated[float, "from 0 to 1", lambda v: 0 <= v <= 1]
BelowOne = Annotated[float, "of at least 0 and below 1", lambda v: 0 <= v < 1]
Fraction = Annotated[float, "above 0 and at most 1", lambda v: 0 < v <= 1]


def check(config) -> None:
    """Raise a ConfigError unless every field of a settings dataclass has its type and keeps its limit."""
    for field in fields(config):
        value = getattr(config, field.name)
        if not has_type(value, field.type):
            raise ConfigError(f"{field.name} must be {in_words(field.type)}, got {value!r}")


def has_type(value, kind: Any) -> bool:
    """Whether a value, perhaps read from JSON, has a field's type. True is not a number, 3 is a float, NaN is not."""
    inner = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(has_type(value, k) for k in inner)
    if get_origin(kind) is Annotated:
        number, _, holds = inner
        return has_type(value, number) and holds(value)
    if get_origin(kind) is Literal:
        return value in inner and type(value) is type(inner[0])
    if get_origin(kind) is tuple:
        return type(value) is tuple and len(value) == len(inner) and all(map(has_type, value, inner))
    if get_origin(kind) is list:
        return type(value) is list and all(has_type(v, inner[0]) for v in value)
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max        # not so NaN and 10**400
    return isinstance(value, kind) if is_dataclass(value) else type(value) is kind


def in_words(kind) -> str:
    inner = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(in_words, inner))
    if get_origin(kind) is Annotated:
        return f"{in_words(inner[0])} {inner[1]}"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if get_origin(kind) is list:
        return f"a list, each {in_words(inner[0])}"
    words = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text", NoneType: "none"}
    return words.get(kind, str(kind))


def one_of(name: str, value, valid) -> None:
    """Raise unless `value` is among `valid`; the message lists them."""
    if value not in valid:
        raise ConfigError(f"{name} must be one of {', '.join(map(str, valid))}; got {value!r}")


def check_address(url: str, source: str, key_variable: str) -> None:
    """Raise unless this is the plain address of a service. The message does not show it: it may hold a password."""
    host = r"(\[[\da-f:.]+\]|[^][/@:?#\\\s]+)(:\d+)?"
    if not re.fullmatch(rf"https?://{host}(/[^?#\s]*)?", url, re.IGNORECASE):
        raise ConfigError(f"{source} must begin with http://HOST or https://HOST, without a user name, a password or "
                          f"?parameters: put the key into {key_variable}")


# ------------------------------------------------------------------------------------------- the shape of a model


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Qwen3 model, in Hugging Face's names. The defaults are what all Qwen3 models share."""

    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Count = 128                       # independent of hidden_size / num_attention_heads
    vocab_size: Count = 151_936
    rope_theta: AboveOne = 1e6
    max_position_embeddings: Count = 40_960
    tie_word_embeddings: bool = True
    rms_norm_eps: Positive = 1e-6

    def __post_init__(self):
        check(self)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                              f"num_key_value_heads ({self.num_key_value_heads})")
        if self.head_dim % 2:
            raise ConfigError(f"head_dim must be even, rotary embedding pairs its channels; got {self.head_dim}")

    @classmethod
    def preset(cls, name: str) -> "ModelConfig":
        one_of("model preset", name, MODELS)
        return MODELS[name]

    @classmethod
    def from_json(cls, path) -> "ModelConfig":
        """Read a Hugging Face config.json (file or folder), old form (`rope_theta`) or new (`rope_parameters`)."""
        path = Path(path)
        path = path / "config.json" if path.is_dir() else path
        raw = read_json(path)
        refuse_unsupported(raw, path)
        values = {f.name: raw[f.name] for f in fields(cls) if raw.get(f.name) is not None}
        values |= {key: value for key, value in (raw.get("rope_parameters") or {}).items() if key == "rope_theta"}
        # 1e6 or 5e6 are both common for rope_theta: a wrong guess would give a wrong model
        needed = [f.name for f in fields(cls)[:5]] + ["rope_theta"]
        missing = [name for name in needed if name not in values]
        if missing:
            raise ConfigError(f"{path} lacks {', '.join(missing)}")
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


SUPPORTED: dict[str, list] = {     # key of config.json -> its valid values; None is valid for all but the first
    "model_type": ["qwen3"], "architectures": [[], ["Qwen3ForCausalLM"]], "hidden_act": ["silu"],
    "attention_bias": [False], "use_sliding_window": [False], "layer_types": [[]], "rope_scaling": [[]],
    "quantization_config": [],
}


def refuse_unsupported(raw: dict, path: Path) -> None:
    """Raise if a config.json asks for something that this implementation would silently get wrong."""
    rope = (raw.get("rope_scaling") or {}) | (raw.get("rope_parameters") or {})
    scaling = [rope[key] for key in ("rope_type", "type") if rope.get(key, "default") != "default"]
    sliding = [kind for kind in raw.get("layer_types") or [] if kind != "full_attention"]
    given = {"model_type": raw.get("model_type") or "missing", "rope_scaling": scaling, "layer_types": sliding}
    asked = raw | given
    wrong = [key for key, valid in SUPPORTED.items() if asked.get(key) not in (None, *valid)]
    if wrong:
        found = "; ".join(f"{key} {asked[key]!r}" for key in wrong)
        raise ConfigError(f"{path} asks for what minvenus does not implement: {found}")


MODELS = {
    "tiny": ModelConfig(128, 384, 2, 4, 2, head_dim=32, vocab_size=768, rope_theta=1e3, max_position_embeddings=4096),
    "qwen3-0.6b": ModelConfig(1024, 3072, 28, 16, 8),
    "qwen3-1.7b": ModelConfig(2048, 6144, 28, 16, 8),
    "qwen3-4b": ModelConfig(2560, 9728, 36, 32, 8),
    "qwen3-4b-thinking-2507": ModelConfig(2560, 9728, 36, 32, 8, rope_theta=5e6, max_position_embeddings=262_144),
    "qwen3-8b": ModelConfig(4096, 12_288, 36, 32, 8, tie_word_embeddings=False),
}


def read_json(path) -> dict:
    """The JSON object in a file, or one clear error."""
    path = Path(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value
