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
from dataclasses import dataclass, fields

from minvenus.config import ConfigError
from minvenus.tools.toyweb import FIRST, NAMES, PETS, RELATIONS, Case, ToyTools, ToyWeb, answer_text, make_case

SYSTEM = "Tools."                        # the system prompt of toy runs
LEAD_IN = "Answer."                      # the thought of every answer turn: Recipe.lead_in of a toy run
NOT_READ = "ERROR: cannot read the call."     # the notice after a malformed turn
LAST_TURN = "Answer."                    # the notice after the observation before the last turn

Piece = tuple[str, bool]
MOST_LINKS = 2                           # links on a page of a reading text


@dataclass(frozen=True)
class Teacher:
    """How often each weakness shows. All zero: the expert."""

    wrong_result: float = 0.0            # per hop
    wrong_relation: float = 0.0          # per hop after the first
    at_once: float = 0.0                 # per demonstration; not together with stop_early
    stop_early: float = 0.0              # per demonstration of two hops or more
    cut_off: float = 0.0                 # per demonstration

    def __post_init__(self):
        for f in fields(self):
            if not 0 <= getattr(self, f.name) <= 1:
                raise ConfigError(f"{f.name} is a rate from 0 to 1, got {getattr(self, f.name)}")
        if self.at_once + self.stop_early > 1:
            raise ConfigError("at_once and stop_early exclude each other: their rates must not add up to more than 1")


def demonstrations(web: ToyWeb, count: int, teacher: Teacher, split: str = "train", seed: int = 0) -> list[list[dict]]:
    """The messages of `count` demonstrations: of question 0, 1, ... of the split, and around again."""
    cases = [web.case(f"{split}-{i % web.size[split]}") for i in range(count)]
    return [teach(case, teacher, f"{web.seed} {seed} {i}") for i, case in enumerate(cases)]


def teach(case: Case, teacher: Teacher, seed: str) -> list[dict]:
    """The messages of one demonstration: search and visit from hop to hop, up to the last one or to an end that
    is a weakness."""
    rng = random.Random(f"teacher {seed} {case.question.id}")
    writer = TurnWriter(case, teacher, rng)
    pets: list[str] = []                                       # those that were read
    with suppress(OutOfTurns):
        for hop in range(writer.draw_hops()):
            if hop and rng.random() < teacher.wrong_relation:
                writer.follow_wrong_relation(hop)
            writer.search(hop)
            if rng.random() < teacher.wrong_result:
                writer.visit(rng.choice([title for title in writer.results if title != case.path[hop]]))
            pets.append(case.pages[case.path[hop]].pet)
            writer.visit(case.path[hop])
    writer.answer(pets + [rng.choice(PETS) for _ in range(case.hops - len(pets))])
    return writer.messages


class OutOfTurns(Exception):
    """The next turn has to be the answer."""


class TurnWriter:
    """Writes the turns of a teacher and adds the observations of the tools."""

    def __init__(self, case: Case, teacher: Teacher, rng: random.Random):
        self.case, self.tools, self.teacher, self.rng = case, ToyTools(case), teacher, rng
        self.messages = [message("system", SYSTEM), message("user", case.question.text)]
        self.query = ""                                        # the newest one; a visit has it as its goal
        self.results: list[str] = []                           # the titles that it found
        self.turns_left: int | None = None                     # before the answer; None = no limit
        if teacher.cut_off and rng.random() < teacher.cut_off:
            self.turns_left = min(rng.randint(1, 4 * case.hops), 2 * case.hops)      # half have no turn to spare

    def draw_hops(self) -> int:
        """How many pages of the path are read before the answer; fewer than all is a weakness."""
        draw = self.rng.random()
        if draw < self.teacher.at_once:
            return 0
        if draw - self.teacher.at_once < self.teacher.stop_early and self.case.hops > 1:
            return self.rng.randrange(1, self.case.hops)
        return self.case.hops

    def follow_wrong_relation(self, hop: int) -> None:
        page = self.case.pages[self.case.path[hop - 1]]
        relation = self.rng.choice([r for r in page.links if r != self.case.relation(hop)])
        self._search(self.case.relation(hop - 1), relation, page.links[relation])
        self.visit(page.links[relation])

    def search(self, hop: int) -> None:
        done = self.case.relation(hop - 1) if hop else None
        self._search(done, self.case.relation(hop), self.case.path[hop])

    def _search(self, done: str | None, relation: str, name: str) -> None:
        """The thought says where the chain stands: the relation that was read last, and the one that comes next."""
        self.query = f"{relation} {name}"
        self.results = [page.title for page in self.tools.results(self.query)]
        thought = f" {done} {relation}." if done else f" {relation}."
        self._write_call(thought, "search", {"query": [f" {self.query}"]}, self.tools.search([self.query]).text)

    def visit(self, title: str) -> None:
        """Open a page for what was searched last."""
        url = self.case.pages[title].url
        observation = self.tools.visit([url], self.query).text
        self._write_call(f" {self.query.split()[0]}.", "visit", {"url": [url], "goal": f" {self.query}"}, observation)

    def answer(self, pets: list[str]) -> None:
        text = answer_text(self.case.relations, pets)
        self.messages.append(message("assistant", turn(LEAD_IN, f"<answer>\n{text}\n</answer>")))

    def _write_call(self, thought: str, name: str, arguments: dict, observation: str) -> None:
        self.rng.random()         # unused, but the lessons that the committed base model was trained on drew it
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False, separators=(",", ":"))
        if self.turns_left is not None:
            self.turns_left -= 1
        if self.turns_left == 0:
            observation += f"\n\n{LAST_TURN}"
        self.messages.append(message("assistant", turn(thought, f"<tool_call>\n{call}\n</tool_call>")))
        self.messages.append(message("user", f"<tool_response>\n{observation}\n</tool_response>"))
        if self.turns_left == 0:
            raise OutOfTurns


def turn(thought: str, body: str) -> str:
    return f"<think>\n{thought}\n</think>\n{body}"


def message(role: str, content: str) -> dict:
    return {"role": role, "content": content}


# ------------------------------------------------------------------------- texts for a base model


def reading(seed: int, index: int, pages: int = 4, again: int = 3) -> list[Piece]:
    """Text `index` of a seed: 1 to `pages` pages, read again `again` times. No relation is on two of them."""
    rng = random.Random(f"reading {seed} {index}")
    count = rng.randint(1, pages)
    names = rng.sample(NAMES, count + MOST_LINKS)
    relations = rng.sample([FIRST, *RELATIONS], (1 + MOST_LINKS) * count)
    facts = [page_facts(rng, title, names, [relations.pop() for _ in range(1 + rng.randint(0, MOST_LINKS))])
             for title in names[:count]]
    pieces = [(piece, False) for fact in facts for piece, _ in page_pieces(*fact)]
    for _ in range(again):
        for title, goal, pet, links in rng.sample(facts, count):
            pieces += page_pieces(title, goal, pet, rng.sample(links, len(links)))
    return pieces


def page_facts(rng: random.Random, title: str, names: list[str], relations: list[str]):
    others = [name for name in names if name != title]
    goal, *links = relations
    return title, goal, rng.choice(PETS), [(relation, rng.choice(others)) for relation in links]


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
