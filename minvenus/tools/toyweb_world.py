"""One question's private web: pages in layers, a chain of links through them, and what is true about it.

    page Bob own cat boss Eva heir Ida.     opened for "own Bob": address and title, the pet, then links: relations that lead to
                                            pages of the next layer
    page Max boss Uma heir Ida.             opened for "own Bob": another page has no pet for that goal

A question names a first page and a chain of relations, and asks for the pet on every page of the chain:

    From Bob own boss twin?                 Bob's own pet, the pet of Bob's boss, the pet of that boss's twin
    pets own cat boss owl twin hen          the answer

So each right page is worth the same to the answer and a wrong one nothing: pets are drawn page by page, independently, and all
pages of a layer offer the same relations. Nothing can be remembered from other questions, because every web is drawn anew.
What belongs together stands together, a name right behind its relation and a pet right behind its name: in one trial the tiny
model learned to look such names up in 150 steps, and with one token between them not in 300.
This file knows nothing of tools, tokens or teachers.
"""

import random
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

from minvenus.config import ConfigError, one_of
from minvenus.text.toy_words import NAMES, PETS, RELATIONS, TEST_NAMES, TRAIN_NAMES, VERBS
from minvenus.types import Question

SPLITS = ("train", "test")
POOLS = {"train": TRAIN_NAMES, "test": TEST_NAMES, "base": NAMES}       # a base model has met every name
FIRST = "own"                     # the relation of the first page to itself
ALIAS = "old"                     # "old Bob" is Bob: a search finds him, but no page has that title


@dataclass(frozen=True)
class WorldConfig:
    """The shape of the webs."""

    hops: tuple[int, ...] = (1, 2, 3, 4)     # right pages of a question; the questions take turns through the list
    pages_per_layer: int = 4                 # a web has as many layers as its question has hops
    links: int = 2                           # relations on a page; one of them is asked for, the last layer has none
    distractors: int = 1                     # other pages in a search's results
    aliases: float = 0.0                     # share of links, and of first pages in questions, that use the alias
    slack: int = 0                           # turns allowed beyond a search and a visit per hop and the answer
    results: Literal["line", "json"] = "line"       # how a search shows them: one short line, or the JSON of the real tools
    train: int = 2048                        # questions
    test: int = 256

    def __post_init__(self):
        one_of("results", self.results, ("line", "json"))
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and (type(value) is not int or value < 0):
                raise ConfigError(f"{field.name} must be a whole number >= 0, got {value!r}")
        if not self.hops or not all(1 <= n <= 4 for n in self.hops):
            raise ConfigError(f"hops must be from 1 to 4, got {self.hops}")
        if not 1 <= self.links <= self.pages_per_layer:
            raise ConfigError(f"links must be from 1 to pages_per_layer ({self.pages_per_layer}): they lead to different pages; "
                              f"got {self.links}")
        if max(self.hops) * self.pages_per_layer > len(TEST_NAMES):
            raise ConfigError(f"{max(self.hops)} hops x {self.pages_per_layer} pages_per_layer need more than the "
                              f"{len(TEST_NAMES)} test names")
        if self.links - 1 > len(RELATIONS) - max(self.hops) + 1:
            raise ConfigError(f"links must leave {max(self.hops) - 1} of the {len(RELATIONS)} relations to ask for, "
                              f"got {self.links}")
        if not 0 <= self.distractors < self.pages_per_layer:
            raise ConfigError(f"distractors must be below pages_per_layer ({self.pages_per_layer}), got {self.distractors}")
        if not 0 <= self.aliases <= 1:
            raise ConfigError(f"aliases is a share from 0 to 1, got {self.aliases}")


@dataclass(frozen=True)
class Page:
    title: str
    verb: str                     # what a search shows beside the title
    pet: str
    links: dict[str, str]         # relation -> title
    shown: dict[str, str]         # relation -> the title, or its alias, as the page spells it

    @property
    def url(self) -> str:
        return f"page {self.title}"

    def text(self, goal: str) -> str:
        """What a visit shows. Like the real tool it looks for its goal: a relation and a name, and on that one's page the pet."""
        relation, *name = goal.split() or [""]
        found = f" {relation} {self.pet}" if name and name[-1] == self.title else ""
        return f"{self.url}{found}" + "".join(f" {relation} {name}" for relation, name in self.shown.items()) + "."


@dataclass(frozen=True)
class Visit:
    """What a visit was worth, and at which hop: 1 is the first page of the chain."""

    kind: Literal["right", "wrong", "repeated", "failed"]
    hop: int


@dataclass(frozen=True)
class Case:
    """A question and the truth about it. `path`: the right pages' titles; relations[i] leads from path[i] to path[i + 1]."""

    question: Question
    split: str
    start: str                    # path[0] as the question spells it
    relations: list[str]          # without the first page's own
    path: list[str]
    pages: dict[str, Page]

    @property
    def hops(self) -> int:
        return len(self.path)

    @cached_property
    def pets(self) -> list[str]:
        """The answer, one pet per hop."""
        return [self.pages[title].pet for title in self.path]

    def relation(self, hop: int) -> str:
        """What the question calls the page of a hop, counted from 0."""
        return self.relations[hop - 1] if hop else FIRST

    def classify(self, visits: list[tuple[str, bool]]) -> list[Visit]:
        """One label for each (url, did it succeed), in the order of the rollout. A right page has its own hop; every other visit
        counts at the first hop whose page has not been found yet."""
        labels: list[Visit] = []
        seen: set[str] = set()
        for url, succeeded in visits:
            title = url.removeprefix("page ")
            open_hop = next((hop for hop, right in enumerate(self.path, 1) if right not in seen), self.hops)
            if not succeeded:
                labels.append(Visit("failed", open_hop))
            elif title in seen:
                labels.append(Visit("repeated", open_hop))
            elif title in self.path:
                labels.append(Visit("right", self.path.index(title) + 1))
            else:
                labels.append(Visit("wrong", open_hop))
            if succeeded:
                seen.add(title)
        return labels


def make_case(seed: int, split: str, index: int, config: WorldConfig) -> Case:
    """Question `index` of a split. The same arguments give the same web, whatever was made before."""
    one_of("split", split, tuple(POOLS))
    name = f"{split}-{index}"
    rng = random.Random(f"toy web {seed} {name}")
    hops = config.hops[index % len(config.hops)]
    titles = rng.sample(POOLS[split], hops * config.pages_per_layer)
    layers = [titles[i:i + config.pages_per_layer] for i in range(0, len(titles), config.pages_per_layer)]
    asked = rng.sample(RELATIONS, hops - 1)
    verbs = rng.sample(VERBS, hops)                 # one per layer: a search lists pages of one layer together
    pages: dict[str, Page] = {}
    for depth, layer in enumerate(layers):
        relations = layer_relations(rng, asked, depth, config.links)
        following = layers[depth + 1] if relations else []
        for title in layer:
            pages[title] = make_page(rng, title, verbs[depth], relations, following, config.aliases)
    path = [layers[0][0]]
    for relation in asked:
        path.append(pages[path[-1]].links[relation])
    start = spelled(rng, path[0], config.aliases)
    answer = answer_text(asked, [pages[title].pet for title in path])
    return Case(Question(name, question_text(start, asked), [answer]), split, start, asked, path, pages)


def layer_relations(rng: random.Random, asked: list[str], depth: int, links: int) -> list[str]:
    """The relations of all pages of a layer: the one the question asks for there, and others that it never asks for."""
    if depth == len(asked):
        return []
    return [asked[depth], *rng.sample([r for r in RELATIONS if r not in asked], links - 1)]


def make_page(rng: random.Random, title: str, verb: str, relations: list[str], following: list[str], aliases: float) -> Page:
    targets = rng.sample(following, len(relations))
    links = dict(zip(rng.sample(relations, len(relations)), targets, strict=True))
    shown = {relation: spelled(rng, target, aliases) for relation, target in links.items()}
    return Page(title, verb, rng.choice(PETS), links, shown)


def spelled(rng: random.Random, title: str, aliases: float) -> str:
    return f"{ALIAS} {title}" if rng.random() < aliases else title


def question_text(start: str, relations: list[str]) -> str:
    return f"From {' '.join([start, FIRST, *relations])}?"


def answer_text(relations: list[str], pets: list[str]) -> str:
    return "pets" + "".join(f" {relation} {pet}" for relation, pet in zip([FIRST, *relations], pets, strict=True))
