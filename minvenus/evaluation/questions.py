"""Question files: JSONL, Parquet (with the optional extra) and BrowseComp's encrypted CSV.

    JSONL     {"question": "...", "answer": "..." or ["...", ...]}, optional "id", "source", "hops"; other keys are ignored
    Parquet   the same columns, or those of the released data: prompt (one user message), reward_model.ground_truth, data_source
    CSV       BrowseComp: problem, answer, canary, optional problem_topic. Problem and answer are encrypted, row by row:
                  text = base64^-1(cell) XOR key,   key = SHA-256(canary), repeated

Either of the first two forms may stand in either of the first two kinds of file. Several accepted answers are a list, or one
string joined by answers.ALIAS_MARK. A question without an id gets one from a hash of its text, so that sorting or shortening the
file renames nothing; the same text again gets "-2" behind it, and is a question of its own. Whatever cannot be read is an error
with the line's number: an evaluation on part of a file would have another meaning than it claims.

BrowseComp is encrypted so that its answers stay out of training data: do not publish what is decrypted here.
"""

import base64
import binascii
import csv
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from minvenus.config import ConfigError
from minvenus.evaluation.answers import ALIAS_MARK, split_aliases
from minvenus.files import read_rows
from minvenus.types import Question

FORMATS = (".jsonl", ".parquet", ".csv")


@dataclass(frozen=True)
class Entry:
    """A question with what a report breaks its results down by."""

    question: Question
    source: str | None = None
    hops: int | None = None


def read_questions(path) -> list[Question]:
    return [entry.question for entry in read_entries(path)]


def read_entries(path) -> list[Entry]:
    """All questions of a file, in its order."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ConfigError(f"a question file ends in {', '.join(FORMATS)}; got {path}")
    if not path.is_file():
        raise ConfigError(f"{path} does not exist")
    entries: list[Entry] = []
    lines: dict[str, int] = {}                # id -> where it was seen
    repeats: Counter[str] = Counter()         # texts without an id of their own
    for number, record in records(path):
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
    """Line or row numbers from 1, and what stands there in the form of a JSONL question."""
    if path.suffix == ".csv":
        yield from browsecomp(path)
        return
    for number, record in read_rows(path):
        if isinstance(record, str):
            raise ConfigError(f"{path}, line {number}: {record}")
        yield number, record


def read_entry(record: dict, repeats: Counter[str]) -> Entry:
    """One record as an entry; ValueError if it cannot be read. Texts that get a made id are counted in `repeats`."""
    if "question" in record:
        text, answer, source = record["question"], record.get("answer"), record.get("source")
    elif "prompt" in record:
        text, answer, source = user_text(record["prompt"]), ground_truth(record), record.get("data_source")
    else:
        raise ValueError(f'need "question" and "answer", or "prompt" and "reward_model"; got {", ".join(record) or "nothing"}')
    if not isinstance(text, str):
        raise ValueError(f"the question must be a text, got {type(text).__name__}")
    for name, value, kind in (("source", source, str), ("hops", record.get("hops"), int)):
        if value is not None and type(value) is not kind:
            raise ValueError(f"{name} must be of type {kind.__name__}, got {value!r}")
    question = Question(question_id(record.get("id"), text, repeats), text.strip(), accepted(answer))
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


# ------------------------------------------------------------------------------------------------- the released RL data


def user_text(prompt) -> Any:
    """The text of a prompt that is one user message."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], dict) and prompt[0].get("role") == "user":
        return prompt[0].get("content")
    raise ValueError("the prompt must be a list of one message with the role user")


def ground_truth(record: dict) -> str:
    """A list is refused: in the released code only its last entry is the answer, in our JSONL any entry is."""
    reward = record.get("reward_model")
    truth = reward.get("ground_truth") if isinstance(reward, dict) else None
    if not isinstance(truth, str):
        raise ValueError(f"reward_model must have a string ground_truth, aliases joined by {ALIAS_MARK}; got {truth!r}")
    return truth


# ------------------------------------------------------------------------------------------------------------ BrowseComp


def browsecomp(path: Path) -> Iterator[tuple[int, dict]]:
    """The rows, decrypted, each with the number of its last line."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        try:
            missing = {"problem", "answer", "canary"} - set(reader.fieldnames or ())
            if missing:
                raise ValueError(f"BrowseComp has the columns problem, answer and canary; missing: {', '.join(sorted(missing))}")
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
