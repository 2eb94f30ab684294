"""The rollout engine: a paged cache, continuous batching, sampling and scoring."""

from minvenus.engine.counters import Counters
from minvenus.engine.engine import Engine
from minvenus.engine.sampler import Completion, Sampling
from minvenus.engine.scheduler import Sequence

__all__ = ["Completion", "Counters", "Engine", "Sampling", "Sequence"]
