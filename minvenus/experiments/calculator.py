"""The reward calculator: from gains and outcomes to advantages, with every number in between.

    python -m minvenus.experiments credit rewards.json               every number, as a table
    python -m minvenus.experiments credit rewards.json --json        the same for a program
    python -m minvenus.experiments credit rewards.json --page x.html      the X-ray, with formulas
    python -m minvenus.experiments credit --example front-loaded     a classic, under five recipes

For those who check another implementation. The file has a rollout on each line:

    {"group": 0, "kinds": ["search", "visit", "answer"], "gains": [null, 0.5], "outcome": 1}
    {"kinds": ["visit", "answer"], "logprobs": [[-2.0, -1.0], [-0.5, -0.7]], "outcome": 0}

    kinds       search, visit, answer or none (no action), one per turn
    gains       how much each turn but the last raised log P(truth), which counts from 0 then; null
                = this turn has no gain of its own. A gain of exactly 0 is a reward, as in the
                released pipeline, which stores 1e-10 in its place; the released function alone
                leaves a 0 out
    logprobs    of the truth's tokens (or their mean) before each turn, instead of gains
    outcome     the score of the answer, before any penalty
    malformed   one true or false per turn; left out = none is
    group       a number that the rollouts of a question share; left out = 0
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from itertools import accumulate
from pathlib import Path

from minvenus.config import ConfigError, check, one_of
from minvenus.console import table
from minvenus.experiments.results import Table
from minvenus.files import read_records
from minvenus.igpo.credit import Credit, assign_credit
from minvenus.igpo.recipes import RECIPES, Recipe
from minvenus.report.saved import SavedBatch, groups_of, rounded
from minvenus.report.xray import write_groups
from minvenus.setting import setting
from minvenus.types import UNKNOWN, Kind, PerTurn, Question, Rollout, Sample, Turn

Columns = dict[str, list[list]]           # name -> a number for each turn of each rollout


def visits(*gains: float, outcome: int = 0) -> dict:
    """A rollout with a search and a visit for each gain, then the answer."""
    turn_gains = []
    for gain in gains:
        turn_gains += [None, gain]
    kinds = ["search", "visit"] * len(gains) + ["answer"]
    return {"kinds": kinds, "gains": turn_gains, "outcome": outcome}


TWO_SEARCHES = ["search", "search", "visit", "answer"]
EXAMPLES: dict[str, tuple[str, list[dict]]] = {               # name -> what it shows, rollouts
    "all-wrong": (
        "Every answer is wrong. GRPO has nothing to compare and learns nothing; gains still tell "
        "the good visit.",
        [visits(0.8), visits(0.0)]),
    "equal-gains": (
        "Every visit gains the same. Centred gains are 0: only outcomes teach. Uncentred ones pay.",
        [visits(0.5, 0.5, outcome=1), visits(0.5, 0.5)]),
    "front-loaded": (
        "The first visit gains much, the second one little. Centred, the second visit is punished "
        "although it helped, so the paper's recipe learns to stop early; uncentred, it is paid.",
        [visits(1.4, 0.1), visits(1.4, 0.1)]),
    "stops-early": (
        "One rollout stops after its first visit, the other goes on and gains a little more. "
        "Centred, stopping has the higher advantages; uncentred, going on has.",
        [visits(0.8), visits(0.8, 0.2)]),
    "malformed": (
        "The second search of the first rollout is malformed. The paper's recipe puts the penalty "
        "on this turn, and discounted on the one before; in the released code both searches share "
        "one return; GRPO looks at the last turn only.",
        [{"kinds": TWO_SEARCHES, "gains": [None, None, 0.5], "outcome": 1,
          "malformed": [False, True, False, False]},
         {"kinds": TWO_SEARCHES, "gains": [None, None, 0.3], "outcome": 0}]),
    "no-visit": (
        "One rollout answers at once and has no gain: an absent reward is not 0, it is in no mean.",
        [visits(), visits(0.6, outcome=1), visits(0.2)]),
}


@dataclass(frozen=True)
class CreditConfig:
    """python -m minvenus.experiments credit FILE: the credit of rollouts with given gains."""

    file: str | None = setting(None, "rollouts as JSON, as above; may be given without --file")
    example: str | None = setting(
        None, "instead of a file: a classic situation; a wrong name lists them")
    recipe: Recipe = setting(
        Recipe(), "how rewards become advantages, by default paper; its fields are flags")
    json: bool = setting(False, "print the numbers as JSON")
    page: str | None = setting(None, "write the X-ray page of them to this file")

    def __post_init__(self):
        check(self)
        if (self.file is None) == (self.example is None):
            raise ConfigError("give a FILE of rollouts, or --example NAME")
        if self.example is not None:
            one_of("example", self.example, EXAMPLES)


def main(config: CreditConfig) -> str:
    if config.example:
        name = config.example
        description, rollouts = EXAMPLES[name]
        records = [(name, rollout) for rollout in rollouts]
    else:
        name = description = str(config.file)
        records = list(read_records(Path(name)))
    samples = read_samples(records, description)
    has_gains = ["gains" in record for _, record in records]
    if config.recipe.gain == "prob" and any(has_gains):
        raise ConfigError("the gain prob needs logprobs: "
                          "a gain in log P does not say by how much P rose")
    try:
        credit = assign_credit(samples, config.recipe)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None

    if config.page:
        source = "given; log P counts from 0 where only gains were given"
        batch = SavedBatch(0, source, config.recipe, samples, credit)
        return f"page: {write_groups(name, *groups_of(batch), config.page)}"

    # what counts from 0, where gains were given, is no belief
    beliefs: list[PerTurn] = []
    for row, counted in zip(credit.beliefs, has_gains, strict=True):
        beliefs.append([None] * len(row) if counted else row)
    credit = replace(credit, beliefs=beliefs)
    if config.json:
        return as_json(samples, credit)

    numbers = columns(credit)
    parts = [statistics(samples, credit), table(turn_table(samples, numbers))]
    if config.example:
        lines = [json.dumps(record) for _, record in records]
        under = {key: assign_credit(samples, recipe).advantages for key, recipe in RECIPES.items()}
        parts = [description, "\n".join(lines), *parts]
        parts.append(f"advantages under each recipe\n{table(turn_table(samples, under))}")
    return "\n\n".join(parts)


# ---------------------------------------------------------------------------------------- the file


@dataclass(frozen=True)
class Record:
    """A rollout of the file."""

    kinds: list[Kind]
    outcome: float
    gains: list[float | None] | None = None
    logprobs: list[float | list[float] | None] | None = None
    malformed: list[bool] | None = None
    group: int = 0

    def __post_init__(self):
        check(self)
        turns = len(self.kinds)
        if not turns or (self.gains is None) == (self.logprobs is None):
            raise ConfigError("give kinds, and gains or logprobs, one of the two")
        if self.kinds[-1] == "visit":
            raise ConfigError("the last turn cannot be a visit: nothing follows that it could gain")
        lengths = {"gains": turns - 1, "logprobs": turns, "malformed": turns}
        for name, count in lengths.items():
            entries = getattr(self, name)
            if entries is not None and len(entries) != count:
                raise ConfigError(f"{name} must have {count} entries, one for each turn (gains: "
                                  f"but the last); got {entries!r}")
        for kind, gain in zip(self.kinds, self.gains or [], strict=False):
            if kind == "visit" and gain is None:
                raise ConfigError(f"gains must have a number for every visit; got {self.gains!r}")

    def sample(self, title: str) -> Sample:
        """A sample whose turns have a kind, one token and no words."""
        turns = []
        for t, kind in enumerate(self.kinds):
            malformed = self.malformed is not None and self.malformed[t]
            turns.append(Turn(kind, t, t + 1, text="", malformed=malformed))
        n = len(turns)
        question = Question(f"{self.group}", title, [UNKNOWN])
        rollout = Rollout(question, [0] * n, [False] * n, [None] * n, turns, "answered")

        steps = [gain or 0.0 for gain in self.gains or []]
        beliefs = self.logprobs or accumulate(steps, initial=0.0)
        logprobs = [[p] if isinstance(p, int | float) else p for p in beliefs]
        return Sample(rollout, logprobs, float(self.outcome), self.group)


def read_samples(records: list[tuple[str, dict]], title: str = "(not known)") -> list[Sample]:
    """The rollouts of a file, given as (place in the file, record). The title stands in the place
    of their question."""
    if not records:
        raise ConfigError("there is no rollout")
    return [read_record(record, where).sample(title) for where, record in records]


def read_record(record: dict, where: str) -> Record:
    try:
        return Record(**record)
    except TypeError:
        names = ", ".join(field.name for field in fields(Record))
        raise ConfigError(f"{where}: a rollout is an object with kinds, outcome and gains or "
                          f"logprobs, and no field but {names}; got {record!r}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


# --------------------------------------------------------------------------------------- the output


def as_json(samples: list[Sample], credit: Credit) -> str:
    """Every number of every rollout, rounded to 12 digits: gains come back through a sum."""
    rollouts = []
    for i, sample in enumerate(samples):
        rollouts.append({
            "group": sample.group,
            "kinds": sample.rollout.kinds,
            "malformed": sample.rollout.malformed,
            **asdict(credit.of_rollout(i, sample.group)),
        })
    return json.dumps(rounded(rollouts, 12))


def statistics(samples: list[Sample], credit: Credit) -> str:
    record = credit.record
    lines = []
    for group, stats in record.groups.items():
        count = sum(sample.group == group for sample in samples)
        lines.append(f"group {group}, {count} rollouts:")
        for name, number in asdict(stats).items():
            lines[-1] += f"  {name.replace('_', ' ')} {number:.4f}"
    lines.append(f"IG-Scale {record.scale:.4f}:  mean |z| of outcomes {record.outcome_size:.4f}, "
                 f"of turn rewards {record.turn_reward_size:.4f}")
    return "\n".join(lines)


def columns(credit: Credit) -> Columns:
    """Beliefs where any is known, before a turn and after it."""
    numbers: Columns = {}
    if any(row.count(None) < len(row) for row in credit.beliefs):
        numbers["V before"] = credit.beliefs
        numbers["V after"] = [[*row[1:], None] for row in credit.beliefs]
    record = credit.record
    rewards = [[*row.turns, row.outcome] for row in credit.rewards]
    z = []
    for turn_z, outcome_z in zip(record.turn_z, record.outcome_z, strict=True):
        z.append([*turn_z, outcome_z])
    return numbers | {
        "gain": credit.gains,
        "reward": rewards,
        "z": z,
        "scaled": record.terms,
        "A": record.advantages,
    }


def turn_table(samples: list[Sample], columns: Columns) -> Table:
    rows = [["rollout", "turn", "kind", *columns]]
    for i, sample in enumerate(samples):
        for t, kind in enumerate(sample.rollout.kinds):
            cells = []
            for column in columns.values():
                number = column[i][t]
                cells.append("-" if number is None else f"{number:+.4f}")
            rows.append([f"{i + 1}" if t == 0 else "", f"{t + 1}", kind, *cells])
    return rows
