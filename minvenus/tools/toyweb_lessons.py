"""Lessons on the toy web: demonstrations by teachers with weaknesses, and texts for a base model.

    expert            search "own Bob", visit "page Bob", search "boss Eva", visit "page Eva", answer
    wrong_result      visits another result first, then the right one
    wrong_relation    follows a relation that the question does not name first, then the right one
    at_once           answers at once, by guessing
    stop_early        answers after fewer hops and guesses the rest
    cut_off           has a limit of turns, is told before the last one, and answers then, guessing what it has not read

The first two weaknesses are the mistakes that RL should unlearn; the teacher corrects both, so that a model
learns to go on after them. A few `at_once` and `stop_early` serve the gains: a model that has never seen an
answer given too soon does not know how little it knows then, and its belief after half of the pages is no
measure of them. Observations come from the real tools.

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
import re
from contextlib import suppress
from dataclasses import dataclass

from minvenus.tools.toyweb import FIRST, NAMES, PETS, RELATIONS, Case, ToyTools, ToyWeb, answer_text, make_case

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

    wrong_result: float = 0.0            # per hop
    wrong_relation: float = 0.0          # per hop after the first
    at_once: float = 0.0                 # per demonstration; not together with stop_early
    stop_early: float = 0.0              # per demonstration of two hops or more
    cut_off: float = 0.0                 # per demonstration


def demonstrations(web: ToyWeb, count: int, teacher: Teacher, split: str = "train", seed: int = 0) -> list[list[dict]]:
    """The messages of `count` demonstrations: of question 0, 1, ... of the split, and around again."""
    cases = [web.case(f"{split}-{i % web.size[split]}") for i in range(count)]
    return [teach(case, teacher, f"{web.seed} {seed} {i}") for i, case in enumerate(cases)]


def teach(case: Case, teacher: Teacher, seed: str) -> list[dict]:
    """The messages of one demonstration: search and visit from hop to hop, up to the last one or to an end that
    is a weakness."""
    rng = random.Random(f"teacher {seed} {case.question.id}")
    writer = TurnWriter(case, rng)
    if teacher.cut_off and rng.random() < teacher.cut_off:
        writer.turns_left = min(rng.randint(1, 4 * case.hops), 2 * case.hops)        # half have no turn to spare
    hops = case.hops
    draw = rng.random()
    if draw < teacher.at_once:
        hops = 0
    elif draw - teacher.at_once < teacher.stop_early and case.hops > 1:
        hops = rng.randrange(1, case.hops)
    pets: list[str] = []                                       # those that were read
    with suppress(OutOfTurns):
        for hop, title in enumerate(case.path[:hops]):
            done = case.relations[hop - 1] if hop else None
            if hop and rng.random() < teacher.wrong_relation:
                links = case.pages[case.path[hop - 1]].links
                wrong = rng.choice([relation for relation in links if relation != case.relations[hop]])
                writer.search(done, wrong, links[wrong])
                writer.visit(links[wrong])
            writer.search(done, case.relations[hop], title)
            if rng.random() < teacher.wrong_result:
                writer.visit(rng.choice([other for other in writer.results if other != title]))
            pets.append(case.pages[title].pet)
            writer.visit(title)
    writer.answer(pets + [rng.choice(PETS) for _ in range(case.hops - len(pets))])
    return writer.messages


class OutOfTurns(Exception):
    """The next turn has to be the answer."""


class TurnWriter:
    """Writes the turns of a teacher and adds the observations of the tools."""

    def __init__(self, case: Case, rng: random.Random):
        self.case, self.tools, self.rng = case, ToyTools(case), rng
        self.messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": case.question.text}]
        self.query = ""                                        # the newest one; a visit has it as its goal
        self.results: list[str] = []                           # the titles that it found
        self.turns_left: int | None = None                     # before the answer; None = no limit

    def search(self, done: str | None, relation: str, name: str) -> None:
        """The thought says where the chain stands: the relation that was read last, and the one that comes next."""
        self.query = f"{relation} {name}"
        self.results = [page.title for page in self.tools.results(self.query)]
        thought = f" {done} {relation}." if done else f" {relation}."
        self._call(thought, "search", {"query": [f" {self.query}"]}, self.tools.search([self.query]).text)

    def visit(self, title: str) -> None:
        """Open a page for what was searched last."""
        url = self.case.pages[title].url
        observation = self.tools.visit([url], self.query).text
        self._call(f" {self.query.split()[0]}.", "visit", {"url": [url], "goal": f" {self.query}"}, observation)

    def answer(self, pets: list[str]) -> None:
        self._write(LEAD_IN, f"<answer>\n{answer_text(self.case.relations, pets)}\n</answer>")

    def _call(self, thought: str, name: str, arguments: dict, observation: str) -> None:
        self.rng.random()         # unused, but the lessons that the committed base model was trained on drew it
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False, separators=(",", ":"))
        if self.turns_left is not None:
            self.turns_left -= 1
        if self.turns_left == 0:
            observation += f"\n\n{LAST_TURN}"
        self._write(thought, f"<tool_call>\n{call}\n</tool_call>")
        self.messages.append({"role": "user", "content": f"<tool_response>\n{observation}\n</tool_response>"})
        if self.turns_left == 0:
            raise OutOfTurns

    def _write(self, thought: str, body: str) -> None:
        self.messages.append({"role": "assistant", "content": f"<think>\n{thought}\n</think>\n{body}"})


# ------------------------------------------------------------------------- texts for a base model


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
    messages = teach(make_case(seed, "base", index), Teacher(), f"notes {seed} {index}")
    return [(plain(message["content"]) + "\n", message["role"] == "assistant") for message in messages[1:]]


def plain(content: str) -> str:
    """The words of a message without tags and JSON."""
    call = re.search(r"<tool_call>\n(.*)\n</tool_call>", content)
    if call:
        arguments = json.loads(call[1])["arguments"]
        thought = content.split("\n")[1]
        return thought + "\n" + "".join(v if isinstance(v, str) else v[0] for v in arguments.values())
    return re.sub(r"<think>\n.*\n</think>\n|</?answer>\n?|</?tool_response>\n?", "", content).strip("\n")
