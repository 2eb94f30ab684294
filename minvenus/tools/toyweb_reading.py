"""Texts from which a base model learns to read: generated pages, and what can only be looked up in them.

    page Bob own cat boss Eva heir Ida. / page Eva twin owl.       reading: pages of any names, as the toy web shows them,
    page Eva twin owl. / page Bob own cat heir Ida boss Eva.       then again in another order, their links too

    From Bob own boss?                                             notes: how a question is followed through its web,
     own. / own Bob / page Bob sings Max sings.                    in plain words, without the format of tool calls
     own. / page Bob own Bob / page Bob own cat boss Eva heir Ida.
     own boss. / boss Eva / ...
    pets own cat boss owl

They are for the time before demonstrations, so that those meet a model that can look things up. The names are those of both
splits, as a base model has seen every word; no web here is the web of a question. Knows no tokens: a text comes as pieces,
each with a flag: only flagged pieces are worth a loss, the others are what they follow from.
"""

import json
import random
import re

from minvenus.text.toy_words import NAMES, PETS, RELATIONS
from minvenus.tools.toyweb import ToyTools
from minvenus.tools.toyweb_teachers import Teacher, teach
from minvenus.tools.toyweb_world import FIRST, WorldConfig, make_case

Piece = tuple[str, bool]
MOST_LINKS = 2


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
    """A page's text; a pet and a name follow from the relation before them. Pieces end where tokens of the text do."""
    pieces = [(f"page {title} {goal}", False), (f" {pet}", True)]
    for relation, name in links:
        pieces += [(f" {relation}", False), (f" {name}", True)]
    return [*pieces, (".\n", False)]


def notes(seed: int, index: int, shape: WorldConfig, teacher: Teacher) -> list[Piece]:
    """A demonstration on a web of its own, with thoughts, queries, addresses and goals in plain lines."""
    case = make_case(seed, "base", index, shape)
    lesson = teach(case, ToyTools(case, shape), teacher, f"notes {seed} {index}")
    return [(plain(message["content"]) + "\n", message["role"] == "assistant") for message in lesson.messages[1:]]


def plain(content: str) -> str:
    """The words of a message without tags and JSON."""
    call = re.search(r"<tool_call>\n(.*)\n</tool_call>", content)
    if call:
        arguments = json.loads(call[1])["arguments"]
        thought = content.split("\n")[1]
        return thought + "\n" + "".join(v if isinstance(v, str) else v[0] for v in arguments.values())
    return re.sub(r"<think>\n.*\n</think>\n|</?answer>\n?|</?tool_response>\n?", "", content).strip("\n")
