"""From gains, format and outcome to one reward per turn.

    r_t = the turn's gain; for a search, with browse="replicate", the gain of the next visit
    r_T = the outcome, for the last turn T
    r_t = -format_penalty in place of gain or outcome, where turn t is malformed           [P eq.4]

    kinds           search  search  visit  search  visit  search  answer
    gains             .       .       a      .       b      .       .
    replicate         a       a       a      b       b      .       outcome
    segment           .       .       a      .       b      .       outcome
    replicate, visit a malformed, penalty_scope="turn":
                      a       a      -1      b       b      .       outcome

The turns from just after one visit through the next are a segment. A dot is an absent reward
(None). It is not 0: it enters no mean and no standard deviation later. With browse="replicate" a
gain is paid once more for each search that copies it, so a long segment earns it more often. With
browse="off" every turn but the last has a gain of its own.
"""

from minvenus.igpo.recipes import Recipe
from minvenus.types import PerTurn, TurnRewards


def turn_rewards(kinds: list[str], gains: PerTurn, malformed: list[bool],
                 outcome: float, recipe: Recipe) -> TurnRewards:
    """The rewards of one rollout. Each list has one entry per turn, the answer turn last.

    With use_gain=False (GRPO) only the last turn has a reward, and only it can be penalised.
    """
    if not kinds or not len(kinds) == len(gains) == len(malformed):
        raise ValueError(f"one entry per turn, at least one: kinds {len(kinds)}, "
                         f"gains {len(gains)}, malformed {len(malformed)}")
    penalty = recipe.format_penalty
    if penalty is None:                    # a malformed turn keeps its gain, the last its outcome
        penalty = 0.0
        malformed = [False] * len(kinds)
    if malformed[-1]:
        outcome = -penalty
    if not recipe.use_gain:
        return TurnRewards([None] * (len(kinds) - 1), outcome)

    # penalty_scope="segment": penalise, then copy, so searches copy the penalty. "turn": copy, then
    # penalise. Without copies the rewards are equal, and turn_returns (advantage.py) tells them
    # apart.
    rewards = list(gains[:-1])
    penalties = [False] * len(rewards)
    if recipe.penalty_scope == "segment":
        _penalise(rewards, penalties, malformed, penalty)
    if recipe.browse == "replicate":
        _copy_to_searches(rewards, penalties, kinds)
    if recipe.penalty_scope == "turn":
        _penalise(rewards, penalties, malformed, penalty)
    return TurnRewards(rewards, outcome, penalties)


def _penalise(rewards: PerTurn, penalties: list[bool], malformed: list[bool],
              penalty: float) -> None:
    for t in range(len(rewards)):
        if malformed[t]:
            rewards[t] = -penalty
            penalties[t] = True


def _copy_to_searches(rewards: PerTurn, penalties: list[bool],
                      kinds: list[str]) -> None:
    """Give every search without a reward the next reward after it, if there is one."""
    reward, penalty = None, False
    for t in reversed(range(len(rewards))):
        if rewards[t] is not None:
            reward, penalty = rewards[t], penalties[t]
        elif kinds[t] == "search":
            rewards[t], penalties[t] = reward, penalty
