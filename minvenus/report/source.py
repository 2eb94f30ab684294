"""Reads the files that an X-ray can show into cases: rollouts with their numbers.

    RUN/rollouts/step-*.jsonl    a training batch with its reward arithmetic (saved.py)
    trajectory.json              of infer.py
    results.jsonl                of eval.py: rollouts, grouped by question

Rollouts of the last two have no log P(answer). A `Scorer` computes it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from minvenus.agent.record import rollout_from_json
from minvenus.config import ConfigError
from minvenus.files import read_records
from minvenus.igpo.gain import wrap_truth
from minvenus.igpo.recipes import Recipe
from minvenus.report import saved
from minvenus.report.explain import Credited, recipe_name, under_recipes
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
    recipe: Recipe                     # its lead_in and newlines_after_think stand before the truth
    answer: str | None = None          # the truth; None = the file knows it


@dataclass(frozen=True)
class Case:
    """A rollout of a file, and its numbers under each recipe."""

    sample: Sample
    under: dict[str, Credited] = field(default_factory=dict)

    @property
    def rollout(self) -> Rollout:
        return self.sample.rollout

    def trained(self) -> dict[str, Credited]:
        """Its numbers if they include advantages: a trajectory without a group has none."""
        return {name: credited for name, credited in self.under.items() if credited.trained}


Groups = dict[str, list[Case]]         # name of a group -> its rollouts
Facts = list[tuple[str, str]]


def read_source(path: Path, group: str | None, scorer: Scorer | None) -> tuple[Groups, Facts]:
    """The groups of a file, or one of them, and facts about all of them."""
    records = list(read_records(path))
    if not records:
        raise ConfigError(f"{path} is empty: an X-ray needs a saved rollout on each line")
    facts: Facts = []
    if records[0][1].get("format") != saved.FORMAT:
        groups = read_trajectories(records)
    elif scorer:
        raise ConfigError(f"{path} is a training batch with its own numbers: leave out the "
                          "model and the answer")
    else:
        groups, facts = groups_of(saved.load_batch(path))

    if group is not None:
        if group not in groups:
            raise ConfigError(f"{path.name} has no group {group}; it has {', '.join(groups)}")
        groups = {group: groups[group]}
    if scorer:
        facts = [("log P(answer) according to", scorer.name)]
        for name, cases in groups.items():
            groups[name] = [scored(case, scorer) for case in cases]
    return groups, facts


def groups_of(batch: saved.SavedBatch) -> tuple[Groups, Facts]:
    """Of a training batch."""
    groups: Groups = {}
    under = under_recipes(batch.samples, batch.recipe)
    for sample, credited in zip(batch.samples, under, strict=True):
        groups.setdefault(f"{sample.group}", []).append(Case(sample, credited))
    return groups, [("recipe", recipe_name(batch.recipe)), ("gain policy", batch.gain_policy)]


def read_trajectories(records: list[tuple[str, dict]]) -> Groups:
    """The rollouts of infer.py or eval.py, by question."""
    groups: Groups = {}
    for where, record in records:
        try:
            rollout = rollout_from_json(record)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        unscored: list[list[float] | None] = [None] * len(rollout.turns)
        case = Case(Sample(rollout, unscored, record.get("exact_match"), group=0))
        groups.setdefault(rollout.question.id, []).append(case)
    return groups


def scored(case: Case, scorer: Scorer) -> Case:
    """The case with log-probs of the truth before each turn, and the numbers computed from them."""
    rollout = case.rollout
    if not spells(scorer.tokenizer, rollout):
        raise ConfigError(f"the ids of {rollout.question.id} were made with another tokenizer than "
                          f"that of {scorer.name}")
    truth = rollout.question.answers[0] if scorer.answer is None else scorer.answer
    if truth == UNKNOWN:
        raise ConfigError("the file does not say what the true answer is: give the answer that is "
                          "to be scored")
    lengths = [turn.start for turn in rollout.turns]
    try:
        wrapped = wrap_truth(truth, scorer.tokenizer, scorer.recipe)
        scores = scorer.score(rollout.tokens, lengths, wrapped.ids)
    except ValueError as error:            # a blank truth, or more tokens than the model takes
        raise ConfigError(f"{rollout.question.id}: {error}") from None
    question = replace(rollout.question, answers=[truth.strip()])
    sample = replace(case.sample, rollout=replace(rollout, question=question),
                     truth_logprobs=[row[wrapped.start:] for row in scores])
    [under] = under_recipes([sample], None)
    return Case(sample, under)


def spells(tokenizer: Tokenizer, rollout: Rollout) -> bool:
    """Whether the tokenizer gives the text of every turn back from its ids."""
    for turn in rollout.turns:
        ids = [i for i in rollout.tokens[turn.start:turn.end] if i not in tokenizer.stop_ids]
        if PROMPT_END + tokenizer.decode(ids) != turn.text:
            return False
    return True
