"""Lessons on the toy web: demonstrations by teachers with weaknesses, and texts for a base model.

The expert searches "own Bob", visits "page Bob", searches "boss Eva", visits "page Eva", and
answers. Two weaknesses, `wrong_result` and `wrong_relation`, are the mistakes that RL should
unlearn; the teacher corrects both, so that a model learns to go on after them. A few `at_once` and
`stop_early` serve the gains: a model that has never seen an answer given too soon does not know how
little it knows then, and its belief after half of the pages is no measure of them.

The base model learns from two kinds of text, before any demonstration, to look things up:

    page Bob own cat boss Eva heir Ida. / page Eva twin owl.    reading: pages as the toy web shows
    page Eva twin owl. / page Bob own cat heir Ida boss Eva.    them, then again in another order

    From Bob own boss?                                          notes: a demonstration in plain
     own. / own Bob / page Bob sings Max sings.                 lines, without the format of tool
     own. / page Bob own Bob / page Bob own cat boss Eva ...    calls
     own boss. / boss Eva / ...
    pets own cat boss owl

A quarter of the notes ask for the last pet only: "After Bob own boss?" is answered "pet boss owl".

The texts use the names of both splits; no web here is the web of a question. A text is a list of
pieces with a flag each: only flagged pieces are trained, because only they follow from what comes
before.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from minvenus.settings import Asks
from minvenus.tools.toyweb import (
    FIRST,
    NAMES,
    PETS,
    RELATIONS,
    Case,
    ToyTools,
    ToyWeb,
    answer_text,
    make_case,
)

SYSTEM = "Tools."                          # the system prompt of toy runs
LEAD_IN = "Answer."                        # the thought of every answer turn: Recipe.lead_in
NOT_READ = "ERROR: cannot read the call."  # the notice after a malformed turn
LAST_TURN = "Answer."                      # the notice after the observation before the last turn

Piece = tuple[str, bool]                   # a part of a text; whether it is trained
MOST_PAGES = 4                             # of a reading text
MOST_LINKS = 2                             # on one of its pages
READ_AGAIN = 3                             # how often its pages are read again


@dataclass(frozen=True)
class Teacher:
    """How often each weakness shows, a rate from 0 to 1. All zero: the expert."""

    wrong_result: float = 0.0     # per hop: visits another result first, then the right one
    wrong_relation: float = 0.0   # per later hop: first follows a relation that is not asked for
    at_once: float = 0.0          # per demonstration: answers without a call, by guessing
    stop_early: float = 0.0       # per demonstration of two hops or more: answers too soon
    cut_off: float = 0.0          # per demonstration: has a limit of turns and is told of it


class Step(NamedTuple):
    """A call of a demonstration. A search has no url, and its goal is the query."""

    thought: str
    url: str | None
    goal: str
    observation: str


# ---------------------------------------------------------------------------------- demonstrations


def demonstrations(
    web: ToyWeb, count: int, teacher: Teacher, split: str = "train", seed: int = 0
) -> list[list[dict]]:
    """The messages of `count` demonstrations: of question 0, 1, ... of the split."""
    lessons = []
    for i in range(count):
        case = web.case(f"{split}-{i}")
        lessons.append(teach(case, teacher, f"{web.seed} {seed} {i}"))
    return lessons


def teach(case: Case, teacher: Teacher, seed: str) -> list[dict]:
    """The messages of one demonstration."""
    rng = random.Random(f"teacher {seed} {case.question.id}")
    limit = None                                       # of turns before the answer
    if rng.random() < teacher.cut_off:
        limit = min(rng.randint(1, 4 * case.hops), 2 * case.hops)   # half have no turn to spare

    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": case.question.text},
    ]
    visited = set()
    for turn, step in enumerate(steps(case, teacher, rng), 1):
        observation = step.observation
        if turn == limit:
            observation += f"\n\n{LAST_TURN}"
        messages.append(assistant(step.thought, call_text(step.goal, step.url)))
        messages.append(tool_response(observation))
        visited.add(step.url)
        if turn == limit:
            break

    pets = []
    for title in case.path:
        page = case.pages[title]
        pets.append(page.pet if page.url in visited else rng.choice(PETS))
    answer = answer_text(case.relations, pets, case.asks)
    return [*messages, assistant(LEAD_IN, f"<answer>\n{answer}\n</answer>")]


def steps(case: Case, teacher: Teacher, rng: random.Random) -> Iterator[Step]:
    """Search and visit from hop to hop, up to the last one or to an end that is a weakness.

    The thought of a search says where the chain stands: the relation that was read last and the one
    that comes next.
    """
    tools = ToyTools(case)
    done = ""                                          # the relation that was read last
    for hop in range(hops_shown(case, teacher, rng)):
        right = case.path[hop]
        asked = case.relations[hop]

        targets = [(asked, right)]
        if hop and rng.random() < teacher.wrong_relation:
            links = case.pages[case.path[hop - 1]].links
            detours = [link for link in links.items() if link[0] != asked]
            targets.insert(0, rng.choice(detours))

        for relation, title in targets:
            goal = f" {relation} {title}"
            yield Step(f"{done} {relation}.", None, goal, tools.search(goal).text)

            pages = [case.pages[title]]
            if title == right and rng.random() < teacher.wrong_result:
                others = [page for page in tools.results(goal) if page.title != title]
                pages.insert(0, rng.choice(others))
            for page in pages:
                observation = tools.visit(page.url, goal).text
                yield Step(f" {relation}.", page.url, goal, observation)
        done = f" {asked}"


def hops_shown(case: Case, teacher: Teacher, rng: random.Random) -> int:
    """The hops that the teacher goes: all, none (`at_once`) or some of them (`stop_early`)."""
    draw = rng.random()
    if draw < teacher.at_once:
        return 0
    if draw < teacher.at_once + teacher.stop_early and case.hops > 1:
        return rng.randrange(1, case.hops)
    return case.hops


def call_text(goal: str, url: str | None = None) -> str:
    """The call of a visit for a goal; without an address the search for it."""
    call = {"name": "search", "arguments": {"query": [goal]}}
    if url:
        call = {"name": "visit", "arguments": {"url": [url], "goal": goal}}
    return f"<tool_call>\n{json.dumps(call, separators=(',', ':'))}\n</tool_call>"


def assistant(thought: str, body: str) -> dict:
    return {"role": "assistant", "content": f"<think>\n{thought}\n</think>\n{body}"}


def tool_response(observation: str) -> dict:
    return {"role": "user", "content": f"<tool_response>\n{observation}\n</tool_response>"}


# ----------------------------------------------------------------------- texts of the base model


def reading(seed: int, index: int) -> list[Piece]:
    """Text `index` of a seed: 1 to MOST_PAGES pages, and all of them again.

    No relation stands on two of the pages.
    """
    rng = random.Random(f"reading {seed} {index}")
    count = rng.randint(1, MOST_PAGES)
    names = rng.sample(NAMES, count + MOST_LINKS)
    relations = rng.sample([FIRST, *RELATIONS], (1 + MOST_LINKS) * count)

    pages = []
    for title in names[:count]:
        others = [name for name in names if name != title]
        links = []
        for _ in range(rng.randint(0, MOST_LINKS)):
            links.append((relations.pop(), rng.choice(others)))
        pages.append((title, relations.pop(), rng.choice(PETS), links))

    pieces = []
    for page in pages:
        pieces += [(text, False) for text, _ in page_pieces(*page)]
    for _ in range(READ_AGAIN):
        for title, goal, pet, links in rng.sample(pages, count):
            pieces += page_pieces(title, goal, pet, rng.sample(links, len(links)))
    return pieces


def page_pieces(title: str, goal: str, pet: str, links: list[tuple[str, str]]) -> list[Piece]:
    """The text of a page. A pet and a name follow from the relation before them.

    Pieces end where tokens of the text do.
    """
    pieces = [(f"page {title} {goal}", False), (f" {pet}", True)]
    for relation, name in links:
        pieces += [(f" {relation}", False), (f" {name}", True)]
    return [*pieces, (".\n", False)]


def notes(seed: int, index: int) -> list[Piece]:
    """An expert's demonstration on a web of its own, in plain lines."""
    case = base_case(seed, index)
    pieces = [(f"{case.question.text}\n", False)]
    for step in steps(case, Teacher(), random.Random(0)):
        pieces.append((f"{step.thought}\n{step.url or ''}{step.goal}\n", True))
        pieces.append((f"{step.observation}\n", False))
    return [*pieces, (f"{case.question.answers[0]}\n", True)]


def base_case(seed: int, index: int) -> Case:
    """The web of a base text. Of sixteen texts in a row four ask for the last pet only."""
    asks: Asks = "last" if index // 4 % 4 == 3 else "every"
    return make_case(seed, "base", index, asks=asks)
