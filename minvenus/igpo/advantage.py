"""Turn-level advantages of one batch of rollouts.

    mu, sigma = mean(S), sqrt(mean((S - mu)^2) + 1e-8)        S: a group's outcomes, or turn rewards
    z   = (r - mu) / (sigma + 1e-6)                           z_O of outcomes, z_IG of turn rewards
                                                              within the group             [P eq.5]
    s   = min(max(mean|z_O|, 0.3) / (mean|z_IG| + 1e-6), 10)  IG-Scale, over the batch   [P eq.6-8]
    r~  = ig_weight * s * z_IG, for the last turn z_O
    A_t = sum_{k>=t} gamma^(k-t) r~_k                         per turn                     [P eq.9]

A group is the rollouts of one question. Its turn rewards are gains, their copies on searches and
penalties, all in one set: a penalty moves mean and spread of the gains. The mean is over turns, so
a long rollout weighs more in it than a short one. The standard deviation is the population's; of a
single value it is set to 1. An absent reward (None) is in no set and adds nothing to a sum.
Normalise first, discount second: the other order gives different numbers.

This is the recipe `paper`. The other choices:

    normalize="separate"      s = 1
    normalize="joint"         s = 1, and S is the group's outcomes and turn rewards together
    normalize="none"          s = 1 and z = r
    center_gain=False         mu = 0 for turn rewards
    spread="rms"              sigma = sqrt(mean(r^2) + 1e-8) for turn rewards: the std of equal
                              gains is almost 0, their root mean square is not
    spread="one"              sigma = 1 for turn rewards
    outcome_on="every"        z_O is added to the r~ of every rewarded turn
    discount_over="rewards"   see turn_returns

What each does to the expected gradient is in docs/equations.md. All numbers are Python floats: no
tensor, no gradient.
"""

import math
from dataclasses import dataclass

from minvenus.igpo.recipes import Recipe
from minvenus.types import PerTurn, TurnRewards

# i: rollouts of a batch; t: turns of a rollout, T_i of them
SCALE_FLOOR = 0.3
SCALE_CAP = 10.0


@dataclass(frozen=True)
class GroupStats:
    """What the rewards of a group are compared with. In "joint" mode both means are of all."""

    turn_reward_mean: float                  # of gains, copies and penalties
    turn_reward_spread: float                # their std, or what Recipe.spread has in its place
    outcome_mean: float
    outcome_std: float


@dataclass(frozen=True)
class AdvantageRecord:
    """Advantages and all intermediate numbers, for reports and tests."""

    advantages: list[list[float]]            # A[i][t], T_i entries, the last turn's included
    terms: list[PerTurn]                     # r~[i][t], T_i entries: what the sum adds up
    turn_z: list[PerTurn]                    # z_IG[i][t], T_i - 1 entries
    outcome_z: list[float]                   # z_O[i]
    groups: dict[int, GroupStats]
    scale: float                             # s
    outcome_size: float                      # mean |z_O| over rollouts
    turn_reward_size: float                  # mean |z_IG| over rewarded turns


def turn_advantages(rewards: list[TurnRewards], groups: list[int],
                    recipe: Recipe) -> list[list[float]]:
    """The advantage of every turn of every rollout; `groups[i]` is the group of rollout i."""
    return advantage_record(rewards, groups, recipe).advantages


def advantage_record(rewards: list[TurnRewards], groups: list[int],
                     recipe: Recipe) -> AdvantageRecord:
    """The same, with every number on the way."""
    for i, r in enumerate(rewards):
        for value in [*r.turns, r.outcome]:
            if value is not None and not abs(value) < 1e100:      # its square must be finite
                raise ValueError(f"rollout {i}: rewards must be finite, below 1e100, got {r}")

    stats = {}
    for name in dict.fromkeys(groups):
        members = [r for r, group in zip(rewards, groups, strict=True) if group == name]
        stats[name] = group_stats(members, recipe)

    # 1. Normalise within each group.
    outcome_z = []
    turn_z = []
    for r, name in zip(rewards, groups, strict=True):
        group = stats[name]
        outcome_z.append(z_score(r.outcome, group.outcome_mean, group.outcome_std, recipe))
        mean = group.turn_reward_mean if recipe.center_gain else 0.0
        spread = group.turn_reward_spread
        turn_z.append([None if value is None else z_score(value, mean, spread, recipe)
                       for value in r.turns])

    # 2. Scale the turn rewards, not the outcomes, by one number for the whole batch.
    outcome_size, turn_reward_size, scale = ig_scale(outcome_z, turn_z)
    if recipe.normalize != "scaled":
        scale = 1.0
    terms = [turn_terms(row, z, scale * recipe.ig_weight, recipe)
             for row, z in zip(turn_z, outcome_z, strict=True)]

    # 3. Discount along each rollout.
    advantages = [turn_returns(row, r.is_penalty(), recipe)
                  for row, r in zip(terms, rewards, strict=True)]
    return AdvantageRecord(advantages, terms, turn_z, outcome_z, stats, scale, outcome_size,
                           turn_reward_size)


# ---------------------------------------------------------------------------------- 1. normalise


def mean_std(values: list[float]) -> tuple[float, float]:
    """Mean and population standard deviation.

    (0, 1) of no value, (v, 1) of a single value v, whose centred z is 0.
    """
    if not values:
        return 0.0, 1.0
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, 1.0
    variance = math.fsum((v - mean) * (v - mean) for v in values) / len(values)
    return mean, math.sqrt(variance + 1e-8)


def group_stats(rewards: list[TurnRewards], recipe: Recipe) -> GroupStats:
    """The statistics of one group's rewards."""
    outcomes = [r.outcome for r in rewards]
    turns = []
    for r in rewards:
        turns += [value for value in r.turns if value is not None]
    if recipe.normalize == "joint":
        turns = outcomes = turns + outcomes

    mean, spread = mean_std(turns)
    if recipe.spread == "rms" and turns:                     # of a single value, too
        spread = math.sqrt(math.fsum(v * v for v in turns) / len(turns) + 1e-8)
    if recipe.spread == "one":
        spread = 1.0
    return GroupStats(mean, spread, *mean_std(outcomes))


def z_score(value: float, mean: float, spread: float, recipe: Recipe) -> float:
    if recipe.normalize == "none":
        return value
    return (value - mean) / (spread + 1e-6)


# -------------------------------------------------------------------------------------- 2. scale


def ig_scale(outcome_z: list[float], turn_z: list[PerTurn]) -> tuple[float, float, float]:
    """(mean |z_O|, mean |z_IG|, s): s scales mean |z_IG| to mean |z_O|.

    Where no group has two different outcomes mean |z_O| is 0: the floor then keeps the turn
    rewards at a mean size of 0.3. The cap bounds s where most z_IG are 0, as in groups with a
    single gain.
    """
    turns = []
    for row in turn_z:
        turns += [abs(z) for z in row if z is not None]
    outcome_size = math.fsum(map(abs, outcome_z)) / len(outcome_z) if outcome_z else 1.0
    turn_size = math.fsum(turns) / len(turns) if turns else 1.0
    scale = max(outcome_size, SCALE_FLOOR) / (turn_size + 1e-6)
    return outcome_size, turn_size, min(scale, SCALE_CAP)


def turn_terms(turn_z: PerTurn, outcome_z: float, factor: float, recipe: Recipe) -> PerTurn:
    """r~ of every turn of a rollout, the last turn's included; None where there is no reward."""
    terms: PerTurn = []
    for z in turn_z:
        term = None if z is None else factor * z
        if term is not None and recipe.outcome_on == "every":
            term += outcome_z
        terms.append(term)
    return [*terms, outcome_z]


# ----------------------------------------------------------------------------------- 3. discount


def turn_returns(terms: PerTurn, penalties: list[bool], recipe: Recipe) -> list[float]:
    """The discounted sum of the terms from each turn on. The last term is never absent.

    discount_over="turns":    an absent term adds nothing; later terms are discounted all the same.
    discount_over="rewards":  only rewarded turns cost a factor gamma. A turn without a reward
                              takes the return of the next rewarded turn; it skips penalties
                              of turns before the last, unless penalty_scope="segment" shares
                              them. Example: terms v . o give v + gamma o, o, o.
    """
    following = 0.0       # the return of the next turn; over rewards, of the next rewarded turn
    shared = 0.0          # over rewards, the return that a turn without a reward takes
    returns = []
    for term, penalty in zip(reversed(terms), reversed([*penalties, False]), strict=True):
        if term is None and recipe.discount_over == "rewards":
            returns.append(shared)
            continue
        following = (0.0 if term is None else term) + recipe.gamma * following
        returns.append(following)
        if not (penalty and recipe.penalty_scope == "turn"):
            shared = following
    return returns[::-1]


def token_advantages(advantages: list[float], spans: list[tuple[int, int]],
                     length: int) -> list[float]:
    """Each turn's advantage on the tokens of its span (start, end); 0 elsewhere, never trained."""
    tokens = [0.0] * length
    for advantage, (start, end) in zip(advantages, spans, strict=True):
        tokens[start:end] = [advantage] * (end - start)
    return tokens
