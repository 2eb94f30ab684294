"""From the measurements of a batch of rollouts to the credit of every turn, with each step kept.

    answer log-probs -> values -> gains -> rewards -> advantages      gain.py, rewards.py, advantage.py, in this order

The same measurements can be credited under another recipe, so a report can show one rollout under several. A recipe
that needs log-probs which were not measured is an error: a missing value is not 0.
"""

from dataclasses import asdict, dataclass

from minvenus.igpo.advantage import AdvantageRecord, advantage_record
from minvenus.igpo.gain import needed_values, segment_gains, value
from minvenus.igpo.recipes import Recipe
from minvenus.igpo.rewards import turn_rewards
from minvenus.types import Rollout, TurnRewards


@dataclass(frozen=True)
class Measured:
    """The measurements of one rollout, before any recipe."""

    kinds: list[str]                         # one per turn, as are the next two
    malformed: list[bool]
    logprobs: list[list[float] | None]       # of the answer's tokens before turn t; None = not measured
    outcome: float
    group: int

    def __post_init__(self):
        if not len(self.kinds) == len(self.malformed) == len(self.logprobs):
            raise ValueError(f"one entry per turn: kinds {len(self.kinds)}, malformed {len(self.malformed)}, "
                             f"log-probs {len(self.logprobs)}")

    @classmethod
    def of(cls, rollout: Rollout, logprobs: list[list[float] | None], outcome: float, group: int) -> "Measured":
        turns = rollout.turns
        return cls([turn.kind for turn in turns], [turn.malformed for turn in turns], logprobs, outcome, group)


@dataclass(frozen=True)
class Credit:
    """Everything between the measurements and the loss, one entry per rollout."""

    values: list[list[float | None]]         # before every turn; None where the recipe needs none
    gains: list[list[float | None]]
    rewards: list[TurnRewards]
    record: AdvantageRecord

    def arithmetic(self, i: int, group: int) -> dict:
        """All numbers of rollout i, ready for JSON."""
        r = self.record
        return {"values": self.values[i], "gains": self.gains[i], "turn_rewards": self.rewards[i].turns,
                "penalties": self.rewards[i].is_penalty(), "outcome": self.rewards[i].outcome,
                "turn_z": r.turn_z[i], "outcome_z": r.outcome_z[i], "terms": r.terms[i],
                "advantages": r.advantages[i], "group_stats": asdict(r.groups[group]), "scale": r.scale,
                "m_outcome": r.m_outcome, "m_gain": r.m_gain}


def credit(batch: list[Measured], recipe: Recipe) -> Credit:
    """The whole way for all rollouts of a step: groups are compared within themselves, IG-Scale is over the batch."""
    values: list[list[float | None]] = []
    gains, rewards = [], []
    for i, m in enumerate(batch):
        values.append([None] * len(m.kinds))
        for t in needed_values(m.kinds, recipe):
            try:
                values[i][t] = value(m.logprobs[t] or [], recipe.gain)
            except ValueError as error:
                raise ValueError(f"rollout {i}, context before turn {t}: {error}") from None
        gains.append(segment_gains(values[i], m.kinds, recipe))
        rewards.append(turn_rewards(m.kinds, gains[i], m.malformed, m.outcome, recipe))
    record = advantage_record(rewards, [m.group for m in batch], recipe)
    return Credit(values, gains, rewards, record)
