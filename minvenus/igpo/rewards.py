"""From gains, format and outcome to one reward per turn.

    r_t = the turn's gain; for a search, with browse="replicate", the gain of the next visit; absent otherwise
    r_T = the outcome, for the last turn T
    r_t = -format_penalty in place of gain or outcome, where turn t is malformed                               [P eq.4]
          format_penalty=None: such a turn keeps its own reward

    kinds           search  search  visit  search  visit  search  answer
    gains             .       .       a      .       b      .       .
    replicate         a       a       a      b       b      .       outcome
    segment           .       .       a      .       b      .       outcome

The turns from just after one visit through the next are a segment. A dot is an absent reward (None). It is not 0: it
enters no mean and no standard deviation later. With browse="off" every turn but the last has a gain of its own.
"""

from minvenus.igpo.recipes import Recipe
from minvenus.types import TurnRewards


def turn_rewards(kinds: list[str], gains: list[float | None], malformed: list[bool], outcome: float,
                 recipe: Recipe) -> TurnRewards:
    """The rewards of one rollout. `kinds`, `gains` and `malformed` have one entry per turn, the answer turn last.

    With `use_gain=False` (GRPO) only the last turn has a reward, and other turns have no penalty either. A malformed
    last turn costs the same as in IGPO, so that the two are compared on the same outcomes.
    """
    if not kinds or not len(kinds) == len(gains) == len(malformed):
        raise ValueError(f"one entry per turn, at least one: kinds {len(kinds)}, gains {len(gains)}, "
                         f"malformed {len(malformed)}")
    penalty = recipe.format_penalty
    if penalty is None:                                  # a malformed turn keeps its gain, the last one its outcome
        penalty, malformed = 0.0, [False] * len(kinds)
    outcome = -penalty if malformed[-1] else outcome
    if not recipe.use_gain:
        return TurnRewards([None] * (len(kinds) - 1), outcome)

    rewards = list(gains[:-1])
    penalties = [False] * len(rewards)
    # With copies, penalty_scope is the order of two steps: a penalty that is set first counts as the reward of its
    # segment and is copied to the searches before it; one that is set last stays on its own turn. Without copies both
    # scopes give the same rewards, and turn_returns (advantage.py) may share the return of a penalty.
    if recipe.penalty_scope == "segment":
        _penalise(rewards, penalties, malformed, penalty)
    if recipe.browse == "replicate":
        _copy_to_searches(rewards, penalties, kinds)
    if recipe.penalty_scope == "turn":
        _penalise(rewards, penalties, malformed, penalty)
    return TurnRewards(rewards, outcome, penalties)


def _penalise(rewards: list[float | None], penalties: list[bool], malformed: list[bool], penalty: float) -> None:
    for t in range(len(rewards)):
        if malformed[t]:
            rewards[t], penalties[t] = -penalty, True


def _copy_to_searches(rewards: list[float | None], penalties: list[bool], kinds: list[str]) -> None:
    """Give every search without a reward the next reward after it. Searches after the last reward stay without."""
    reward, penalty = None, False
    for t in reversed(range(len(rewards))):
        if rewards[t] is not None:
            reward, penalty = rewards[t], penalties[t]
        elif kinds[t] == "search":
            rewards[t], penalties[t] = reward, penalty
