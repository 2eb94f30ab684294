"""Lessons on the toy web: demonstrations by teachers with weaknesses, and texts for a base model.

The expert searches "own Bob", visits "page Bob", searches "boss Eva", visits "page Eva", and answers. Two weaknesses,
`wrong_result` and `wrong_relation`, are the mistakes that RL should unlearn; the teacher corrects both, so that a
model learns to go on after them. A few `at_once` and `stop_early` serve the gains: a model that has never seen an
answer given too soon does not know how little it knows then, and its belief after half of the pages is no measure
of them.

The base model learns from two kinds of text, before any demonstration, to look things up:

    page Bob own cat boss Eva heir Ida. / page Eva twin owl.      reading: pages as the toy web shows them,
    page Eva twin owl. / page Bob own cat heir Ida boss Eva.      then again in another order, their links too

    From Bob own boss?                                            notes: a demonstration in plain lines,
     own. / own Bob / page Bob sings Max sings.                   without the format of tool calls
     own. / page Bob own Bob / page Bob own cat boss Eva heir Ida.
     own boss. / boss Eva / ...
    pets own cat boss owl

Their names are those of both splits; no web here is the web of a question. A text is a list of pieces with a
flag each: only flagged pieces are trained, since only they follow from what comes before.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

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

SYSTEM = "Tools."                        # the system prompt of toy runs
LEAD_IN = "Answer."                      # the thought of every answer turn: Recipe.lead_in of a toy run
NOT_READ = "ERROR: cannot read the call."     # the notice after a malformed turn
LAST_TURN = "Answer."                    # the notice after the observation before the last turn

Piece = tuple[str, bool]
MOST_PAGES = 4                           # pages of a reading text
MOST_LINKS = 2                           # links on one of them
READ_AGAIN = 3                           # how often they are read again


@dataclass(frozen=True)
class Teacher:
    """How often each weakness shows, a rate from 0 to 1. All zero: the expert."""

    wrong_result: float = 0.0            # per hop: visits another result first, then the right one
    wrong_relation: float = 0.0          # per later hop: follows a relation that is not asked for first
    at_once: float = 0.0                 # per demonstration: answers without a call, by guessing
    stop_early: float = 0.0              # per demonstration of two hops or more: answers too soon, guesses the rest
    cut_off: float = 0.0                 # per demonstration: has a limit of turns and is told before the last one


def demonstrations(web: ToyWeb, count: int, teacher: Teacher, split: str = "train", seed: int = 0) -> list[list[dict]]:
    """The messages of `count` demonstrations: of question 0, 1, ... of the split, and around again."""
    cases = [web.case(f"{split}-{i % web.size[split]}") for i in range(count)]
    return [teach(case, teacher, f"{web.seed} {seed} {i}") for i, case in enumerate(cases)]


def teach(case: Case, teacher: Teacher, seed: str) -> list[dict]:
    """The messages of one demonstration."""
    rng = random.Random(f"teacher {seed} {case.question.id}")
    limit = None                                               # of turns before the answer
    if teacher.cut_off and rng.random() < teacher.cut_off:
        limit = min(rng.randint(1, 4 * case.hops), 2 * case.hops)        # half have no turn to spare
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": case.question.text}]
    visited: set[str | None] = set()
    for turn, (thought, url, goal, observation) in enumerate(steps(case, teacher, rng), 1):
        rng.random()              # unused, but the lessons that the committed base model was trained on drew it
        visited.add(url)
        notice = f"\n\n{LAST_TURN}" if turn == limit else ""
        messages += [assistant(thought, call_text(goal, url)),
                     {"role": "user", "content": f"<tool_response>\n{observation}{notice}\n</tool_response>"}]
        if turn == limit:
            break
    path = [case.pages[title] for title in case.path]
    pets = [page.pet if page.url in visited else rng.choice(PETS) for page in path]
    return [*messages, assistant(LEAD_IN, f"<answer>\n{answer_text(case.relations, pets)}\n</answer>")]


def call_text(goal: str, url: str | None = None) -> str:
    """The call of a visit for a goal; without an address the search for it."""
    call = {"name": "search", "arguments": {"query": [goal]}}
    if url:
        call = {"name": "visit", "arguments": {"url": [url], "goal": goal}}
    return f"<tool_call>\n{json.dumps(call, separators=(',', ':'))}\n</tool_call>"


def assistant(thought: str, body: str) -> dict:
    return {"role": "assistant", "content": f"<think>\n{thought}\n</think>\n{body}"}


def steps(case: Case, teacher: Teacher, rng: random.Random) -> Iterator[tuple[str, str | None, str, str]]:
    """(thought, url, goal, observation) of every call: search and visit from hop to hop, up to the last one or to an
    end that is a weakness. A search has no url, and its goal is the query. Its thought says where the chain stands:
    the relation that was read last, and the one that comes next."""
    hops = case.hops
    draw = rng.random()
    if draw < teacher.at_once:
        hops = 0
    elif draw - teacher.at_once < teacher.stop_early and case.hops > 1:
        hops = rng.randrange(1, case.hops)
    tools = ToyTools(case)
    done = ""
    for hop, right in enumerate(case.path[:hops]):
        wanted = [(case.relations[hop], right)]
        if hop and rng.random() < teacher.wrong_relation:
            links = case.pages[case.path[hop - 1]].links
            wrong = rng.choice([relation for relation in links if relation != case.relations[hop]])
            wanted.insert(0, (wrong, links[wrong]))
        for relation, title in wanted:
            goal = f" {relation} {title}"
            yield f"{done} {relation}.", None, goal, tools.search(goal).text
            visits = [case.pages[title]]
            if title == right and rng.random() < teacher.wrong_result:
                visits.insert(0, rng.choice([page for page in tools.results(goal) if page.title != title]))
            for page in visits:
                yield f" {relation}.", page.url, goal, tools.visit(page.url, goal).text
        done = f" {case.relations[hop]}"


def reading(seed: int, index: int) -> list[Piece]:
    """Text `index` of a seed: 1 to MOST_PAGES pages, and all of them again. No relation is on two of them."""
    rng = random.Random(f"reading {seed} {index}")
    count = rng.randint(1, MOST_PAGES)
    names = rng.sample(NAMES, count + MOST_LINKS)
    relations = rng.sample([FIRST, *RELATIONS], (1 + MOST_LINKS) * count)
    pages = []
    for title in names[:count]:
        goal, *linked = [relations.pop() for _ in range(1 + rng.randint(0, MOST_LINKS))]
        pet = rng.choice(PETS)
        others = [name for name in names if name != title]
        pages.append((title, goal, pet, [(relation, rng.choice(others)) for relation in linked]))
    pieces = [(text, False) for page in pages for text, _ in page_pieces(*page)]
    for _ in range(READ_AGAIN):
        for title, goal, pet, links in rng.sample(pages, count):
            pieces += page_pieces(title, goal, pet, rng.sample(links, len(links)))
    return pieces


def page_pieces(title: str, goal: str, pet: str, links: list[tuple[str, str]]) -> list[Piece]:
    """The text of a page; a pet and a name follow from the relation before them. Pieces end where tokens of the
    text do."""
    pieces = [(f"page {title} {goal}", False), (f" {pet}", True)]
    for relation, name in links:
        pieces += [(f" {relation}", False), (f" {name}", True)]
    return [*pieces, (".\n", False)]


def notes(seed: int, index: int) -> list[Piece]:
    """An expert's demonstration on a web of its own, with thoughts, queries, addresses and goals in plain lines."""
    case = make_case(seed, "base", index)
    pieces = [(f"{case.question.text}\n", False)]
    for thought, url, goal, observation in steps(case, Teacher(), random.Random(0)):
        pieces += [(f"{thought}\n{url or ''}{goal}\n", True), (f"{observation}\n", False)]
    return [*pieces, (f"{case.question.answers[0]}\n", True)]
