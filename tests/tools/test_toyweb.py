"""The toy web: every question can be answered through its own tools, nothing leaks, nothing depends on the order of calls."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.evaluation.answers import exact_match
from minvenus.text.toy_words import NAMES, PETS, RELATIONS, TEST_NAMES, TRAIN_NAMES, VERBS
from minvenus.tools.base import ToolResult, run_tool
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_world import FIRST, Case, Page, Visit, answer_text, make_case, question_text
from minvenus.types import Question

shapes = st.fixed_dictionaries({
    "hops": st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), "pages_per_layer": st.integers(4, 8),
    "links": st.integers(1, 4), "distractors": st.integers(0, 3), "aliases": st.sampled_from([0.0, 0.5, 1.0]),
    "results": st.sampled_from(["line", "json"])})
webs = st.builds(lambda seed, shape: ToyWeb(seed, train=6, test=6, **shape), st.integers(0, 10**6), shapes)


def links_of(text):
    """relation -> name or alias, of all that a page says behind its title; the pet, if it is there, stands first."""
    return dict(re.findall(r"([a-z]+) ((?:old )?\w+)", text.removeprefix("page ").partition(" ")[2]))


def walk(web, case):
    """Answer a question with its tools alone, reading what they return: pets of the pages, links, results."""
    tools, name, pets = web.for_question(case.question.id), case.start, []
    for hop in range(case.hops):
        goal = f"{case.relation(hop)} {name}"
        listed = tools.search([goal])
        first = (json.loads(listed.text)[0]["web_page_info_list"][0]["url"] if web.config.results == "json"
                 else " ".join(listed.text.split()[:2]))
        page = tools.visit([first], goal)
        assert listed.error is None and page.error is None
        said = links_of(page.text)
        pets.append(said[case.relation(hop)])
        if hop + 1 < case.hops:
            name = said[case.relation(hop + 1)]
    return pets


# ------------------------------------------------------------------------------------------------------ one web by hand

HAND = Case(Question("train-0", "From Bob own boss?", ["pets own cat boss owl"]), "train", "Bob", ["boss"], ["Bob", "Eva"], {
    "Bob": Page("Bob", "sings", "cat", {"boss": "Eva", "twin": "Ida"}, {"boss": "Eva", "twin": "old Ida"}),
    "Max": Page("Max", "sings", "dog", {"boss": "Ida", "twin": "Eva"}, {"boss": "Ida", "twin": "Eva"}),
    "Eva": Page("Eva", "digs", "owl", {}, {}), "Ida": Page("Ida", "digs", "cat", {}, {})})


REFUSED = ToolResult("ERROR: no such page.", "refused")


@pytest.fixture
def hand():
    web = ToyWeb(0, train=1, test=1)
    web._cases["train-0"] = HAND
    return web


def test_a_web_by_hand(hand):
    tools = hand.for_question("train-0")
    assert tools.search(["own Bob"]).text == "page Bob sings Max sings."
    assert tools.visit(["page Bob"], "own Bob").text == "page Bob own cat boss Eva twin old Ida."
    assert tools.visit(["page Eva"], "boss Eva") == REFUSED                    # linked, but no search has listed it
    assert tools.search(["twin old Ida"]).text == "page Ida digs Eva digs."
    assert tools.visit(["page old Ida"], "twin old Ida") == REFUSED            # an alias is no address
    assert tools.visit(["Eva"], "boss Eva") == REFUSED                         # nor is a title
    assert tools.visit(["page Ida"], "twin old Ida").text == "page Ida twin cat."
    assert tools.visit(["page Eva"], "boss Eva").text == "page Eva boss owl."
    assert tools.visit(["page Eva", "page Zoe"], "boss Eva").text == "page Eva boss owl.\nERROR: no such page."
    assert tools.search(["Zoe"]).error == "empty" and tools.search(["Zoe"]).text == "ERROR: nothing found."
    assert tools.search(["Zoe", "Eva"]).text == "ERROR: nothing found.\npage Eva digs Ida digs."


@pytest.mark.parametrize("goal", ["own Bob", "boss", "Max", "", "  ", "own Max Bob"])
def test_a_page_has_no_pet_for_a_goal_that_names_another_page_or_none(goal, hand):
    tools = hand.for_question("train-0")
    tools.search(["Bob"])
    assert tools.visit(["page Max"], goal) == ToolResult("page Max boss Ida twin Eva.")


@pytest.mark.parametrize("goal", [" own Bob", "own Bob ", "\town  Bob\n"])
def test_spaces_around_and_in_a_goal_do_not_matter(goal, hand):
    tools = hand.for_question("train-0")
    tools.search(["Bob"])
    assert tools.visit(["page Bob"], goal) == tools.visit(["page Bob"], "own Bob")


def test_the_question_calls_the_first_page_its_own_and_every_other_by_its_relation():
    assert [HAND.relation(hop) for hop in range(HAND.hops)] == ["own", "boss"] and HAND.pets == ["cat", "owl"]
    assert question_text("Bob", ["boss"]) == HAND.question.text and [answer_text(["boss"], HAND.pets)] == HAND.question.answers


def test_visits_are_classified_by_what_they_were_worth_and_where(hand):
    visits = [(f"page {title}", title != "Zoe") for title in ("Max", "Zoe", "Bob", "Bob", "Ida", "Eva", "Max")]
    assert HAND.classify(visits) == [Visit("wrong", 1), Visit("failed", 1), Visit("right", 1), Visit("repeated", 2),
                                     Visit("wrong", 2), Visit("right", 2), Visit("repeated", 2)]


def test_two_rollouts_of_a_question_do_not_share_what_was_listed(hand):
    first, second = hand.for_question("train-0"), hand.for_question("train-0")
    first.search(["Bob"])
    assert first.visit(["page Bob"], "pet").error is None and second.visit(["page Bob"], "pet").error == "refused"


def test_the_web_itself_shows_any_page_of_a_question_and_remembers_nothing(hand):
    assert hand.visit(["page Eva"], "boss Eva", question_id="train-0").text == "page Eva boss owl."
    assert hand.search(["Eva"]).text == "page Eva digs Ida digs."
    assert hand.for_question("train-0").visit(["page Eva"], "boss Eva").error == "refused"


def test_the_tools_work_behind_the_common_dispatch(hand):
    tools = hand.for_question("train-0")
    assert run_tool(tools, "search", {"query": [" own Bob"]}).error is None
    assert run_tool(tools, "visit", {"url": ["page Bob"], "goal": " own Bob"}).text.startswith("page Bob own cat boss Eva")


# ------------------------------------------------------------------------------------------------------- for every web


@given(webs, st.sampled_from(["train", "test"]))
def test_every_question_is_answered_by_walking_its_path_through_the_tools(web, split):
    for question in web.questions(split):
        pets = walk(web, web.case(question.id))
        assert exact_match(answer_text(web.case(question.id).relations, pets), question.answers) == 1.0
        assert pets == web.case(question.id).pets


@given(webs, st.sampled_from(["train", "test"]))
def test_no_search_ever_shows_a_pet_or_a_link(web, split):
    hidden = {*PETS, *RELATIONS, FIRST}
    for question in web.questions(split):
        tools = web.for_question(question.id)
        for query in [*tools.case.pages, *PETS, *RELATIONS, *VERBS, question.text]:
            result = tools.search([query])
            if web.config.results == "json" and result.error is None:
                (entry,) = json.loads(result.text)                      # its query is the model's own text
                shown = json.dumps(entry["web_page_info_list"])
            else:
                shown = "" if result.error else result.text
            assert not hidden & set(re.findall("[A-Za-z]+", shown))


@given(webs)
def test_a_page_opened_for_another_says_all_its_links_and_not_its_pet(web):
    for question in web.questions("train"):
        case = web.case(question.id)
        for page in case.pages.values():
            wanted = case.path[0] if page.title != case.path[0] else list(case.pages)[1]
            assert links_of(page.text(f"{FIRST} {wanted}")) == page.shown
            assert links_of(page.text(f"{FIRST} {page.title}")) == {FIRST: page.pet, **page.shown}


@given(webs)
def test_results_begin_with_the_page_asked_for_and_have_the_distractors_from_its_layer(web):
    case = web.case("test-0")
    layers = [list(case.pages)[i:i + web.config.pages_per_layer] for i in range(0, len(case.pages), web.config.pages_per_layer)]
    for layer in layers:
        for title in layer:
            shown = [page.title for page in web.for_question("test-0").ranked(f"old {title}")]
            assert shown[0] == title and len(set(shown)) == 1 + web.config.distractors and set(shown) <= set(layer)


@given(webs)
def test_train_and_test_questions_share_no_name(web):
    names = {split: {title for q in web.questions(split) for title in web.case(q.id).pages} for split in ("train", "test")}
    assert names["train"] <= set(TRAIN_NAMES) and names["test"] <= set(TEST_NAMES)
    assert not set(TRAIN_NAMES) & set(TEST_NAMES) and sorted(TRAIN_NAMES + TEST_NAMES) == sorted(NAMES)


@given(webs)
def test_wrong_links_look_like_right_ones(web):
    """Every page of a layer offers the relation that is asked for there, and its links lead to different pages."""
    for question in web.questions("train"):
        case = web.case(question.id)
        for i, page in enumerate(case.pages.values()):
            depth = i // web.config.pages_per_layer
            assert len(set(page.links.values())) == len(page.links) == (web.config.links if depth + 1 < case.hops else 0)
            assert depth + 1 == case.hops or case.relations[depth] in page.links


@given(st.integers(0, 10**6), shapes)
def test_the_same_seed_gives_the_same_web_whatever_was_asked_before(seed, shape):
    one, two = ToyWeb(seed, train=6, test=6, **shape), ToyWeb(seed, train=6, test=6, **shape)
    two.questions("test")
    assert [one.case(f"train-{i}") for i in (3, 0)] == [two.case(f"train-{i}") for i in (3, 0)]
    assert one.for_question("test-1").search([one.case("test-1").start]) == two.search([two.case("test-1").start], "test-1")


def test_other_seeds_splits_and_indices_give_other_webs():
    config = ToyWeb(hops=(4,)).config
    made = [make_case(seed, split, i, config) for seed in (0, 1) for split in ("train", "test", "base") for i in (0, 1)]
    assert len({case.question.text for case in made}) == len({tuple(case.pages) for case in made}) == len(made)
    pets = {tuple(page.pet for page in case.pages.values()) for case in made}
    assert len(pets) == len(made), "nor the same web under other names"


def test_webs_of_the_base_have_names_of_both_splits_and_are_no_questions():
    config = ToyWeb().config
    names = {title for i in range(40) for title in make_case(0, "base", i, config).pages}
    assert names & set(TRAIN_NAMES) and names & set(TEST_NAMES) and names <= set(NAMES)
    with pytest.raises(KeyError, match="no question"):
        ToyWeb().case("base-0")


def test_json_results_are_in_the_format_of_the_real_tools():
    web = ToyWeb(3, results="json")
    start = web.case("train-2").path[0]
    entry, = json.loads(web.search([start], "train-2").text)
    assert entry["query"] == start and len(entry["web_page_info_list"]) == 2
    page = web.case("train-2").pages[start]
    assert entry["web_page_info_list"][0] == {"title": start, "url": f"page {start}", "snippet": page.verb}


def test_turns_allowed_are_two_per_hop_the_answer_and_the_slack():
    web = ToyWeb(0, hops=(1, 4), slack=2)
    assert [web.max_turns("train-0"), web.max_turns("train-1")] == [5, 11]


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("shape, message", [
    ({"hops": (5,)}, "from 1 to 4"), ({"hops": ()}, "from 1 to 4"), ({"links": 5}, "links must be from 1"),
    ({"distractors": 4}, "distractors"), ({"aliases": 1.5}, "share"), ({"results": "xml"}, "line, json"),
    ({"pages_per_layer": 9}, "32 test names"), ({"train": -1}, "train"), ({"slack": 0.5}, "slack"),
    ({"links": 13, "pages_per_layer": 16, "hops": (1, 2)}, "relations")])
def test_an_impossible_world_is_refused_with_the_reason(shape, message):
    with pytest.raises(ConfigError, match=message):
        ToyWeb(0, **shape)


@pytest.mark.parametrize("name", ["train-2048", "dev-0", "train", "train--1", ""])
def test_an_unknown_question_is_named(name):
    with pytest.raises(KeyError, match="no question"):
        ToyWeb(0).case(name)


def test_an_unknown_split_is_refused():
    with pytest.raises(ConfigError, match="train, test"):
        ToyWeb(0).questions("dev")


@pytest.mark.parametrize("hops", (None, 1, 4))
@pytest.mark.parametrize("slack", (None, 0, 3))
def test_settings_of_a_command_line_say_how_many_hops_and_turns_a_question_has(hops, slack):
    web = ToyWeb.of(7, hops, slack, test=8)
    found = [web.case(question.id).hops for question in web.questions("test")]
    assert found == ([1, 2, 3, 4] * 2 if hops is None else [hops] * 8)
    usual = ToyWeb(7).config.slack
    assert [web.max_turns(f"test-{i}") for i in range(8)] == [2 * n + 1 + (usual if slack is None else slack) for n in found]
