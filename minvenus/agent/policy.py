"""Policies write the turns of episodes. The loop uses these methods, of the engine's policy and of remote.py's alike:

    open(groups, step)            begin the groups of episodes; those of a group share their prompt
    start(episode)                begin a turn after episode.stream; when it has ended it is in episode.output
    step() -> bool                do some work; False if there is none to do in this thread
    futures()                     of the turns that are written in other threads
    cut(episode) -> TurnOutput    end its turn now; returns the partial turn
    discard_turn(episode)         throw the turn away that has ended; episode.stream does not have it
    close(episode)                free what it holds
    check_trainable()             raise where log-probs would be missing or wrong
    max_context                   the largest number of tokens that an episode may have, None if unknown

Log-probs are under the plain softmax at the sampling temperature over the whole vocabulary, which is what a trainer
computes again. With top-p below 1 tokens are drawn from another distribution; their log-probs are still the plain ones.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import torch

from minvenus.agent.episode import Episode, Limits, TurnOutput
from minvenus.agent.prompt import SYSTEM_PROMPT, Notices, read_prompt
from minvenus.agent.remote import RemotePolicy
from minvenus.config import ConfigError, ModelConfig
from minvenus.engine import Engine, Sampling, Sequence
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.settings import AgentConfig
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools import toyweb_lessons as toy

PAGE_SIZE = 64
CACHE_BYTES = 4 << 30                 # several sequences share at most this much; one alone gets what it needs
TOY_NOTICES = Notices(malformed=toy.NOT_READ, last_turn=toy.LAST_TURN)       # what the tiny model has learned to read


class EnginePolicy:
    """Turns from the local engine. The max_tokens of `sampling` is replaced in each turn; its stop_ids are added to the
    tokenizer's."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, sampling: Sampling):
        self.engine, self.sampling = engine, sampling
        self.stop_ids = (*tokenizer.stop_ids, *sampling.stop_ids)
        self.max_context = min(engine.config.max_position_embeddings, engine.pool.count * engine.pool.page_size)
        self.writing: dict[Sequence, Episode] = {}

    def open(self, groups: list[list[Episode]], step: int | None) -> None:
        """Each prompt is computed once for its group. (engine seed, step, name, number in the group) name the noise."""
        prompts = [group[0].stream.ids for group in groups]
        opened = self.engine.open_groups(prompts, len(groups[0]), [group[0].name for group in groups], step)
        for group, sequences in zip(groups, opened, strict=True):
            for episode, sequence in zip(group, sequences, strict=True):
                episode.sequence = sequence

    def start(self, episode: Episode) -> None:
        sequence = episode.sequence
        new = episode.stream.ids[len(sequence.tokens):]
        if new:
            self.engine.append(sequence, new)
        max_tokens = episode.limits.max_turn_tokens
        self.engine.start(sequence, replace(self.sampling, max_tokens=max_tokens, stop_ids=self.stop_ids))
        self.writing[sequence] = episode

    def step(self) -> bool:
        for sequence in self.engine.step():
            done = sequence.completion
            assert done is not None
            self.writing.pop(sequence).output = TurnOutput(done.tokens, done.logprobs)
        return bool(self.writing)

    def futures(self) -> list[Future]:
        return []

    def cut(self, episode: Episode) -> TurnOutput:
        del self.writing[episode.sequence]
        partial = episode.sequence.job
        output = TurnOutput(list(partial.tokens), list(partial.logprobs))
        self._reopen(episode, list(episode.sequence.tokens))
        return output

    def discard_turn(self, episode: Episode) -> None:
        self._reopen(episode, episode.stream.ids)

    def close(self, episode: Episode) -> None:
        self.writing.pop(episode.sequence, None)
        self.engine.close(episode.sequence)
        episode.sequence = None

    def check_trainable(self) -> None:
        s = self.sampling
        plain = {"top_k": None, "presence_penalty": 0.0, "stop_ids": ()}
        wrong = [f"{name} {getattr(s, name)}" for name, value in plain.items() if getattr(s, name) != value]
        if s.temperature == 0:
            wrong.append("temperature 0")
        if wrong:
            raise ConfigError(f"{', '.join(wrong)}: for inference only, because the log-probs of such turns are not "
                              "those of the policy that is trained")

    def _reopen(self, episode: Episode, ids: list[int]) -> None:
        """A fresh sequence with these tokens, which finds its full pages again. Its name gives it other noise: with the
        old noise, another attempt at a turn would be the same turn again."""
        old = episode.sequence
        self.engine.close(old)
        episode.sequence = self.engine.open(ids, f"{episode.name} attempt {episode.attempts}", old.rollout, old.step)


# ------------------------------------------------------------------------------------------- from settings to a policy


def prompt_and_notices(config: AgentConfig) -> tuple[str, Notices]:
    """What the model is told: by default the words of its lessons for the tiny model on the toy web, else our own."""
    taught = config.tiny and config.tools == "toyweb"
    system = toy.SYSTEM if taught else SYSTEM_PROMPT
    if config.system_prompt:
        system = read_prompt(config.system_prompt)
    return system, TOY_NOTICES if taught else Notices()


def limits_of(config: AgentConfig, policy: EnginePolicy | RemotePolicy, tool_threads: int | None) -> Limits:
    """The limits of a rollout: those of the resolved settings, within the context that the policy has."""
    assert config.max_context is not None and config.max_new_tokens is not None and config.retries is not None
    context = min(config.max_context, policy.max_context or config.max_context)
    return Limits(config.max_turns or 200, context, config.max_new_tokens, config.max_observation_tokens,
                  time_limit=config.time_limit, tool_seconds=config.tool_seconds, tool_threads=tool_threads,
                  retries=config.retries)


def load_policy(config: AgentConfig, sequences: int = 1,
                pages: int | None = None) -> tuple[EnginePolicy | RemotePolicy, Tokenizer, str]:
    """(policy, tokenizer, description in words) of resolved settings. The cache has `pages`, or else room for so many
    `sequences` of full length within CACHE_BYTES; with less than they need, sequences take turns."""
    sampling = Sampling(1, config.temperature or 0.0, config.top_k or None, config.top_p or 1.0,
                        config.presence_penalty or 0.0)
    if config.api_base is not None and config.api_model is not None:
        own = config.model != "tiny"
        tokenizer = Tokenizer.from_file(config.model) if own else Tokenizer.tiny()
        policy = RemotePolicy(tokenizer, config.api_base, config.api_model, sampling, send_ids=own)
        return policy, tokenizer, f"{config.api_model} at {config.api_base}"
    model, tokenizer, description = load_local(config)
    if tokenizer.size > model.config.vocab_size:
        raise ConfigError(f"the tokenizer has {tokenizer.size} ids, the model only {model.config.vocab_size}: they do "
                          "not belong together")
    context = min(config.max_context or 0, model.config.max_position_embeddings)
    engine = Engine(model, pages or cache_pages(model, context, sequences), PAGE_SIZE, seed=config.seed,
                    vocab_limit=tokenizer.size)
    sampling = replace(sampling, stop_ids=(tokenizer.tool_response,))        # only the environment writes what follows
    return EnginePolicy(engine, tokenizer, sampling), tokenizer, description


def cache_pages(model: Qwen3, context: int, sequences: int) -> int:
    shape = model.config
    token_bytes = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * model.head_weight.itemsize
    one = -(-context // PAGE_SIZE)
    return max(one, min(one * sequences, CACHE_BYTES // (PAGE_SIZE * token_bytes)))


def load_local(config: AgentConfig) -> tuple[Qwen3, Tokenizer, str]:
    device = weights.device_of(config.device)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32            # bfloat16 is slow on most CPUs
    start = time.perf_counter()
    folder = model_folder(config)
    if folder is None:
        model = Qwen3(ModelConfig.preset("tiny"), seed=config.seed).to(device, dtype)
        source = "tiny, with random weights: it has not been trained, so its text means nothing"
    else:
        model, source = weights.load(folder, device, dtype), f"weights from {folder}"
    tokenizer = Tokenizer.of_model(folder)
    shape, count = model.config, sum(p.numel() for p in model.parameters())
    facts = (f"{count:,} parameters, {shape.num_hidden_layers} layers, hidden {shape.hidden_size}, "
             f"{shape.num_attention_heads} query and {shape.num_key_value_heads} kv heads of {shape.head_dim}; "
             f"{tokenizer.size:,} token ids")
    place = f"{str(dtype).removeprefix('torch.')} on {device}, loaded in {time.perf_counter() - start:.2f} s"
    return model, tokenizer, f"{source}\n{facts}\n{place}"


def load_scorer(folder: Path) -> tuple[Tokenizer, Callable, int]:
    """(tokenizer, score, longest context) of a model that scores answers. score(tokens, lengths, continuation) is
    Engine.score_many for one request."""
    device = weights.device_of("auto")
    model = weights.load(folder, device, torch.bfloat16 if device == "cuda" else torch.float32)

    def score(tokens: list[int], lengths: list[int], continuation: list[int]) -> list[list[float]]:
        pages = -(-len(tokens) // PAGE_SIZE) + len(lengths) * (len(continuation) // PAGE_SIZE + 2)
        return Engine(model, pages, PAGE_SIZE).score_many([(tokens, lengths, continuation)])[0]

    return Tokenizer.of_model(folder), score, model.config.max_position_embeddings


def model_folder(config: AgentConfig) -> Path | None:
    """The folder of the weights; None = there is none, they are random."""
    return weights.newest_model() if config.model == "tiny" else Path(config.model)
