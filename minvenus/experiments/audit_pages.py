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
from collections import defaultdict
from itertools import chain
from pathlib import Path
from statistics import fmean, pstdev

from minvenus.agent.prompt import read_format
from minvenus.config import ConfigError
from minvenus.console import table
from minvenus.engine import Engine
from minvenus.evaluation.questions import open_questions
from minvenus.experiments.audit_table import Visit, follows_progress, table_row, visit_table
from minvenus.experiments.factbook import LEAD_IN, lines_to_read, linked, opening, turn
from minvenus.experiments.results import Table
from minvenus.igpo.gain import WrappedTruth, belief, wrap_truth
from minvenus.igpo.recipes import Recipe
from minvenus.model import weights
from minvenus.text.chat import stream
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.almanac import Almanac
from minvenus.tools.toyweb_lessons import assistant
from minvenus.types import Question

PAGES, PAGE_SIZE = 512, 16           # of the cache: a path of three hops and its side steps


def audit_pages(model: Path, world: Path, count: int) -> str:
    """Tables by the number of hops, of the first `count` test questions."""
    source = open_questions(str(world / "test.jsonl"), f"almanac:{world / 'pages'}")
    walker = Walker(model, source.tools)
    beliefs = defaultdict(list)      # number of hops -> of its questions: belief, visits
    walks = defaultdict(list)
    for question in source.held_out[:count]:
        first, visits = walker.walk(question)
        hops = len(question.pages or [])
        beliefs[hops].append(first)
        walks[hops].append(visits)

    parts = []
    everything: list[Visit] = []
    for hops in sorted(walks):
        visits = list(chain.from_iterable(walks[hops]))
        parts += [
            f"{len(walks[hops])} {hops}-hop questions, log P(truth | question) "
            f"{fmean(beliefs[hops]):+.2f} per token, {follows_progress(visits)}\n"
            f"{table(visit_table(visits))}",
            table(difference_table(walks[hops])),
        ]
        everything += visits

    # whether uncentred gains pay for beginning, by themselves
    gains = [visit.gain for visit in everything if (visit.kind, visit.hop) == ("right", 1)]
    mean = fmean(gains)
    sign = "above 0" if mean > 0 else "not above 0: the right first page costs belief"
    return "\n\n".join([
        *parts,
        f"all: {follows_progress(everything)}",
        f"mean gain of a first right visit {mean:+.2f} ± {standard_error(gains):.2f}, {sign}",
    ])


def standard_error(numbers: list[float]) -> float:
    return pstdev(numbers) / len(numbers) ** 0.5


def difference_table(walks: list[list[Visit]]) -> Table:
    """The gain of the right page less that of another one of the same question and hop: the mean,
    its standard error, and how often the right page gains more."""
    differences: dict[tuple[str, str], list[float]] = defaultdict(list)
    for visits in walks:
        right = {visit.hop: visit.gain for visit in visits if visit.kind == "right"}
        for visit in visits:
            if visit.kind != "right":
                gain = right[visit.hop] - visit.gain
                differences[visit.kind, str(visit.hop)].append(gain)

    rows = [["right less", "hop", "count", "mean", "error", "positive"]]
    for place, gains in sorted(differences.items()):
        rows.append(table_row(*place, gains, standard_error(gains)))
    return rows


class Walker:
    """A model that reads pages by script."""

    def __init__(self, model: Path, almanac: Almanac):
        self.tokenizer = Tokenizer.from_file(model)
        self.engine = Engine(weights.load(model), PAGES, PAGE_SIZE)
        self.format = read_format(model)
        self.recipe = Recipe(lead_in=self.format.lead_in)
        self.almanac = almanac

    def walk(self, question: Question) -> tuple[float, list[Visit]]:
        """The belief on the question alone, and the visits of its path and beside it."""
        path = question.pages or []
        lines = lines_to_read(question.text)
        if not lines or len(lines) != len(path):
            raise ConfigError(f"{question.text!r} with its pages is no question of the factbook "
                              "command")
        messages = opening(self.format.prompt, question.text)
        truth = wrap_truth(question.answers[0], self.tokenizer, self.recipe)
        [first] = self.beliefs(messages, [[]], truth)

        visits = []
        before = first
        for hop, (page, line) in enumerate(zip(path, lines, strict=True), start=1):
            messages += turn(self.almanac, page, query=[page])
            pages = self.pages_at(path, hop, question.text)
            turns = []
            for title in pages.values():
                turns.append(turn(self.almanac, page, url=[title], goal=line))
            beliefs = self.beliefs(messages, turns, truth)
            for kind, after in zip(pages, beliefs, strict=True):
                visits.append(Visit(kind, hop, after - before, float(kind == "right")))
            messages += turns[0]                       # the right page comes first
            before = beliefs[0]
        return first, visits

    def beliefs(
        self, messages: list[dict], turns: list[list[dict]], truth: WrappedTruth
    ) -> list[float]:
        """The belief after the messages and each of the turns."""
        shared = self.encode(messages)
        continuations = []
        for more in turns:
            continuations.append(self.encode(messages + more)[len(shared):] + truth.ids)
        beliefs = []
        for logprobs in self.engine.score(shared, continuations):
            beliefs.append(belief(logprobs[truth.start - len(truth.ids):], "log_prob"))
        return beliefs

    def encode(self, messages: list[dict]) -> list[int]:
        """The ids as far as the next turn."""
        next_turn = assistant(LEAD_IN, "-")
        ids, _, spans = stream([*messages, next_turn], self.tokenizer)
        start, _ = spans[-1]
        return ids[:start]

    def pages_at(self, path: list[str], hop: int, seed: str) -> dict[str, str]:
        """kind -> title of a page to visit; a kind without any page is absent."""
        right = path[hop - 1]
        results = self.almanac.titles(right)
        near = results if hop == 1 else linked(self.almanac, path[hop - 2])
        known = {*path, *near, *results}
        others = {
            "wrong": [title for title in near if title not in path],
            "repeated": path[hop - 2 : hop - 1] if hop > 1 else [],
            "unrelated": [title for title in self.almanac.pages if title not in known],
        }
        rng = random.Random(f"{seed} {hop}")
        chosen = {kind: rng.choice(titles) for kind, titles in others.items() if titles}
        return {"right": right, **chosen}
