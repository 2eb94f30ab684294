"""Writers: a writer lets the policy, a model, write the turns of episodes. Two kinds: LocalWriter with
our own engine, here, and RemoteWriter at a completion endpoint (remote.py). The turn loop uses these
methods of both:

    fitting(group, opened, length)   how many episodes of a group may be opened beside those that are
                                     open, if all of them grow to so many tokens
    open(group)                      begin episodes of one group, which share their prompt
    start(episode, max_tokens)       begin a turn after episode.stream
    step() -> bool                   do some work; False if there is none to do in this thread
    finished(episode) -> bool        whether its turn has ended; its tokens are in episode.stream then.
                                     Raises a ToolError if the turn cannot be written
    discard(episode)                 throw its turn away; the next attempt has other random numbers
    cut(episode)                     end its turn now, with what is written of it
    close(episode)                   free what it holds
    samples                          whether the ids of turns are those that the policy sampled
    max_context                      the largest number of tokens of an episode, None if unknown

Log-probs are under the plain softmax at the sampling temperature, which is what a trainer computes
again. With top-p below 1 tokens are drawn from another distribution; their log-probs are still the
plain ones.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import torch

from minvenus.agent.episode import Episode
from minvenus.agent.prompt import AgentFormat, read_format
from minvenus.agent.remote import RemoteWriter
from minvenus.agent.rollout import RolloutLoop
from minvenus.config import ConfigError, ModelConfig
from minvenus.engine import Engine, Sampling
from minvenus.model import weights
from minvenus.model.precision import PRECISION
from minvenus.model.qwen3 import Qwen3
from minvenus.settings import AgentConfig
from minvenus.text.tokenizer import TINY, Tokenizer
from minvenus.tools.web import IMMEDIATE, describe_tools

PAGE_SIZE = 64
CACHE_BYTES = 4 << 30                 # several sequences share at most this much; one alone gets what it needs
CACHE_SHARE = 0.8                     # on a GPU instead: of what is free once the weights are there
FLAGS = {field.name for field in fields(AgentConfig)} & {field.name for field in fields(AgentFormat)}


class LocalWriter:
    """Turns from our own engine. The tokenizer's stop ids are added to those of the sampling."""

    samples = True

    def __init__(self, engine: Engine, tokenizer: Tokenizer, sampling: Sampling):
        self.engine = engine
        self.sampling = replace(sampling, stop_ids=(*tokenizer.stop_ids, *sampling.stop_ids))
        self.max_context = min(engine.config.max_position_embeddings, engine.pool.count * engine.pool.page_size)

    def fitting(self, group: list[Episode], opened: list[Episode], length: int) -> int:
        """How many of the group fit beside `opened` if all grow to `length` tokens; at least one if nothing is open."""
        least = 0 if opened else 1
        counts = range(len(group), least, -1)
        return next((count for count in counts if self._has_room(opened + group[:count], length)), least)

    def _has_room(self, episodes: list[Episode], length: int) -> bool:
        """Whether all fit at full length. Rollouts of one group share the full pages of their prompt."""
        pool = self.engine.pool
        shared = {}                                   # full pages of each group's prompt
        for e in episodes:
            shared[e.name] = (e.stream.prompt_length - 1) // pool.page_size  # each computes the last token itself
        own = sum(pool.pages_for(length) - shared[e.name] for e in episodes)
        return own + sum(shared.values()) <= pool.count

    def open(self, group: list[Episode]) -> None:
        """Open a sequence for each episode. It draws its tokens and log-probs into the lists of the
        episode's stream."""
        first = group[0]
        prompts = [episode.stream.ids for episode in group]
        sequences = self.engine.open_group(prompts, first.name, first.number, first.step)
        for episode, sequence in zip(group, sequences, strict=True):
            sequence.logprobs = episode.stream.logprobs
            episode.sequence = sequence

    def start(self, episode: Episode, max_tokens: int) -> None:
        self.engine.start(episode.sequence, replace(self.sampling, max_tokens=max_tokens))

    def step(self) -> bool:
        self.engine.step()
        return bool(self.engine.scheduler.running())

    def finished(self, episode: Episode) -> bool:
        return episode.sequence.job is None

    def discard(self, episode: Episode) -> None:
        """Go on with a new sequence: it finds the pages again, and its name gives it other noise."""
        old, stream = episode.sequence, episode.stream
        self.engine.close(old)
        stream.discard_turn()
        new = self.engine.open(stream.ids, f"{old.question} again", old.rollout, old.step)
        new.logprobs = stream.logprobs
        episode.sequence = new

    def cut(self, episode: Episode) -> None:
        self.engine.cut(episode.sequence)

    def close(self, episode: Episode) -> None:
        self.engine.close(episode.sequence)


def resolved(config: AgentConfig) -> AgentConfig:
    """Fill in what depends on the machine and the model: the newest model's folder, the device, and what the model's
    format says of limits and sampling. How many turns a question of the toy web needs, the toy web knows."""
    if config.api_base is None:
        config = replace(config, model=str(model_folder(config) or "tiny"), device=weights.device_of(config.device))
    found = {name: getattr(format_of(config), name) for name in FLAGS}
    if config.tools == "toyweb":
        found["max_turns"] = config.max_turns
    return replace(config, **found)


def format_of(config: AgentConfig) -> AgentFormat:
    """What the model is told and how it is run: as its folder or --like says, but for the flags that are given."""
    given = {name: getattr(config, name) for name in FLAGS if getattr(config, name) is not None}
    if config.temperature == 0:
        given["retries"] = 0
    return replace(read_format(model_folder(config), config.like, config.system_prompt), **given)


def load_loop(config: AgentConfig, sequences: int = 1, pages: int | None = None) -> tuple[RolloutLoop, str]:
    """(a loop for so many rollouts at once, its writer, prompt, tools and limits in words)."""
    agent = format_of(config)
    prompt = agent.prompt                           # if it is not known, nobody should wait for a model to learn it
    writer, tokenizer, description = load_writer(config, agent, sequences, pages)
    agent = replace(agent, max_context=min(agent.max_context, writer.max_context or agent.max_context))
    immediate = config.tools.partition(":")[0] in IMMEDIATE
    loop = RolloutLoop(writer, tokenizer, agent, tool_threads=None if immediate else sequences,
                       tool_seconds=config.tool_seconds, max_malformed=config.max_malformed)
    first = prompt.strip().splitlines()[0]
    turns = "turns as needed" if config.tools == "toyweb" and not config.max_turns else f"{agent.max_turns} turns"
    limits = (f"{turns}, {agent.max_context:,} tokens, {agent.max_new_tokens:,} in a turn, "
              f"{agent.max_observation_tokens:,} in a result")
    if agent.time_limit:
        limits += f", {agent.time_limit:,g} seconds"
    return loop, (f"{description}\nprompt: {first[:90]}{' ...' if first[90:] else ''}\n"
                  f"{describe_tools(config.tools)}; {limits}")


def load_writer(config: AgentConfig, agent: AgentFormat, sequences: int,
                pages: int | None) -> tuple[LocalWriter | RemoteWriter, Tokenizer, str]:
    """The cache has `pages`, or else room for so many `sequences` of full length within that memory; with less than
    they need, sequences take turns."""
    sampling = Sampling(1, agent.temperature, agent.top_k or None, agent.top_p, agent.presence_penalty)
    if config.api_base is not None and config.api_model is not None:
        tokenizer = Tokenizer.from_file(config.model)
        writer = RemoteWriter(tokenizer, config.api_base, config.api_model, sampling, config.prompt_ids, config.seed)
        writer.max_context = writer.served_context()
        room = f", which has room for {writer.max_context:,} tokens" if writer.max_context else ""
        return writer, tokenizer, f"{config.api_model} at {config.api_base}{room}"
    folder = model_folder(config)
    device = weights.device_of(config.device)
    if folder is None:
        model = Qwen3(ModelConfig.preset("tiny"), seed=config.seed).to(device, PRECISION[device].engine)
        source = "tiny, with random weights: not trained yet, so its text means nothing; `make demo` trains it"
    else:
        model, source = weights.load(folder, device, PRECISION[device].engine), f"weights from {folder}"
    tokenizer = Tokenizer.from_file(folder or TINY)
    pages = pages or cache_pages(model, agent.max_context, sequences)
    needed = cache_pages(model, agent.max_context, sequences=1)
    if pages < needed:
        raise ConfigError(f"{pages} pages hold no rollout of {agent.max_context:,} tokens: give at least {needed}, or "
                          "lower --max-context")
    engine = Engine(model, pages, PAGE_SIZE, seed=config.seed, vocab_limit=tokenizer.size)
    sampling = replace(sampling, stop_ids=(tokenizer.tool_response,))        # only the environment writes what follows
    count = sum(parameter.numel() for parameter in model.parameters())
    return LocalWriter(engine, tokenizer, sampling), tokenizer, f"{source}\n{count:,} parameters on {device}"


def cache_pages(model: Qwen3, max_context: int, sequences: int) -> int:
    shape = model.config
    token_bytes = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * model.head_weight.itemsize
    one = -(-min(max_context, shape.max_position_embeddings) // PAGE_SIZE)
    most = CACHE_SHARE * torch.cuda.mem_get_info()[0] if model.head_weight.is_cuda else CACHE_BYTES
    return max(one, min(one * sequences, int(most) // (PAGE_SIZE * token_bytes)))


def load_scorer(folder: Path, device: str = "auto") -> tuple[Tokenizer, Callable, int]:
    """(tokenizer, score, longest context) of a model that scores answers. score(tokens, lengths, continuation) is
    Engine.score_many for one request."""
    device = weights.device_of(device)
    model = weights.load(folder, device, PRECISION[device].engine)

    def score(tokens: list[int], lengths: list[int], continuation: list[int]) -> list[list[float]]:
        pages = -(-len(tokens) // PAGE_SIZE) + len(lengths) * (len(continuation) // PAGE_SIZE + 2)
        return Engine(model, pages, PAGE_SIZE).score_many([(tokens, lengths, continuation)])[0]

    return Tokenizer.from_file(folder), score, model.config.max_position_embeddings


def model_folder(config: AgentConfig) -> Path | None:
    """The folder of the weights; None = there is none, and they are random."""
    return weights.newest_model() if config.model == "tiny" else Path(config.model)
