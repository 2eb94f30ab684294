"""Files that an X-ray can be made of, read into one form.

    RUN/rollouts/step-*.jsonl     a training batch with its reward arithmetic (report/saved.py): everything can be shown
    a saved rollout               infer.py --save, or lines of eval.py: no arithmetic, one group per question
    messages                      somebody else's trajectory, {"messages": [system, user, assistant, ...]}: text only

A case is one rollout as a page shows it. Nothing is computed here but what a turn's own text says: its kind, the call, the rule
of the format that it breaks, and whether the same call was made before.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from minvenus.agent.protocol import ParsedTurn, format_error, parse_turn
from minvenus.agent.record import rollout_from_json
from minvenus.config import ConfigError, Recipe
from minvenus.report import saved
from minvenus.text.chat import CLOSE, OPEN
from minvenus.types import Question, Rollout, Turn

UNKNOWN = "(unknown)"                  # what infer.py writes as the answer to a question of the user's own


@dataclass(frozen=True)
class ShownTurn:
    """A turn with what its text says."""

    text: str
    kind: str
    parsed: ParsedTurn
    malformed: bool
    rule: str | None                   # the rule of the format that the text breaks
    observation: str | None
    repeats: int | None                # the earlier turn that made the very same call
    turn: Turn | None = None           # as it was recorded; None for a trajectory of messages


@dataclass(frozen=True)
class Case:
    question: Question | None          # None where no answer is known
    prompt: str                        # the question's text
    turns: list[ShownTurn]
    group: int | str
    row: int = 0                                 # its place in the file
    messages: list[dict] | None = None           # of a trajectory from elsewhere
    rollout: Rollout | None = None               # of one from here
    verdict: bool | None = None                  # of eval.py
    label: str | None = None                     # which run of the question


@dataclass(frozen=True)
class Source:
    name: str
    cases: list[Case] = field(repr=False)
    batch: saved.SavedBatch | None = None        # aligned with `cases`, of training files only

    @property
    def recipe(self) -> Recipe | None:
        return self.batch.recipe if self.batch else None


def read_source(path) -> Source:
    path = Path(path)
    records = read_records(path)
    first = records[0]
    if first.get("format") == saved.FORMAT:
        batch = saved.load_batch(path)
        cases = [case_of(rollout, group) for rollout, group in zip(batch.rollouts, batch.groups, strict=True)]
        return Source(path.name, numbered(cases), batch)
    cases = []
    for number, record in enumerate(records, start=1):
        try:
            cases.append(case_from(record))
        except ConfigError as error:
            raise ConfigError(f"{path}, record {number}: {error}") from None
    return Source(path.name, numbered(cases))


def numbered(cases: list[Case]) -> list[Case]:
    return [replace(case, row=i) for i, case in enumerate(cases)]


def read_records(path: Path) -> list[dict]:
    """The objects of a JSON file, or of one with an object per line."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    try:
        whole = json.loads(content)
        records = whole if isinstance(whole, list) else [whole]
    except ValueError:
        try:
            records = [json.loads(line) for line in content.split("\n") if line.strip()]
        except ValueError as error:
            raise ConfigError(f"{path} is neither JSON nor JSON lines: {error}") from None
    if not records or not all(isinstance(record, dict) for record in records):
        raise ConfigError(f"{path} holds no rollout: an X-ray needs a JSON object, or one per line")
    return records


def case_from(record: dict) -> Case:
    if "rollout" in record or "tokens" in record:
        rollout = rollout_from_json(record.get("rollout", record))
        verdict = record.get("correct")
        return case_of(rollout, rollout.question.id, verdict if isinstance(verdict, bool) else None,
                       f"run {record['run']}" if isinstance(record.get("run"), int) else None)
    if "messages" in record:
        return case_of_messages(record)
    raise ConfigError('neither a saved rollout nor a trajectory: it has no "rollout", no "tokens" and no "messages"')


def case_of(rollout: Rollout, group: int | str, verdict: bool | None = None, label: str | None = None) -> Case:
    turns = rollout.turns
    parsed = [parse_turn(turn.text) for turn in turns]
    last = len(turns) - 1
    shown = [ShownTurn(turn.text, turn.kind, p, turn.malformed, format_error(turn.text, t == last), turn.observation, repeat,
                       turn) for t, (turn, p, repeat) in enumerate(zip(turns, parsed, repeats(parsed), strict=True))]
    known = None if rollout.question.answers == [UNKNOWN] else rollout.question
    return Case(known, rollout.question.text, shown, group, rollout=rollout, verdict=verdict, label=label)


def case_of_messages(record: dict) -> Case:
    """A trajectory from elsewhere. The roles may come in any order, but there must be a question and a turn behind it."""
    messages = record["messages"]
    if not isinstance(messages, list) or not all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in messages):
        raise ConfigError('"messages" must be a list of objects with a role and a text as content')
    turns: list[tuple[str, str | None]] = []          # text, observation
    prompt = None
    for message in messages:
        role, content = message.get("role"), message["content"]
        if role == "assistant":
            turns.append((content, None))
        elif role in ("user", "tool") and prompt is None:
            prompt = content
        elif role in ("user", "tool") and turns:
            turns[-1] = turns[-1][0], "\n".join(filter(None, (turns[-1][1], unwrapped(content))))
    if prompt is None or not turns:
        raise ConfigError("a trajectory needs a user message and an assistant message behind it")
    parsed = [parse_turn(text) for text, _ in turns]
    shown = []
    for t, ((text, observation), p, repeat) in enumerate(zip(turns, parsed, repeats(parsed), strict=True)):
        rule = format_error(text, t == len(turns) - 1)
        kind = "none" if p.arguments is not None and observation is None else p.kind        # a call that was not run
        shown.append(ShownTurn(text, kind, p, rule is not None, rule, observation, repeat))
    answer = record.get("gt")
    question = Question("trajectory", prompt, [answer]) if isinstance(answer, str) and answer.strip() else None
    return Case(question, prompt, shown, 0, messages=messages)


def unwrapped(content: str) -> str:
    return content[len(OPEN):-len(CLOSE)] if content.startswith(OPEN) and content.endswith(CLOSE) else content


def repeats(parsed: list[ParsedTurn]) -> list[int | None]:
    """For each turn the first one that made the same call, if there is an earlier one."""
    first: dict[str, int] = {}
    found: list[int | None] = []
    for t, turn in enumerate(parsed):
        key = json.dumps([turn.tool, turn.arguments], sort_keys=True) if turn.arguments is not None else None
        found.append(first.get(key) if key else None)
        if key:
            first.setdefault(key, t)
    return found
