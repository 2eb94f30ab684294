"""Saved rollouts: a training step's with all their reward arithmetic, and what an X-ray can show.

A file of a training step, RUN/rollouts/step-*.jsonl, has a JSON line for each rollout:

    {"format": "minvenus credit 2", "step": 20, "group": 0, "gain_policy": "current",
     "recipe": {...}, "rollout": {...}, "truth_logprobs": [[-1.5, -2.25], null, ...],
     "outcome": 1.0, "arithmetic": {"beliefs": ..., "gains": ..., ...}}

`rollout` is that of agent/record.py. `truth_logprobs` has an entry per turn: the log-probs of the
truth's tokens before it. `outcome` is the score of the answer before any penalty. `arithmetic` is
a RolloutCredit. A file holds a whole batch, because IG-Scale is over all of it. Reading computes
the credit again, and refuses a file whose arithmetic differs.

An X-ray also shows trajectory.json of infer.py and results.jsonl of eval.py, grouped by question.
Their rollouts have no log P(answer): a `Scorer` computes it.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from minvenus.agent.record import rollout_from_json, rollout_to_json
from minvenus.config import ConfigError
from minvenus.files import read_records, step_name, write_text
from minvenus.igpo.credit import Credit, assign_credit
from minvenus.igpo.gain import wrap_truth
from minvenus.igpo.recipes import Recipe
from minvenus.report.explain import Credited, recipe_name, under_recipes
from minvenus.text.tokenizer import Tokenizer
from minvenus.types import UNKNOWN, Rollout, Sample

FORMAT = "minvenus credit 2"
PROMPT_END = "<think>\n"               # of the generation prompt: a turn's text begins with it


@dataclass(frozen=True)
class SavedBatch:
    """The rollouts of a step that were trained on."""

    step: int                          # the step that the batch makes, from 1 as in metrics.jsonl
    gain_policy: str                   # which model scored the truth: "current" or "reference"
    recipe: Recipe                     # with the lead-in that was used
    samples: list[Sample]
    credit: Credit

    def lines(self) -> list[dict]:
        lines = []
        for i, sample in enumerate(self.samples):
            lines.append({
                "format": FORMAT,
                "step": self.step,
                "group": sample.group,
                "gain_policy": self.gain_policy,
                "recipe": asdict(self.recipe),
                "rollout": rollout_to_json(sample.rollout),
                "truth_logprobs": sample.truth_logprobs,
                "outcome": sample.outcome,
                "arithmetic": asdict(self.credit.of_rollout(i, sample.group)),
            })
        return lines


def path_of(run, step: int) -> Path:
    return Path(run) / "rollouts" / f"{step_name(step)}.jsonl"


def save_batch(run, batch: SavedBatch) -> None:
    lines = [json.dumps(line, allow_nan=False) + "\n" for line in batch.lines()]
    write_text(path_of(run, batch.step), "".join(lines))


def load_batch(path) -> SavedBatch:
    """The batch of a file. Its credit is computed again, and must be what the file says."""
    lines = []
    samples = []
    try:
        for _, line in read_records(path):
            lines.append(line)
            rollout = rollout_from_json(line["rollout"])
            samples.append(Sample(rollout, line["truth_logprobs"], line["outcome"], line["group"]))
        first = lines[0]
        recipe = Recipe(**first["recipe"])
        credit = assign_credit(samples, recipe)
        batch = SavedBatch(first["step"], first["gain_policy"], recipe, samples, credit)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is no batch of rollouts with their reward arithmetic: "
                          f"{error}") from None

    for number, (line, computed) in enumerate(zip(lines, batch.lines(), strict=True), 1):
        for name, value in computed.items():
            if rounded(line.get(name), 9) != rounded(value, 9):
                raise ConfigError(f"{path}, line {number}: stored and computed {name} differ. The "
                                  "file is not one whole batch, was changed, or was made by "
                                  "another version")
    return batch


def rounded(value, places: int):
    """A JSON value, its numbers rounded to so many decimal places."""
    return json.loads(json.dumps(value), parse_float=lambda digits: round(float(digits), places))


# ------------------------------------------------------------------------------------ for an X-ray


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
    if records[0][1].get("format") != FORMAT:
        groups = read_trajectories(records)
    elif scorer:
        raise ConfigError(f"{path} is a training batch with its own numbers: leave out the "
                          "model and the answer")
    else:
        groups, facts = groups_of(load_batch(path))

    if group is not None:
        if group not in groups:
            raise ConfigError(f"{path.name} has no group {group}; it has {', '.join(groups)}")
        groups = {group: groups[group]}
    if scorer:
        facts = [("log P(answer) according to", scorer.name)]
        for name, cases in groups.items():
            groups[name] = [scored(case, scorer) for case in cases]
    return groups, facts


def groups_of(batch: SavedBatch) -> tuple[Groups, Facts]:
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
