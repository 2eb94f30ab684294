"""From the samples of a step to the credit of every turn, with each number on the way.

    log-probs of the truth -> beliefs -> gains -> rewards -> advantages
                              gain.py    gain.py  rewards.py  advantage.py

The same samples can be credited under another recipe, so a report can show a rollout under several.
A recipe that needs log-probs which were not measured is an error: a missing belief is not 0.
"""

from dataclasses import dataclass

from minvenus.igpo.advantage import AdvantageRecord, GroupStats, advantage_record
from minvenus.igpo.gain import belief, scored_turns, segment_gains
from minvenus.igpo.recipes import Recipe
from minvenus.igpo.rewards import turn_rewards
from minvenus.types import PerTurn, Sample, TurnRewards


@dataclass(frozen=True)
class RolloutCredit:
    """All numbers of one rollout, for pages and files."""

    beliefs: PerTurn                         # before every turn; None where the recipe needs none
    gains: PerTurn
    turn_rewards: PerTurn
    penalties: list[bool]
    outcome: float
    turn_z: PerTurn
    outcome_z: float
    terms: PerTurn
    advantages: list[float]
    group_stats: GroupStats
    scale: float
    outcome_size: float
    turn_reward_size: float


@dataclass(frozen=True)
class Credit:
    """Everything between the measurements and the loss, one entry per rollout."""

    beliefs: list[PerTurn]
    gains: list[PerTurn]
    rewards: list[TurnRewards]
    record: AdvantageRecord

    @property
    def advantages(self) -> list[list[float]]:
        """A[i][t] of turn t of rollout i."""
        return self.record.advantages

    def of_rollout(self, i: int, group: int) -> RolloutCredit:
        rewards, record = self.rewards[i], self.record
        return RolloutCredit(
            beliefs=self.beliefs[i],
            gains=self.gains[i],
            turn_rewards=rewards.turns,
            penalties=rewards.is_penalty(),
            outcome=rewards.outcome,
            turn_z=record.turn_z[i],
            outcome_z=record.outcome_z[i],
            terms=record.terms[i],
            advantages=record.advantages[i],
            group_stats=record.groups[group],
            scale=record.scale,
            outcome_size=record.outcome_size,
            turn_reward_size=record.turn_reward_size,
        )


def assign_credit(samples: list[Sample], recipe: Recipe) -> Credit:
    """The credit of all rollouts of a step.

    Groups are compared within themselves, IG-Scale is over the batch: give the whole step.
    """
    beliefs: list[PerTurn] = []
    gains = []
    rewards = []
    for i, sample in enumerate(samples):
        if sample.outcome is None:
            raise ValueError(f"rollout {i} has no outcome: grade it, or drop it")
        kinds = sample.rollout.kinds
        beliefs.append([None] * len(kinds))
        for t in scored_turns(kinds, recipe):
            try:
                beliefs[i][t] = belief(sample.truth_logprobs[t] or [], recipe.gain)
            except ValueError as error:
                raise ValueError(f"rollout {i}, context before turn {t}: {error}") from None
        gains.append(segment_gains(beliefs[i], kinds, recipe))
        rewards.append(turn_rewards(kinds, gains[i], sample.rollout.malformed, sample.outcome,
                                    recipe))

    record = advantage_record(rewards, [sample.group for sample in samples], recipe)
    return Credit(beliefs, gains, rewards, record)
