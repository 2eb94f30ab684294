"""From the measurements of a batch of rollouts to the credit of every turn, with each step kept.

    answer log-probs -> values -> gains -> rewards -> advantages      gain.py, rewards.py, advantage.py, in this order

The same measurements can be credited under another recipe: so a page shows one rollout under several recipes. A recipe
that needs log-probs which were not measured is an error: a missing value is not 0.
"""

from dataclasses import asdict, dataclass

from minvenus.config import Recipe
from minvenus.igpo.advantage import AdvantageRecord, advantage_record
from minvenus.igpo.gain import needed_values, segment_gains, value
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

    @classmethod
    def of(cls, rollout: Rollout, logprobs: list[list[float] | None], outcome: float, group: int) -> "Measured":
        kinds: list[str] = [turn.kind for turn in rollout.turns]
        malformed = [turn.malformed for turn in rollout.turns]
        return cls(kinds, malformed, logprobs, outcome, group)


@dataclass(frozen=True)
class Credit:
    """Everything between the measurements and the loss, one entry per rollout."""

    values: list[list[float | None]]
    gains: list[list[float | None]]
    rewards: list[TurnRewards]
    record: AdvantageRecord
    health: dict[str, float]                 # see `batch_health`

    def arithmetic(self, i: int, group: int) -> dict:
        """All numbers of rollout i, ready for JSON."""
        r = self.record
        return {"values": self.values[i], "gains": self.gains[i], "turn_rewards": self.rewards[i].turns,
                "penalties": self.rewards[i].is_penalty(), "outcome": self.rewards[i].outcome,
                "turn_z": r.turn_z[i], "outcome_z": r.outcome_z[i], "terms": r.terms[i],
                "advantages": r.advantages[i], "group_stats": asdict(r.groups[group]), "scale": r.scale,
                "m_outcome": r.m_outcome, "m_gain": r.m_gain}


def credit(batch: list[Measured], recipe: Recipe) -> Credit:
    values, gains, rewards = [], [], []
    for i, m in enumerate(batch):
        values.append(measured_values(m, recipe, f"rollout {i}"))
        gains.append(segment_gains(values[-1], m.kinds, recipe))
        rewards.append(turn_rewards(m.kinds, gains[-1], m.malformed, m.outcome, recipe))
    groups = [m.group for m in batch]
    record = advantage_record(rewards, groups, recipe)
    return Credit(values, gains, rewards, record, batch_health(rewards, groups, record.advantages))


def measured_values(m: Measured, recipe: Recipe, name: str) -> list[float | None]:
    """The values that the recipe's gains need, None elsewhere. `name` is for the error message."""
    if len(m.logprobs) != len(m.kinds):
        raise ValueError(f"{name}: {len(m.logprobs)} entries of log-probs for {len(m.kinds)} turns")
    values: list[float | None] = [None] * len(m.kinds)
    for t in needed_values(m.kinds, recipe):
        logprobs = m.logprobs[t]
        if logprobs is None:
            raise ValueError(f"{name}, context before turn {t}: this recipe needs the answer's log-probs there, and "
                             f"they were not measured (browse {recipe.browse!r}); use a recipe that needs the same")
        try:
            values[t] = value(logprobs, recipe.gain)
        except ValueError as error:
            raise ValueError(f"{name}, context before turn {t}: {error}") from None
    return values


def batch_health(rewards: list[TurnRewards], groups: list[int], advantages: list[list[float]]) -> dict[str, float]:
    """Shares of groups and turns that tell whether a batch can teach anything. From a group with equal outcomes GRPO
    learns nothing. Turn shares are over all turns but the last, the only ones that can have a gain."""
    equal_outcomes, no_advantage = [], []
    for group in dict.fromkeys(groups):
        rows = [i for i, g in enumerate(groups) if g == group]
        equal_outcomes.append(len({rewards[i].outcome for i in rows}) == 1)
        no_advantage.append(all(abs(a) < 1e-9 for i in rows for a in advantages[i]))
    penalties = [penalty for r in rewards for penalty in r.is_penalty()]
    rewarded = [v is not None for r in rewards for v in r.turns]
    gains = [has and not penalty for has, penalty in zip(rewarded, penalties, strict=True)]
    return {"groups_without_outcome_signal": share(equal_outcomes), "groups_without_any_signal": share(no_advantage),
            "turns_with_gain": share(gains), "turns_penalised": share(penalties)}


def share(flags: list[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0
