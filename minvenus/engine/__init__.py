"""The rollout engine: a paged cache, continuous batching, sampling and scoring."""

from minvenus.engine.engine import Engine
from minvenus.engine.sampler import Completion, Sampling
from minvenus.engine.scheduler import Counters, Sequence

__all__ = ["Completion", "Counters", "Engine", "Sampling", "Sequence"]
