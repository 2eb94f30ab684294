"""Questions and the tools to answer them with: the toy web's own, or a file of questions with any
other tool set.

    JSONL     {"question": "...", "answer": "..." or ["...", ...]}, optional "id", "source" and
              "pages", the titles of the right pages for --tools almanac; other keys are ignored
    Parquet   the same columns, or those of the released data: prompt (one user message),
              reward_model.ground_truth and data_source
    CSV       BrowseComp: problem, answer, canary, optional problem_topic. Problem and answer are
              encrypted, row by row:
                  text = base64^-1(cell) XOR key,   key = SHA-256(canary), repeated

Several accepted answers are a list, or one string joined by answers.ALIAS_MARK. A question without
an id gets one from its text, "who-founded-rome-0b9c2f61", so sorting or shortening the file renames
nothing; the same text again gets "-2" after it and is a question of its own. A line that cannot be
read is an error, not a smaller evaluation.

BrowseComp is encrypted so that its answers stay out of training data: do not publish what is
decrypted here.
"""

import base64
import csv
import hashlib
import io
import random
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any

from minvenus.agent.observation import visit_labels
from minvenus.config import ConfigError
from minvenus.evaluation.answers import split_aliases
from minvenus.files import digest, read_rows
from minvenus.settings import Asks
from minvenus.tools.almanac import Almanac
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.web import IMMEDIATE, make_tools
from minvenus.types import Question, Rollout

Labels = list[list[str]]              # of the pages that a turn visited, for every turn
MAX_TURNS = 200                       # of a question from a file
SHAPE = (
    'a question is {"question": text, "answer": text or list of texts}, optionally with "id", '
    '"source" and "pages", a list of texts; or {"prompt": [one user message], "reward_model": '
    '{"ground_truth": text}}; or a row of BrowseComp with problem, answer and canary')


@dataclass(frozen=True)
class QuestionSource:
    """Questions with their tools, for eval.py and train_igpo.py."""

    held_out: list[Question]          # to evaluate on
    training: list[Question] = field(default_factory=list)      # the others, for train_igpo.py
    per_step: int = 0                 # training questions of a step, as train_igpo.py says
    seed: int = 0                     # of the order of the training questions
    fingerprint: str = ""             # of all questions: a resumed run must have the same
    turn_limit: int | None = None     # of every question; None = as the source says
    web: ToyWeb | None = None         # the toy web, which has tools for each question; or ...
    tools: Any = None                 # ... one tool set for all questions
    immediate: bool = True            # no tool call can hang, so none needs a thread

    def of_step(self, step: int) -> list[tuple[str, Question]]:
        """The training questions of step 1, 2, ..., each with the name of its group of rollouts.

        The name decides the group's random numbers. Where an epoch ends within the step, a question
        may come twice: its second group has another name.
        """
        groups: dict[str, Question] = {}
        for index in batch_indices(step, self.per_step, len(self.training), self.seed):
            question = self.training[index]
            again = "again " if question.id in groups else ""
            groups[again + question.id] = question
        return list(groups.items())

    def tools_for(self, question: Question) -> object:
        """The tools of one rollout; may be shared."""
        return self.web.for_question(question.id) if self.web else self.tools

    def max_turns(self, question: Question) -> int:
        if self.turn_limit:
            return self.turn_limit
        return self.web.max_turns(question.id) if self.web else MAX_TURNS

    def visits(self, rollouts: list[Rollout]) -> tuple[list[Labels], list[int | None]]:
        """Per rollout and turn, the labels of the pages that it visited ("right", "wrong", ...);
        and per rollout how many right pages there are, None if that is not known."""
        labels: list[Labels] = []
        right_pages: list[int | None] = []
        for rollout in rollouts:
            pages = self.right_pages(rollout.question)
            if pages is None:
                labels.append([[] for _ in rollout.turns])
                right_pages.append(None)
            else:
                turns = visit_labels(rollout, pages)
                labels.append([[kind for kind, _ in visited] for visited in turns])
                right_pages.append(len(pages))
        return labels, right_pages

    def right_pages(self, question: Question) -> list[str] | None:
        """Their addresses in order, None if they are not known."""
        if self.web:
            return self.web.case(question.id).right_pages
        return question.pages if isinstance(self.tools, Almanac) else None

    def close(self) -> None:
        """Close the tools, if they have something open."""
        if hasattr(self.tools, "close"):
            self.tools.close()


def batch_indices(step: int, batch: int, total: int, seed: int) -> list[int]:
    """Indices of the `batch` examples of step 1, 2, ...: every epoch is a new permutation, and
    batches run across epochs."""
    epoch, start = divmod((step - 1) * batch, total)
    order: list[int] = []
    while len(order) < start + batch:
        order += permutation(total, seed=(seed, epoch))
        epoch += 1
    return order[start:start + batch]


def permutation(count: int, seed: tuple[int, ...]) -> list[int]:
    """A random order of 0 ... count - 1, always the same for a seed."""
    return random.Random(str(seed)).sample(range(count), count)


def open_questions(
        path: str | None,                 # a file of questions; not used on the toy web
        tools: str,                       # as --tools names them
        seed: int = 0,                    # of the toy web, and of the order of training questions
        *,
        hops: int | None = None,          # toy web: only questions of so many hops
        slack: int | None = None,         # toy web: turns beyond those that a question needs
        asks: Asks = "every",             # toy web: for which pets
        limit: int | None = None,         # the first so many are held out, None = all
        ) -> QuestionSource:
    """The questions of a file, or of the toy web, with their tools."""
    web = None
    if tools == "toyweb":
        web = ToyWeb(seed, hops, slack or 0, asks=asks)
        # a report breaks the accuracy down by hops
        questions = [replace(question, source=f"{web.case(question.id).hops}-hop")
                     for question in web.questions("test")]
        training = web.questions("train")
    else:
        questions = read_questions(path)
        # the same text may come twice: it is never both held out and trained on
        held_out_texts = {question.text for question in questions[:limit]}
        training = [question for question in questions if question.text not in held_out_texts]

    if limit and limit > len(questions):
        raise ConfigError(f"{path or tools} has {len(questions)} questions to evaluate on, not "
                          f"{limit}: lower --limit or --evaluate-questions")
    tool_set = None if web else make_tools(tools)
    if isinstance(tool_set, Almanac):
        for question in questions:
            for title in question.pages or []:
                if title not in tool_set.pages:
                    raise ConfigError(f"{path} does not fit {tools}: question {question.id!r} "
                                      f"needs the page {title!r}, which is not there")
    return QuestionSource(
        held_out=questions[:limit],
        training=training,
        seed=seed,
        fingerprint=digest([asdict(question) for question in questions]),
        web=web,
        tools=tool_set,
        immediate=tools.partition(":")[0] in IMMEDIATE)


# ----------------------------------------------------------------------------------- question files


def read_questions(path) -> list[Question]:
    """All questions of a file, in its order."""
    path = Path(path)
    if path.suffix not in (".jsonl", ".parquet", ".csv") or not path.is_file():
        raise ConfigError(f"{path} does not exist, or does not end in .jsonl, .parquet, .csv")
    questions: dict[str, Question] = {}
    texts: Counter[str] = Counter()           # of questions without an id
    number = 1
    try:
        for number, record in question_rows(path):  # noqa: B007
            question = read_question(record)
            if not question.id:
                name = id_of_text(question.text)
                texts[name] += 1
                if texts[name] > 1:
                    name = f"{name}-{texts[name]}"
                question = replace(question, id=name)
            if question.id in questions:
                raise ValueError(f"the id {question.id!r} is there twice")
            questions[question.id] = question
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"{path}, line {number}: {error}") from None
    if not questions:
        raise ConfigError(f"{path} has no questions")
    return list(questions.values())


def question_rows(path: Path) -> Iterable[tuple[int, dict | str]]:
    """The number and the record of every row; or why the row is no record."""
    if path.suffix != ".csv":
        return read_rows(path)
    text = path.read_text(encoding="utf-8-sig")
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    return ((reader.line_num, row) for row in reader)    # a cell may have several lines


def id_of_text(text: str) -> str:
    """The first words of a text, for readers, and a hash that tells it from others."""
    words = "-".join(re.findall(r"\w+", text.lower()))
    code = hashlib.sha256(text.encode()).hexdigest()
    return f"{words[:40].rstrip('-')}-{code[:8]}"


def read_question(record: dict | str) -> Question:
    """One record as a question, with the id "" if it has none; ValueError if it cannot be read."""
    if isinstance(record, str):                               # why the line is no record
        raise ValueError(record)
    unreadable = ValueError(f"{SHAPE}; got {str(record)[:200]}")
    match record:
        case {"problem": str(text), "answer": str(answer), "canary": str(canary)}:
            text = decrypt(text, canary)
            answer = decrypt(answer, canary)
            source = record.get("problem_topic")
        case {"question": str(text), "answer": str() | list() as answer}:
            source = record.get("source")
        case {"prompt": [{"role": "user", "content": str(text)}],
              "reward_model": {"ground_truth": str(answer)}}:
            source = record.get("data_source")
        case _:
            raise unreadable

    joined_answers = [answer] if isinstance(answer, str) else answer
    pages = record.get("pages")
    for texts in (joined_answers, pages):
        if texts is not None and not is_texts(texts):
            raise unreadable
    name = "" if record.get("id") is None else str(record["id"])
    "".join([name, text, *joined_answers]).encode()     # raises for half a surrogate pair
    return Question(
        id=name,
        text=text.strip(),
        answers=list(dict.fromkeys(split_aliases(*joined_answers))),
        source=str(source) if source else None,
        pages=pages)


def is_texts(value: object) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(x, str) for x in value)


def decrypt(cell: str, canary: str) -> str:
    key = cycle(hashlib.sha256(canary.encode()).digest())
    try:
        encrypted = base64.b64decode(cell, validate=True)
        return bytes(a ^ b for a, b in zip(encrypted, key, strict=False)).decode()
    except ValueError:
        raise ValueError("a cell does not decrypt: is the file BrowseComp's own, with its "
                         "canaries?") from None
