"""Turn-level advantages of one batch of rollouts.

    mu, sigma = mean(S), sqrt(mean((S - mu)^2) + 1e-8)     over the group's outcomes, and over its turn rewards
    z = (r - mu) / (sigma + 1e-6)                          within the group, gains and outcomes apart         [P eq.5]
    s = min(max(mean|z_O|, 0.3) / (mean|z_IG| + 1e-6), 10)     over the whole batch, IG-Scale                 [P eq.6-8]
    A_t = sum_{k>=t} gamma^(k-t) r~_k                      r~ = z_O on the last turn, weight * s * z_IG before    [P eq.9]

Normalise first, discount second: the other order gives different numbers. The std is the population's; a set of one has
sigma 1 and so z = 0; an absent reward is in no set and adds nothing to a sum. Everything in between is kept in a record,
so that any advantage can be taken apart again. Plain Python floats: no tensor, no gradient.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from minvenus.config import Recipe
from minvenus.types import TurnRewards

# rollouts i of a batch, turns t of a rollout (ragged); a list over turns that ends with the outcome has T_i entries
SCALE_FLOOR, SCALE_CAP = 0.3, 10.0


@dataclass(frozen=True)
class GroupStats:
    """What the rewards of one group were normalised with. In `joint` mode both halves hold the pooled figures."""

    gain_mean: float
    gain_std: float
    outcome_mean: float
    outcome_std: float
    gain_count: int
    outcome_count: int


@dataclass(frozen=True)
class AdvantageRecord:
    """Advantages with all that they were made of."""

    advantages: list[list[float]]            # A, one per turn, the last turn's included
    terms: list[list[float | None]]          # r~, what the return sums, aligned with `advantages`
    turn_z: list[list[float | None]]         # z of the turn rewards before IG-Scale, the last turn left out
    outcome_z: list[float]                   # z of the outcomes
    groups: dict[int, GroupStats]
    scale: float                             # s; 1 where the mode has no IG-Scale
    m_outcome: float                         # M_O = mean |z_O| over rollouts
    m_gain: float                            # M_IG = mean |z_IG| over rewarded turns
    health: dict[str, float]                 # the figures that tell whether the batch teaches anything


def turn_advantages(rewards: list[TurnRewards], groups: list[int], recipe: Recipe) -> list[list[float]]:
    """The advantage of every turn of every rollout, the last turn last. `groups[i]` says which question rollout i belongs to."""
    return advantage_record(rewards, groups, recipe).advantages


def advantage_record(rewards: list[TurnRewards], groups: list[int], recipe: Recipe) -> AdvantageRecord:
    """The same, with every intermediate quantity."""
    _check(rewards, groups)
    stats = {g: group_stats([rewards[i] for i in rows], recipe) for g, rows in _members(groups).items()}
    outcome_z, turn_z = [], []
    for r, g in zip(rewards, groups, strict=True):
        outcome_z.append(z_score(r.outcome, stats[g].outcome_mean, stats[g].outcome_std, recipe))
        gain_mean = stats[g].gain_mean if recipe.center_gain else 0.0
        turn_z.append([None if v is None else z_score(v, gain_mean, stats[g].gain_std, recipe) for v in r.turns])
    m_outcome, m_gain, scale = ig_scale(outcome_z, turn_z)
    if recipe.normalize != "scaled":
        scale = 1.0
    factor = scale * recipe.ig_weight
    terms = [[*(None if z is None else factor * z for z in row), last] for row, last in zip(turn_z, outcome_z, strict=True)]
    advantages = [turn_returns(row, r.is_penalty(), recipe) for row, r in zip(terms, rewards, strict=True)]
    return AdvantageRecord(advantages, terms, turn_z, outcome_z, stats, scale, m_outcome, m_gain,
                           health(rewards, groups, advantages))


def _members(groups: list[int]) -> dict[int, list[int]]:
    """The rollouts of each group, groups in the order in which they come."""
    members: dict[int, list[int]] = {}
    for i, g in enumerate(groups):
        members.setdefault(g, []).append(i)
    return members


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and population std; (0, 1) of nothing and (v, 1) of a single value, whose z is therefore 0."""
    if not values:
        return 0.0, 1.0
    mean = math.fsum(values) / len(values)
    variance = math.fsum((v - mean) * (v - mean) for v in values) / len(values)
    return mean, math.sqrt(variance + 1e-8) if len(values) > 1 else 1.0


def group_stats(rewards: list[TurnRewards], recipe: Recipe) -> GroupStats:
    """Statistics of one group: turn rewards (penalties among them) and outcomes apart, or pooled in `joint` mode."""
    gains = [v for r in rewards for v in r.turns if v is not None]
    outcomes = [r.outcome for r in rewards]
    counts = len(gains), len(outcomes)
    if recipe.normalize == "joint":
        pooled = mean_std(gains + outcomes)
        return GroupStats(*pooled, *pooled, *counts)
    return GroupStats(*mean_std(gains), *mean_std(outcomes), *counts)


def z_score(value: float, mean: float, std: float, recipe: Recipe) -> float:
    return value if recipe.normalize == "none" else (value - mean) / (std + 1e-6)


def ig_scale(outcome_z: list[float], turn_z: list[list[float | None]]) -> tuple[float, float, float]:
    """(M_O, M_IG, s): makes gains as loud as outcomes over the whole batch, and quiet where outcomes say nothing."""
    gains = [abs(z) for row in turn_z for z in row if z is not None]
    m_outcome = math.fsum(map(abs, outcome_z)) / len(outcome_z) if outcome_z else 1.0
    m_gain = math.fsum(gains) / len(gains) if gains else 1.0
    return m_outcome, m_gain, min(max(m_outcome, SCALE_FLOOR) / (m_gain + 1e-6), SCALE_CAP)


def turn_returns(terms: list[float | None], penalties: list[bool], recipe: Recipe) -> list[float]:
    """Discounted sum of the terms from each turn on; the last term is the outcome and always there.

    over turns:    an absent term adds nothing and still costs a factor gamma.
    over rewards:  only rewarded turns count; a turn without a reward takes the return of the next rewarded one, and passes
                   over penalties unless penalty_scope="segment" shares them too.
    """
    gamma, result = recipe.gamma, []
    following = 0.0       # return of the turn behind this one (over turns), or of the next rewarded turn (over rewards)
    shared = 0.0          # what a turn without a reward takes (over rewards)
    for term, penalty in zip(reversed(terms), reversed([*penalties, False]), strict=True):
        if recipe.discount_over == "turns":
            following = (0.0 if term is None else term) + gamma * following
            result.append(following)
        elif term is None:
            result.append(shared)
        else:
            following = term + gamma * following
            result.append(following)
            if not (penalty and recipe.penalty_scope == "turn"):
                shared = following
    return result[::-1]


def health(rewards: list[TurnRewards], groups: list[int], advantages: list[list[float]]) -> dict[str, float]:
    """Shares that say whether this batch can teach anything: GRPO learns nothing from a group whose outcomes are equal."""
    members = _members(groups).values()
    penalties = [p for r in rewards for p in r.is_penalty()]
    gains = [v is not None and not p for r in rewards for v, p in zip(r.turns, r.is_penalty(), strict=True)]
    return {
        "groups_without_outcome_signal": _share([len({rewards[i].outcome for i in rows}) == 1 for rows in members]),
        "groups_without_any_signal": _share([all(abs(a) < 1e-9 for i in rows for a in advantages[i]) for rows in members]),
        "turns_with_gain": _share(gains),
        "turns_penalised": _share(penalties),
    }


def _share(flags: list[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


def _check(rewards: list[TurnRewards], groups: list[int]) -> None:
    if len(rewards) != len(groups):
        raise ValueError(f"one group id per rollout: {len(rewards)} rollouts, {len(groups)} ids")
    for i, r in enumerate(rewards):
        for t, v in enumerate([*r.turns, r.outcome]):
            if v is not None and not abs(v) < 1e100:         # its square must still be finite
                where = "outcome" if t == len(r.turns) else f"turn {t}"
                raise ValueError(f"rollout {i}, {where}: a reward must be a finite number below 1e100, got {v}")


def token_advantages(advantages: list[float], spans: list[tuple[int, int]], length: int) -> list[float]:
    """Copy each turn's advantage to the tokens of its span (start, end). Tokens of no turn hold 0: the loss masks them."""
    if len(advantages) != len(spans):
        raise ValueError(f"one advantage per turn: {len(advantages)} advantages, {len(spans)} turns")
    if any(not 0 <= start <= end <= length for start, end in spans):
        raise ValueError(f"turns must lie within the {length} tokens, got {spans}")
    tokens = [0.0] * length
    for advantage, (start, end) in zip(advantages, spans, strict=True):
        tokens[start:end] = [advantage] * (end - start)
    return tokens
