"""Demonstrations on the toy web: an expert, and teachers with weaknesses at chosen rates. Observations come from the tools.

    expert             search "own Bob", visit "page Bob", search "boss Eva", visit "page Eva", answer "pets own cat boss owl"
    wrong_result       opens another result first, then the right one
    wrong_relation     follows a relation that the question does not name first, then the right one
    malformed          writes a call that cannot be run, gets the error, and writes it again
    at_once            answers at once, by guessing
    stop_early         answers after fewer hops, and guesses the rest
    from_snippet       searches for the last page, does not open it, and guesses
    skip_visit         does not open a page on the way, takes another result for the next one, guesses what it has not seen, stops
    cut_off            has a limit of turns: is told before the last one, and answers then, guessing what it has not read

The first two are the mistakes that RL should unlearn; both are put right, so that a model learns to read on after them. A few
`at_once` and `stop_early` are there for the gains: a model that has never seen an answer given too soon does not know how little
it knows there, and what it believes after half of the pages is no measure of them. Knows no tokens.
"""

import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields

from minvenus.config import ConfigError
from minvenus.text.toy_words import PETS
from minvenus.tools.base import ToolResult
from minvenus.tools.toyweb_world import Case, answer_text

SYSTEM = "Tools."                        # the system prompt of toy runs
LEAD_IN = "Answer."                      # the thought of every answer turn: Recipe.lead_in for a model that learned from these
NOT_READ = "ERROR: cannot read the call."
LAST_TURN = "Answer."                    # said behind the observation before the last turn that is allowed
ENDINGS = ("at_once", "stop_early", "from_snippet", "skip_visit")
NEED_TWO_HOPS = ("stop_early", "skip_visit")


@dataclass(frozen=True)
class Teacher:
    """How often each weakness shows. All zero: the expert."""

    wrong_result: float = 0.0            # per hop
    wrong_relation: float = 0.0          # per hop after the first
    malformed: float = 0.0               # per call
    at_once: float = 0.0                 # per demonstration, like the three below; at most one of the four in one
    stop_early: float = 0.0              # of those with two hops or more
    from_snippet: float = 0.0
    skip_visit: float = 0.0              # of those with two hops or more
    cut_off: float = 0.0                 # per demonstration

    def __post_init__(self):
        for f in fields(self):
            if not 0 <= getattr(self, f.name) <= 1:
                raise ConfigError(f"{f.name} is a rate from 0 to 1, got {getattr(self, f.name)}")
        if sum(getattr(self, name) for name in ENDINGS) > 1:
            raise ConfigError(f"{', '.join(ENDINGS)} exclude each other: their rates must not add up to more than 1")


@dataclass(frozen=True)
class Lesson:
    """A demonstration, and the weaknesses that it shows, in order."""

    question_id: str
    messages: list[dict]
    weaknesses: list[str] = field(default_factory=list)


def teach(case: Case, tools, teacher: Teacher, seed: str) -> Lesson:
    """One demonstration. `tools` is a fresh tool set of the question."""
    desk = Desk(case, tools, teacher, random.Random(f"teacher {seed} {case.question.id}"))
    pets: list[str] = []                                       # what it has read, or believes
    with suppress(OutOfTurns):
        walk(case, desk, pets)
    desk.answer(pets + [desk.rng.choice(PETS) for _ in range(case.hops - len(pets))])
    return desk.lesson


def walk(case: Case, desk: "Desk", pets: list[str]) -> None:
    """Search and visit from hop to hop, until the last one or an end that is a weakness."""
    ending = desk.draw_ending()
    pages = desk.rng.randrange(1, case.hops) if ending in NEED_TWO_HOPS else 0 if ending == "at_once" else case.hops
    for hop in range(pages):
        if hop and len(case.pages[case.path[hop - 1]].links) > 1 and desk.chance("wrong_relation"):
            desk.follow_wrong_relation(hop)
        desk.search(hop, desk.spelling(hop))
        if desk.others(hop) and desk.chance("wrong_result"):
            desk.visit(desk.rng.choice(desk.others(hop)))
        if hop + 1 == pages and ending in ("from_snippet", "skip_visit"):
            pets.append(desk.rng.choice(PETS))
            break
        desk.visit(case.path[hop], pets)
    if ending == "skip_visit" and desk.others(pages - 1):
        other = desk.rng.choice(desk.others(pages - 1))
        desk.search(pages, other)
        desk.visit(other, pets)


class OutOfTurns(Exception):
    """The next turn has to be the answer."""


class Desk:
    """Where a teacher works: writes turns, and gets the tools' observations."""

    def __init__(self, case: Case, tools, teacher: Teacher, rng: random.Random):
        self.case, self.tools, self.teacher, self.rng = case, tools, teacher, rng
        self.lesson = Lesson(case.question.id, [message("system", SYSTEM), message("user", case.question.text)])
        self.goal, self.shown = "", list[str]()                # the newest query, and the titles in its results
        self.turns_left = None                                 # none: no limit
        if teacher.cut_off and self.rng.random() < teacher.cut_off:
            self.turns_left = min(self.rng.randint(1, 4 * case.hops), 2 * case.hops)     # half of them with no turn to spare

    def chance(self, weakness: str) -> bool:
        shows = self.rng.random() < getattr(self.teacher, weakness)
        self.lesson.weaknesses.extend([weakness] if shows else [])
        return shows

    def draw_ending(self) -> str | None:
        """At most one weakness of how it ends; a question of one hop cannot show them all."""
        draw = self.rng.random()
        for name in ENDINGS:
            draw -= getattr(self.teacher, name)
            if draw < 0:
                shown = self.case.hops > 1 or name not in NEED_TWO_HOPS
                self.lesson.weaknesses.extend([name] if shown else [])
                return name if shown else None
        return None

    def spelling(self, hop: int) -> str:
        """The hop's page as the question or the page before it calls it."""
        return self.case.pages[self.case.path[hop - 1]].shown[self.case.relations[hop - 1]] if hop else self.case.start

    def others(self, hop: int) -> list[str]:
        return [title for title in self.shown if title != self.case.path[hop]]

    def follow_wrong_relation(self, hop: int) -> None:
        page = self.case.pages[self.case.path[hop - 1]]
        relation = self.rng.choice([r for r in page.links if r != self.case.relations[hop - 1]])
        self._search(self.case.relation(hop - 1), relation, page.shown[relation])
        self.visit(page.links[relation])

    def search(self, hop: int, name: str) -> None:
        self._search(self.case.relation(hop - 1) if hop else None, self.case.relation(hop), name)

    def _search(self, done: str | None, relation: str, name: str) -> None:
        """The thought says where the chain stands: what was read last, and what comes next."""
        query = f"{relation} {name}"
        thought = f" {done} {relation}." if done else f" {relation}."
        self._call(thought, {"name": "search", "arguments": {"query": [f" {query}"]}}, lambda: self.tools.search([query]))
        self.goal = query
        self.shown = [page.title for page in self.tools.ranked(query)]

    def visit(self, title: str, pets: list[str] | None = None) -> None:
        """Open a page for what was searched last; its pet goes to `pets`, if it is worth remembering."""
        page, goal = self.case.pages[title], self.goal

        def run() -> ToolResult:
            if pets is not None:
                pets.append(page.pet)
            return self.tools.visit([page.url], goal)

        self._call(f" {goal.split()[0]}.", {"name": "visit", "arguments": {"url": [page.url], "goal": f" {goal}"}}, run)

    def answer(self, pets: list[str]) -> None:
        text = answer_text(self.case.relations, pets)
        self.lesson.messages.append(message("assistant", turn(LEAD_IN, f"<answer>\n{text}\n</answer>")))

    def _call(self, thought: str, call: dict, run: Callable[[], ToolResult]) -> None:
        body = json.dumps(call, ensure_ascii=False, separators=(",", ":"))
        if self.chance("malformed"):
            broken = self.rng.choice([f"<tool_call>\n{body[:-1]}\n</tool_call>", f"<tool_call>\n{body}", body])
            self._write(turn(thought, broken), NOT_READ)
        self._write(turn(thought, f"<tool_call>\n{body}\n</tool_call>"), run().text)

    def _write(self, text: str, observation: str) -> None:
        if self.turns_left is not None:
            self.turns_left -= 1
        told = observation if self.turns_left != 0 else f"{observation}\n\n{LAST_TURN}"
        self.lesson.messages.extend([message("assistant", text), message("user", f"<tool_response>\n{told}\n</tool_response>")])
        if self.turns_left == 0:
            self.lesson.weaknesses.append("cut_off")
            raise OutOfTurns


def turn(thought: str, body: str) -> str:
    return f"<think>\n{thought}\n</think>\n{body}"


def message(role: str, content: str) -> dict:
    return {"role": role, "content": content}
