"""The shape of a model, and small checks that every part uses.

A value that cannot be used is a ConfigError whose message names the setting, the value and what
would be valid. The scripts' settings are in settings.py, the recipe of the rewards is in
igpo/recipes.py. Nothing here imports torch.
"""

import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

from minvenus.setting import ConfigError, setting
from minvenus.setting import check_settings as check


def one_of(name: str, value, valid) -> None:
    """Raise unless `value` is among `valid`; the message lists them."""
    if value not in valid:
        raise ConfigError(f"{name} must be one of {', '.join(map(str, valid))}; got {value!r}")


def check_address(url: str, source: str, key_variable: str) -> None:
    """Raise unless this is the plain address of a service. The message does not show the address:
    it may hold a password."""
    host = r"(\[[\da-f:.]+\]|[^][/@:?#\\\s]+)(:\d+)?"
    if not re.fullmatch(rf"https?://{host}(/[^?#\s]*)?", url, re.IGNORECASE):
        raise ConfigError(
            f"{source} must begin with http://HOST or https://HOST, without a user name, "
            f"a password or ?parameters: put the key into {key_variable}"
        )


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


# ----------------------------------------------------------------------------- the shape of a model

# Of every other size 2^20: beyond that it is a mistake, which should not be computed for hours.
MOST = {"num_hidden_layers": 1000, "max_position_embeddings": 2**30}


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model, in Hugging Face's names. The defaults are what all Qwen3 models share.

    Three families differ in the attention block only: Qwen3 normalises queries and keys, Qwen2 and
    Qwen2.5 add biases to queries, keys and values, Llama does neither.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 128  # independent of hidden_size / num_attention_heads
    vocab_size: int = 151_936
    rope_theta: float = setting(1e6, "base of the rotary embedding", above=1)
    max_position_embeddings: int = 40_960
    tie_word_embeddings: bool = True
    rms_norm_eps: float = setting(1e-6, "keeps the norm of zeros finite", above=0)
    qk_norm: bool = True
    qkv_bias: bool = False

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            most = MOST.get(field.name, 2**20)
            if field.type is int and not (type(value) is int and 1 <= value <= most):
                raise ConfigError(
                    f"{field.name} must be a whole number from 1 to {most:,}, got {value!r:.80}"
                )
        check(self)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.head_dim % 2:
            raise ConfigError(
                f"head_dim must be even, rotary embedding pairs its channels; got {self.head_dim}"
            )

    @classmethod
    def preset(cls, name: str) -> "ModelConfig":
        one_of("model preset", name, MODELS)
        return MODELS[name]

    @classmethod
    def from_json(cls, path) -> "ModelConfig":
        """Read a Hugging Face config.json (file or folder), old form (`rope_theta`) or new
        (`rope_parameters`)."""
        path = Path(path)
        if path.is_dir():
            path = path / "config.json"
        raw = {key: value for key, value in read_json(path).items() if value is not None}
        try:
            return cls.from_raw(raw)
        except (ConfigError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def from_raw(cls, raw: dict) -> "ModelConfig":
        """The shape in a config.json without its nulls."""
        refuse_unsupported(raw)
        family = FAMILIES[raw["model_type"]]
        values = family.defaults | raw | raw.get("rope_parameters", {}) | family.attention
        values = {field.name: values[field.name] for field in fields(cls) if field.name in values}

        # 1e6 and 5e6 are both common for rope_theta: a guess could give a wrong model
        needed = [field.name for field in fields(cls)[:5]] + ["rope_theta"]
        missing = [name for name in needed if name not in values]
        if missing:
            raise ConfigError(f"it lacks {', '.join(missing)}")
        if "head_dim" not in values and raw["model_type"] != "qwen3":
            values["head_dim"] = values["hidden_size"] // (values["num_attention_heads"] or 1)
        return cls(**values)

    def to_hf(self) -> dict:
        """The config.json that transformers reads, old versions and new ones. All three families
        have one default for what it leaves out."""
        values = asdict(self)
        attention = {name: values.pop(name) for name in ("qk_norm", "qkv_bias")}
        [name] = [name for name, family in FAMILIES.items() if family.attention == attention]
        return {
            "architectures": [FAMILIES[name].architecture],
            "model_type": name,
            **values,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "hidden_act": "silu",
        }


class Family(NamedTuple):
    """A model_type of config.json."""

    architecture: str
    attention: dict[str, bool]
    defaults: dict  # of what a config.json may leave out, where they are not those of Qwen3


FAMILIES = {
    "qwen3": Family("Qwen3ForCausalLM", {"qk_norm": True, "qkv_bias": False}, {}),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        {"qk_norm": False, "qkv_bias": True},
        {"tie_word_embeddings": False, "max_position_embeddings": 32_768},
    ),
    "llama": Family(
        "LlamaForCausalLM",
        {"qk_norm": False, "qkv_bias": False},
        {
            "tie_word_embeddings": False,
            "max_position_embeddings": 2048,
            "vocab_size": 32_000,
        },
    ),
}


SUPPORTED: dict[str, list] = {  # key of config.json -> its valid values; null is always valid
    "model_type": list(FAMILIES),
    "architectures": [[], *([family.architecture] for family in FAMILIES.values())],
    "hidden_act": ["silu"],
    "attention_bias": [False],
    "mlp_bias": [False],
    "pretraining_tp": [1],
    "use_sliding_window": [False],
    "layer_types": [[]],
    "rope_scaling": [[]],
    "quantization_config": [],
}


def refuse_unsupported(raw: dict) -> None:
    """Raise if a config.json asks for something that this implementation would silently get
    wrong."""
    rope = raw.get("rope_scaling", {}) | raw.get("rope_parameters", {})
    scaling = [rope[key] for key in ("rope_type", "type") if rope.get(key, "default") != "default"]
    sliding = [kind for kind in raw.get("layer_types", []) if kind != "full_attention"]
    asked = raw | {
        "model_type": raw.get("model_type", "missing"),
        "rope_scaling": scaling,
        "layer_types": sliding,
    }
    refused = [f"{key} {asked[key]!r:.80}" for key, valid in SUPPORTED.items()
               if key in asked and asked[key] not in valid]
    if refused:
        raise ConfigError(f"it asks for what minvenus does not implement: {'; '.join(refused)}")


TINY = ModelConfig(
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    vocab_size=768,
    rope_theta=1e3,
    max_position_embeddings=4096,
)
MODELS = {  # hidden, intermediate, layers, heads, kv heads
    "tiny": TINY,
    "smollm2-135m": ModelConfig(
        576,
        1536,
        30,
        9,
        3,
        head_dim=64,
        vocab_size=49_152,
        rope_theta=1e5,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        qk_norm=False,
    ),
    "qwen3-0.6b": ModelConfig(1024, 3072, 28, 16, 8),
    "qwen3-1.7b": ModelConfig(2048, 6144, 28, 16, 8),
    "qwen3-4b": ModelConfig(2560, 9728, 36, 32, 8),
    "qwen3-4b-thinking-2507": ModelConfig(
        2560, 9728, 36, 32, 8, rope_theta=5e6, max_position_embeddings=262_144
    ),
    "qwen3-8b": ModelConfig(4096, 12_288, 36, 32, 8, tie_word_embeddings=False),
}
