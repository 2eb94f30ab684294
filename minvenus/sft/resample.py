"""Turn-aware resampling: long trajectories are rare and hard, so they are seen more often; a shuffle spreads the copies.

    turns  = agent messages, the answer included = (messages - 1) // 2
    copies = 1 if turns <= 50, 2 if turns <= 100, 5 above

The paper's own numbers: 3,720 short, 4,400 medium and 1,245 long trajectories give 18,745, and the long share grows from 13.29 %
to 33.21 %. Without a shuffle the five copies of a trajectory would stand in one batch.
"""

import random
from array import array
from collections.abc import Iterable, Mapping

POLICY = {"<=50": 1, "51-100": 2, ">100": 5}     # bucket of turns -> copies


def count_turns(messages: list[dict]) -> int:
    return (len(messages) - 1) // 2


def bucket(turns: int) -> str:
    return "<=50" if turns <= 50 else "51-100" if turns <= 100 else ">100"


def copies(turns: int) -> int:
    """How often a trajectory of this many turns is repeated."""
    if turns < 1:
        raise ValueError(f"a trajectory has at least one turn, got {turns}")
    return POLICY[bucket(turns)]


def resampled(original: Mapping[str, int]) -> dict[str, int]:
    """Trajectories per bucket after resampling, from those before."""
    return {name: original.get(name, 0) * factor for name, factor in POLICY.items()}


def long_share(buckets: Mapping[str, int]) -> float | None:
    """The share of trajectories with more than 100 turns; None if there are none at all."""
    total = sum(buckets.values())
    return buckets.get(">100", 0) / total if total else None


def order(copies_of: Iterable[int], seed: int | None) -> array:
    """The index of every instance: index i as often as `copies_of` says, shuffled by the seed; None = copies side by side."""
    indices = array("q")                          # 8 bytes an instance, so that the order of a very large file still fits
    for i, count in enumerate(copies_of):
        indices.extend([i] * count)
    if seed is not None:
        random.Random(seed).shuffle(indices)      # the generator's own algorithm is fixed, so a seed gives one order everywhere
    return indices
