"""The almanac of countries: pages, questions with known paths, the split, demonstrations."""

import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.agent.observation import result_text
from minvenus.agent.protocol import format_error, parse_turn
from minvenus.config import ConfigError
from minvenus.evaluation.questions import read_questions
from minvenus.experiments import factbook
from minvenus.experiments.countries import Country, amounts, largest, read_countries, read_country
from minvenus.experiments.factbook import (
    FactbookConfig,
    chains,
    demonstration,
    lines_to_read,
    linked,
    main,
    split,
)
from minvenus.text.chat import stream
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.almanac import Almanac
from minvenus.tools.base import run_tool


def raw_country(name, capital, borders, peak="Top 10 m", code=".xx", exports="", long_form="none"):
    """A country in the form of the package."""
    return {
        "Geography": {
            "Land boundaries": {"border countries": {"text": borders}},
            "Elevation": {"highest point": {"text": peak}},
        },
        "Government": {
            "Country name": {
                "conventional short form": {"text": name},
                "conventional long form": {"text": long_form},
            },
            "Capital": {"name": {"text": capital}},
        },
        "Economy": {"Exports - partners": {"text": exports}},
        "Communications": {"Internet country code": {"text": code}},
    }


ALMA = raw_country(
    "Alma",
    "<p>Ort&ouml;</p>",
    "Bria 1,200 km; Cora (north) 80 km",
    "Mt. One 3,100 m (disputed)",
    ".al",
)
BRIA = raw_country("Bria", "Zed; note - two seats", "Alma 1,200 km; Cora 5 km", "Two 9 m", ".br")
CORA = raw_country(
    "none",
    "Cort",
    "Alma 80 km; Bria 80 km",
    code=".co",
    exports="Bria 60%, Alma 30% (2023)",
    long_form="Cora",
)
BORDER = "What is the {} of the country with which {} shares its longest land border?"
SHORT = {
    "question": BORDER.format("capital", "Bria"),
    "answer": "Ortö",
    "pages": ["Bria", "Alma"],
    "source": "2-hop",
}
LONG = {
    "question": BORDER.format("capital", "the largest export partner of Cora"),
    "answer": "Ortö",
    "pages": ["Cora", "Bria", "Alma"],
    "source": "3-hop",
}


def going(path, answer=""):
    """A question whose words do not matter."""
    return {"question": "", "answer": answer, "pages": list(path)}


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source" / "region"
    folder.mkdir(parents=True)
    for name, content in (("al", ALMA), ("br", BRIA), ("co", CORA), ("xx", {"Government": {}})):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder.parent


def test_html_notes_ties_and_missing_fields_of_a_country():
    dropped = Counter()
    names = {"Alma", "Bria", "Cora"}
    alma = read_country(ALMA, names, dropped)
    assert alma.lines["capital"] == "Ortö" and alma.lines["highest point"] == "Mt. One"
    assert alma.lines["land borders"] == "Bria 1200 km; Cora 80 km"
    assert alma.targets == {"land borders": "Bria"}
    assert "capital" not in read_country(BRIA, names, dropped).lines, "a note: no plain name"
    cora = read_country(CORA, names, dropped)
    assert cora.targets == {"export partners": "Bria"}, "a tie"
    assert "land borders" not in read_country(ALMA, {"Cora"}, dropped).targets, "no page"
    assert dropped["land borders: none, a tie, or no page"] == 2
    assert dropped["capital: missing or not one plain name"] == 1


def test_a_country_has_its_short_name_or_else_its_long_one(tmp_path):
    forms = [("Ann", "An"), ("none", "Bea"), ("Cy (west)", "Cy"), ("none", "none"), ("", ";")]
    for i, (short, long) in enumerate(forms):
        raw = raw_country(short, "", "", long_form=long)
        (tmp_path / f"{i}.json").write_text(json.dumps(raw))
    dropped = Counter()
    assert list(read_countries(tmp_path, dropped)) == ["Ann", "Bea", "Cy"]
    assert dropped["countries without a name"] == 2


def test_amounts_know_short_names_and_leave_out_what_is_no_amount():
    text = "USA 10%, UK 4%, others, UAE 2.5%, S. Korea 2%, NZ 1%, Gambia, The 1%, Peru 0%"
    assert amounts(text) == [
        ("United States", 10, "%"),
        ("United Kingdom", 4, "%"),
        ("United Arab Emirates", 2.5, "%"),
        ("South Korea", 2, "%"),
        ("New Zealand", 1, "%"),
        ("The", 1, "%"),
        ("Peru", 0, "%"),
    ]
    assert amounts("US 1,000 km (north); Chad 9 km, Togo 8 km; Peru 5 km") == [
        ("United States", 1000, " km"), ("Chad", 9, " km"), ("Peru", 5, " km"),
    ]
    assert amounts("") == []
    assert largest([("A", 2.0, ""), ("B", 2.0, "")]) == "" == largest([])
    assert largest([("A", 1.0, ""), ("B", 2.0, "")]) == "B"


def test_questions_follow_the_lists_in_words_and_no_country_comes_twice():
    """The internet code of two countries is no answer; Peru's path ends where it would return."""
    lines = {
        "Peru": {"capital": "Lima", "internet code": ".x", "highest point": "Huascaran"},
        "Brazil": {"capital": "Brasilia", "internet code": ".x"},
        "China": {"internet code": ".cn"},
    }
    targets = {
        "Peru": {"land borders": "Brazil"},
        "Brazil": {"land borders": "Peru", "export partners": "China"},
        "China": {"import partners": "Brazil"},
    }
    dropped = Counter()
    questions = chains({name: Country(lines[name], targets[name]) for name in lines}, dropped)
    by_path = {(*q["pages"], q["answer"]): q for q in questions}
    assert len(by_path) == len(questions) and set(by_path) == {
        ("Peru", "Lima"),
        ("Peru", "Huascaran"),
        ("Brazil", "Brasilia"),
        ("China", ".cn"),
        ("Peru", "Brazil", "Brasilia"),
        ("Brazil", "Peru", "Lima"),
        ("Brazil", "Peru", "Huascaran"),
        ("Brazil", "China", ".cn"),
        ("China", "Brazil", "Brasilia"),
        ("Peru", "Brazil", "China", ".cn"),
        ("China", "Brazil", "Peru", "Lima"),
        ("China", "Brazil", "Peru", "Huascaran"),
    }
    assert dropped == {"answers of several countries": 6}

    border = "the country with which {} shares its longest land border"
    brazil = border.format("Peru")
    assert by_path["Peru", "Brazil", "China", ".cn"] == {
        "question": f"What is the internet country code of the largest export partner of {brazil}?",
        "answer": ".cn",
        "pages": ["Peru", "Brazil", "China"],
        "source": "3-hop",
    }
    peru = border.format("the largest import partner of China")
    words = {
        ("Peru", "Lima"): ("What is the capital of Peru?", ["capital"]),
        ("China", "Brazil", "Peru", "Huascaran"): (
            f"What is the highest point of {peru}?",
            ["import partners", "land borders", "highest point"],
        ),
        ("Brazil", "China", ".cn"): (
            "What is the internet country code of the largest export partner of Brazil?",
            ["export partners", "internet code"],
        ),
    }
    for path, (text, lines_of_path) in words.items():
        assert by_path[path]["question"] == text and lines_to_read(text) == lines_of_path


@given(st.lists(st.text("ABCDEFGH", min_size=1, max_size=3), max_size=40))
def test_no_start_or_end_of_a_test_question_is_one_of_a_training_question(paths):
    dropped = Counter()
    train, test = split([going(path, path[-1].lower()) for path in paths], dropped)
    ends = [{name for q in side for name in (q["pages"][0], q["pages"][-1])}
            for side in (train, test)]
    assert not ends[0] & ends[1]
    assert not {q["answer"] for q in train} & {q["answer"] for q in test}
    assert len(train) + len(test) + dropped.total() == len(paths)


def test_three_countries_of_ten_are_held_out_and_nine_questions_of_a_kind_may_end_alike():
    train, test = split([going(name) for name in "ABCDEFGHIJ"], Counter())
    assert (len(train), len(test)) == (7, 3)
    dropped = Counter()
    alike = [going(path) for path in ["Z"] * 11 + [f"{a}Z" for a in "ABCDEFGHI"]]
    assert len(factbook.balanced(alike, random.Random(0), dropped)) == 18
    assert dropped == {"more than enough questions with one end": 2}


def test_the_folder_has_pages_questions_demonstrations_and_what_was_dropped(source, tmp_path):
    config = FactbookConfig(source=str(source), out=str(tmp_path / "out"), demonstrations=40)
    main(config)
    out = tmp_path / "out"
    before = {file.name: file.read_bytes() for file in out.iterdir() if file.is_file()}
    main(config)
    assert before == {file.name: file.read_bytes() for file in out.iterdir() if file.is_file()}

    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["countries"] == 3 and manifest["dropped"]["countries without a name"] == 1
    tools = Almanac(out / "pages")
    assert tools.titles("bria")[0] == "Bria"
    assert tools.visit("Cora", "").text.startswith("Cora\ncapital: Cort\n")
    assert manifest["demonstrations"] == 40
    for name in ("train", "test"):
        questions = read_questions(out / f"{name}.jsonl")
        assert manifest[name] == Counter(str(len(question.pages)) for question in questions)
    training = [question.text for question in read_questions(out / "train.jsonl")]
    lines = (out / "demonstrations.jsonl").read_text().splitlines()
    assert len(set(lines)) > len(training), "a question again, but with other mistakes"
    for i, line in enumerate(lines):
        messages = json.loads(line)["messages"]
        ids, sampled, _ = stream(messages, Tokenizer.tiny())
        assert len(ids) == len(sampled) and any(sampled)
        assert messages[1]["content"] == training[i % len(training)]


def test_questions_of_one_two_and_three_hops_take_turns():
    questions = [going("ABC"[:hops]) for hops in (1, 2, 3) for _ in range(hops + 1)]
    selected = factbook.balanced(questions, random.Random(0), Counter())
    assert [len(q["pages"]) for q in selected] == [1, 2, 3, 1, 2, 3, 2, 3, 3]


# -------------------------------------------------------------------------------- demonstrations


@pytest.fixture
def almanac(source, tmp_path):
    main(FactbookConfig(source=str(source), out=str(tmp_path / "out"), demonstrations=1))
    return Almanac(tmp_path / "out" / "pages")


def rates(monkeypatch, **values):
    for name in ("WRONG_RESULT", "WRONG_LINK", "AT_ONCE", "STOP_EARLY"):
        monkeypatch.setattr(factbook, name, values.get(name, 0.0))


def lesson(almanac, seed=0, question=LONG):
    """The calls of a demonstration and its answer, as the project's own parser reads them; each
    call has shown what it shows when it is made again."""
    messages = demonstration(question, almanac, random.Random(seed))
    assert messages[1]["content"] == question["question"]
    *turns, last = messages[2::2]
    calls = []
    for message, result in zip(turns, messages[3::2], strict=True):
        parsed = parse_turn(message["content"])
        assert format_error(message["content"], final=False) is None
        shown = result_text(run_tool(almanac, parsed.tool, parsed.arguments))
        assert result["content"] == f"<tool_response>\n{shown}\n</tool_response>"
        calls.append((parsed.tool, (parsed.arguments.get("url") or parsed.arguments["query"])[0]))
    assert format_error(last["content"], final=True) is None
    return calls, parse_turn(last["content"]).answer


def both(name):
    return [("search", name), ("visit", name)]


def test_a_teacher_without_weakness_searches_and_opens_every_page_of_the_path(
    almanac, monkeypatch
):
    rates(monkeypatch)
    assert lesson(almanac) == (both("Cora") + both("Bria") + both("Alma"), "Ortö")


def test_a_wrong_result_comes_between_the_search_and_the_right_page(almanac, monkeypatch):
    rates(monkeypatch, WRONG_RESULT=1.0)
    calls, answer = lesson(almanac, question=SHORT)
    assert calls[:3] == [("search", "Bria"), ("visit", "Cora"), ("visit", "Bria")]
    assert calls[3:] == [("search", "Alma"), ("visit", "Cora"), ("visit", "Alma")]
    assert answer == "Ortö"
    messages = demonstration(SHORT, almanac, random.Random(0))
    thoughts = [message["content"].split("\n")[1] for message in messages[2:-1:2]]
    assert thoughts == ["I need the page of Bria."] * 3 + ["I need the page of Alma."] * 3


def test_a_wrong_link_is_a_country_that_the_page_before_names(almanac, monkeypatch):
    rates(monkeypatch, WRONG_LINK=1.0)
    short = {
        "question": BORDER.format("internet country code", "Alma"),
        "answer": ".br",
        "pages": ["Alma", "Bria"],
    }
    almanac.pages["Bria"] = "Bria\ninternet code: .br"  # which names no country itself
    calls, answer = lesson(almanac, question=short)
    assert linked(almanac, "Alma") == ["Bria", "Cora"]
    assert calls == [*both("Alma"), ("visit", "Cora"), *both("Bria")] and answer == ".br"


def test_an_answer_at_once_or_too_soon_is_right_as_well(almanac, monkeypatch):
    rates(monkeypatch, AT_ONCE=1.0)
    assert lesson(almanac) == ([], "Ortö")
    rates(monkeypatch, STOP_EARLY=1.0)
    lessons = [lesson(almanac, seed) for seed in range(20)]
    assert {len(calls) for calls, _ in lessons} == {2, 4}, "one or two of three pages"
    assert {answer for _, answer in lessons} == {"Ortö"}


def test_whatever_the_teacher_does_the_right_pages_come_in_their_order(almanac):
    """And how many calls 400 demonstrations have, at the rates of the command."""
    counts = Counter()
    for seed in range(400):
        calls, answer = lesson(almanac, seed, SHORT)
        visits = [title for tool, title in calls if tool == "visit"]
        right = [title for title in visits if title in SHORT["pages"]]
        assert right == SHORT["pages"][: len(right)] and answer == "Ortö"
        counts[len(calls)] += 1
    assert counts == {0: 23, 2: 21, 3: 6, 4: 144, 5: 142, 6: 53, 7: 11}
    rates = factbook.WRONG_RESULT, factbook.WRONG_LINK, factbook.AT_ONCE, factbook.STOP_EARLY
    assert rates == (0.25, 0.25, 0.05, 0.05)


def test_no_countries_and_no_package_are_one_clear_line(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="0 questions to train on and 0 to test with: another"):
        main(FactbookConfig(source=str(tmp_path), out=str(tmp_path / "out")))
    (tmp_path / "bare.json").write_text(json.dumps(raw_country("Bare", "", "", "", "")))
    with pytest.raises(ConfigError, match=r"0 questions to train on .* another version of cia-w"):
        main(FactbookConfig(source=str(tmp_path), out=str(tmp_path / "out")))
    (tmp_path / "bare.json").write_text('{"Geography": {')
    with pytest.raises(ConfigError, match=r"bare\.json cannot be read as JSON"):
        main(FactbookConfig(source=str(tmp_path), out=str(tmp_path / "out")))
    monkeypatch.setattr(factbook, "PACKAGE", "factbook-not-there")
    with pytest.raises(ConfigError, match="factbook-not-there is not installed: make real-model"):
        main(FactbookConfig(out=str(tmp_path / "out")))
