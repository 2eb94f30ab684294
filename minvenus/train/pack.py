"""Packs: whole sequences end to end, without padding. SFT and IGPO train on them.

    tokens      a a a a a a b b b b b b b         S sequences, N tokens in all
    trained         x x   x       x x x           M tokens that the agent wrote
    segments        0 0   0       1 1 1           the sequence of each

A step's loss is a sum over its trained tokens, with weights that count the whole step. So how it
is packed, and in which order, changes memory and speed, not the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from minvenus.config import ConfigError
from minvenus.model.precision import precision_of
from minvenus.model.qwen3 import Qwen3
from minvenus.sft.dataset import Example
from minvenus.train.parallel import share, size


@dataclass(frozen=True)
class Pack:
    """Some of a step's sequences."""

    rows: list[int]              # which of the step's sequences, in this order
    tokens: Tensor               # [N] int64
    cu_seqlens: Tensor           # [S + 1] int32: where each sequence begins, and N
    sources: Tensor              # [M] int64: the position before each trained token
    segments: Tensor             # [M] int64: 0 ... S - 1


TOKEN = torch.zeros(1, dtype=torch.int64)
BOUNDS = torch.tensor([0, 1], dtype=torch.int32)
EMPTY = Pack([], TOKEN, BOUNDS, TOKEN[:0], TOKEN[:0])        # one token, which is not trained


def rank_packs(examples: Sequence[Example], budget: int) -> list[Pack]:
    """The packs of a step that this rank runs; an empty one where others have one more.

    Ranks gather the weights of a layer together, so all must run equally many packs.
    """
    packs = make_packs(examples, budget)
    rounds = -(-len(packs) // size())
    return share(packs + [EMPTY] * (rounds * size() - len(packs)))


def make_packs(examples: Sequence[Example], budget: int) -> list[Pack]:
    """The packs of a step, each of at most `budget` tokens."""
    rows_of_packs = fill_packs([len(example) for example in examples], budget)
    return [build_pack(examples, rows) for rows in rows_of_packs]


def fill_packs(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """The indices of each pack, ascending.

    Longest first, each into the first pack with room: deterministic, and at most 11/9 of the
    fewest possible packs plus two thirds of one.
    """
    if lengths and max(lengths) > budget:
        raise ConfigError(f"a trajectory of {max(lengths):,} tokens does not fit into a pack of "
                          f"{budget:,}: raise --pack-tokens, or lower the longest context")
    packs: list[list[int]] = []
    rooms: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = [pack for pack, room in enumerate(rooms) if lengths[row] <= room]
        if not fitting:
            fitting = [len(packs)]
            packs.append([])
            rooms.append(budget)
        packs[fitting[0]].append(row)
        rooms[fitting[0]] -= lengths[row]
    return [sorted(pack) for pack in packs]


def build_pack(examples: Sequence[Example], rows: list[int]) -> Pack:
    chosen = [examples[i] for i in rows]
    tokens = torch.cat([example.tokens for example in chosen]).long()
    bounds = torch.tensor([0, *accumulate(map(len, chosen))], dtype=torch.int32)

    trained = torch.cat([example.sampled for example in chosen])
    positions = trained.nonzero()[:, 0]                # [M]  never the first of a sequence
    counts = torch.tensor([example.trained for example in chosen])
    segments = torch.arange(len(chosen)).repeat_interleave(counts)
    return Pack(rows, tokens, bounds, positions - 1, segments)


def pack_logprobs(model: Qwen3, pack: Pack, temperature: float = 1.0, entropy: bool = False):
    """Log-probs [M] of the trained tokens of a pack; with `entropy`, (log-probs, entropies)."""
    tokens = pack.tokens.to(model.head_weight.device, non_blocking=True)
    dtype = precision_of(model).compute
    return model.logprobs(tokens, pack.cu_seqlens, pack.sources, temperature, entropy, dtype)
