"""Questions and the tools to answer them with: the toy web's own, or a file of questions with any other tool set.

    JSONL     {"question": "...", "answer": "..." or ["...", ...]}, optional "id", "source", "hops"; others are ignored
    Parquet   the same columns, or those of the released data: prompt (one user message), reward_model.ground_truth and
              data_source
    CSV       BrowseComp: problem, answer, canary, optional problem_topic. Problem and answer are encrypted, row by row:
                  text = base64^-1(cell) XOR key,   key = SHA-256(canary), repeated

Several accepted answers are a list, or one string joined by answers.ALIAS_MARK. A question without an id gets a hash of
its text as its id, so sorting or shortening the file renames nothing; the same text again gets "-2" after it and is a
question of its own. A line that cannot be read is an error with its number: without it the questions would not be those
that the file's name claims.

BrowseComp is encrypted so that its answers stay out of training data: do not publish what is decrypted here.
"""

import base64
import binascii
import csv
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path

from minvenus.config import ConfigError
from minvenus.evaluation.answers import ALIAS_MARK, split_aliases
from minvenus.files import digest, read_rows
from minvenus.tools.toyweb import ToyWeb, visit_labels
from minvenus.tools.web import make_tools
from minvenus.types import Question, Rollout

FORMATS = (".jsonl", ".parquet", ".csv")
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
    # per turn the labels of its pages ("right", "wrong", ...), and how many right pages the question has, if known
    pages: Callable[[Rollout], tuple[list[list[str]], int | None]]
    immediate: bool                                # no tool call can hang, so none needs a thread
    close: Callable[[], None] = lambda: None       # closes the tools

    @property
    def held_out(self) -> list[Question]:
        return [entry.question for entry in self.entries]

    def visits(self, done: list[Rollout]) -> tuple[list[list[list[str]]], list[int | None]]:
        """The labels, and the numbers of right pages, of all rollouts."""
        found = [self.pages(rollout) for rollout in done]
        return [labels for labels, _ in found], [right for _, right in found]


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
        pages=lambda rollout: ([[] for _ in rollout.turns], None),
        immediate=tools.partition(":")[0] in IMMEDIATE,
        close=getattr(tool_set, "close", lambda: None))


def toy_questions(web: ToyWeb, limit: int | None = None, max_turns: int | None = None,
                  per_step: int = 0) -> QuestionSource:
    def pages(rollout: Rollout) -> tuple[list[list[str]], int]:
        labels: list[list[str]] = [[label.kind for label in turn] for turn in visit_labels(web, rollout)]
        return labels, web.case(rollout.question.id).hops

    questions = web.questions("test")
    if limit is not None and limit > len(questions):
        raise ConfigError(f"the toy web has {len(questions)} test questions, not {limit}: ask for fewer")
    entries = [Entry(question, hops=web.case(question.id).hops) for question in questions]
    return QuestionSource(
        entries=entries[:limit], training=web.questions("train") if per_step else [],
        fingerprint=digest([asdict(entry) for entry in entries]),
        tools_for=lambda question: web.for_question(question.id),
        max_turns=lambda question: max_turns or web.max_turns(question.id),
        pages=pages, immediate=True)


# ---------------------------------------------------------------------------------------------------- question files


def read_entries(path) -> list[Entry]:
    """All questions of a file, in its order."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ConfigError(f"a question file ends in {', '.join(FORMATS)}; got {path}")
    if not path.is_file():
        raise ConfigError(f"{path} does not exist")
    entries: list[Entry] = []
    lines: dict[str, int] = {}                # id -> the line that has it
    repeats: Counter[str] = Counter()         # of made ids
    for number, record in browsecomp(path) if path.suffix == ".csv" else records(path):
        try:
            entry = read_entry(record, repeats)
            first = lines.setdefault(entry.question.id, number)
            if first != number:
                raise ValueError(f"the id {entry.question.id!r} is that of line {first}")
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None
        entries.append(entry)
    if not entries:
        raise ConfigError(f"{path} has no questions")
    return entries


def records(path: Path) -> Iterator[tuple[int, dict]]:
    for number, record in read_rows(path):
        if isinstance(record, str):                           # why the line is no record
            raise ConfigError(f"{path}, line {number}: {record}")
        yield number, record


def read_entry(record: dict, repeats: Counter[str]) -> Entry:
    """One record as an entry; ValueError if it cannot be read. `repeats` counts the ids that are made here."""
    if "prompt" in record and "question" not in record:
        record = released_record(record) | {"id": record.get("id")}
    if "question" not in record:
        keys = ", ".join(record) or "nothing"
        raise ValueError(f'need "question" and "answer", or "prompt" and "reward_model"; got {keys}')
    text, source = record["question"], record.get("source")
    if not isinstance(text, str):
        raise ValueError(f"the question must be a text, got {type(text).__name__}")
    for name, value, kind in (("source", source, str), ("hops", record.get("hops"), int)):
        if value is not None and type(value) is not kind:
            raise ValueError(f"{name} must be of type {kind.__name__}, got {value!r}")
    question = Question(question_id(record.get("id"), text, repeats), text.strip(), accepted(record.get("answer")))
    return Entry(question, source, record.get("hops"))


def accepted(answer) -> list[str]:
    """The accepted answers of a string or a list of strings, aliases split."""
    listed = [answer] if isinstance(answer, str) else answer
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise ValueError(f"the answer must be a string or a list of strings, got {answer!r}")
    found = [alias for item in listed for alias in split_aliases(item)]
    if not found:
        raise ValueError(f"the answer is blank: {answer!r}")
    return list(dict.fromkeys(found))


def question_id(given, text: str, repeats: Counter[str]) -> str:
    if given is not None:
        if type(given) not in (str, int) or not str(given).strip():
            raise ValueError(f"the id must be a string or a whole number, got {given!r}")
        return str(given)
    made = hashlib.sha256(text.strip().encode("utf-8", "surrogatepass")).hexdigest()[:12]
    repeats[made] += 1
    return made if repeats[made] == 1 else f"{made}-{repeats[made]}"


def released_record(record: dict) -> dict:
    """A record of the released RL data in our form. A list of truths is refused: there only its last entry is the
    answer, in our form any entry is."""
    match record:
        case {"prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": str(truth)}}:
            return {"question": text, "answer": truth, "source": record.get("data_source")}
    raise ValueError('"prompt" must be a list of one message with the role user, and "reward_model" must have a string '
                     f"ground_truth, aliases joined by {ALIAS_MARK}")


def browsecomp(path: Path) -> Iterator[tuple[int, dict]]:
    """The decrypted rows, each with the number of its last line."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        try:
            missing = {"problem", "answer", "canary"} - set(reader.fieldnames or ())
            if missing:
                raise ValueError("BrowseComp has the columns problem, answer and canary; missing: "
                                 + ", ".join(sorted(missing)))
            for row in reader:
                if None in row or None in row.values():
                    raise ValueError(f"{len(reader.fieldnames or ())} columns are expected")
                yield reader.line_num, {"question": decrypt(row["problem"], row["canary"]),
                                        "answer": decrypt(row["answer"], row["canary"]),
                                        "source": row.get("problem_topic") or None}
        except (ValueError, csv.Error) as error:              # bytes that are not UTF-8 are a ValueError
            raise ConfigError(f"{path}, line {reader.line_num}: {error}") from None


def decrypt(cell: str, canary: str) -> str:
    if not canary:
        raise ValueError("the canary is empty")
    try:
        hidden = base64.b64decode(cell, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a cell is not base64: is the file BrowseComp's own, still encrypted?") from None
    key = cycle(hashlib.sha256(canary.encode()).digest())
    try:
        return bytes(a ^ b for a, b in zip(hidden, key, strict=False)).decode()
    except UnicodeDecodeError:
        raise ValueError("a cell does not decrypt to text: the canary does not fit") from None
