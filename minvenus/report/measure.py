"""log P(answer) before every turn of a rollout that nobody scored while it was made.

    rollout or messages -> one token stream -> score(stream, turn starts, wrapped answer) -> log-probs of the answer's tokens

The model itself is not known here: whoever writes a page with one passes a Scorer.
"""

from collections.abc import Callable
from dataclasses import dataclass

from minvenus.config import ConfigError, Recipe
from minvenus.igpo.gain import wrap_answer
from minvenus.report.source import Case
from minvenus.report.tokens import writes
from minvenus.text.chat import ChatError, stream
from minvenus.text.tokenizer import Tokenizer

# score(tokens, lengths, continuation): for each n in lengths, the log-prob of every continuation token after tokens[:n]
Score = Callable[[list[int], list[int], list[int]], list[list[float]]]


@dataclass(frozen=True)
class Scorer:
    """A model that can say how probable an answer is."""

    name: str
    tokenizer: Tokenizer
    score: Score
    context: int                        # tokens that it takes at most


def answer_logprobs(case: Case, scorer: Scorer, answer: str, recipe: Recipe) -> list[list[float]]:
    """Before each turn, the log-prob of every token of the answer."""
    tokens, starts = token_stream(case, scorer)
    wrapped = wrap_answer(answer, scorer.tokenizer, recipe)
    if len(tokens) + len(wrapped.ids) > scorer.context:
        raise ConfigError(f"the trajectory has {len(tokens):,} tokens and its answer {len(wrapped.ids)}; {scorer.name} takes "
                          f"{scorer.context:,} at most")
    rows = scorer.score(tokens, starts, wrapped.ids)
    return [row[wrapped.start:] for row in rows]


def token_stream(case: Case, scorer: Scorer) -> tuple[list[int], list[int]]:
    """All ids, and where each turn begins."""
    if case.rollout is not None:
        if not writes(scorer.tokenizer, case.rollout):
            raise ConfigError(f"the rollout's ids were made with another tokenizer than that of {scorer.name}")
        return case.rollout.tokens, [turn.start for turn in case.rollout.turns]
    try:
        ids, _, spans = stream(case.messages or [], scorer.tokenizer)
    except ChatError as error:
        raise ConfigError(f"this trajectory cannot be scored: {error}") from None
    return ids, [start for start, _ in spans]
