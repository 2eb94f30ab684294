r"""Information gain: how much a turn raised the model's own belief in the truth.

    V_t  = 1/L sum_j log pi(g_j | h_t, wrapper, g_<j)    belief after turn t               [P eq.2]
    V_t  = exp of that                                   gain="prob"                       [I v1]
    IG_t = V_t - V_{t-1}                                 browse="off": all but the last    [P eq.3]
    IG_t = V_t - V_b                                     else only visits t; b is the visit
                                                         before t, or 0 where there is none

The code counts turns from 0, so V_t is beliefs[t], the belief *before* turn t: turn t moved it from
beliefs[t] to beliefs[t + 1].

    g      the truth, L tokens: the first accepted answer to the question
    h_t    the context after turn t and its observation; h_0 is the prompt alone
    pi     the policy before this step's update, at the sampling temperature
           (--gain-policy reference: the start checkpoint)

[P] is the DR-Venus paper, [I v1] the first version of the IGPO paper; docs/equations.md lists all
equations. This is the text that is scored, as the model sees it, with the default lead_in:

    ... <|im_start|>assistant\n<think>\n           the end of h_t: a turn is to be written
    Now there's enough information to answer\n     the wrapper: a thought (lead_in),
    </think>\n\n<answer>\n                         its end, and an opened answer
    Paris                                          g: only these tokens are scored

A belief is no value function: nothing is learned for it, and it does not predict a return. A
gain is a number: no gradient flows through it. The last turn never has one.

No model is used here: this file lists the places where the truth is to be scored, and its log-probs
there are arguments.
"""

import math
from dataclasses import dataclass

from minvenus.igpo.recipes import Recipe
from minvenus.types import PerTurn, Rollout


def belief(logprobs: list[float], gain: str) -> float:
    """V from the log-probs of the truth's tokens: their mean, so that length does not matter."""
    if not logprobs:
        raise ValueError("no token of the truth was scored: its log-probs were not measured")
    mean = math.fsum(logprobs) / len(logprobs)
    if not math.isfinite(mean):
        raise ValueError(f"the truth's mean log-prob is {mean}: it must be finite")
    return mean if gain == "log_prob" else math.exp(mean)


def scored_turns(kinds: list[str], recipe: Recipe) -> list[int]:
    """The indices into `beliefs` that the gains of a rollout need.

    These are 0 and, for each turn t with a gain, t + 1. A rollout without any gain needs none.
    """
    if not recipe.use_gain:
        return []
    after = []
    for t, kind in enumerate(kinds[:-1]):
        if kind == "visit" or recipe.browse == "off":
            after.append(t + 1)
    return [0, *after] if after else []


def segment_gains(beliefs: PerTurn, kinds: list[str],
                  recipe: Recipe) -> PerTurn:
    """The gain of every turn, None where it has none.

    It is the rise of the belief since the previous turn with a gain, for the first one since the
    prompt. So a visit's gain covers the whole segment that it ends.
    """
    if len(beliefs) != len(kinds):
        raise ValueError(f"one belief before each turn: {len(beliefs)} for {len(kinds)} turns")
    gains: PerTurn = [None] * len(kinds)
    before = 0
    for after in scored_turns(kinds, recipe)[1:]:
        old, new = beliefs[before], beliefs[after]
        if old is None or new is None:
            raise ValueError(f"the gain of turn {after - 1} needs the beliefs before turns "
                             f"{before} and {after}; got {old} and {new}")
        gains[after - 1] = new - old
        before = after
    return gains


# --------------------------------------------------------------------- where the truth is scored


@dataclass(frozen=True)
class WrappedTruth:
    """The wrapper and the truth as tokens: `ids[:start]` are read, `ids[start:]` are scored."""

    ids: list[int]
    start: int


def wrap_truth(truth: str, tokenizer, recipe: Recipe) -> WrappedTruth:
    """Render the truth as an answer turn, and find the tokens that hold it.

    The text after `</think>` is encoded in one call, closing tag included, because a token may
    hold the end of the truth and the newline after it (`.` + newline). That token is what the
    model would write, so it is scored; tokens after it are cut off. The truth is encoded as
    untrusted text: if it spells a special token, that stays text.
    """
    truth = truth.strip()
    if not truth:
        raise ValueError("the truth is blank: there is nothing to score")
    thought = [*tokenizer.encode_untrusted(recipe.lead_in + "\n"), tokenizer.think_end]

    opening = "\n" * recipe.newlines_after_think + "<answer>\n"
    answer = tokenizer.untrusted_offsets(opening + truth + "\n</answer>")
    ids = list(thought)
    start = len(thought)
    for token, first, end in answer:                 # the characters first:end of the text
        if end <= len(opening):
            start += 1
        if first < len(opening) + len(truth):
            ids.append(token)
    return WrappedTruth(ids, start)


def scored_lengths(rollout: Rollout, recipe: Recipe) -> list[int]:
    """For each of `scored_turns`, how many tokens of the rollout stand before the wrapper."""
    return [rollout.turns[t].start for t in scored_turns(rollout.kinds, recipe)]


def truth_logprobs(rollout: Rollout, wrapped: WrappedTruth, scores: list[list[float]],
                   recipe: Recipe) -> list[list[float] | None]:
    """The log-probs of the truth's tokens before each turn, None where they are not needed.

    `scores` has the log-probs of all tokens of `wrapped`, one list for each of `scored_lengths`.
    """
    logprobs: list[list[float] | None] = [None] * len(rollout.turns)
    for t, row in zip(scored_turns(rollout.kinds, recipe), scores, strict=True):
        if len(row) != len(wrapped.ids):
            raise ValueError(f"context before turn {t}: {len(row)} log-probs for "
                             f"{len(wrapped.ids)} tokens")
        logprobs[t] = row[wrapped.start:]
    return logprobs
