"""Questions and the tools to answer them with: the toy web's own, or a file of questions with any other tool set.

    JSONL     {"question": "...", "answer": "..." or ["...", ...]}, optional "id", "source", "hops"; others are ignored
    Parquet   the same columns, or those of the released data: prompt (one user message), reward_model.ground_truth and
              data_source
    CSV       BrowseComp: problem, answer, canary, optional problem_topic. Problem and answer are encrypted, row by row:
                  text = base64^-1(cell) XOR key,   key = SHA-256(canary), repeated

Several accepted answers are a list, or one string joined by answers.ALIAS_MARK. A question without an id gets a hash of
its text as its id, so sorting or shortening the file renames nothing; the same text again gets "-2" after it and is a
question of its own. A line that cannot be read is an error, not a smaller evaluation.

BrowseComp is encrypted so that its answers stay out of training data: do not publish what is decrypted here.
"""

import base64
import csv
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from types import NoneType

from minvenus.config import ConfigError
from minvenus.evaluation.answers import split_aliases
from minvenus.files import digest, read_rows
from minvenus.tools.toyweb import ToyWeb, visit_labels
from minvenus.tools.web import make_tools
from minvenus.types import Question, Rollout

FORMATS = (".jsonl", ".parquet", ".csv")
SHAPE = ('a question is {"question": text, "answer": text or list of texts}, optionally with "id": text or number, '
         '"source": text, "hops": number; or {"prompt": [one user message], "reward_model": {"ground_truth": text}}; '
         "or a row of BrowseComp with problem, answer and canary")
IMMEDIATE = ("toyweb", "folder", "replay")        # tools that cannot hang: they run in the loop's thread, reproducibly


@dataclass(frozen=True)
class Entry:
    """A question, and the groups that a report breaks its accuracy down by."""

    question: Question
    source: str | None = None
    hops: int | None = None


@dataclass(frozen=True)
class QuestionSource:
    """Questions with their tools, for eval.py and train_igpo.py."""

    entries: list[Entry]                           # to evaluate on; in training these are held out
    training: list[Question]                       # empty unless asked for
    fingerprint: str                               # of all questions in the source: a resumed run must have the same
    tools_for: Callable[[Question], object]        # a new tool set for one rollout
    max_turns: Callable[[Question], int]
    # per rollout: per turn the labels of its pages ("right", "wrong", ...); how many right pages there are, if known
    visits: Callable[[list[Rollout]], tuple[list[list[list[str]]], list[int | None]]]
    immediate: bool                                # no tool call can hang, so none needs a thread
    close: Callable[[], None] = lambda: None       # closes the tools

    @property
    def held_out(self) -> list[Question]:
        return [entry.question for entry in self.entries]


def open_questions(path: str | None, tools: str, seed: int = 0, *, hops: int | None = None, slack: int | None = None,
                   max_turns: int | None = None, limit: int | None = None, per_step: int = 0) -> QuestionSource:
    """The questions of the file `path`, or of the toy web. The first `limit` are for evaluation (None = all). Training
    passes the number of questions in a step as `per_step`; then the others are training questions."""
    if tools == "toyweb":
        return toy_questions(ToyWeb(seed, hops, slack or 0), limit, max_turns, per_step)
    assert path is not None
    entries = read_entries(path)
    held_out = entries[:limit]
    held_out_texts = {entry.question.text for entry in held_out}      # the same text may come again further down
    training = [entry.question for entry in entries if entry.question.text not in held_out_texts] if per_step else []
    if per_step and (len(entries) < (limit or 0) or len(training) < per_step):
        raise ConfigError(f"{path} has {len(entries)} questions: {limit} are held out, {len(training)} others are left "
                          f"to train on, and a step takes {per_step}: lower --questions or --evaluate-questions")
    tool_set = make_tools(tools, seed)
    return QuestionSource(
        entries=held_out, training=training, fingerprint=digest([asdict(entry) for entry in entries]),
        tools_for=lambda question: tool_set,
        max_turns=lambda question: max_turns or 200,
        visits=lambda done: ([[[] for _ in rollout.turns] for rollout in done], [None] * len(done)),
        immediate=tools.partition(":")[0] in IMMEDIATE,
        close=getattr(tool_set, "close", lambda: None))


def toy_questions(web: ToyWeb, limit: int | None = None, max_turns: int | None = None,
                  per_step: int = 0) -> QuestionSource:
    def kinds(rollout: Rollout) -> list[list[str]]:
        return [[label.kind for label in turn] for turn in visit_labels(web, rollout)]

    entries = [Entry(question, hops=web.case(question.id).hops) for question in web.questions("test")]
    return QuestionSource(
        entries=entries[:limit], training=web.questions("train") if per_step else [],
        fingerprint=digest([asdict(entry) for entry in entries]),
        tools_for=lambda question: web.for_question(question.id),
        max_turns=lambda question: max_turns or web.max_turns(question.id),
        visits=lambda done: (list(map(kinds, done)), [web.case(rollout.question.id).hops for rollout in done]),
        immediate=True)


# ---------------------------------------------------------------------------------------------------- question files


def read_entries(path) -> list[Entry]:
    """All questions of a file, in its order."""
    path = Path(path)
    if path.suffix not in FORMATS or not path.is_file():
        raise ConfigError(f"{path} does not exist, or does not end in {', '.join(FORMATS)}")
    entries: list[Entry] = []
    lines: dict[str, int] = {}                # id -> the line that has it
    repeats: Counter[str] = Counter()         # of made ids
    number = 1
    try:
        for number, record in csv_rows(path) if path.suffix == ".csv" else read_rows(path):
            entry = read_entry(record, repeats)
            first = lines.setdefault(entry.question.id, number)
            if first != number:
                raise ValueError(f"the id {entry.question.id!r} is that of line {first}")
            entries.append(entry)
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"{path}, line {number}: {error}") from None
    if not entries:
        raise ConfigError(f"{path} has no questions")
    return entries


def csv_rows(path: Path) -> Iterator[tuple[int, dict]]:
    """The rows, each with the number of its last line."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        for row in reader:
            yield reader.line_num, row


def read_entry(record: dict | str, repeats: Counter[str]) -> Entry:
    """One record as an entry; ValueError if it cannot be read. `repeats` counts the ids that are made here."""
    hops = None
    match record:
        case str():                                           # says why the line is no record
            raise ValueError(record)
        case {"problem": str(text), "answer": str(answer), "canary": str(canary)}:
            text, answer = decrypt(text, canary), decrypt(answer, canary)
            source = record.get("problem_topic") or None
        case {"question": str(text), "answer": str() | list() as answer}:
            source, hops = record.get("source"), record.get("hops")
        case {"prompt": [{"role": "user", "content": str(text)}], "reward_model": {"ground_truth": str(answer)}}:
            source = record.get("data_source")
        case _:
            raise ValueError(f"{SHAPE}; got {str(record)[:200]}")
    name = record.get("id")
    listed = [answer] if isinstance(answer, str) else answer
    right_types = (type(name) in (NoneType, str, int) and type(source) in (NoneType, str)
                   and type(hops) in (NoneType, int) and all(isinstance(item, str) for item in listed))
    if not right_types:
        raise ValueError(f"{SHAPE}; got {str(record)[:200]}")
    answers = [alias for item in listed for alias in split_aliases(item)]
    text = text.strip()
    if name is None:
        made = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        repeats[made] += 1
        name = made if repeats[made] == 1 else f"{made}-{repeats[made]}"
    return Entry(Question(str(name), text, list(dict.fromkeys(answers))), source, hops)


def decrypt(cell: str, canary: str) -> str:
    key = cycle(hashlib.sha256(canary.encode()).digest())
    try:
        hidden = base64.b64decode(cell, validate=True)
        return bytes(a ^ b for a, b in zip(hidden, key, strict=False)).decode()
    except ValueError:
        raise ValueError("a cell does not decrypt: is the file BrowseComp's own, with its canaries?") from None
