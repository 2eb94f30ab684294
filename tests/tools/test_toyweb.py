"""The toy web: every question can be answered through its own tools, and nothing leaks."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.agent.observation import visit_labels
from minvenus.evaluation.answers import exact_match
from minvenus.tools import toyweb
from minvenus.tools.base import Text, run_tool
from minvenus.tools.toyweb import Case, Page, ToyWeb, answer_text
from minvenus.types import Question, Turn
from tests.tools.servers import observed

hops = (
    st.none() | st.integers(1, 4) | st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
)
webs = st.builds(
    ToyWeb,
    st.integers(0, 10**6),
    hops,
    train=st.just(6),
    test=st.just(6),
    asks=st.sampled_from(["every", "last"]),
)

HAND = Case(
    Question("train-0", "From Bob own boss?", ["pets own cat boss owl"]),
    ["own", "boss"],
    ["Bob", "Eva"],
    {
        "Bob": Page("Bob", "sings", "cat", {"boss": "Eva", "twin": "Ida"}),
        "Max": Page("Max", "sings", "dog", {"boss": "Ida", "twin": "Eva"}),
        "Eva": Page("Eva", "digs", "owl", {}),
        "Ida": Page("Ida", "digs", "cat", {}),
    },
)
REFUSED = Text("ERROR: no such page.", "refused")


@pytest.fixture
def hand():
    web = ToyWeb(0, train=1, test=1)
    web.case = lambda question_id: HAND
    return web


def test_a_web_by_hand(hand):
    tools, other = hand.for_question("train-0"), hand.for_question("train-0")
    assert tools.search("own Bob") == Text("page Bob sings Max sings.")
    assert tools.visit("page Bob", "own Bob") == Text("page Bob own cat boss Eva twin Ida.")
    assert other.visit("page Bob", "own Bob") == REFUSED  # listed in another rollout
    assert tools.visit("page Eva", "boss Eva") == REFUSED  # linked, but no search has listed it
    assert tools.search("twin Ida") == Text("page Ida digs Eva digs.")
    assert tools.search("sings Eva") == Text("page Eva digs Bob sings.")  # a title, then a verb
    assert tools.visit("Eva", "boss Eva") == REFUSED  # a title is no address
    assert tools.visit("page Ida", "twin Ida") == Text("page Ida twin cat.")
    for query in ("Zoe", "own boss cat owl twin page", "From After pet"):
        assert tools.search(query) == Text("ERROR: nothing found.", "empty"), "titles, verbs"


def test_several_pages_are_shown_one_on_a_line_and_the_call_is_an_error_if_all_are(hand):
    tools = hand.for_question("train-0")
    searched = observed(run_tool(tools, "search", {"query": ["Zoe", "Eva"]}))
    assert searched == ("ERROR: nothing found.\npage Eva digs Ida digs.", None)
    call = {"url": ["page Eva", "page Zoe"], "goal": "boss Eva"}
    visited = observed(run_tool(tools, "visit", call))
    assert visited == ("page Eva boss owl.\nERROR: no such page.", None)
    assert run_tool(tools, "visit", {"url": ["Zoe", "Tom"], "goal": ""}).error == "refused"


@pytest.mark.parametrize(
    ("goal", "pet"),
    [
        ("\town  Max\n", " own dog"),
        ("own Bob Max", " own dog"),
        ("own Bob", ""),
        ("Max", ""),
        ("  ", ""),
        ("own Max Bob", ""),
    ],
)
def test_a_page_has_its_pet_for_a_goal_that_ends_with_its_name_whatever_the_spaces(hand, goal, pet):
    tools = hand.for_question("train-0")
    tools.search("Bob")
    assert tools.visit("page Max", goal) == Text(f"page Max{pet} boss Ida twin Eva.")


def labels(web, calls):
    """The labels of a rollout that makes these calls on HAND, like "search Bob, visit Bob Max"."""
    tools, turns = web.for_question("train-0"), []
    for name, *words in map(str.split, calls.split(", ")):
        arguments = {"query": words}
        if name == "visit":
            arguments = {"url": [f"page {word}" for word in words], "goal": "pet"}
        text = observed(run_tool(tools, name, arguments)).text + "\n\nA notice."
        turns.append(Turn(name, 0, 1, "", {"name": name, "arguments": arguments}, text))
    pages = web.case("train-0").right_pages
    labels = visit_labels(SimpleNamespace(turns=turns), pages)
    return [" ".join(f"{kind} {hop}" for kind, hop in turn) for turn in labels]


def test_visits_are_labelled_right_wrong_repeated_or_failed_with_their_hop(hand):
    calls = (
        "visit Bob, search Bob, visit Max, visit Zoe, visit Bob, visit Bob, search Ida, visit Ida"
    )
    expected = ["failed 1", "", "wrong 1", "failed 1", "right 1", "repeated 2", "", "wrong 2"]
    more = labels(hand, f"{calls}, visit Eva, visit Max")
    assert more == [*expected, "right 2", "repeated 2"]
    many = " Bob" * 11
    calls = f"search{many}, search Ida, visit Bob Ida, search Bob, visit{many}, visit Bob Zoe"
    whole = labels(hand, calls)
    assert whole[2] == "failed 1 wrong 1", "a search that was refused as a whole listed nothing"
    assert whole[4:] == [" ".join(["failed 1"] * 11), "right 1 failed 2"]


@given(webs, st.sampled_from(["train", "test"]))
def test_every_question_is_answered_by_walking_its_path_through_the_tools(web, split):
    for question in web.questions(split):
        tools = web.for_question(question.id)
        word, name, *relations = question.text.rstrip("?").split()
        assert word == {"every": "From", "last": "After"}[web.asks]
        pets = []
        for relation, following in zip(relations, [*relations[1:], None], strict=True):
            goal = f"{relation} {name}"
            first = " ".join(tools.search(goal).text.split()[:2])
            said = dict(
                re.findall(r"([a-z]+) (\w+)", tools.visit(first, goal).text.removeprefix(first))
            )
            pets.append(said[relation])
            name = said.get(following)
        if web.asks == "last":
            assert question.answers == [f"pet {relations[-1]} {pets[-1]}"]
        else:
            assert exact_match(answer_text(relations, pets), question.answers) == 1.0


@given(webs)
def test_wrong_pages_look_like_right_ones_and_a_search_lists_two_pages_of_one_layer(web):
    """Every page of a layer has the relation that is asked for there and another one; they lead to
    different pages."""
    for question in web.questions("train"):
        case = web.case(question.id)
        for i, page in enumerate(case.pages.values()):
            depth = i // toyweb.PAGES_PER_LAYER
            last = depth + 1 == case.hops
            assert len(set(page.links.values())) == len(page.links) == (0 if last else 2)
            assert last or case.relations[depth + 1] in page.links
            first, second = (
                found.title for found in web.for_question(question.id).results(f"boss {page.title}")
            )
            layer = list(case.pages)[depth * toyweb.PAGES_PER_LAYER :][: toyweb.PAGES_PER_LAYER]
            assert first == page.title != second and second in layer


@pytest.mark.parametrize("name", ["train-2048", "base-0", "dev-0", "train", "train--1", ""])
def test_an_unknown_question_is_an_error(name):
    with pytest.raises(KeyError):
        ToyWeb(0).case(name)


@pytest.mark.parametrize(
    ("hops", "expected"), [(None, [1, 2, 3, 4] * 2), (4, [4] * 8), ((4, 2), [4, 2] * 4)]
)
def test_hops_and_slack_say_how_many_right_pages_and_turns_a_question_has(hops, expected):
    for slack in (0, 3):
        web = ToyWeb(7, hops, slack, test=8)
        assert [web.case(question.id).hops for question in web.questions("test")] == expected
        assert [web.max_turns(f"test-{i}") for i in range(8)] == [
            2 * n + 1 + slack for n in expected
        ]
