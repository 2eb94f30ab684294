"""The toy web: an offline world of small private webs, one per question, with `search` and `visit` as the real tools have them.

    web = ToyWeb(seed=0, hops=(4,))
    for question in web.questions("train"):
        tools = web.for_question(question.id)          one for every rollout: it remembers what its searches listed
        tools.search(["boss Eva"])                     page Eva sings Ida sings.               titles and snippets, best first
        tools.visit(["page Eva"], "boss Eva")          page Eva boss owl twin Max heir Uma.     only if a search listed it
        web.case(question.id).path                     the truth, for tests and audits

Which web a call belongs to is decided by the object that is called, never by the call's text: 64 rollouts of 8 questions have 64
tool sets, and none can reach another question's pages. A tool set is cheap, belongs to one rollout and is not shared.
`ToyWeb` has the two methods as well, for a look at one question's web: they remember nothing, so every page of it can be visited.

A search shows the best pages by BM25 over titles and first lines, then pages like the best one. What a question asks for stands
on the page only: a snippet never holds it. Knows nothing of tokens and rollouts; everything follows from the seed.
"""

from functools import cached_property

from minvenus.config import one_of
from minvenus.tools.base import ToolError, ToolResult, search_each
from minvenus.tools.bm25 import BM25
from minvenus.tools.toyweb_teachers import Lesson, Teacher, teach
from minvenus.tools.toyweb_world import SPLITS, Case, Page, WorldConfig, make_case
from minvenus.types import Question


class ToyWeb:
    """All webs of a seed. Keyword arguments are the fields of WorldConfig."""

    def __init__(self, seed: int = 0, **shape):
        self.seed, self.config = seed, WorldConfig(**shape)
        self._cases: dict[str, Case] = {}

    @classmethod
    def of(cls, seed: int, hops: int | None, slack: int | None, **shape) -> "ToyWeb":
        """As a command line has it: every question of so many hops, none = of 1 to 4 in turn; none = the usual slack."""
        given = {"hops": None if hops is None else (hops,), "slack": slack}
        return cls(seed, **shape | {name: value for name, value in given.items() if value is not None})

    def questions(self, split: str) -> list[Question]:
        one_of("split", split, SPLITS)
        return [self.case(f"{split}-{i}").question for i in range(getattr(self.config, split))]

    def case(self, question_id: str) -> Case:
        """The question with its web and the right path."""
        if question_id not in self._cases:
            split, _, index = question_id.partition("-")
            if split not in SPLITS or not index.isdecimal() or int(index) >= getattr(self.config, split):
                raise KeyError(f"no question {question_id!r}: there are train-0 to train-{self.config.train - 1} and test-0 to "
                               f"test-{self.config.test - 1}")
            self._cases[question_id] = make_case(self.seed, split, int(index), self.config)
        return self._cases[question_id]

    def for_question(self, question_id: str) -> "ToyTools":
        """The tools of one rollout."""
        return ToyTools(self.case(question_id), self.config)

    def max_turns(self, question_id: str) -> int:
        """A search and a visit per hop, the answer, and the slack."""
        return 2 * self.case(question_id).hops + 1 + self.config.slack

    def search(self, queries: list[str], question_id: str = "train-0") -> ToolResult:
        return self.for_question(question_id).search(queries)

    def visit(self, urls: list[str], goal: str, question_id: str = "train-0") -> ToolResult:
        tools = self.for_question(question_id)
        tools.listed.update((page.url, page) for page in tools.case.pages.values())
        return tools.visit(urls, goal)

    def lessons(self, count: int, teacher: Teacher, split: str = "train", seed: int = 0) -> list[Lesson]:
        """`count` demonstrations and the weaknesses they show: of question 0, 1, ... of the split, and around again."""
        total = getattr(self.config, split)
        ids = [f"{split}-{i % total}" for i in range(count)]
        return [teach(self.case(name), self.for_question(name), teacher, f"{self.seed} {seed} {i}") for i, name in enumerate(ids)]

    def demonstrations(self, count: int, teacher: Teacher, split: str = "train", seed: int = 0) -> list[list[dict]]:
        """The lessons' messages: system, user, assistant, user, ..., assistant."""
        return [lesson.messages for lesson in self.lessons(count, teacher, split, seed)]


class ToyTools:
    """search and visit on one question's web, for one rollout."""

    def __init__(self, case: Case, config: WorldConfig):
        self.case, self.config = case, config
        self.listed: dict[str, Page] = {}           # url -> page, of all that a search of this rollout has shown

    @cached_property
    def index(self) -> BM25:
        return BM25([f"{page.title} {page.verb}" for page in self.case.pages.values()])

    def search(self, queries: list[str]) -> ToolResult:
        if self.config.results == "json":
            return search_each(queries, self._results)
        blocks, failures = [], 0
        for query in queries:
            try:
                shown = " ".join(f"{page['title']} {page['snippet']}" for page in self._results(query))
                blocks.append(f"page {shown}.")
            except ToolError as failure:
                blocks.append(f"ERROR: {failure}")
                failures += 1
        return ToolResult("\n".join(blocks), "empty" if failures == len(queries) else None)

    def visit(self, urls: list[str], goal: str) -> ToolResult:
        texts = [self.listed[url].text(goal) if url in self.listed else "ERROR: no such page." for url in urls]
        return ToolResult("\n".join(texts), None if any(url in self.listed for url in urls) else "refused")

    def ranked(self, query: str) -> list[Page]:
        """The best page, then those most like it; among equals those that follow it in the web, around its end."""
        pages = list(self.case.pages.values())
        hits = [i for i, _ in self.index.search(query)]
        if not hits:
            return []
        alike = dict(self.index.search(pages[hits[0]].verb))
        rest = sorted(range(len(pages)), key=lambda i: (-alike.get(i, 0.0), (i - hits[0]) % len(pages)))
        return [pages[i] for i in dict.fromkeys([*hits, *rest])][:1 + self.config.distractors]

    def _results(self, query: str) -> list[dict]:
        found = self.ranked(query)
        if not found:
            raise ToolError("empty", "nothing found.")
        self.listed.update((page.url, page) for page in found)
        return [{"title": page.title, "url": page.url, "snippet": page.verb} for page in found]
