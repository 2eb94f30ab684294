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
from minvenus.engine.engine import ScoreRequest
from minvenus.evaluation.questions import open_questions
from minvenus.experiments import factbook
from minvenus.experiments.audit_table import Visit, rank_correlation, table_row, visit_table
from minvenus.experiments.factbook import LEAD_IN, lines_to_read, linked
from minvenus.experiments.results import Table
from minvenus.igpo.gain import belief, wrap_truth
from minvenus.igpo.recipes import Recipe
from minvenus.model import weights
from minvenus.text.chat import stream
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.almanac import Almanac
from minvenus.tools.toyweb_lessons import assistant
from minvenus.types import Question

PAGES, PAGE_SIZE = 512, 16           # of the cache: a path of three hops and its side steps


def audit_pages(model: Path, world: Path, count: int) -> str:
    """Tables by the number of hops, of about `count` test questions."""
    source = open_questions(str(world / "test.jsonl"), f"almanac:{world / 'pages'}")
    by_hops: dict[int, list[Question]] = defaultdict(list)
    for question in source.held_out:
        lines = lines_to_read(question.text)
        if lines and len(lines) == len(question.pages or []):
            by_hops[len(lines)].append(question)
    if not by_hops:
        raise ConfigError(f"no question of {world / 'test.jsonl'} is one of the factbook command, "
                          "with its pages")

    walker = Walker(model, source.tools)
    parts = []
    everything: list[Visit] = []
    for hops, questions in sorted(by_hops.items()):
        beliefs = []
        walks = []
        for question in questions[:max(1, count // len(by_hops))]:
            first, visits = walker.walk(question)
            beliefs.append(first)
            walks.append(visits)

        visits = list(chain.from_iterable(walks))
        head = (f"{len(walks)} {hops}-hop questions, log P(truth | question) "
                f"{fmean(beliefs):+.2f} per token, {rank_words(visits)}")
        parts.append(f"{head}\n{table(visit_table(visits))}")
        parts.append(table(difference_table(walks)))
        everything += visits
    return "\n\n".join([*parts, f"all: {rank_words(everything)}", first_visit_words(everything)])


def rank_words(visits: list[Visit]) -> str:
    gains = [visit.gain for visit in visits]
    progress = [visit.progress for visit in visits]
    return f"rank correlation of gain and progress {rank_correlation(gains, progress)}"


def first_visit_words(visits: list[Visit]) -> str:
    """Whether uncentred gains pay for beginning, by themselves."""
    gains = [visit.gain for visit in visits if visit.kind == "right" and visit.hop == 1]
    mean = fmean(gains)
    sign = "above 0" if mean > 0 else "not above 0: the right first page costs belief"
    return f"mean gain of a first right visit {mean:+.2f} ± {standard_error(gains):.2f}, {sign}"


def standard_error(numbers: list[float]) -> float:
    return pstdev(numbers) / len(numbers) ** 0.5


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
        rows.append(table_row(kind, str(hop), numbers, standard_error(numbers)))
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
        pages = question.pages or []
        lines = lines_to_read(question.text)
        messages = factbook.opening(self.format.prompt, question.text)
        branches = []                # (kind, hop, messages as far as the page)
        for hop, (page, line) in enumerate(zip(pages, lines, strict=True), start=1):
            messages = messages + factbook.turn(self.almanac, page, "search", {"query": [page]})
            for kind, title in self.side_pages(question, hop).items():
                branch = messages + factbook.visit(self.almanac, page, title, line)
                branches.append((kind, hop, branch))
            messages = messages + factbook.visit(self.almanac, page, page, line)

        # a search and a visit at each hop; the first start is after the question
        path, starts = self.encode(messages)
        wrapped = wrap_truth(question.answers[0], self.tokenizer, self.recipe)
        requests: list[ScoreRequest] = [(path, starts[::2], wrapped.ids)]
        for _, hop, branch in branches:
            ids, _ = self.encode(branch)
            shared = starts[2 * hop - 1]
            requests.append((path, [shared], ids[shared:] + wrapped.ids))

        beliefs = []                 # of each request: after each of its starts
        length = len(wrapped.ids) - wrapped.start
        for scores in self.engine.score_many(requests):
            beliefs.append([belief(logprobs[-length:], "log_prob") for logprobs in scores])

        on_path, *beside = beliefs
        visits = []
        for hop in range(1, len(on_path)):
            visits.append(Visit("right", hop, on_path[hop] - on_path[hop - 1], 1.0))
        for (kind, hop, _), [after] in zip(branches, beside, strict=True):
            visits.append(Visit(kind, hop, after - on_path[hop - 1], 0.0))
        return on_path[0], visits

    def side_pages(self, question: Question, hop: int) -> dict[str, str]:
        """kind -> title of a page that is not the right one; a kind without any page is absent."""
        path = question.pages or []
        results = self.almanac.titles(path[hop - 1])
        near = results if hop == 1 else linked(self.almanac, path[hop - 2])
        known = {*path, *near, *results}
        choices = {
            "wrong": [title for title in near if title not in path],
            "repeated": path[hop - 2 : hop - 1] if hop > 1 else [],
            "unrelated": [title for title in self.almanac.pages if title not in known],
        }
        rng = random.Random(f"{question.text} {hop}")
        return {kind: rng.choice(titles) for kind, titles in choices.items() if titles}

    def encode(self, messages: list[dict]) -> tuple[list[int], list[int]]:
        """The ids as far as the next turn, and where each turn begins, the next one too."""
        ids, _, spans = stream([*messages, assistant(LEAD_IN, "-")], self.tokenizer)
        starts = [start for start, _ in spans]
        return ids[:starts[-1]], starts
