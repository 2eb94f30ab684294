"""The reward calculator: from gains and outcomes to advantages, with every number in between.

    python -m minvenus.experiments credit rewards.json               all numbers of your rollouts, as a table
    python -m minvenus.experiments credit rewards.json --json        the same for a program
    python -m minvenus.experiments credit rewards.json --page x.html      as the X-ray page, with every formula
    python -m minvenus.experiments credit --example front-loaded     a classic situation, under four recipes

It is for those who check another implementation. The file has one rollout after another, as a JSON list or a line each:

    {"group": 0, "kinds": ["search", "visit", "answer"], "gains": [null, 0.5], "outcome": 1}
    {"group": 0, "kinds": ["search", "visit", "answer"], "logprobs": [[-2.0, -1.0], null, [-0.5, -0.7]], "outcome": 0}

    kinds       search, visit, answer or none (no action), one per turn
    gains       how much each turn but the last raised log P(answer); null = by nothing
    logprobs    instead of gains: of the answer's tokens (or their mean) before each turn; null = not measured
    outcome     the score of the answer, before any penalty
    malformed   one true or false per turn; left out = none is
    group       a number that the rollouts of a question share; left out = 0
"""

import json
import tempfile
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

from minvenus.config import ConfigError, check, one_of
from minvenus.console import table
from minvenus.igpo.credit import Credit, assign_credit
from minvenus.igpo.recipes import RECIPES, Recipe
from minvenus.report.saved import SavedBatch
from minvenus.report.source import read_records
from minvenus.report.xray import write_page
from minvenus.types import (
    UNKNOWN,
    Kind,
    Question,
    Rollout,
    Sample,
    Turn,
    has_type,
    in_words,
    setting,
)

FIELDS: dict[str, Any] = {                # name -> type
    "group": int,
    "kinds": list[Kind],
    "gains": list[float | None],
    "logprobs": list[float | list[float] | None],
    "malformed": list[bool],
    "outcome": float,
}
ANSWER = "<think>\n</think>\n\n<answer>\n(its words are not known)\n</answer>"     # the text of the last turn


def visits(*given: float, outcome: int = 0) -> dict:
    """A rollout with a search and a visit for each gain, then the answer."""
    gains = [gain for each in given for gain in (None, each)]
    return {"kinds": ["search", "visit"] * len(given) + ["answer"], "gains": gains, "outcome": outcome}


EXAMPLES: dict[str, tuple[str, list[dict]]] = {               # name -> what it shows, rollouts
    "all-wrong": (
        "Every answer is wrong. GRPO has nothing to compare and learns nothing; gains still tell the good visit.",
        [visits(0.8), visits(0.0)]),
    "equal-gains": (
        "Every visit gains the same. Centred gains are 0 and only outcomes teach; uncentred ones still pay visits.",
        [visits(0.5, 0.5, outcome=1), visits(0.5, 0.5)]),
    "front-loaded": (
        "The first visit gains much, the second one little. Centred, the second visit is punished although it helped, "
        "so the paper's recipe learns to stop early; uncentred, it is paid.",
        [visits(1.4, 0.1), visits(1.4, 0.1)]),
    "stops-early": (
        "One rollout stops after its first visit, the other goes on and gains a little more. Centred, stopping has the "
        "higher advantages; uncentred, going on has.",
        [visits(0.8), visits(0.8, 0.2)]),
    "malformed": (
        "The second search of the first rollout is malformed. The paper's recipe puts the penalty on this turn, and "
        "discounted on the one before; in the released code both searches share one return; GRPO looks at the last "
        "turn only.",
        [{"kinds": ["search", "search", "visit", "answer"], "gains": [None, None, 0.5],
          "malformed": [False, True, False, False], "outcome": 1},
         {"kinds": ["search", "search", "visit", "answer"], "gains": [None, None, 0.3], "outcome": 0}]),
    "no-visit": (
        "One rollout answers at once. It has no gain: an absent reward is not 0 and enters no mean.",
        [visits(), visits(0.6, outcome=1), visits(0.2)]),
}


@dataclass(frozen=True)
class CreditConfig:
    """python -m minvenus.experiments credit FILE: the credit of rollouts whose gains or log-probs are given."""

    file: str | None = setting(None, "rollouts as JSON, as above; may be given without --file")
    example: str | None = setting(None,
        "instead of a file: a classic situation; a wrong name lists them")
    recipe: Recipe = setting(Recipe(),
        "how rewards become advantages, by default paper; its fields are flags")
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
        shows, rollouts = EXAMPLES[config.example]
        records: list[tuple[str, Any]] = [(config.example, rollout) for rollout in rollouts]
    else:
        shows, records = str(config.file), read_records(Path(str(config.file)))
    batch = measured(records)
    if config.recipe.gain == "prob" and any("gains" in record for _, record in records):
        raise ConfigError("the gain prob needs logprobs: a gain in log P does not say by how much P rose")
    try:
        credited = assign_credit(batch, config.recipe)
    except ValueError as error:
        raise ConfigError(f"{config.file or config.example}: {error}") from None
    if config.page:
        return f"page: {write_xray(batch, credited, config, shows)}"
    if config.json:
        return as_json(batch, credited)
    report = f"{statistics(batch, credited)}\n\n{table(per_turn(batch, numbers(batch, credited, config.recipe)))}"
    if config.example:
        given = "\n".join(json.dumps(record) for _, record in records)
        under = {name: assign_credit(batch, recipe).advantages for name, recipe in RECIPES.items()}
        report = f"{shows}\n\n{given}\n\n{report}\n\nadvantages under each recipe\n{table(per_turn(batch, under))}"
    return report


# ------------------------------------------------------------------------------------------------- what is given


def measured(records: list[tuple[str, Any]]) -> list[Sample]:
    """The rollouts. Where gains are given, values begin alike in all of them, and the highest is P(answer) = 1."""
    batch = [read_rollout(record, where) for where, record in records]
    if not batch:
        raise ConfigError("there is no rollout")
    summed = [m for m, (_, record) in zip(batch, records, strict=True) if "gains" in record]
    top = max((row[0] for m in summed for row in m.truth_logprobs if row), default=0.0)
    for m in summed:
        m.truth_logprobs[:] = [[row[0] - top] for row in m.truth_logprobs if row]
    return batch


def read_rollout(record: Any, where: str) -> Sample:
    """One rollout, or an error that says which field is wrong."""
    if not isinstance(record, dict):
        raise ConfigError(f"{where}: a rollout is an object with {', '.join(FIELDS)}; got {record!r}")
    given: dict[str, Any] = {"group": 0, "kinds": None, "outcome": None} | record
    for name, value in given.items():
        one_of(f"{where}: a field", name, FIELDS)
        blank = name in ("kinds", "logprobs") and isinstance(value, list) and [] in (value, *value)
        if blank or not has_type(value, FIELDS[name]):
            raise ConfigError(f"{where}: {name} must be {in_words(FIELDS[name], {})}; got {value!r}")
    if ("gains" in given) == ("logprobs" in given):
        raise ConfigError(f"{where}: give gains or logprobs, one of the two")
    kinds = given["kinds"]
    malformed = given.get("malformed", [False] * len(kinds))
    if "gains" in given:
        logprobs = from_gains(given["gains"], kinds, where)
    else:
        logprobs = [[entry] if isinstance(entry, int | float) else entry for entry in given["logprobs"]]
    for name, row in (("malformed", malformed), ("logprobs", logprobs)):
        if len(row) != len(kinds):
            raise ConfigError(f"{where}: {name} must have {len(kinds)} entries, one for each turn; got {row!r}")
    return sample_of(kinds, malformed, logprobs, float(given["outcome"]), given["group"])


def sample_of(kinds: list[str], malformed: list[bool], truth_logprobs: list[list[float] | None], outcome: float,
              group: int) -> Sample:
    """A sample whose turns have a kind, one token and no words."""
    count = len(kinds)
    turns = [Turn(cast(Kind, kinds[t]), t, t + 1, text="", observation="", malformed=malformed[t])
             for t in range(count)]
    turns[-1] = replace(turns[-1], text=ANSWER, observation=None)
    question = Question("0", "(not known)", [UNKNOWN])
    rollout = Rollout(question, [0] * count, [False] * count, [None] * count, turns, "answered")
    return Sample(rollout, truth_logprobs, outcome, group)


def from_gains(gains: list[float | None], kinds: list[str], where: str) -> list[list[float] | None]:
    """Log-probs that have these gains, as of an answer of one token, from 0 on."""
    unpaid = [kind for kind, gain in zip(kinds, gains, strict=False) if kind == "visit" and gain is None]
    if len(gains) != len(kinds) - 1 or unpaid:
        raise ConfigError(f"{where}: gains must have {len(kinds) - 1} entries, one for each turn but the last, and a "
                          f"number for every visit; got {gains!r}")
    return [[value] for value in accumulate((gain or 0.0 for gain in gains), initial=0.0)]


# ----------------------------------------------------------------------------------------------- what comes out


def as_json(batch: list[Sample], credited: Credit) -> str:
    """Every number of every rollout. Gains that were given come back through a sum: they are rounded to 12 digits."""
    found = []
    for i, m in enumerate(batch):
        found.append({"group": m.group, "kinds": m.rollout.kinds, "malformed": m.rollout.malformed,
                      **credited.arithmetic(i, m.group)})
    return json.dumps(json.loads(json.dumps(found), parse_float=lambda digits: round(float(digits), 12)))


def statistics(batch: list[Sample], credited: Credit) -> str:
    lines = []
    for group, stats in credited.record.groups.items():
        count = sum(m.group == group for m in batch)
        numbers = "  ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in asdict(stats).items())
        lines.append(f"group {group}, {count} rollouts:  {numbers}")
    r = credited.record
    lines.append(f"IG-Scale {r.scale:.4f}:  mean |z| of outcomes {r.outcome_size:.4f}, "
                 f"of turn rewards {r.turn_reward_size:.4f}")
    return "\n".join(lines)


def numbers(batch: list[Sample], credited: Credit, recipe: Recipe) -> dict[str, list[list]]:
    """name -> a number for each turn of each rollout. V is the value before the turn; a star marks a penalty."""
    record = credited.record
    rewards = []
    for m, r in zip(batch, credited.rewards, strict=True):
        marks = [*r.is_penalty(), m.rollout.malformed[-1] and recipe.format_penalty is not None]
        rewards.append([shown(reward) + "*" * mark for reward, mark in zip([*r.turns, r.outcome], marks, strict=True)])
    z = [[*turns, outcome] for turns, outcome in zip(record.turn_z, record.outcome_z, strict=True)]
    return {"V": credited.beliefs, "gain": credited.gains, "reward": rewards, "z": z, "scaled": record.terms,
            "A": record.advantages}


def per_turn(batch: list[Sample], columns: dict[str, list[list]]) -> list[list[str]]:
    found = [["rollout", "turn", "kind", *columns]]
    for i, m in enumerate(batch):
        for t, kind in enumerate(m.rollout.kinds):
            cells = [shown(column[i][t]) for column in columns.values()]
            found.append([f"{i + 1}" if t == 0 else "", f"{t + 1}", kind, *cells])
    return found


def shown(value: float | str | None) -> str:
    if isinstance(value, str):
        return value
    return "-" if value is None else f"{value:+.4f}"


def write_xray(batch: list[Sample], credited: Credit, config: CreditConfig, shows: str) -> Path:
    """The page of a training batch with these numbers. Its turns have no words and a token each."""
    shown = []
    for m in batch:
        question = Question(f"{m.group}", shows, [UNKNOWN])
        shown.append(replace(m, rollout=replace(m.rollout, question=question)))
    saved = SavedBatch(0, "given", config.recipe, shown, credited)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(str(config.file or config.example)).name
        path.write_text("".join(json.dumps(line) + "\n" for line in saved.lines()), encoding="utf-8")
        return write_page(path, config.page)
