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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate, count
from pathlib import Path
from typing import Any, cast

from minvenus.config import ConfigError, Recipe, check, has_type, one_of
from minvenus.console import table
from minvenus.igpo.credit import Credit, Measured, credit
from minvenus.report.saved import SavedBatch
from minvenus.report.xray import write_page
from minvenus.types import KINDS, Kind, Question, Rollout, Turn

FIELDS = ("group", "kinds", "gains", "logprobs", "malformed", "outcome")
ONE_VISIT, TWO_VISITS = ["search", "visit", "answer"], ["search", "visit", "search", "visit", "answer"]
GIVEN = ("", "<think>\n</think>\n\n<answer>\n(given)\n</answer>")         # the text of a turn, of the last one
COMPARED = {"GRPO": Recipe.paper(use_gain=False, gamma=1.0), "paper": Recipe.paper(), "released": Recipe.released(),
            "uncentred": Recipe.paper(center_gain=False)}

# name -> (what it shows, rollouts)
EXAMPLES: dict[str, tuple[str, list[dict]]] = {
    "all-wrong": (
        "Every answer is wrong. GRPO has nothing to compare and learns nothing; gains still tell the good visit.",
        [{"kinds": ONE_VISIT, "gains": [None, 0.8], "outcome": 0},
         {"kinds": ONE_VISIT, "gains": [None, 0.0], "outcome": 0}]),
    "equal-gains": (
        "Every visit gains the same. Centred gains are 0 and only outcomes teach; uncentred ones still pay visits.",
        [{"kinds": TWO_VISITS, "gains": [None, 0.5, None, 0.5], "outcome": 1},
         {"kinds": TWO_VISITS, "gains": [None, 0.5, None, 0.5], "outcome": 0}]),
    "front-loaded": (
        "The first visit gains much, the second one little. Centred, the second visit is punished although it helped, "
        "so the paper's recipe learns to stop early; uncentred, it is paid.",
        [{"kinds": TWO_VISITS, "gains": [None, 1.4, None, 0.1], "outcome": 0},
         {"kinds": TWO_VISITS, "gains": [None, 1.4, None, 0.1], "outcome": 0}]),
    "stops-early": (
        "One rollout stops after its first visit, the other goes on and gains a little more. Centred, stopping has the "
        "higher advantages; uncentred, going on has.",
        [{"kinds": ONE_VISIT, "gains": [None, 0.8], "outcome": 0},
         {"kinds": TWO_VISITS, "gains": [None, 0.8, None, 0.2], "outcome": 0}]),
    "malformed": (
        "The second search of the first rollout is malformed. The paper's recipe puts the penalty on this turn, and "
        "discounted on the one before; in the released code both searches share one return; GRPO looks at the last "
        "turn only.",
        [{"kinds": ["search", "search", "visit", "answer"], "gains": [None, None, 0.5],
          "malformed": [False, True, False, False], "outcome": 1},
         {"kinds": ["search", "search", "visit", "answer"], "gains": [None, None, 0.3], "outcome": 0}]),
    "no-visit": (
        "One rollout answers at once. It has no gain: an absent reward is not 0 and enters no mean.",
        [{"kinds": ["answer"], "gains": [], "outcome": 0},
         {"kinds": ONE_VISIT, "gains": [None, 0.6], "outcome": 1},
         {"kinds": ONE_VISIT, "gains": [None, 0.2], "outcome": 0}]),
}


@dataclass(frozen=True)
class CreditConfig:
    """python -m minvenus.experiments credit FILE: the credit of rollouts whose gains or log-probs are given."""

    file: str | None = None           # rollouts as JSON, see minvenus/experiments/calculator.py
    example: str | None = None        # instead of a file: a classic situation, or "list"
    recipe: Recipe = Recipe()         # how rewards become advantages; its fields are flags, too
    json: bool = False                # print the numbers as JSON
    page: str | None = None           # write the X-ray page of them to this file

    def __post_init__(self):
        check(self)
        if (self.file is None) == (self.example is None):
            raise ConfigError("give a FILE of rollouts, or --example NAME (--example list has the names)")
        if self.example is not None:
            one_of("example", self.example, [*EXAMPLES, "list"])


def main(config: CreditConfig) -> str:
    if config.example == "list":
        return table([[name, shows] for name, (shows, _) in EXAMPLES.items()], left=True)
    if config.example:
        shows, rollouts = EXAMPLES[config.example]
        records: list[tuple[str, Any]] = [(f"rollout {i}", dict(rollout)) for i, rollout in enumerate(rollouts, 1)]
    else:
        shows, records = str(config.file), list(read_file(Path(str(config.file))))
    if config.recipe.gain == "prob" and any("gains" in record for _, record in records if isinstance(record, dict)):
        raise ConfigError("the gain prob needs logprobs: a gain in log P does not say by how much P rose")
    batch = measured(records)
    try:
        credited = credit(batch, config.recipe)
    except ValueError as error:
        raise ConfigError(f"{config.file or config.example}: {error}") from None
    if config.page:
        return f"page: {write_xray(batch, credited, config, shows)}"
    if config.json:
        return json.dumps(numbers(batch, credited))
    report = f"{in_words(batch, credited)}\n\n{table(rows(batch, credited))}"
    if config.example:
        given = "\n".join(json.dumps(record) for _, record in records)
        report = f"{shows}\n\n{given}\n\n{report}\n\nadvantages under each recipe\n{table(compared(batch))}"
    return report


# ------------------------------------------------------------------------------------------------- what is given


def read_file(path: Path) -> Iterator[tuple[str, Any]]:
    """(where it stands, value) of every value in a JSON list, or in a row of values."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    decoder, place = json.JSONDecoder(), 0
    for number in count(1):
        while place < len(text) and (text[place].isspace() or text[place] in ",[]"):
            place += 1
        if place == len(text):
            return
        line = text.count("\n", 0, place) + 1
        try:
            value, place = decoder.raw_decode(text, place)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ConfigError(f"{path}, rollout {number} (line {line}) is not JSON: {error}") from None
        yield f"{path}, rollout {number} (line {line})", value


def measured(records: list[tuple[str, Any]]) -> list[Measured]:
    """The rollouts. Where gains are given, values begin alike in all of them, and the highest is P(answer) = 1."""
    batch = [read_rollout(record, where) for where, record in records]
    if not batch:
        raise ConfigError("there is no rollout")
    summed = [m for m, (_, record) in zip(batch, records, strict=True) if "gains" in record]
    top = max((row[0] for m in summed for row in m.logprobs if row), default=0.0)
    for m in summed:
        m.logprobs[:] = [[row[0] - top] for row in m.logprobs if row]
    return batch


def read_rollout(record: Any, where: str) -> Measured:
    """One rollout, or an error that says which field is wrong."""
    if not isinstance(record, dict):
        raise ConfigError(f"{where}: a rollout is an object with {', '.join(FIELDS)}; got {record!r}")
    for name in record:
        one_of(f"{where}: a field", name, FIELDS)
    kinds, outcome, group = record.get("kinds"), record.get("outcome", ""), record.get("group", 0)
    if not isinstance(kinds, list) or not kinds or not all(kind in KINDS for kind in kinds):
        raise ConfigError(f"{where}: kinds must be a list of {', '.join(KINDS)}; got {kinds!r}")
    if not has_type(outcome, float):
        raise ConfigError(f"{where}: outcome must be a number; got {outcome!r}")
    if type(group) is not int:
        raise ConfigError(f"{where}: group must be a whole number; got {group!r}")
    malformed = record.get("malformed", [False] * len(kinds))
    if not isinstance(malformed, list) or len(malformed) != len(kinds) or not all(type(m) is bool for m in malformed):
        raise ConfigError(f"{where}: malformed must be {len(kinds)} of true and false, one per turn; got {malformed!r}")
    if ("gains" in record) == ("logprobs" in record):
        raise ConfigError(f"{where}: give gains or logprobs, one of the two")
    logprobs = from_gains(record, where) if "gains" in record else from_logprobs(record, where)
    return Measured(kinds, malformed, logprobs, float(outcome), group)


def from_gains(record: dict, where: str) -> list[list[float] | None]:
    """Log-probs that have these gains, as of an answer of one token, from 0 on."""
    gains, kinds = record["gains"], record["kinds"]
    if isinstance(gains, list) and len(gains) == len(kinds) and gains[-1] is None:
        gains = gains[:-1]
    if not isinstance(gains, list) or len(gains) != len(kinds) - 1:
        raise ConfigError(f"{where}: gains must be {len(kinds) - 1} numbers or nulls, one for each turn but the last; "
                          f"got {gains!r}")
    for t, (gain, kind) in enumerate(zip(gains, kinds, strict=False)):
        if not has_type(gain, float) and not (gain is None and kind != "visit"):
            raise ConfigError(f"{where}: gains[{t}], of a {kind}, must be a number; got {gain!r}")
    return [[value] for value in accumulate((gain or 0.0 for gain in gains), initial=0.0)]


def from_logprobs(record: dict, where: str) -> list[list[float] | None]:
    given, count = record["logprobs"], len(record["kinds"])
    if not isinstance(given, list) or len(given) != count:
        raise ConfigError(f"{where}: logprobs must have {count} entries, one for each turn; got {given!r}")
    found: list[list[float] | None] = []
    for t, entry in enumerate(given):
        row = [entry] if has_type(entry, float) else entry
        if row is not None and not (isinstance(row, list) and row and all(has_type(x, float) for x in row)):
            raise ConfigError(f"{where}: logprobs[{t}] must be a number, a list of numbers or null; got {entry!r}")
        found.append(row)
    return found


# ----------------------------------------------------------------------------------------------- what comes out


def numbers(batch: list[Measured], credited: Credit) -> list[dict]:
    """Every number of every rollout. Gains that were given come back through a sum: they are rounded to 12 digits."""
    found = []
    for i, m in enumerate(batch):
        found.append({"group": m.group, "kinds": m.kinds, "malformed": m.malformed,
                      **rounded(credited.arithmetic(i, m.group))})
    return found


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return round(value, 12) if isinstance(value, float) else value


def in_words(batch: list[Measured], credited: Credit) -> str:
    """The statistics of the groups and of the batch."""
    lines = []
    for group, stats in credited.record.groups.items():
        count = sum(m.group == group for m in batch)
        numbers = "  ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in asdict(stats).items())
        lines.append(f"group {group}, {count} rollouts:  {numbers}")
    r = credited.record
    lines.append(f"IG-Scale {r.scale:.4f}:  mean |z| of outcomes {r.m_outcome:.4f}, of turn rewards {r.m_gain:.4f}")
    return "\n".join(lines)


def rows(batch: list[Measured], credited: Credit) -> list[list[str]]:
    """A row per turn. V is the value before the turn; a star marks a penalty."""
    found = [["rollout", "turn", "kind", "V", "gain", "reward", "z", "scaled", "A"]]
    for i, m in enumerate(batch):
        n = credited.arithmetic(i, m.group)
        rewards, z = [*n["turn_rewards"], n["outcome"]], [*n["turn_z"], n["outcome_z"]]
        for t, kind in enumerate(m.kinds):
            cells = [shown(row[t]) for row in (n["values"], n["gains"], rewards, z, n["terms"], n["advantages"])]
            cells[2] += "*" if m.malformed[t] else ""
            found.append([f"{i + 1}" if t == 0 else "", f"{t + 1}", kind, *cells])
    return found


def compared(batch: list[Measured]) -> list[list[str]]:
    """The advantage of every turn under each recipe."""
    under = {name: credit(batch, recipe).record.advantages for name, recipe in COMPARED.items()}
    found = [["rollout", "turn", "kind", *under]]
    for i, m in enumerate(batch):
        for t, kind in enumerate(m.kinds):
            found.append([f"{i + 1}" if t == 0 else "", f"{t + 1}", kind, *(shown(a[i][t]) for a in under.values())])
    return found


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"


def write_xray(batch: list[Measured], credited: Credit, config: CreditConfig, shows: str) -> Path:
    """The page of a training batch with these numbers. Its turns have no words and a token each."""
    rollouts = []
    for m in batch:
        last = len(m.kinds) - 1
        turns = []
        for t, (kind, bad) in enumerate(zip(m.kinds, m.malformed, strict=True)):
            observation = None if t == last else ""
            turns.append(Turn(cast(Kind, kind), t, t + 1, GIVEN[t == last], observation=observation, malformed=bad))
        empty: list[None] = [None] * len(turns)
        rollouts.append(Rollout(Question(f"{m.group}", shows, ["(given)"]), [0] * len(turns), [False] * len(turns),
                                [*empty], turns, "answered"))
    saved = SavedBatch(0, "given", config.recipe, rollouts, batch, credited)
    name = Path(config.file).stem if config.file else config.example
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in saved.lines()), encoding="utf-8")
        return write_page(path, config.page)
