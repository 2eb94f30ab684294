"""Turn-level advantages of one batch of rollouts.

    mu, sigma = mean(S), sqrt(mean((S - mu)^2) + 1e-8)         S: the group's outcomes, or its turn rewards
    z = (r - mu) / (sigma + 1e-6)                              within the group, gains and outcomes apart     [P eq.5]
    s = min(max(mean|z_O|, 0.3) / (mean|z_IG| + 1e-6), 10)     IG-Scale, over the whole batch               [P eq.6-8]
    A_t = sum_{k>=t} gamma^(k-t) r~_k                          r~ = ig_weight * s * z_IG, last turn: z_O      [P eq.9]

A group is the rollouts of one question. z_O is the z-score of an outcome, z_IG that of a turn reward, be it a gain or a
penalty. Normalise first, discount second: the other order gives different numbers. The standard deviation is the
population's; of a single value it is set to 1. An absent reward (None) is in no set and adds nothing to a sum.

This is normalize="scaled" with discount_over="turns" (the other discount: turn_returns). The other modes have s = 1:
"separate" is otherwise the same, "joint" has one set S of the group's outcomes and turn rewards, "none" has z = r.
outcome_on="every" adds z_O to the r~ of every rewarded turn (raw_ig).
center_gain=False takes mu = 0 for turn rewards. spread says what turn rewards are divided by instead of their std,
which is almost 0 where all gains of a group are equal: "rms" is sqrt(mean(r^2) + 1e-8), "one" is 1. What each choice
does to the expected gradient: docs/equations.md. All numbers are Python floats: no tensor, no gradient.
"""

import math
from dataclasses import dataclass

from minvenus.igpo.recipes import Recipe
from minvenus.types import TurnRewards

# i: rollouts of a batch; t: turns of a rollout, T_i of them; g: groups
SCALE_FLOOR, SCALE_CAP = 0.3, 10.0


@dataclass(frozen=True)
class GroupStats:
    """Means and standard deviations of a group: of turn rewards (gain_*), of outcomes; in "joint" mode of all."""

    gain_mean: float
    gain_std: float                          # or what Recipe.spread has in its place
    outcome_mean: float
    outcome_std: float


@dataclass(frozen=True)
class AdvantageRecord:
    """Advantages and every number they were made of, for reports and tests."""

    advantages: list[list[float]]            # A[i][t], T_i entries, the last turn's included
    terms: list[list[float | None]]          # r~[i][t], T_i entries: what the discounted sum adds up
    turn_z: list[list[float | None]]         # z[i][t] of the turn rewards before IG-Scale, T_i - 1 entries
    outcome_z: list[float]                   # z[i] of the outcomes
    groups: dict[int, GroupStats]
    scale: float                             # s; 1 where the mode has no IG-Scale
    m_outcome: float                         # M_O = mean |z_O| over rollouts
    m_gain: float                            # M_IG = mean |z_IG| over rewarded turns


def turn_advantages(rewards: list[TurnRewards], groups: list[int], recipe: Recipe) -> list[list[float]]:
    """The advantage of every turn of every rollout, the last turn last. `groups[i]` is the group of rollout i."""
    return advantage_record(rewards, groups, recipe).advantages


def advantage_record(rewards: list[TurnRewards], groups: list[int], recipe: Recipe) -> AdvantageRecord:
    """The same, with every intermediate number."""
    for i, r in enumerate(rewards):
        if any(v is not None and not abs(v) < 1e100 for v in [*r.turns, r.outcome]):     # squares must be finite, too
            raise ValueError(f"rollout {i}: rewards must be finite numbers below 1e100, got {r}")
    stats = {}
    for group in dict.fromkeys(groups):                  # in the order of their first rollouts
        stats[group] = group_stats([r for r, g in zip(rewards, groups, strict=True) if g == group], recipe)

    # 1. Normalise within each group.
    outcome_z, turn_z = [], []
    for r, g in zip(rewards, groups, strict=True):
        outcome_z.append(z_score(r.outcome, stats[g].outcome_mean, stats[g].outcome_std, recipe))
        gain_mean = stats[g].gain_mean if recipe.center_gain else 0.0
        turn_z.append([None if v is None else z_score(v, gain_mean, stats[g].gain_std, recipe) for v in r.turns])

    # 2. Scale the turn rewards, not the outcomes, by one number for the whole batch.
    m_outcome, m_gain, scale = ig_scale(outcome_z, turn_z)
    if recipe.normalize != "scaled":
        scale = 1.0
    factor = scale * recipe.ig_weight
    terms = []
    for row, last in zip(turn_z, outcome_z, strict=True):
        scaled = [None if z is None else factor * z for z in row]
        if recipe.outcome_on == "every":
            scaled = [None if term is None else term + last for term in scaled]
        terms.append([*scaled, last])

    # 3. Discount along each rollout.
    advantages = [turn_returns(row, r.is_penalty(), recipe) for row, r in zip(terms, rewards, strict=True)]
    return AdvantageRecord(advantages, terms, turn_z, outcome_z, stats, scale, m_outcome, m_gain)


def mean_std(values: list[float]) -> tuple[float, float]:
    """Mean and population standard deviation; (0, 1) of no value, (v, 1) of a single value v: centred, its z is 0."""
    if not values:
        return 0.0, 1.0
    mean = math.fsum(values) / len(values)
    variance = math.fsum((v - mean) * (v - mean) for v in values) / len(values)
    return mean, math.sqrt(variance + 1e-8) if len(values) > 1 else 1.0


def group_stats(rewards: list[TurnRewards], recipe: Recipe) -> GroupStats:
    """Statistics of one group: turn rewards (penalties among them) and outcomes apart, or pooled in "joint" mode."""
    gains = [v for r in rewards for v in r.turns if v is not None]
    outcomes = [r.outcome for r in rewards]
    if recipe.normalize == "joint":
        gains = outcomes = gains + outcomes
    mean, std = mean_std(gains)
    if recipe.spread == "rms" and gains:                 # of a single value, too
        std = math.sqrt(math.fsum(v * v for v in gains) / len(gains) + 1e-8)
    elif recipe.spread == "one":
        std = 1.0
    return GroupStats(mean, std, *mean_std(outcomes))


def z_score(value: float, mean: float, std: float, recipe: Recipe) -> float:
    return value if recipe.normalize == "none" else (value - mean) / (std + 1e-6)


def ig_scale(outcome_z: list[float], turn_z: list[list[float | None]]) -> tuple[float, float, float]:
    """(M_O, M_IG, s). s brings the mean size of the turn rewards' z-scores to that of the outcomes' z-scores.

    Where no group has two different outcomes M_O is 0: the floor then keeps the gains at a mean size of 0.3. The cap
    bounds s where most z_IG are 0, as in groups with a single gain.
    """
    gains = [abs(z) for row in turn_z for z in row if z is not None]
    m_outcome = math.fsum(map(abs, outcome_z)) / len(outcome_z) if outcome_z else 1.0
    m_gain = math.fsum(gains) / len(gains) if gains else 1.0
    return m_outcome, m_gain, min(max(m_outcome, SCALE_FLOOR) / (m_gain + 1e-6), SCALE_CAP)


def turn_returns(terms: list[float | None], penalties: list[bool], recipe: Recipe) -> list[float]:
    """The discounted sum of the terms from each turn on. The last term is the outcome, which is never absent.

    discount_over="turns":    an absent term adds nothing and still costs a factor gamma.
    discount_over="rewards":  only rewarded turns cost a factor gamma. A turn without a reward takes the return of the
                              next rewarded turn; it skips penalties, unless penalty_scope="segment" shares them.
    """
    gamma, result = recipe.gamma, []
    following = 0.0       # over turns: the return of the next turn; over rewards: of the next rewarded turn
    shared = 0.0          # over rewards: the return that a turn without a reward takes
    for term, penalty in zip(reversed(terms), reversed([*penalties, False]), strict=True):
        if term is None and recipe.discount_over == "rewards":
            result.append(shared)
        else:
            following = (0.0 if term is None else term) + gamma * following
            result.append(following)
            if not (penalty and recipe.penalty_scope == "turn"):
                shared = following
    return result[::-1]


def token_advantages(advantages: list[float], spans: list[tuple[int, int]], length: int) -> list[float]:
    """Copy each turn's advantage to the tokens of its span (start, end). Other tokens get 0 and are never trained."""
    tokens = [0.0] * length
    for advantage, (start, end) in zip(advantages, spans, strict=True):
        tokens[start:end] = [advantage] * (end - start)
    return tokens
