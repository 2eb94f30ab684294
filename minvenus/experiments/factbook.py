"""The World Factbook as a small web with questions whose paths are known.

One page per country, below 200 tokens, with the fields that questions use and a few others. A
question starts at a country and follows one or more relations to another country, whose leaf (a
capital, a highest point, an internet code) is the answer:

    What is the capital of the country with which Peru shares its longest land border?

A relation has exactly one target: ties are left out. Only the last page holds the answer, and the
pages of the path are the right ones, so that `right_pages`, `gain_right` and the audit work as on
the toy web.

    OUT/pages/*.txt             for --tools almanac:OUT/pages
    OUT/train.jsonl             questions with their pages, for train_igpo.py --data
    OUT/test.jsonl              no start and no answer of these is one of a training question
    OUT/demonstrations.jsonl    trajectories of an imperfect teacher, for train_sft.py --data
    OUT/manifest.json           counts of what was used and of what was dropped, and why
"""

import json
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from minvenus.agent.observation import result_text
from minvenus.config import check
from minvenus.experiments.countries import (
    LINES,
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
RELATIONS = {  # relation -> how a question says it, of {x}
    "border": "the country with which {x} shares its longest land border",
    "exports": "the largest export partner of {x}",
    "imports": "the largest import partner of {x}",
}
LEAVES = {  # leaf -> how a question asks for it, of {x}
    "capital": "What is the capital of {x}?",
    "highest point": "What is the highest point of {x}?",
    "internet code": "What is the internet country code of {x}?",
}
MOST_PER_END = 9  # questions of one number of hops that end in one country
TEST_SHARE = 0.3  # of the countries: starts and ends of test questions


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
    """A question: from the first country along relations to the last one, then its leaf."""

    path: list[str]  # names of countries: the right pages, in order
    relations: list[str]
    leaf: str
    answer: str

    @property
    def text(self) -> str:
        phrase = self.path[0]
        for relation in self.relations:
            phrase = RELATIONS[relation].format(x=phrase)
        return LEAVES[self.leaf].format(x=phrase)

    def record(self) -> dict:
        hops = f"{len(self.path)}-hop"
        return {"question": self.text, "answer": self.answer, "pages": self.path, "source": hops}


def main(config: FactbookConfig) -> str:
    dropped: Counter[str] = Counter()
    countries = read_countries(Path(config.source) if config.source else packaged_data(), dropped)
    train, test = split(chains(countries, dropped), config.seed, dropped)
    with replaced_folder(config.out) as folder:
        for country in countries.values():
            (folder / "pages").mkdir(exist_ok=True)
            file = folder / "pages" / f"{file_name(country.name)}.txt"
            file.write_text(country.page + "\n", encoding="utf-8")
        lessons = demonstrations(train, folder / "pages", config)
        write_records(folder / "train.jsonl", [chain.record() for chain in train])
        write_records(folder / "test.jsonl", [chain.record() for chain in test])
        write_records(folder / "demonstrations.jsonl", [{"messages": lesson} for lesson in lessons])
        manifest = {
            "countries": len(countries),
            "train": Counter(len(chain.path) for chain in train),
            "test": Counter(len(chain.path) for chain in test),
            "demonstrations": len(lessons),
            "dropped": dict(dropped),
        }
        write_json(folder / "manifest.json", manifest)
    return json.dumps(manifest, indent=2)


# ------------------------------------------------------------------------------------- questions


def chains(countries: dict[str, Country], dropped: Counter[str]) -> list[Chain]:
    """All questions of one to three hops in which no country comes twice and whose answer belongs
    to one country only."""
    owners: Counter[tuple[str, str]] = Counter()
    for country in countries.values():
        owners.update((leaf, country.facts[leaf]) for leaf in LEAVES if leaf in country.facts)

    questions = []
    paths: list[tuple[list[str], list[str]]] = [([name], []) for name in countries]
    for _ in range(3):
        longer = []
        for path, relations in paths:
            last = countries[path[-1]]
            for leaf in LEAVES:
                answer = last.facts.get(leaf)
                if answer is None:
                    continue
                if owners[leaf, answer] > 1:
                    dropped["answers of several countries"] += 1
                else:
                    questions.append(Chain(path, relations, leaf, answer))
            for relation, target in last.targets.items():
                if target not in path:
                    longer.append(([*path, target], [*relations, relation]))
        paths = longer
    return questions


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
    """In random order, at most MOST_PER_END of one number of hops that end in one country: trade
    leads to China and the United States more often than anywhere else."""
    rng.shuffle(questions)
    ends: Counter[tuple[int, str]] = Counter()
    selected = []
    for chain in questions:
        end = len(chain.path), chain.path[-1]
        ends[end] += 1
        if ends[end] <= MOST_PER_END:
            selected.append(chain)
        else:
            dropped["more than enough questions with one end"] += 1
    return selected


# -------------------------------------------------------------------------------- demonstrations


def demonstrations(train: list[Chain], pages: Path, config: FactbookConfig) -> list[list[dict]]:
    """Trajectories of a teacher who opens a wrong page before the right one in a third of the hops
    and answers at once in one of twenty, which calibrates the belief on the question alone."""
    tools = Almanac(pages)
    lessons = []
    for i in range(config.demonstrations):
        chain = train[i % len(train)]
        rng = random.Random(f"{config.seed} {i} {chain.text}")
        lessons.append(demonstration(chain, tools, rng))
    return lessons


def demonstration(chain: Chain, tools: Almanac, rng: random.Random) -> list[dict]:
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": chain.text},
    ]
    hops = 0 if rng.random() < 0.05 else len(chain.path)
    for hop, name in enumerate(chain.path[:hops]):
        goal = LINES[chain.relations[hop]] if hop < len(chain.relations) else chain.leaf
        thought = f"I need the page of {name}."
        messages += turn(thought, "search", {"query": [name]}, tools)
        if rng.random() < 0.3:
            others = [hit for hit in tools.titles(name) if hit != name]
            if others:
                wrong = rng.choice(others)
                messages += turn(thought, "visit", {"url": [wrong], "goal": goal}, tools)
        messages += turn(thought, "visit", {"url": [name], "goal": goal}, tools)
    answer = f"<answer>\n{chain.answer}\n</answer>"
    return [*messages, {"role": "assistant", "content": f"<think>\n{LEAD_IN}\n</think>\n{answer}"}]


def turn(thought: str, name: str, arguments: dict, tools: Almanac) -> list[dict]:
    """The messages of one call and its result."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    observation = result_text(run_tool(tools, name, arguments))
    written = f"<think>\n{thought}\n</think>\n<tool_call>\n{call}\n</tool_call>"
    shown = f"<tool_response>\n{observation}\n</tool_response>"
    return [{"role": "assistant", "content": written}, {"role": "user", "content": shown}]


def write_records(path: Path, records: list[dict]) -> None:
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    path.write_text("".join(lines), encoding="utf-8")
