"""Numbers of a finished rollout: exact match and F1 of its answer, its searches and visits.

    tokens   of both sides, normalised alike (below)
    EM       1 if the token lists are equal
    F1       2 P R / (P + R) = 2 |overlap| / (|prediction| + |answer|)
    each the maximum over the accepted answers; a side without tokens scores 0

Overlap counts a token as often as it occurs on both sides: `a a b` and `a b b` share two of three.
Some of the papers' repositories compare sets of tokens instead, and there the two are equal.

Normalisation, in this order
    invisible format characters (category Cf: zero-width spaces, soft hyphens, direction marks) are
        dropped
    Unicode NFKC: full-width, half-width and ligature forms become plain ones. Superscripts and
        fractions are set off by spaces first, otherwise 10² would equal 102 and 3½ equal 31/2
    case folding, a lower-casing that also knows ß = ss; NFKC once more, as folding can undo it
    every character of the Unicode categories P and S (punctuation, symbols) becomes a space. In
        ASCII these are the 32 characters of string.punctuation, the rule of the released code;
        beyond it 。「」・’ – € ° go the same way
    split at white space; Han characters and kana each stand alone, because there are no spaces
        between their words. Korean has spaces and is split like English; so is Thai, which has none
        and is compared as a whole
Articles stay, as in the released code. Known cost of the rule: C++ and C# are both `c`, and -5 is
`5`.

Only the text of the answer is compared (agent.protocol.final_answer finds it). No answer is None
and scores 0.

    browse ratio   mean over rollouts of visits / (searches + visits), executed calls
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from minvenus.types import Question, Turn

RIGHT = 0.5                           # the least F1 of a right answer
ALIAS_MARK = "<|answer_split|>"       # joins the accepted answers in the released question files

# One token: a Han or kana character (々 〆 〇 ー included), or a run of anything else.
CJK = (r"\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
       r"\U00020000-\U0003ffff")
TOKEN = re.compile(rf"[{CJK}]|[^{CJK}\s]+")


def split_aliases(*joined_answers: str) -> list[str]:
    """The accepted answers of joined strings, without blanks."""
    aliases = []
    for joined in joined_answers:
        for alias in joined.split(ALIAS_MARK):
            if alias.strip():
                aliases.append(alias.strip())
    return aliases


def exact_match(prediction: str | None, answers: list[str]) -> float:
    """1.0 if the prediction has the same tokens in the same order as one of the accepted answers,
    else 0.0."""
    predicted = tokens(prediction or "")
    return float(predicted != [] and predicted in accepted_tokens(answers))


def f1(prediction: str | None, answers: list[str]) -> float:
    """Token F1 in [0, 1] with the best of the accepted answers."""
    predicted = tokens(prediction or "")
    scores = [token_f1(predicted, accepted) for accepted in accepted_tokens(answers)]
    return max(scores, default=0.0)


def token_f1(predicted: list[str], accepted: list[str]) -> float:
    overlap = (Counter(predicted) & Counter(accepted)).total()
    return 2 * overlap / max(1, len(predicted) + len(accepted))


def accepted_tokens(answers: list[str]) -> list[list[str]]:
    """Tokens of every accepted answer; joined strings are split into their aliases."""
    return [tokens(alias) for alias in split_aliases(*answers)]


def tokens(text: str) -> list[str]:
    """The normalised tokens of a text, by the rules in this file's docstring."""
    visible = [set_off(char) for char in text if unicodedata.category(char) != "Cf"]
    text = unicodedata.normalize("NFKC", "".join(visible))
    text = unicodedata.normalize("NFKC", text.casefold())
    words = [" " if unicodedata.category(char)[0] in "PS" else char for char in text]
    return TOKEN.findall("".join(words))


def set_off(char: str) -> str:
    """Superscripts and fractions between spaces, others as they are."""
    if unicodedata.decomposition(char).startswith(("<super>", "<fraction>")):
        return f" {char} "
    return char


class WordGrader:
    """Grades answers by exact match, "em", or by word F1, "f1". Graders: evaluation/judge.py."""

    def __init__(self, kind: str):
        self.score = exact_match if kind == "em" else f1
        self.name = "exact match" if kind == "em" else f"word F1 of at least {RIGHT:g}"
        self.notes: dict = {}            # no grade is unknown

    def grade(self, questions: list[Question], answers: list[str | None]) -> list[float | None]:
        pairs = zip(questions, answers, strict=True)
        return [self.score(answer, question.answers) for question, answer in pairs]

    def close(self) -> None:
        """There is nothing to close, unlike in a judge."""


# ------------------------------------------------------------------------------------------- calls


def executed_calls(turns: Sequence[Turn]) -> tuple[int, int]:
    """Searches and visits. A call without an observation was not executed: the rollout ended in
    it."""
    kinds = Counter(turn.kind for turn in turns if turn.observation is not None)
    return kinds["search"], kinds["visit"]


def browse_ratio(calls: Sequence[tuple[float, float]]) -> float | None:
    """Of the executed searches and visits of each run. A run without a call has no ratio."""
    ratios = [visits / (searches + visits) for searches, visits in calls if searches + visits]
    return fmean(ratios) if ratios else None
