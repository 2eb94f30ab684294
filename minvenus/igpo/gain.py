"""Information gain: how much a turn raised the model's own probability of the true answer.

    V_t = (1/L) sum_j log pi(g_j | h_t, wrapper, g_<j)      mean log-prob of the L tokens of the truth g        [P eq.2]
    V_t = exp of that                                       gain="prob"                                         [I v1]
    IG_t = V_t - V_{t-1}                                    browse="off": every turn but the last               [P eq.3]
    IG_{b_k} = V_{b_k} - V_{b_{k-1}},  b_0 = 0              browse="replicate", "segment": visits b_1 < b_2 < ... only

[P] is the DR-Venus paper, [I v1] the first version of the IGPO paper; docs/equations.md lists every equation. gain and
browse are fields of config.Recipe, as are all settings that the files of igpo/ write as name="value".

h_t is the context after turn t and its observation, up to where the next turn begins; h_0 is the prompt alone. The
truth g is the question's first accepted answer. Between h_t and g comes a wrapper, a thought (lead_in), </think> and
an opened <answer>: so g is scored where the model would write it if it answered now. The last turn never has a gain. pi
is the policy before this step's update, at the sampling temperature (--gain-policy reference: the start checkpoint). A
gain is a number: no gradient flows through it.

Indices are 0-based in the code: `values[t]` is the value of the context *before* turn t, so turn t raised it from
values[t] to values[t + 1]. No model is used here: this file says where the truth must be scored and is given the
log-probs.
"""

import math
from dataclasses import dataclass

from minvenus.igpo.recipes import Recipe
from minvenus.types import Rollout


def value(logprobs: list[float], gain: str) -> float:
    """V of the truth from the log-probs of its tokens: their mean, so that the truth's length does not matter."""
    if not logprobs:
        raise ValueError("no token of the answer was scored: its log-probs were not measured")
    mean = math.fsum(logprobs) / len(logprobs)
    if not math.isfinite(mean):
        raise ValueError(f"the answer's mean log-prob is {mean}: a value that is not finite cannot be a reward")
    return mean if gain == "log_prob" else math.exp(mean)


def needed_values(kinds: list[str], recipe: Recipe) -> list[int]:
    """The indices into `values` that the gains of a rollout need: 0, and t + 1 for each turn t with a gain; none if no
    turn has one."""
    if not recipe.use_gain:
        return []
    after = [t + 1 for t, kind in enumerate(kinds[:-1]) if recipe.browse == "off" or kind == "visit"]
    return [0, *after] if after else []


def segment_gains(values: list[float | None], kinds: list[str], recipe: Recipe) -> list[float | None]:
    """The gain of every turn, None where it has none: the rise of the value since the previous turn with a gain; for
    the first such turn, since the prompt."""
    if len(values) != len(kinds):
        raise ValueError(f"one value before each turn: {len(values)} values for {len(kinds)} turns")
    gains: list[float | None] = [None] * len(kinds)
    previous = 0
    for after in needed_values(kinds, recipe)[1:]:
        old, new = values[previous], values[after]
        if old is None or new is None:
            raise ValueError(f"the gain of turn {after - 1} needs values {previous} and {after}; got {old} and {new}")
        gains[after - 1] = new - old
        previous = after
    return gains


# ------------------------------------------------------------------------------------------- where the truth is scored


@dataclass(frozen=True)
class WrappedAnswer:
    """The wrapper and the truth as tokens: `ids[:start]` is conditioned on, `ids[start:]` is scored."""

    ids: list[int]
    start: int


def wrap_answer(answer: str, tokenizer, recipe: Recipe) -> WrappedAnswer:
    """Render the truth as an answer turn after a generation prompt, which ends with <think> and a newline, and find the
    tokens that hold the truth.

    The text after `</think>` is encoded in one call, closing tag included, because a token may hold the end of the
    truth and the newline after it (`.` + newline): that token is what the model would write, so it is scored. All
    tokens after the truth are cut off. The truth is encoded as untrusted text: if it spells a special token, that
    stays text.
    """
    truth = answer.strip()
    if not truth:
        raise ValueError("the answer is blank: there is nothing to score")
    opening = "\n" * recipe.newlines_after_think + "<answer>\n"
    first, last = len(opening), len(opening) + len(truth)                     # the truth's characters
    thought = [*tokenizer.encode_untrusted(recipe.lead_in + "\n"), tokenizer.think_end]
    tail = tokenizer.untrusted_offsets(opening + truth + "\n</answer>")       # (id, first character, one past the last)
    before = sum(1 for _, _, end in tail if end <= first)
    through = sum(1 for _, begin, _ in tail if begin < last)                  # a token across the border is scored
    return WrappedAnswer(ids=thought + [i for i, _, _ in tail[:through]], start=len(thought) + before)


def scored_lengths(rollout: Rollout, recipe: Recipe) -> list[int]:
    """For each of `needed_values`, the length of its context: the tokens of the rollout before the wrapper."""
    needed = needed_values([turn.kind for turn in rollout.turns], recipe)
    return [rollout.turns[t].start for t in needed]


def answer_logprobs(rollout: Rollout, wrapped: WrappedAnswer, scores: list[list[float]],
                    recipe: Recipe) -> list[list[float] | None]:
    """The log-probs of the truth's tokens in the context before each turn, None where they are not needed. `scores` has
    the log-probs of all tokens of `wrapped`, one list for each of `scored_lengths`."""
    found: list[list[float] | None] = [None] * len(rollout.turns)
    for t, logprobs in zip(needed_values([turn.kind for turn in rollout.turns], recipe), scores, strict=True):
        if len(logprobs) != len(wrapped.ids):
            raise ValueError(f"context before turn {t}: {len(logprobs)} log-probs for {len(wrapped.ids)} tokens")
        found[t] = logprobs[wrapped.start:]
    return found
