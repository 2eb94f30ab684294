"""From settings to a turn loop: the model, its prompt, its sampling and its limits."""

import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import torch

from minvenus.agent.policy import LocalWriter
from minvenus.agent.prompt import AgentFormat, read_format
from minvenus.agent.remote import RemoteWriter
from minvenus.agent.rollout import RolloutLoop
from minvenus.config import ConfigError, ModelConfig
from minvenus.engine import Engine, Sampling
from minvenus.model import weights
from minvenus.model.precision import PRECISION, device_of
from minvenus.model.qwen3 import Qwen3
from minvenus.settings import AgentConfig
from minvenus.text.tokenizer import TINY, Tokenizer
from minvenus.tools.web import IMMEDIATE, describe_tools

PAGE_SIZE = 64
CACHE_BYTES = 4 << 30       # several sequences share at most this; one alone gets what it needs
CACHE_SHARE = 0.8           # on a GPU instead: of what is free once the weights are there
UNTRAINED = ("tiny, with random weights: not trained yet, so its text means nothing; `make demo` "
             "trains it")


# ----------------------------------------------------------------------- the format and the flags


def format_of(config: AgentConfig) -> AgentFormat:
    """What the model is told and how it is run: as its folder or --like says, except for the flags
    that are set."""
    flags = {}
    for field in fields(AgentFormat):
        value = getattr(config, field.name, None)
        if value is not None:
            flags[field.name] = value
    if config.temperature == 0:
        flags["retries"] = 0
    agent_format = read_format(model_folder(config), config.like, config.system_prompt)
    return replace(agent_format, **flags)


def resolved(config: AgentConfig) -> AgentConfig:
    """Fill in what depends on the machine and the model: the newest model's folder, the device,
    limits and sampling of the model's format. The toy web knows how many turns a question needs."""
    if config.api_base is None:
        folder = model_folder(config)
        if folder and config.model == "tiny":       # it may be large
            print(f"the newest model under runs/ is taken: {folder}", file=sys.stderr)
        device = device_of(config.device)
        config = replace(config, model=str(folder or "tiny"), device=device)
    agent_format = format_of(config)
    names = {field.name for field in fields(AgentFormat)}
    values = {name: getattr(agent_format, name) for name in names & vars(config).keys()}
    if config.tools == "toyweb":
        values["max_turns"] = config.max_turns
    return replace(config, **values)


def model_folder(config: AgentConfig) -> Path | None:
    """The folder of the weights; None = there is none, and they are random."""
    return weights.newest_model() if config.model == "tiny" else Path(config.model)


# --------------------------------------------------------------------------------------- the loop


def load_loop(config: AgentConfig, sequences: int = 1,
              pages: int | None = None) -> tuple[RolloutLoop, str]:
    """(a loop for so many rollouts at once; its model, prompt, tools and limits in words)."""
    agent_format = format_of(config)
    prompt = agent_format.prompt        # an unknown prompt is refused before a model is loaded
    writer: LocalWriter | RemoteWriter
    if config.api_base is None:
        writer, description = local_writer(config, agent_format, sequences, pages)
    else:
        assert config.api_model is not None
        writer = RemoteWriter(
            Tokenizer.from_file(config.model),
            config.api_base,
            config.api_model,
            sampling_of(agent_format),
            config.prompt_ids,
            config.seed,
        )
        description = f"{config.api_model} at {config.api_base}"
    if writer.max_context is not None:
        context = min(agent_format.max_context, writer.max_context)
        agent_format = replace(agent_format, max_context=context)

    immediate = config.tools.partition(":")[0] in IMMEDIATE
    loop = RolloutLoop(
        writer, agent_format,
        tool_threads=None if immediate else sequences,
        tool_seconds=config.tool_seconds,
        max_malformed=config.max_malformed,
    )
    first_line = prompt.strip().splitlines()[0]
    limits = (f"{agent_format.max_context:,} tokens, {agent_format.max_new_tokens:,} in a turn, "
              f"{agent_format.max_observation_tokens:,} in a result")
    return loop, (f"{description}\nprompt: {first_line:.90}\n"
                  f"{describe_tools(config.tools)}; {limits}")


def sampling_of(agent_format: AgentFormat, stop_ids: tuple[int, ...] = ()) -> Sampling:
    return Sampling(
        max_tokens=1,                   # every turn has its own
        temperature=agent_format.temperature,
        top_k=agent_format.top_k or None,
        top_p=agent_format.top_p,
        presence_penalty=agent_format.presence_penalty,
        stop_ids=stop_ids,
    )


def local_writer(config: AgentConfig, agent_format: AgentFormat, sequences: int,
                 pages: int | None) -> tuple[LocalWriter, str]:
    """The cache has `pages`, or else room for so many `sequences` of full length within its memory;
    with less than they need, sequences take turns."""
    folder = model_folder(config)
    device = device_of(config.device)
    dtype = PRECISION[device].engine
    if folder is None:
        model = Qwen3(ModelConfig.preset("tiny"), seed=config.seed).to(device, dtype)
        source = UNTRAINED
    else:
        model = weights.load(folder, device, dtype)
        source = f"weights from {folder}"
    tokenizer = Tokenizer.from_file(folder or TINY)

    length = min(agent_format.max_context, model.config.max_position_embeddings)
    needed = -(-length // PAGE_SIZE)                  # by one rollout
    if pages is None:
        pages = max(needed, min(needed * sequences, pages_of_memory(model)))
    if pages < needed:
        raise ConfigError(f"{pages} pages hold no rollout of {agent_format.max_context:,} tokens: "
                          f"give at least {needed}, or lower --max-context")

    engine = Engine(model, pages, PAGE_SIZE, seed=config.seed, vocab_limit=tokenizer.size)
    # a turn ends with <tool_response>: only the environment writes what follows
    sampling = sampling_of(agent_format, stop_ids=(tokenizer.tool_response,))
    count = sum(parameter.numel() for parameter in model.parameters())
    description = f"{source}\n{count:,} parameters on {device}"
    return LocalWriter(engine, tokenizer, sampling), description


def pages_of_memory(model: Qwen3) -> int:
    shape = model.config
    numbers = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim  # of a token
    page_bytes = PAGE_SIZE * numbers * model.head_weight.itemsize
    if model.head_weight.is_cuda:
        memory = int(CACHE_SHARE * torch.cuda.mem_get_info()[0])
    else:
        memory = CACHE_BYTES
    return memory // page_bytes


# -------------------------------------------------------------------------------- a model to score


def load_scorer(folder: Path, device: str = "auto") -> tuple[Tokenizer, Callable, int]:
    """(tokenizer, score, longest context) of a model that scores answers. score(tokens, lengths,
    continuation) is Engine.score_many for one request."""
    device = device_of(device)
    model = weights.load(folder, device, PRECISION[device].engine)

    def score(tokens: list[int], lengths: list[int], continuation: list[int]) -> list[list[float]]:
        pages_of_fork = len(continuation) // PAGE_SIZE + 2
        pages = -(-len(tokens) // PAGE_SIZE) + len(lengths) * pages_of_fork
        return Engine(model, pages, PAGE_SIZE).score_many([(tokens, lengths, continuation)])[0]

    return Tokenizer.from_file(folder), score, model.config.max_position_embeddings
