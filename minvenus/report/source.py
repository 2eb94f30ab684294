"""Files that an X-ray can be made of, read into samples.

    RUN/rollouts/step-*.jsonl    a training batch with its reward arithmetic (saved.py)
    trajectory.json              of infer.py
    results.jsonl                of eval.py: rollouts, grouped by question

Those of the last two were not scored when they were made. A `Scorer` can do it later.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minvenus.agent.record import rollout_from_json
from minvenus.config import ConfigError
from minvenus.files import read_rows
from minvenus.igpo.gain import wrap_truth
from minvenus.igpo.recipes import Recipe
from minvenus.report import saved
from minvenus.report.explain import Credited
from minvenus.text.tokenizer import Tokenizer
from minvenus.types import UNKNOWN, Rollout, Sample

PROMPT_END = "<think>\n"               # of the generation prompt: a turn's text begins with it


@dataclass(frozen=True)
class Scorer:
    """A model that can say how probable the truth is, and how it is asked."""

    name: str
    tokenizer: Tokenizer
    # score(tokens, lengths, continuation): log-probs of the continuation after each tokens[:length]
    score: Callable[[list[int], list[int], list[int]], list[list[float]]]
    context: int                       # tokens that it takes at most
    recipe: Recipe                     # its lead_in and newlines_after_think stand before the truth
    answer: str | None = None          # the truth; None = the file knows it


@dataclass(frozen=True)
class Case:
    """A sample of a file, and how the page names it."""

    sample: Sample
    group: str
    outcome: str
    under: dict[str, Credited] = field(default_factory=dict)         # its numbers under each recipe

    @property
    def rollout(self) -> Rollout:
        return self.sample.rollout

    def advantages(self) -> dict[str, list[float]]:
        """Under each recipe; none of a trajectory without a group."""
        return {name: c.numbers.advantages for name, c in self.under.items() if c.grouped}


def read_source(path: Path, scorer: Scorer | None) -> tuple[list[Case], saved.SavedBatch | None]:
    """The rollouts of a file, and the training batch that they are, if they are one."""
    records = read_records(path)
    if not records:
        raise ConfigError(f"{path} is empty: an X-ray needs a saved rollout, or one per line")
    for where, record in records:
        if not isinstance(record, dict):
            raise ConfigError(f"{where} holds no rollout: {str(record)[:200]}")

    if records[0][1].get("format") == saved.FORMAT:
        if scorer:
            raise ConfigError(f"{path} is a training batch with its own numbers: leave out the "
                              "model and the answer")
        batch = saved.load_batch(path)
        return [Case(sample, f"{sample.group}", f"{sample.outcome:.3g}")
                for sample in batch.samples], batch

    cases = []
    for where, record in records:
        try:
            rollout = rollout_from_json(record)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if scorer and not spells(scorer.tokenizer, rollout):
            raise ConfigError(f"{where}: its ids were made with another tokenizer than that of "
                              f"{scorer.name}")
        sample = Sample(rollout, [None] * len(rollout.turns), outcome=None, group=0)
        cases.append(Case(sample, rollout.question.id, verdict(record)))
    return cases, None


def verdict(record: dict) -> str:
    """Of a line of eval.py whether the answer is the truth, word by word."""
    if record.get("exact_match") is None:
        return "unknown"
    return "exact match" if record["exact_match"] else "no exact match"


def read_records(path: Path) -> list[tuple[str, Any]]:
    """(where it stands, record) of every record in a file: one object, a list, or one per line.

    A line that is not a JSON object gives a string that says so.
    """
    try:
        text = path.read_bytes()
        value = json.loads(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        if text.lstrip().startswith(b"["):
            raise ConfigError(f"{path} is not JSON: {error}") from None
        return [(f"{path}, line {number}", record) for number, record in read_rows(path)]
    records = value if isinstance(value, list) else [value]
    return [(f"{path}, record {number}", record) for number, record in enumerate(records, 1)]


def spells(tokenizer: Tokenizer, rollout: Rollout) -> bool:
    """Whether the tokenizer gives the text of every turn back from its ids."""
    for turn in rollout.turns:
        ids = [i for i in rollout.tokens[turn.start:turn.end] if i not in tokenizer.stop_ids]
        try:
            if PROMPT_END + tokenizer.decode(ids) != turn.text:
                return False
        except ConfigError:                                  # an id that it does not have
            return False
    return True


def scored(case: Case, scorer: Scorer) -> Case:
    """The case with log-probs of the truth before each turn."""
    rollout = case.rollout
    truth = rollout.question.answers[0] if scorer.answer is None else scorer.answer
    if truth.strip() in ("", UNKNOWN):
        raise ConfigError("the file does not say what the true answer is: give the answer that is "
                          "to be scored")
    wrapped = wrap_truth(truth, scorer.tokenizer, scorer.recipe)
    if len(rollout.tokens) + len(wrapped.ids) > scorer.context:
        raise ConfigError(f"the trajectory has {len(rollout.tokens):,} tokens and its answer "
                          f"{len(wrapped.ids)}; {scorer.name} takes {scorer.context:,} at most")
    lengths = [turn.start for turn in rollout.turns]
    scores = scorer.score(rollout.tokens, lengths, wrapped.ids)
    question = replace(rollout.question, answers=[truth.strip()])
    sample = replace(case.sample, rollout=replace(rollout, question=question),
                     truth_logprobs=[row[wrapped.start:] for row in scores])
    return replace(case, sample=sample)
