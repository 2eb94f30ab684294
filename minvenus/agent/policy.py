"""Policies write the turns of episodes. The loop uses these methods, of the engine's policy and of remote.py's alike:

    open(group, name, step)       begin the episodes of a group, which share their prompt
    start(episode, max_tokens)    begin a turn after episode.stream. What an attempt at the same turn has written before
                                  is thrown away
    step() -> bool                do some work; False if there is none to do in this thread
    output(episode)               (tokens, log-probs) of its turn, None until the turn has ended. Log-probs are None if
                                  the ids were made from text. Raises a ToolError if the turn cannot be written
    cut(episode)                  end its turn now; the same of the partial turn
    close(episode)                free what it holds
    max_context                   the largest number of tokens that an episode may have, None if unknown

Log-probs are under the plain softmax at the sampling temperature, which is what a trainer computes again. With top-p
below 1 tokens are drawn from another distribution; their log-probs are still the plain ones.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from minvenus.agent.prompt import SYSTEM_PROMPT, Notices, read_prompt
from minvenus.agent.remote import RemotePolicy
from minvenus.agent.rollout import Episode, Limits, RolloutLoop
from minvenus.config import ModelConfig
from minvenus.engine import Engine, Sampling
from minvenus.model import weights
from minvenus.model.precision import PRECISION
from minvenus.model.qwen3 import Qwen3
from minvenus.settings import AgentConfig, IGPOConfig, ResolvedAgent
from minvenus.text.tokenizer import TINY, Tokenizer
from minvenus.tools import toyweb_lessons as toy

PAGE_SIZE = 64
CACHE_BYTES = 4 << 30                 # several sequences share at most this much; one alone gets what it needs
TOY_NOTICES = Notices(malformed=toy.NOT_READ, last_turn=toy.LAST_TURN)       # what the tiny model has learned to read


class EnginePolicy:
    """Turns from the local engine. The tokenizer's stop ids are added to those of the sampling."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, sampling: Sampling):
        self.engine = engine
        self.sampling = replace(sampling, stop_ids=(*tokenizer.stop_ids, *sampling.stop_ids))
        self.max_context = min(engine.config.max_position_embeddings, engine.pool.count * engine.pool.page_size)

    def open(self, group: list[Episode], name: str, step: int | None) -> None:
        """The prompt is computed once. (engine seed, step, name, number in the group) name the noise."""
        [sequences] = self.engine.open_groups([group[0].stream.ids], len(group), [name], step)
        for episode, sequence in zip(group, sequences, strict=True):
            episode.sequence = sequence

    def start(self, episode: Episode, max_tokens: int) -> None:
        old, ids = episode.sequence, episode.stream.ids
        if len(old.tokens) > len(ids):
            # another attempt: a new sequence finds the pages again, and its name gives it other noise
            self.engine.close(old)
            episode.sequence = self.engine.open(ids, f"{old.question} again", old.rollout, old.step)
        elif len(old.tokens) < len(ids):
            self.engine.append(old, ids[len(old.tokens):])
        self.engine.start(episode.sequence, replace(self.sampling, max_tokens=max_tokens))

    def step(self) -> bool:
        self.engine.step()
        return bool(self.engine.scheduler.running())

    def output(self, episode: Episode) -> tuple[list[int], list[float]] | None:
        done = episode.sequence.completion
        return None if episode.sequence.job else (done.tokens, done.logprobs)

    def cut(self, episode: Episode) -> tuple[list[int], list[float]]:
        done = self.engine.cut(episode.sequence)
        return done.tokens, done.logprobs

    def close(self, episode: Episode) -> None:
        self.engine.close(episode.sequence)


# ------------------------------------------------------------------------------------------- from settings to a policy


def resolved(config: AgentConfig) -> ResolvedAgent:
    """Fill in what depends on the machine and the model: the newest model's folder, the device, and what fits it."""
    if config.api_base is None:
        config = replace(config, model=str(model_folder(config) or "tiny"), device=weights.device_of(config.device))
    return config.resolved()


def prompt_and_notices(config: AgentConfig | IGPOConfig) -> tuple[str, Notices]:
    """What the model is told: by default the words of its lessons for the tiny model on the toy web, else our own."""
    taught = config.tiny and config.tools == "toyweb"
    system = toy.SYSTEM if taught else SYSTEM_PROMPT
    if config.system_prompt:
        system = read_prompt(config.system_prompt)
    return system, TOY_NOTICES if taught else Notices()


def load_loop(config: AgentConfig, immediate: bool, sequences: int = 1, pages: int | None = None,
              watch: Callable | None = None) -> tuple[RolloutLoop, str]:
    """(a loop for so many rollouts at once, its policy in words). `immediate`: tools cannot hang and need no thread."""
    config = config.resolved()
    system, notices = prompt_and_notices(config)
    policy, tokenizer, description = load_policy(config, sequences, pages)
    limits = Limits(config.max_turns or 200, min(config.max_context, policy.max_context or config.max_context),
                    config.max_new_tokens, config.max_observation_tokens, config.time_limit or math.inf,
                    config.tool_seconds, tool_threads=None if immediate else sequences, retries=config.retries,
                    max_malformed=config.max_malformed)
    return RolloutLoop(policy, tokenizer, limits, system=system, notices=notices, watch=watch), description


def load_policy(config: ResolvedAgent, sequences: int,
                pages: int | None) -> tuple[EnginePolicy | RemotePolicy, Tokenizer, str]:
    """The cache has `pages`, or else room for so many `sequences` of full length within CACHE_BYTES; with less than
    they need, sequences take turns."""
    sampling = Sampling(1, config.temperature, config.top_k or None, config.top_p, config.presence_penalty)
    if config.api_base is not None and config.api_model is not None:
        tokenizer = Tokenizer.from_file(config.model)
        policy = RemotePolicy(tokenizer, config.api_base, config.api_model, sampling, config.prompt_ids, config.seed)
        policy.max_context = policy.served_context()
        room = f", which has room for {policy.max_context:,} tokens" if policy.max_context else ""
        return policy, tokenizer, f"{config.api_model} at {config.api_base}{room}"
    folder = model_folder(config)
    device = weights.device_of(config.device)
    if folder is None:
        model = Qwen3(ModelConfig.preset("tiny"), seed=config.seed).to(device, PRECISION[device].engine)
        source = "tiny, with random weights: it has not been trained, so its text means nothing"
    else:
        model, source = load_model(folder, device), f"weights from {folder}"
    tokenizer = Tokenizer.from_file(folder or TINY)
    pages = pages or cache_pages(model, config.max_context, sequences)
    engine = Engine(model, pages, PAGE_SIZE, seed=config.seed, vocab_limit=tokenizer.size)
    sampling = replace(sampling, stop_ids=(tokenizer.tool_response,))        # only the environment writes what follows
    count = sum(parameter.numel() for parameter in model.parameters())
    return EnginePolicy(engine, tokenizer, sampling), tokenizer, f"{source}\n{count:,} parameters on {device}"


def load_model(folder: Path, device: str) -> Qwen3:
    return weights.load(folder, device, PRECISION[device].engine)


def cache_pages(model: Qwen3, max_context: int, sequences: int) -> int:
    shape = model.config
    token_bytes = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * model.head_weight.itemsize
    one = -(-min(max_context, shape.max_position_embeddings) // PAGE_SIZE)
    return max(one, min(one * sequences, CACHE_BYTES // (PAGE_SIZE * token_bytes)))


def load_scorer(folder: Path) -> tuple[Tokenizer, Callable, int]:
    """(tokenizer, score, longest context) of a model that scores answers. score(tokens, lengths, continuation) is
    Engine.score_many for one request."""
    model = load_model(folder, weights.device_of("auto"))

    def score(tokens: list[int], lengths: list[int], continuation: list[int]) -> list[list[float]]:
        pages = -(-len(tokens) // PAGE_SIZE) + len(lengths) * (len(continuation) // PAGE_SIZE + 2)
        return Engine(model, pages, PAGE_SIZE).score_many([(tokens, lengths, continuation)])[0]

    return Tokenizer.from_file(folder), score, model.config.max_position_embeddings


def model_folder(config: AgentConfig) -> Path | None:
    """The folder of the weights; None = there is none, and they are random."""
    return weights.newest_model() if config.model == "tiny" else Path(config.model)
