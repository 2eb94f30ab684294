"""The toy web: an offline world of small private webs, one per question, with `search` and `visit`.

    web = ToyWeb(seed=0, hops=4)
    for question in web.questions("train"):
        tools = web.for_question(question.id)     a tool set for one rollout
        tools.search("boss Eva")                  page Eva sings Ida sings.      titles and verbs
        tools.visit("page Eva", "boss Eva")       page Eva boss owl twin Max heir Uma.
        web.case(question.id).path                the truth, for tests and audits

A web has one layer of pages for each hop of its question. A page has a title, a pet, and links to
pages of the next layer. It can be visited once a search has listed it. Its pet is shown to a visit
for its own name only:

    page Bob own cat boss Eva heir Ida.     visited for "own Bob": the pet, then the links
    page Max boss Uma heir Ida.             visited for "own Bob"

A question names a first page and a chain of relations, and asks for the pet on every page of the
chain, or (asks="last") on its last page only:

    From Bob own boss twin?                 the pets of Bob, of Bob's boss, of that boss's twin
    pets own cat boss owl twin hen          the answer
    After Bob own boss twin?                the pet of the twin of Bob's boss
    pet twin hen                            the answer

Each right page is worth the same to the answer and a wrong page nothing: every pet is drawn
independently, and all pages of a layer have the same relations. Every web is drawn anew from the
seed, so nothing can be remembered from other questions. A name stands right after its relation and
a pet right after its name: in a trial the tiny model learned such look-ups in 150 steps, and with
one token in between not in 300.
"""

import math
import random
import re
from dataclasses import dataclass

from minvenus.settings import Asks
from minvenus.tools.base import Text
from minvenus.types import Question

# The tiny tokenizer gives each of these words one id together with the space before it, and the toy
# web never writes one without that space: a word with two ids would be two words to a tiny model.
NAMES = """
    Abe Ada Amy Ann Ali Art Ava Bea Ben Bill Bob Bud Cal Cam Cid Cleo Dan Dean Dee Del Don Dora Drew
    Earl Eli Ella Eve Fay Finn Flo Gail Gia Gil Gus Guy Hal Hans Hope Hugh Ian Ida Ike Ira Ivy Jack
    Jan Jay Jean Jim Joe Joy Kai Kay Ken Kim Kit Lea Lee Leo Liz Lou Lucy Mae Max Meg Mia Mike Moe
    Nan Ned Nell Nora Ole Omar Otto Pam Pat Paul Peg Pia Ray Rex Rob Ron Roy Sam Sid Sue Ted Tess
    Tim Tom Uma Vic Will Zoe
""".split()
TEST_NAMES = NAMES[2::3]                 # the titles of train and test questions are disjoint
TRAIN_NAMES = [name for name in NAMES if name not in TEST_NAMES]
PETS = """
    cat dog owl hen fox pig cow bat bee ant emu elk ape yak ram rat eel hog jay koi asp doe cub pug
""".split()
RELATIONS = "boss friend twin uncle coach rival host heir aunt nurse guard pupil".split()
VERBS = "sings cooks paints sails dances writes digs swims".split()
FIRST = "own"                            # the relation of the first page to itself

HOPS = (1, 2, 3, 4)                      # right pages of a question, in turn
PAGES_PER_LAYER = 4
RESULTS_PER_SEARCH = 2
QUESTION_WORDS = {"every": "From", "last": "After"}
# "base" is for the texts of the base model
SPLITS = {"train": TRAIN_NAMES, "test": TEST_NAMES, "base": NAMES}


# -------------------------------------------------------------------------------------------- webs


@dataclass(frozen=True)
class Page:
    title: str
    verb: str                     # what a search shows after the title
    pet: str
    links: dict[str, str]         # relation -> title

    @property
    def url(self) -> str:
        return f"page {self.title}"

    def text(self, goal: str) -> str:
        """What a visit shows. The goal is a relation and a name; the page of that name shows its
        pet, too."""
        parts = [self.url]
        relation, *names = goal.split() or [""]
        if names and names[-1] == self.title:
            parts += [relation, self.pet]
        for relation, title in self.links.items():
            parts += [relation, title]
        return " ".join(parts) + "."


@dataclass(frozen=True)
class Case:
    """A question and the truth about it. The right page of hop i, counted from 0, has the title
    path[i], and the question calls it relations[i]."""

    question: Question
    relations: list[str]
    path: list[str]
    pages: dict[str, Page]
    asks: Asks = "every"

    @property
    def hops(self) -> int:
        return len(self.path)

    @property
    def right_pages(self) -> list[str]:
        return [self.pages[title].url for title in self.path]


def make_case(seed: int, split: str, index: int, hops_in_turn: tuple[int, ...] = HOPS,
              asks: Asks = "every") -> Case:
    """Question `index` of a split. The same arguments give the same web."""
    rng = random.Random(f"toy web {seed} {split}-{index}")
    hops = hops_in_turn[index % len(hops_in_turn)]
    titles = rng.sample(SPLITS[split], hops * PAGES_PER_LAYER)
    asked = rng.sample(RELATIONS, hops - 1)         # from each layer to the next
    unasked = [relation for relation in RELATIONS if relation not in asked]
    verbs = rng.sample(VERBS, hops)                 # one per layer: a search lists pages of a layer

    pages: dict[str, Page] = {}
    for hop in range(hops):
        start = hop * PAGES_PER_LAYER
        end = start + PAGES_PER_LAYER
        next_layer = titles[end:end + PAGES_PER_LAYER]

        relations = []                              # the last layer has no links
        if next_layer:
            relations = [asked[hop], rng.choice(unasked)]

        for title in titles[start:end]:
            order = rng.sample(relations, len(relations))
            targets = rng.sample(next_layer, len(relations))
            links = dict(zip(order, targets, strict=True))
            pages[title] = Page(title, verbs[hop], rng.choice(PETS), links)

    path = [titles[0]]
    for relation in asked:
        path.append(pages[path[-1]].links[relation])

    chain = [FIRST, *asked]
    text = " ".join([QUESTION_WORDS[asks], path[0], *chain]) + "?"
    answer = answer_text(chain, [pages[title].pet for title in path], asks)
    return Case(Question(f"{split}-{index}", text, [answer]), chain, path, pages, asks)


def answer_text(relations: list[str], pets: list[str], asks: Asks = "every") -> str:
    if asks == "last":
        return f"pet {relations[-1]} {pets[-1]}"
    parts = ["pets"]
    for relation, pet in zip(relations, pets, strict=True):
        parts += [relation, pet]
    return " ".join(parts)


class ToyWeb:
    """All webs of a seed.

    hops          right pages of every question, from 1 to 6; None = 1 to 4 in turn, a tuple = these
    slack         turns beyond a search and a visit per hop and the answer
    train, test   number of questions
    asks          for "every" pet of the chain, or the "last" one only
    """

    def __init__(self, seed: int = 0, hops: int | tuple[int, ...] | None = None, slack: int = 0,
                 train: int = 2048, test: int = 256, asks: Asks = "every"):
        self.hops = (hops,) if isinstance(hops, int) else hops or HOPS
        self.seed = seed
        self.slack = slack
        self.asks = asks
        self.size = {"train": train, "test": test}

    def questions(self, split: str) -> list[Question]:
        return [self.case(f"{split}-{i}").question for i in range(self.size[split])]

    def case(self, question_id: str) -> Case:
        """The question with its web and the right path; KeyError if there is no such question."""
        split, _, index = question_id.partition("-")
        if not index.isdecimal() or int(index) >= self.size[split]:
            raise KeyError(question_id)
        return make_case(self.seed, split, int(index), self.hops, self.asks)

    def for_question(self, question_id: str) -> "ToyTools":
        """The tools of one rollout."""
        return ToyTools(self.case(question_id))

    def max_turns(self, question_id: str) -> int:
        """A search and a visit per hop, the answer, and the slack."""
        return 2 * self.case(question_id).hops + 1 + self.slack


# ------------------------------------------------------------------------------------------- tools


class ToyTools:
    """search and visit on one question's web, for one rollout."""

    def __init__(self, case: Case):
        self.case = case
        self.pages = list(case.pages.values())
        self.listed: dict[str, Page] = {}           # by url: what a search has listed

    def search(self, query: str, deadline: float = math.inf) -> Text:
        """The titles and verbs of the pages that are found."""
        pages = self.results(query)
        if not pages:
            return Text("ERROR: nothing found.", "empty")
        for page in pages:
            self.listed[page.url] = page
        listing = " ".join(f"{page.title} {page.verb}" for page in pages)
        return Text(f"page {listing}.")

    def visit(self, url: str, goal: str, deadline: float = math.inf) -> Text:
        if url not in self.listed:
            return Text("ERROR: no such page.", "refused")
        return Text(self.listed[url].text(goal))

    def results(self, query: str) -> list[Page]:
        """The two best of the pages that share a word with the query. A title counts more than a
        verb. Beside one that is alone stands the next page with its verb."""
        words = set(re.findall(r"[^\W_]+", query.casefold()))

        def score(page: Page) -> int:
            return 2 * (page.title.casefold() in words) + (page.verb in words)

        ranked = sorted(self.pages, key=score, reverse=True)
        pages = [page for page in ranked if score(page)]
        if pages:
            best = self.pages.index(pages[0])
            others = self.pages[best + 1:] + self.pages[:best]
            pages += [page for page in others if page.verb == pages[0].verb]
        return pages[:RESULTS_PER_SEARCH]
