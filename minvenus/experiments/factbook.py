"""The World Factbook as a small web with questions whose paths are known.

One page per country, below 200 tokens, with the lines that questions use and a few others. A
question starts at a country and follows its lists to another country, of which it asks one line (a
capital, a highest point, an internet code):

    What is the capital of the country with which Peru shares its longest land border?

A list leads to the one country with the largest amount: ties are left out. Only the last page holds
the answer, and the pages of the path are the right ones, so that `right_pages`, `gain_right` and
the audit work as on the toy web.

    OUT/pages/*.txt             for --tools almanac:OUT/pages
    OUT/train.jsonl             questions with their pages, for train_igpo.py --data
    OUT/test.jsonl              no start and no answer of these is one of a training question
    OUT/demonstrations.jsonl    trajectories of an imperfect teacher, for train_sft.py --data
    OUT/manifest.json           counts of what was used and of what was dropped, and why

Both files of questions have one, two and three hops in turn, as long as there are such questions.
"""

import json
import random
import re
from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from minvenus.agent.observation import result_text
from minvenus.config import ConfigError, check
from minvenus.experiments.countries import (
    LISTED,
    PACKAGE,
    Country,
    file_name,
    packaged_data,
    read_countries,
)
from minvenus.files import replaced_folder, write_json
from minvenus.setting import setting
from minvenus.tools.almanac import Almanac
from minvenus.tools.base import run_tool
from minvenus.tools.toyweb_lessons import assistant, tool_response

SYSTEM = """Answer the question with the pages of an almanac. Think in one short sentence, then \
call one tool or answer.
<tool_call>
{"name": "search", "arguments": {"query": ["words"]}}
</tool_call>
<tool_call>
{"name": "visit", "arguments": {"url": ["page"], "goal": "what to find"}}
</tool_call>
<answer>
only the name or code
</answer>"""
LEAD_IN = "I have found the answer."
LEAVES = {  # line of a page -> how a question asks for it, of {x}
    "capital": "What is the capital of {x}?",
    "highest point": "What is the highest point of {x}?",
    "internet code": "What is the internet country code of {x}?",
}
LINKS = {  # list of a page -> how a question says its country with the largest amount
    "land borders": "the country with which {x} shares its longest land border",
    "export partners": "the largest export partner of {x}",
    "import partners": "the largest import partner of {x}",
}
PHRASES = LEAVES | LINKS
MOST_PER_END = 9  # questions of one number of hops that end in one country
TEST_SHARE = 0.3  # of the countries: starts and ends of test questions

# How often the teacher errs. RL should unlearn the first two; it corrects itself, so that a model
# learns to go on after them. The others serve the gains: a model that has never seen an answer
# given too soon does not know how little it knows then.
WRONG_RESULT = 0.25  # per hop: opens another result of the search first
WRONG_LINK = 0.25  # per later hop: first opens another country of the lists that it has read
AT_ONCE = 0.05  # per demonstration: answers without a call
STOP_EARLY = 0.05  # answers after some of the pages


@dataclass(frozen=True)
class FactbookConfig:
    """python -m minvenus.experiments factbook: pages, questions and demonstrations."""

    out: str = setting("runs/factbook", "folder of the pages and questions")
    source: str | None = setting(None, f"folder of countries as JSON; none = the package {PACKAGE}")
    demonstrations: int = setting(400, "trajectories of the imperfect teacher", least=1)
    seed: int = setting(0, "of the split, the order and the teacher")

    def __post_init__(self):
        check(self)


@dataclass(frozen=True)
class Chain:
    """A question: from the first country to the last one, and what is asked of that."""

    path: list[str]  # names of countries: the right pages, in order
    lines: list[str]  # to read on each of them
    answer: str

    @property
    def text(self) -> str:
        phrase = self.path[0]
        for line in self.lines:
            phrase = PHRASES[line].format(x=phrase)
        return phrase

    def record(self) -> dict:
        hops = f"{len(self.path)}-hop"
        return {"question": self.text, "answer": self.answer, "pages": self.path, "source": hops}


def main(config: FactbookConfig) -> str:
    dropped: Counter[str] = Counter()
    source = Path(config.source) if config.source else packaged_data()
    countries = read_countries(source, dropped)
    train, test = split(chains(countries, dropped), config.seed, dropped)
    if not train or not test:
        raise ConfigError(f"{source} gives {len(train)} questions to train on and {len(test)} to "
                          f"test with: another version of {PACKAGE}?")

    with replaced_folder(config.out) as folder:
        pages = folder / "pages"
        pages.mkdir()
        for country in countries.values():
            file = pages / f"{file_name(country.name)}.txt"
            file.write_text(country.page + "\n", encoding="utf-8")
        almanac = Almanac(pages)
        lessons = []
        for i in range(config.demonstrations):
            chain = train[i % len(train)]
            rng = random.Random(f"{config.seed} {i} {chain.text}")
            lessons.append({"messages": demonstration(chain, almanac, rng)})
        write_records(folder / "train.jsonl", [chain.record() for chain in train])
        write_records(folder / "test.jsonl", [chain.record() for chain in test])
        write_records(folder / "demonstrations.jsonl", lessons)
        manifest = {
            "countries": len(countries),
            "train": Counter(len(chain.path) for chain in train),
            "test": Counter(len(chain.path) for chain in test),
            "demonstrations": len(lessons),
            "dropped": dict(dropped),
        }
        write_json(folder / "manifest.json", manifest)
    return json.dumps(manifest, indent=2)


def write_records(path: Path, records: list[dict]) -> None:
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    path.write_text("".join(lines), encoding="utf-8")


# ------------------------------------------------------------------------------------- questions


def chains(countries: dict[str, Country], dropped: Counter[str]) -> list[Chain]:
    """All questions of one to three hops in which no country comes twice and whose answer belongs
    to one country only."""
    owners: Counter[tuple[str, str]] = Counter()
    for country in countries.values():
        owners.update(country.lines.items())

    questions = []
    starts = [Chain([name], [], "") for name in countries]
    for _ in range(3):
        longer = []
        for start in starts:
            last = countries[start.path[-1]]
            for leaf in LEAVES:
                answer = last.lines.get(leaf, "")
                if owners[leaf, answer] > 1:
                    dropped["answers of several countries"] += 1
                elif answer:
                    questions.append(Chain(start.path, [*start.lines, leaf], answer))
            for line, target in last.targets.items():
                if target not in start.path:
                    longer.append(Chain([*start.path, target], [*start.lines, line], ""))
        starts = longer
    return questions


def lines_to_read(question: str) -> list[str]:
    """The lines of a question's chain, in their order: its words name the last one first."""
    beginnings = {phrase.partition("{x}")[0]: line for line, phrase in PHRASES.items()}
    matches = re.findall("|".join(beginnings), question)
    return [beginnings[words] for words in reversed(matches)]


def split(
    questions: list[Chain], seed: int, dropped: Counter[str]
) -> tuple[list[Chain], list[Chain]]:
    """(training, test): no start and no end of a test question is one of a training question.
    A question whose start and end lie on different sides is dropped."""
    rng = random.Random(f"split {seed}")
    names = sorted({name for chain in questions for name in (chain.path[0], chain.path[-1])})
    rng.shuffle(names)
    held_out = set(names[: round(TEST_SHARE * len(names))])
    train: list[Chain] = []
    test: list[Chain] = []
    for chain in questions:
        sides = {chain.path[0] in held_out, chain.path[-1] in held_out}
        if len(sides) == 2:
            dropped["questions across the split"] += 1
        else:
            (test if sides == {True} else train).append(chain)
    return balanced(train, rng, dropped), balanced(test, rng, dropped)


def balanced(questions: list[Chain], rng: random.Random, dropped: Counter[str]) -> list[Chain]:
    """In random order, but one, two and three hops in turn; at most MOST_PER_END of one number of
    hops that end in one country: trade leads to China and the United States more often than
    anywhere else."""
    rng.shuffle(questions)
    ends: Counter[tuple[int, str]] = Counter()
    selected: list[list[Chain]] = [[], [], []]  # by the number of hops
    for chain in questions:
        hops, end = len(chain.path), chain.path[-1]
        ends[hops, end] += 1
        if ends[hops, end] <= MOST_PER_END:
            selected[hops - 1].append(chain)
        else:
            dropped["more than enough questions with one end"] += 1
    in_turn = []
    for chains_of_a_turn in zip_longest(*selected):
        in_turn += [chain for chain in chains_of_a_turn if chain]
    return in_turn


# -------------------------------------------------------------------------------- demonstrations


def demonstration(chain: Chain, almanac: Almanac, rng: random.Random) -> list[dict]:
    """The messages of one conversation: search and visit from hop to hop, then the answer."""
    messages = opening(SYSTEM, chain.text)
    path = chain.path[: hops_shown(chain, rng)]
    for hop, (name, line) in enumerate(zip(path, chain.lines, strict=False)):
        links = linked(almanac, path[hop - 1]) if hop else []
        for wrong in mistake(links, chain, WRONG_LINK, rng):
            messages += visit(almanac, wrong, wrong, line)
        messages += turn(almanac, name, "search", {"query": [name]})
        for wrong in mistake(almanac.titles(name), chain, WRONG_RESULT, rng):
            messages += visit(almanac, name, wrong, line)
        messages += visit(almanac, name, name, line)
    return [*messages, assistant(LEAD_IN, f"<answer>\n{chain.answer}\n</answer>")]


def hops_shown(chain: Chain, rng: random.Random) -> int:
    """The pages of the path that the teacher reads: all, none or some of them."""
    draw = rng.random()
    if draw < AT_ONCE:
        return 0
    if draw < AT_ONCE + STOP_EARLY:
        return rng.randint(1, max(1, len(chain.path) - 1))
    return len(chain.path)


def mistake(titles: list[str], chain: Chain, rate: float, rng: random.Random) -> list[str]:
    """At this rate one of the pages, none of the path."""
    others = [title for title in titles if title not in chain.path]
    return rng.sample(others, 1) if others and rng.random() < rate else []


def linked(almanac: Almanac, title: str) -> list[str]:
    """The other pages that the lists of a page name."""
    return [name for name in LISTED.findall(almanac.pages[title]) if name in almanac.pages]


def opening(system: str, question: str) -> list[dict]:
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def visit(almanac: Almanac, wanted: str, title: str, line: str) -> list[dict]:
    return turn(almanac, wanted, "visit", {"url": [title], "goal": line})


def turn(almanac: Almanac, wanted: str, name: str, arguments: dict) -> list[dict]:
    """The messages of one call, made for the wanted page, and of its result."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    observation = result_text(run_tool(almanac, name, arguments))
    thought = f"I need the page of {wanted}."
    return [
        assistant(thought, f"<tool_call>\n{call}\n</tool_call>"),
        tool_response(observation),
    ]
