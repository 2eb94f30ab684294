"""The gain audit on an almanac: a script walks the path of a question, the model scores the answer.

At every hop a search for the right page comes first. Then one of these pages is opened, and the
script goes on from the right one:

    right       the page of the path
    wrong       another country that the page before names; at hop 1 another result of the search
    repeated    the page before, again
    unrelated   a page that neither the path, the page before nor the search names

The gain of a visit is the rise of log P(truth), per token, since the visit before it, or since the
question, as in training. Progress is 1 for the right page, else 0. Questions differ more than pages
do, so a second table compares the right page with each other one of the same question and hop.
"""

import random
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev

from minvenus.agent.prompt import read_format
from minvenus.config import ConfigError
from minvenus.console import table
from minvenus.engine import Engine
from minvenus.engine.engine import ScoreRequest
from minvenus.evaluation.questions import open_questions
from minvenus.experiments.audit_table import Visit, correlated, number, ranks, visit_table
from minvenus.experiments.factbook import turn
from minvenus.experiments.results import Table
from minvenus.igpo.gain import belief, wrap_truth
from minvenus.igpo.recipes import Recipe
from minvenus.model import weights
from minvenus.text.chat import stream
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.almanac import Almanac
from minvenus.types import Question

PAGES, PAGE_SIZE = 512, 16           # of the cache: a path of three hops and its side steps
NAMED = re.compile(r"(?:: |; )([^:;]+?) [\d.]+(?: km|%)")      # countries in the lists of a page


def audit_pages(model: Path, world: Path, count: int) -> str:
    """Tables by the number of hops, of about `count` test questions."""
    source = open_questions(str(world / "test.jsonl"), f"almanac:{world / 'pages'}")
    by_hops: dict[int, list[Question]] = defaultdict(list)
    for question in source.held_out:
        if question.pages:
            by_hops[len(question.pages)].append(question)
    if not by_hops:
        raise ConfigError(f"no question of {world / 'test.jsonl'} names its pages")

    walker = Walker(model, source.tools)
    parts = []
    everything: list[Visit] = []
    for hops, questions in sorted(by_hops.items()):
        chosen = questions[:max(1, count // len(by_hops))]
        walks = [walker.walk(question) for question in chosen]
        visits = [visit for _, question_visits in walks for visit in question_visits]
        first = fmean(before for before, _ in walks)
        head = (f"{len(chosen)} {hops}-hop questions, log P(truth | question) {first:+.2f} per "
                f"token, {rank_words(visits)}")
        differences = difference_table([question_visits for _, question_visits in walks])
        parts += [f"{head}\n{table(visit_table(visits))}", table(differences)]
        everything += visits
    return "\n\n".join([*parts, f"all: {rank_words(everything)}"])


def rank_words(visits: list[Visit]) -> str:
    gains = ranks([visit.gain for visit in visits])
    progress = ranks([visit.progress for visit in visits])
    return f"rank correlation of gain and progress {number(correlated(gains, progress))}"


def difference_table(walks: list[list[Visit]]) -> Table:
    """The gain of the right page less that of another one of the same question and hop: the mean,
    its standard error, and how often the right page gains more."""
    differences: dict[tuple[str, int], list[float]] = defaultdict(list)
    for visits in walks:
        right = {visit.hop: visit.gain for visit in visits if visit.kind == "right"}
        for visit in visits:
            if visit.kind != "right":
                differences[visit.kind, visit.hop].append(right[visit.hop] - visit.gain)

    rows = [["right less", "hop", "count", "mean", "error", "positive"]]
    for (kind, hop), numbers in sorted(differences.items()):
        error = pstdev(numbers) / len(numbers) ** 0.5
        positive = fmean(number > 0 for number in numbers)
        row = [kind, str(hop), str(len(numbers))]
        rows.append([*row, f"{fmean(numbers):+.2f}", f"{error:.2f}", f"{positive:.0%}"])
    return rows


class Walker:
    """A model that reads pages by script."""

    def __init__(self, model: Path, almanac: Almanac):
        self.tokenizer = Tokenizer.from_file(model)
        self.engine = Engine(weights.load(model), PAGES, PAGE_SIZE)
        self.format = read_format(model)
        self.recipe = replace(Recipe(), lead_in=self.format.lead_in)
        self.almanac = almanac

    def walk(self, question: Question) -> tuple[float, list[Visit]]:
        """The belief on the question alone, and the visits of its path and beside it."""
        pages = question.pages or []
        messages = [
            {"role": "system", "content": self.format.prompt},
            {"role": "user", "content": question.text},
        ]
        branches = []                # (kind, hop, messages as far as the page)
        for hop, page in enumerate(pages, start=1):
            messages = messages + self.call(page, "search", {"query": [page]})
            for kind, title in self.side_pages(question, hop).items():
                branches.append((kind, hop, messages + self.visit(page, title)))
            messages = messages + self.visit(page, page)

        path, starts = self.encode(messages)
        after_visits = starts[::2]   # a search and a visit at each hop; the first is the question
        wrapped = wrap_truth(question.answers[0], self.tokenizer, self.recipe)
        requests: list[ScoreRequest] = [(path, after_visits, wrapped.ids)]
        for _, hop, branch in branches:
            ids, _ = self.encode(branch)
            shared = starts[2 * hop - 1]
            requests.append((path, [shared], ids[shared:] + wrapped.ids))

        length = len(wrapped.ids) - wrapped.start
        on_path, *beside = self.engine.score_many(requests)
        beliefs = [belief(logprobs[-length:], "log_prob") for logprobs in on_path]
        visits = []
        for hop in range(1, len(pages) + 1):
            visits.append(Visit("right", hop, beliefs[hop] - beliefs[hop - 1], 1.0))
        for (kind, hop, _), [logprobs] in zip(branches, beside, strict=True):
            gain = belief(logprobs[-length:], "log_prob") - beliefs[hop - 1]
            visits.append(Visit(kind, hop, gain, 0.0))
        return beliefs[0], visits

    def side_pages(self, question: Question, hop: int) -> dict[str, str]:
        """kind -> title of a page that is not the right one; a kind without any page is absent."""
        path = question.pages or []
        right = path[hop - 1]
        near = self.almanac.titles(right)
        if hop > 1:
            near = NAMED.findall(self.almanac.pages[path[hop - 2]])
        wrong = [title for title in near if title in self.almanac.pages and title not in path]
        far = [title for title in self.almanac.pages
               if title not in (*path, *near, *self.almanac.titles(right))]

        rng = random.Random(f"{question.text} {hop}")
        pages = {}
        if wrong:
            pages["wrong"] = rng.choice(wrong)
        if hop > 1:
            pages["repeated"] = path[hop - 2]
        if far:
            pages["unrelated"] = rng.choice(far)
        return pages

    def visit(self, right: str, title: str) -> list[dict]:
        return self.call(right, "visit", {"url": [title], "goal": "the answer"})

    def call(self, right: str, name: str, arguments: dict) -> list[dict]:
        return turn(f"I need the page of {right}.", name, arguments, self.almanac)

    def encode(self, messages: list[dict]) -> tuple[list[int], list[int]]:
        """The ids as far as the next turn, and where each turn begins, the next one too."""
        closing = {"role": "assistant", "content": f"<think>\n{self.format.lead_in}\n</think>\n-"}
        ids, _, spans = stream([*messages, closing], self.tokenizer)
        starts = [start for start, _ in spans]
        return ids[:starts[-1]], starts
