"""Files that an X-ray can be made of, read into one form: a rollout and, where there are any, its measurements.

    RUN/rollouts/step-*.jsonl    a training batch with its reward arithmetic (report/saved.py)
    a saved rollout              of infer.py, or lines of eval.py: not measured, grouped by question
    messages                     somebody else's trajectory, {"messages": [system, user, assistant, ...]}

A trajectory that was not scored when it was made can be scored by a `Scorer`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minvenus.agent.protocol import format_error, parse_turn
from minvenus.agent.record import rollout_from_json
from minvenus.config import ConfigError
from minvenus.evaluation.answers import split_aliases
from minvenus.files import read_rows
from minvenus.igpo.gain import wrap_truth
from minvenus.igpo.recipes import Recipe
from minvenus.report import saved
from minvenus.report.explain import Credited
from minvenus.text.chat import CLOSE, OPEN, ChatError, stream
from minvenus.text.tokenizer import Tokenizer
from minvenus.types import UNKNOWN, Question, Rollout, Sample, Turn

PROMPT_END = "<think>\n"               # the end of the generation prompt, which a turn's text begins with


@dataclass(frozen=True)
class Scorer:
    """A model that can say how probable an answer is, and how it is asked."""

    name: str
    tokenizer: Tokenizer
    # score(tokens, lengths, continuation): per length n, the log-prob of each continuation token after tokens[:n]
    score: Callable[[list[int], list[int], list[int]], list[list[float]]]
    context: int                       # tokens that it takes at most
    recipe: Recipe                     # its lead_in and newlines_after_think stand before the answer
    answer: str | None = None          # the true one; None = the file knows it


@dataclass(frozen=True)
class Case:
    """One rollout of a file."""

    rollout: Rollout
    group: str
    outcome: str
    sample: Sample | None = None
    under: dict[str, Credited] = field(default_factory=dict)         # its numbers under each recipe

    def advantages(self) -> dict[str, list[float]]:
        """Under each recipe; none of a trajectory without a group."""
        return {recipe: c.numbers["advantages"] for recipe, c in self.under.items() if c.grouped}


def read_source(path: Path, scorer: Scorer | None) -> tuple[list[Case], saved.SavedBatch | None]:
    """The rollouts of a file, and the training batch that they are, if they are one."""
    records = read_records(path)
    if not records:
        raise ConfigError(f"{path} is empty: an X-ray needs a JSON object, or one per line")
    for where, record in records:
        if not isinstance(record, dict):
            raise ConfigError(f"{where} holds no rollout: {str(record)[:200]}")
    if records[0][1].get("format") == saved.FORMAT:
        if scorer:
            raise ConfigError(f"{path} is a training batch with its own numbers: leave out the model and the answer")
        batch = saved.load_batch(path)
        return [Case(m.rollout, str(m.group), f"{m.outcome:.3g}", m) for m in batch.samples], batch
    cases = []
    for number, (where, record) in enumerate(records, start=1):
        try:
            if "messages" in record and not str(record.get("format")).startswith("minvenus "):
                rollout = rollout_of_messages(record, f"{number}", scorer)
            else:
                rollout = rollout_from_json(record)
                if scorer and not spells(scorer.tokenizer, rollout):
                    raise ConfigError(f"its ids were made with another tokenizer than that of {scorer.name}")
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        verdict = record.get("exact_match")              # of eval.py; others have none
        outcome = "exact match" if verdict is True else "no exact match" if verdict is False else "unknown"
        cases.append(Case(rollout, rollout.question.id, outcome))
    return cases, None


def read_records(path: Path) -> list[tuple[str, Any]]:
    """(where it stands, record) of every record in a file: one object, a list, or one per line. A line that is not a
    JSON object gives a string that says so."""
    try:
        text = path.read_bytes()
        value = json.loads(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        if text.lstrip().startswith(b"["):
            raise ConfigError(f"{path} is not JSON: {error}") from None
        return [(f"{path}, line {number}", record) for number, record in read_rows(path)]
    listed = value if isinstance(value, list) else [value]
    return [(f"{path}, record {number}", record) for number, record in enumerate(listed, start=1)]


def rollout_of_messages(record: dict, name: str, scorer: Scorer | None) -> Rollout:
    """A trajectory from elsewhere. Its tokens are the scorer's; without one, a single id stands for each turn."""
    try:
        spoken = [(m["role"] == "assistant", m["content"]) for m in record["messages"] if m["role"] != "system"]
        question, *rest = [content for _, content in spoken]
        if not rest or any(own != i % 2 or not isinstance(content, str) for i, (own, content) in enumerate(spoken)):
            raise ValueError
        asked = Question(name, question, split_aliases(str(record.get("gt") or "")) or [UNKNOWN])
    except (KeyError, TypeError, ValueError):
        raise ConfigError('"messages" must be objects with a role and a text as content: a question, then an assistant '
                          "and what came back in turn (python -m minvenus.sft makes that of other forms)") from None
    texts = rest[::2]
    observations = [content.removeprefix(OPEN).removesuffix(CLOSE) for content in rest[1::2]]
    tokens, spans = [0] * len(texts), [(t, t + 1) for t in range(len(texts))]
    if scorer:
        try:
            tokens, _, spans = stream(record["messages"], scorer.tokenizer)
        except ChatError as error:
            raise ConfigError(f"this trajectory cannot be scored: {error}") from None
    turns = []
    for t, text in enumerate(texts):
        parsed, observation = parse_turn(text), observations[t] if t < len(observations) else None
        kind = parsed.kind if observation is not None or parsed.answer else "none"          # a call that was not run
        malformed = format_error(text, t == len(texts) - 1) is not None
        turns.append(Turn(kind, *spans[t], text, observation=observation, malformed=malformed))
    answered = turns[-1].kind == "answer"
    return Rollout(asked, tokens, [False] * len(tokens), [None] * len(tokens), turns,
                   "answered" if answered else "error", error=None if answered else "it ends without an answer")


def spells(tokenizer: Tokenizer, rollout: Rollout) -> bool:
    """Whether the tokenizer gives the text of every turn back from its ids."""
    try:
        for turn in rollout.turns:
            ids = [i for i in rollout.tokens[turn.start:turn.end] if i not in tokenizer.stop_ids]
            if PROMPT_END + tokenizer.decode(ids) != turn.text:
                return False
    except ConfigError:
        return False
    return True


def scored(case: Case, scorer: Scorer) -> Case:
    """The case with log-probs of the true answer before each turn."""
    rollout = case.rollout
    answer = (rollout.question.answers[0] if scorer.answer is None else scorer.answer).strip()
    if answer in ("", UNKNOWN):
        raise ConfigError("the file does not say what the true answer is: give the answer that is to be scored")
    wrapped = wrap_truth(answer, scorer.tokenizer, scorer.recipe)
    if len(rollout.tokens) + len(wrapped.ids) > scorer.context:
        raise ConfigError(f"the trajectory has {len(rollout.tokens):,} tokens and its answer {len(wrapped.ids)}; "
                          f"{scorer.name} takes {scorer.context:,} at most")
    rows = scorer.score(rollout.tokens, [turn.start for turn in rollout.turns], wrapped.ids)
    logprobs: list[list[float] | None] = [row[wrapped.start:] for row in rows]
    asked = replace(rollout, question=replace(rollout.question, answers=[answer]))
    # neither outcome nor group of a trajectory on its own will be used
    return replace(case, rollout=asked, sample=Sample(asked, logprobs, outcome=0.0, group=0))
