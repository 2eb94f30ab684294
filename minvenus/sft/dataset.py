"""Clean trajectories as token streams, and the packs of one training step.

    L = sum_i w_i sum_{k in M_i} -log p(x_k | x_<k)    M_i: the n_i tokens of the agent in trajectory i of the step's B

w_i is 1 / (B n_i) (trajectory-mean) or 1 / sum_j n_j (token-mean). So the loss of a step is the plain sum over
its packs, the same however the trajectories are packed, split over micro-batches or ordered.

A pack is whole trajectories end to end, without padding. Over-long ones are dropped and counted: cut off, they would
teach to search without an answer. Streams are held in memory, five bytes a token.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from minvenus.config import ConfigError
from minvenus.files import read_rows
from minvenus.text.chat import ChatError, stream
from minvenus.text.tokenizer import Tokenizer

Reduction = Literal["trajectory-mean", "token-mean"]


@dataclass(frozen=True)
class Example:
    """One trajectory as tokens. `sampled` is True on the agent's tokens, the im_end of each turn included."""

    tokens: Tensor                        # [L] int32
    sampled: Tensor                       # [L] bool

    def __post_init__(self):
        if self.trained == 0 or self.sampled[0]:
            raise ValueError("an example needs tokens to train on; the first token cannot be one, nothing predicts it")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def trained(self) -> int:
        return int(self.sampled.sum())


# ------------------------------------------------------------------------------------------------------------ to tokens


def encode(record: dict, tokenizer: Tokenizer) -> Example:
    tokens, sampled, _ = stream(record["messages"], tokenizer)
    return Example(torch.tensor(tokens, dtype=torch.int32), torch.tensor(sampled))


def encode_pieces(pieces: list[tuple[str, bool]], tokenizer: Tokenizer) -> Example:
    """Plain text in pieces, of which those with a True are trained on."""
    tokens: list[int] = []
    sampled: list[bool] = []
    for text, trained in pieces:
        ids = tokenizer.encode(text)
        tokens += ids
        sampled += [trained] * len(ids)
    return Example(torch.tensor(tokens, dtype=torch.int32), torch.tensor(sampled))


def load(records: Iterable[dict], tokenizer: Tokenizer, max_tokens: int,
         prompts: set[str] | None = None) -> tuple[list[Example], int]:
    """All trajectories of at most `max_tokens`, in their order, and how many longer ones were dropped. The system
    prompts of the former are added to `prompts`."""
    examples = []
    too_long = []                             # tokens of those that are dropped
    for i, record in enumerate(records):
        try:
            example = encode(record, tokenizer)
        except (ChatError, KeyError, TypeError) as error:
            raise ConfigError(f"trajectory {i} is not clean, run python -m minvenus.sft on the file first: "
                              f"{error}") from None
        if len(example) > max_tokens:
            too_long.append(len(example))
            continue
        examples.append(example)
        if prompts is not None:
            prompts.add(record["messages"][0]["content"])
    if too_long and not examples:
        raise ConfigError(f"all {len(too_long):,} trajectories are longer than {max_tokens:,} tokens, the shortest has "
                          f"{min(too_long):,}: raise --max-tokens")
    return examples, len(too_long)


def read_records(path) -> Iterator[dict]:
    """The records of a .jsonl or .parquet file."""
    for number, record in read_rows(Path(path)):
        if isinstance(record, str):
            raise ConfigError(f"{path}, line {number} is no record: {record}")
        yield record


# ------------------------------------------------------------------------------------------------------------- to packs


@dataclass(frozen=True)
class Pack:
    """Some of a step's trajectories, end to end. The loss of the step is the sum over its packs of
    (weights * -logprobs).sum(), where logprobs[j] scores targets[j] from the hidden state at position sources[j]."""

    tokens: Tensor               # [N] int64
    cu_seqlens: Tensor           # [S + 1] int32, trajectory s is tokens[cu_seqlens[s]:cu_seqlens[s + 1]]
    sources: Tensor              # [M] int64: the position before each sampled token
    targets: Tensor              # [M] int64: the sampled tokens
    weights: Tensor              # [M] float32


def step_packs(examples: Sequence[Example], budget: int, reduction: Reduction = "trajectory-mean") -> list[Pack]:
    """The packs of one step, each of at most `budget` tokens. `examples` must be all trajectories of the step, also
    where its packs run on several devices: the weights are shares of the whole step."""
    if reduction == "trajectory-mean":
        weights = [1.0 / (len(examples) * example.trained) for example in examples]
    else:
        weights = [1.0 / sum(example.trained for example in examples)] * len(examples)
    rows = fill_packs([len(example) for example in examples], budget)
    return [build_pack([examples[i] for i in row], [weights[i] for i in row]) for row in rows]


def fill_packs(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """The indices of each pack. Longest first, each into the first pack with room: deterministic, and at most 11/9 of
    the fewest possible packs plus two thirds of one. Inside a pack the given order stays."""
    if lengths and max(lengths) > budget:
        raise ConfigError(f"a trajectory of {max(lengths):,} tokens does not fit into a pack of {budget:,}: raise the "
                          "token budget, or lower max_tokens when loading")
    rows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        row = next((r for r, left in enumerate(room) if lengths[i] <= left), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(budget)
        rows[row].append(i)
        room[row] -= lengths[i]
    return [sorted(row) for row in rows]


def build_pack(examples: list[Example], weight_S: list[float]) -> Pack:
    tokens = torch.cat([example.tokens for example in examples]).long()
    sampled = torch.cat([example.sampled for example in examples])
    positions = sampled.nonzero()[:, 0]                                       # [M]  never the first of a trajectory
    weights = torch.cat([torch.full((example.trained,), weight)
                         for example, weight in zip(examples, weight_S, strict=True)])
    bounds = torch.tensor([0, *accumulate(map(len, examples))], dtype=torch.int32)
    return Pack(tokens, bounds, positions - 1, tokens[positions], weights)
