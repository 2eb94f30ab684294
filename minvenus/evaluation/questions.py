"""Questions and the tools to answer them with: the toy web's own, or a file of questions with any other tool set.

    JSONL     {"question": "...", "answer": "..." or ["...", ...]}, optional "id" and "source"; others are ignored
    Parquet   the same columns, or those of the released data: prompt (one user message), reward_model.ground_truth and
              data_source
    CSV       BrowseComp: problem, answer, canary, optional problem_topic. Problem and answer are encrypted, row by row:
                  text = base64^-1(cell) XOR key,   key = SHA-256(canary), repeated

Several accepted answers are a list, or one string joined by answers.ALIAS_MARK. A question without an id gets one from
its text, "who-founded-rome-0b9c2f61", so sorting or shortening the file renames nothing; the same text again gets "-2"
after it and is a question of its own. A line that cannot be read is an error, not a smaller evaluation.

BrowseComp is encrypted so that its answers stay out of training data: do not publish what is decrypted here.
"""

import base64
import csv
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from types import NoneType

from minvenus.config import ConfigError
from minvenus.evaluation.answers import split_aliases
from minvenus.files import digest, read_rows
from minvenus.tools.toyweb import ToyWeb, visit_labels
from minvenus.tools.web import IMMEDIATE, make_tools
from minvenus.types import Question, Rollout

SHAPE = ('a question is {"question": text, "answer": text or list of texts}, optionally with "id": text or number and '
         '"source": text; or {"prompt": [one user message], "reward_model": {"ground_truth": text}}; '
         "or a row of BrowseComp with problem, answer and canary")


@dataclass(frozen=True)
class QuestionSource:
    """Questions with their tools, for eval.py and train_igpo.py."""

    held_out: list[Question]                       # to evaluate on
    training: list[Question]                       # empty unless asked for
    fingerprint: str                               # of all questions in the source: a resumed run must have the same
    tools_for: Callable[[Question], object]        # the tools of one rollout; may be shared
    max_turns: Callable[[Question], int]
    # per rollout: per turn the labels of its pages ("right", "wrong", ...); how many right pages there are, if known
    visits: Callable[[list[Rollout]], tuple[list[list[list[str]]], list[int | None]]]
    immediate: bool                                # no tool call can hang, so none needs a thread
    close: Callable[[], None] = lambda: None       # closes the tools


def open_questions(path: str | None, tools: str, seed: int = 0, *, hops: int | None = None, slack: int | None = None,
                   max_turns: int | None = None, limit: int | None = None, per_step: int = 0) -> QuestionSource:
    """The questions of the file `path`, or of the toy web. The first `limit` are for evaluation (None = all). Training
    passes the number of questions in a step as `per_step`; then the others are training questions."""
    if tools == "toyweb":
        return toy_questions(ToyWeb(seed, hops, slack or 0), limit, max_turns, per_step)
    assert path is not None
    questions = read_questions(path)
    held_out = questions[:limit]
    held_out_texts = {question.text for question in held_out}         # the same text may come again further down
    training = [question for question in questions if question.text not in held_out_texts] if per_step else []
    if per_step and (len(questions) < (limit or 0) or len(training) < per_step):
        raise ConfigError(f"{path} has {len(questions)} questions: {limit} are held out, {len(training)} others are "
                          f"left to train on, and a step takes {per_step}: lower --questions or --evaluate-questions")
    tool_set = make_tools(tools)
    return QuestionSource(
        held_out=held_out, training=training, fingerprint=digest([asdict(question) for question in questions]),
        tools_for=lambda question: tool_set,
        max_turns=lambda question: max_turns or 200,
        visits=lambda done: ([[[] for _ in rollout.turns] for rollout in done], [None] * len(done)),
        immediate=tools.partition(":")[0] in IMMEDIATE,
        close=getattr(tool_set, "close", lambda: None))


def toy_questions(web: ToyWeb, limit: int | None, max_turns: int | None, per_step: int) -> QuestionSource:
    """The toy web's test and training questions; a report breaks the accuracy down by hops."""
    def hops(question: Question) -> int:
        return web.case(question.id).hops

    def kinds(rollout: Rollout) -> list[list[str]]:
        return [[kind for kind, _ in turn] for turn in visit_labels(web, rollout)]

    test = [replace(question, source=f"{hops(question)}-hop") for question in web.questions("test")]
    if limit and limit > len(test):
        raise ConfigError(f"the toy web has {len(test)} test questions, not {limit}: lower --limit or "
                          "--evaluate-questions")
    if per_step > web.size["train"]:                     # a question twice in a step would have the same random numbers
        raise ConfigError(f"the toy web has {web.size['train']} training questions, a step takes {per_step}: lower "
                          "--questions")
    return QuestionSource(
        held_out=test[:limit], training=web.questions("train") if per_step else [],
        fingerprint=digest([asdict(question) for question in test]),
        tools_for=lambda question: web.for_question(question.id),
        max_turns=lambda question: max_turns or web.max_turns(question.id),
        visits=lambda done: (list(map(kinds, done)), [hops(rollout.question) for rollout in done]),
        immediate=True)


# ---------------------------------------------------------------------------------------------------- question files


def read_questions(path) -> list[Question]:
    """All questions of a file, in its order."""
    path = Path(path)
    if path.suffix not in (".jsonl", ".parquet", ".csv") or not path.is_file():
        raise ConfigError(f"{path} does not exist, or does not end in .jsonl, .parquet, .csv")
    questions: dict[str, Question] = {}
    texts: Counter[str] = Counter()           # of questions without an id
    number = 1
    try:
        rows: Iterable[tuple[int, dict | str]] = read_rows(path)
        if path.suffix == ".csv":
            rows = enumerate(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines(), strict=True), start=2)
        for number, record in rows:  # noqa: B007
            question = read_question(record)
            if not question.id:
                made = made_id(question.text)
                texts[made] += 1
                question = replace(question, id=made if texts[made] == 1 else f"{made}-{texts[made]}")
            if question.id in questions:
                raise ValueError(f"the id {question.id!r} is there twice")
            questions[question.id] = question
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"{path}, line {number}: {error}") from None
    if not questions:
        raise ConfigError(f"{path} has no questions")
    return list(questions.values())


def made_id(text: str) -> str:
    """The first words of a text, for readers, and a hash that tells it from others."""
    words = "-".join(re.findall(r"\w+", text.lower()))
    return f"{words[:40].rstrip('-')}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def read_question(record: dict | str) -> Question:
    """One record as a question, with the id "" if it has none; ValueError if it cannot be read."""
    if isinstance(record, str):                               # why the line is no record
        raise ValueError(record)
    match record:
        case {"problem": str(text), "answer": str(answer), "canary": str(canary)}:
            text, answer = decrypt(text, canary), decrypt(answer, canary)
            source = record.get("problem_topic")
        case {"question": str(text), "answer": str() | list() as answer}:
            source = record.get("source")
        case {"prompt": [{"role": "user", "content": str(text)}], "reward_model": {"ground_truth": str(answer)}}:
            source = record.get("data_source")
        case _:
            raise ValueError(f"{SHAPE}; got {str(record)[:200]}")
    name = record.get("id")
    listed = [answer] if isinstance(answer, str) else answer
    if type(name) not in (NoneType, str, int) or not all(isinstance(item, str) for item in [source or "", *listed]):
        raise ValueError(f"{SHAPE}; got {str(record)[:200]}")
    answers = [alias for item in listed for alias in split_aliases(item)]
    return Question("" if name is None else str(name), text.strip(), list(dict.fromkeys(answers)), source or None)


def decrypt(cell: str, canary: str) -> str:
    key = cycle(hashlib.sha256(canary.encode()).digest())
    try:
        hidden = base64.b64decode(cell, validate=True)
        return bytes(a ^ b for a, b in zip(hidden, key, strict=False)).decode()
    except ValueError:
        raise ValueError("a cell does not decrypt: is the file BrowseComp's own, with its canaries?") from None
