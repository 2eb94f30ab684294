"""From settings to a policy: the model and its tokenizer, the engine or the endpoint, and the words that the model knows.

Used by the scripts; what is asked of the policy is not known here.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from minvenus.agent.policy import EnginePolicy
from minvenus.agent.prompt import SYSTEM_PROMPT, Notices, read_prompt
from minvenus.agent.remote import RemotePolicy
from minvenus.config import ConfigError, ModelConfig
from minvenus.engine import Engine, Sampling
from minvenus.files import latest_checkpoint
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.settings import AgentConfig
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools import toyweb_teachers as toy

PAGE_SIZE = 64
TINY_BASE = Path(__file__).parent / "tiny_base"         # made by `python -m minvenus.experiments base`
CACHE_BYTES = 4 << 30                 # several sequences share at most this much; one alone gets what it needs
TOY_NOTICES = Notices(malformed=toy.NOT_READ, last_turn=toy.LAST_TURN)        # what the tiny model has learned to read


def words(config: AgentConfig) -> tuple[str, Notices]:
    """The system prompt and the notices: those of its lessons for the tiny model on the toy web."""
    learned = config.tiny and config.tools == "toyweb"
    own = toy.SYSTEM if learned else SYSTEM_PROMPT
    return read_prompt(config.system_prompt) if config.system_prompt else own, TOY_NOTICES if learned else Notices()


def load_policy(config: AgentConfig, sequences: int = 1,
                pages: int | None = None) -> tuple[EnginePolicy | RemotePolicy, Tokenizer, str]:
    """The policy, its tokenizer, and where it comes from in words. `config` is a resolved one. The cache has room for so many
    sequences of full length (within CACHE_BYTES), or has so many pages; with fewer than they need, sequences take turns."""
    sampling = Sampling(1, config.temperature or 0.0, config.top_k or None, config.top_p or 1.0, config.presence_penalty or 0.0)
    if config.api_base is not None and config.api_model is not None:
        own = config.model != "tiny"
        tokenizer = Tokenizer.from_file(config.model) if own else Tokenizer.tiny()
        policy = RemotePolicy(tokenizer, config.api_base, config.api_model, sampling, send_ids=own)
        return policy, tokenizer, f"{config.api_model} at {config.api_base}"
    model, tokenizer, source = load_local(config)
    if tokenizer.size > model.config.vocab_size:
        raise ConfigError(f"the tokenizer has {tokenizer.size} ids, the model only {model.config.vocab_size}: they do not belong "
                          "together")
    context = min(config.max_context or 0, model.config.max_position_embeddings)
    pages = pages or cache_pages(model, context, sequences)
    engine = Engine(model, pages, PAGE_SIZE, seed=config.seed, vocab_limit=tokenizer.size)
    sampling = replace(sampling, stop_ids=(tokenizer.tool_response,))       # only the environment writes what comes then
    return EnginePolicy(engine, tokenizer, sampling), tokenizer, source


def start_model(name: str, device: str, seed: int) -> tuple[Qwen3, Tokenizer]:
    """What training starts from: the tiny model with random weights or pretrained, or a checkpoint; parameters in float32."""
    if name == "tiny":
        return Qwen3(ModelConfig.preset("tiny"), seed=seed).to(device), Tokenizer.tiny()
    folder = TINY_BASE if name == "tiny-base" else name
    return weights.load(folder, device), Tokenizer.from_file(folder)


def cache_pages(model: Qwen3, context: int, sequences: int) -> int:
    shape, one = model.config, -(-context // PAGE_SIZE)
    page_bytes = 2 * shape.num_hidden_layers * PAGE_SIZE * shape.num_key_value_heads * shape.head_dim * model.head_weight.itemsize
    return max(one, min(one * sequences, CACHE_BYTES // page_bytes))


def device_of(name: str) -> Literal["cpu", "cuda"]:
    """auto = a GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda: torch sees no GPU here")
    return "cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu"


def load_local(config: AgentConfig) -> tuple[Qwen3, Tokenizer, str]:
    device = device_of(config.device)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32           # bfloat16 is slow on most CPUs
    start = time.perf_counter()
    folder = model_folder(config)
    if folder is None:
        model, tokenizer = Qwen3(ModelConfig.preset("tiny"), seed=config.seed).to(device, dtype), Tokenizer.tiny()
        source = "tiny, with random weights: it has not been trained, so its text means nothing"
    else:
        model, tokenizer, source = weights.load(folder, device, dtype), Tokenizer.from_file(folder), f"weights from {folder}"
    shape, count = model.config, sum(p.numel() for p in model.parameters())
    facts = (f"{count:,} parameters, {shape.num_hidden_layers} layers, hidden {shape.hidden_size}, "
             f"{shape.num_attention_heads} query and {shape.num_key_value_heads} kv heads of {shape.head_dim}; "
             f"{tokenizer.size:,} token ids")
    place = f"{str(dtype).removeprefix('torch.')} on {device}, loaded in {time.perf_counter() - start:.2f} s"
    return model, tokenizer, f"{source}\n{facts}\n{place}"


def model_folder(config: AgentConfig) -> Path | None:
    """Where the weights are; None = nowhere, they are random."""
    return newest_model() if config.model == "tiny" else Path(config.model)


def newest_model(runs="runs") -> Path | None:
    """The model of the training run that saved a checkpoint last; runs may lie one folder deeper, as the demo's do."""
    found = [*Path(runs).glob("*/latest"), *Path(runs).glob("*/*/latest")]
    pointers = sorted(found, key=lambda path: path.stat().st_mtime)
    newest = latest_checkpoint(pointers[-1].parent) if pointers else None
    return newest / "model" if newest else None
