"""Clean trajectories as token streams, held in memory: five bytes a token.

Trajectories that are too long are dropped and counted. Cut off instead, they would teach the model
to search without ever answering.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from minvenus.config import ConfigError
from minvenus.text.chat import stream
from minvenus.text.messages import ChatError
from minvenus.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Example:
    """One trajectory as tokens."""

    tokens: Tensor               # [L] int32
    sampled: Tensor              # [L] bool: the agent's tokens, the im_end of each turn included

    def __post_init__(self):
        if self.trained == 0 or self.sampled[0]:
            raise ValueError("an example needs tokens to train on; the first token cannot be one, "
                             "nothing predicts it")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def trained(self) -> int:
        return int(self.sampled.sum())


def encode(record: dict, tokenizer: Tokenizer) -> Example:
    """A clean record, of which the agent's turns are trained on."""
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
    """All trajectories of at most `max_tokens`, in their order, and the number of longer ones.

    The system prompts of the former are added to `prompts`."""
    examples: list[Example] = []
    too_long: list[int] = []     # tokens of the trajectories that are dropped
    for i, record in enumerate(records):
        try:
            example = encode(record, tokenizer)
        except (ChatError, KeyError, TypeError) as error:
            raise ConfigError(f"trajectory {i} is not clean, run python -m minvenus.sft on the "
                              f"file first: {error}") from None
        if len(example) > max_tokens:
            too_long.append(len(example))
            continue
        examples.append(example)
        if prompts is not None:
            prompts.add(record["messages"][0]["content"])

    if too_long and not examples:
        raise ConfigError(f"all {len(too_long):,} trajectories are longer than {max_tokens:,} "
                          f"tokens, the shortest has {min(too_long):,}: raise --max-tokens")
    return examples, len(too_long)
