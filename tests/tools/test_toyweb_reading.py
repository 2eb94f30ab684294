"""Texts for a base model: what is worth a loss follows from what stands above it, and notes are demonstrations in plain words."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.text.tokenizer import Tokenizer
from minvenus.text.toy_words import PETS, RELATIONS
from minvenus.tools.toyweb import ToyTools
from minvenus.tools.toyweb_reading import notes, page_pieces, plain, reading
from minvenus.tools.toyweb_teachers import Teacher, teach
from minvenus.tools.toyweb_world import FIRST, WorldConfig, make_case

WANDERING = Teacher(wrong_result=0.5, wrong_relation=0.5, at_once=0.2, stop_early=0.2)
PLAIN_WORLD = WorldConfig()


def text_of(pieces):
    return "".join(text for text, _ in pieces)


# -------------------------------------------------------------------------------------------------------------- reading


def test_the_pieces_of_a_page_by_hand():
    assert page_pieces("Bob", "own", "cat", [("boss", "Eva")]) == [
        ("page Bob own", False), (" cat", True), (" boss", False), (" Eva", True), (".\n", False)]


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4))
def test_flagged_pieces_follow_from_what_stands_above_them(seed, pages, again):
    """A relation stands on one page only, and is followed there by the pet or name that followed it before."""
    pieces, known, title = reading(seed, 0, pages, again), {}, None
    for (text, _), (following, flag) in pairwise(pieces):
        title = text.split()[1] if text.startswith("page ") else title
        relation = text.split()[-1]
        if relation in {FIRST, *RELATIONS}:
            assert flag == (relation in known) and known.setdefault(relation, (title, following)) == (title, following)
        else:
            assert not flag
    assert sum(flag for _, flag in pieces) == again * len(known) > 0


@given(st.integers(0, 10**6))
def test_a_page_is_read_again_in_the_words_that_the_toy_web_has_for_it(seed):
    """Every page comes 1 + again times, with the same links in any order, and reads as Page.text does."""
    lines = text_of(reading(seed, 1)).splitlines()
    first = lines[:len(lines) // 4]
    assert len(lines) == 4 * len(first)
    for k in range(4):
        assert sorted(sorted(line.rstrip(".").split()) for line in lines[k * len(first):(k + 1) * len(first)]) == sorted(
            sorted(line.rstrip(".").split()) for line in first)
    for line in lines:
        _, _, goal, pet, *links = line.rstrip(".").split()
        assert {goal, *links[::2]} <= {FIRST, *RELATIONS} and pet in PETS and len(links) % 2 == 0


@pytest.mark.parametrize("make", [lambda seed, i: reading(seed, i), lambda seed, i: notes(seed, i, PLAIN_WORLD, WANDERING)],
                         ids=["reading", "notes"])
def test_pieces_encode_as_the_whole_text_does_and_repeat_from_the_seed(make):
    tiny = Tokenizer.tiny()
    for index in range(50):
        pieces = make(3, index)
        assert [i for text, _ in pieces for i in tiny.encode_untrusted(text)] == tiny.encode_untrusted(text_of(pieces))
        assert pieces == make(3, index) != make(4, index)


# ---------------------------------------------------------------------------------------------------------------- notes


def test_notes_on_a_web_by_hand():
    case = make_case(5, "base", 1, PLAIN_WORLD)                                     # two hops
    (one, two), relation = (case.pages[title] for title in case.path), case.relations[0]
    tools = ToyTools(case, PLAIN_WORLD)
    listed = [tools.search([page.title]).text for page in (one, two)]
    assert notes(5, 1, PLAIN_WORLD, Teacher()) == [
        (f"From {one.title} own {relation}?\n", False),
        (f" own.\n own {one.title}\n", True), (f"{listed[0]}\n", False),
        (f" own.\npage {one.title} own {one.title}\n", True), (one.text(f"own {one.title}") + "\n", False),
        (f" own {relation}.\n {relation} {two.title}\n", True), (f"{listed[1]}\n", False),
        (f" {relation}.\npage {two.title} {relation} {two.title}\n", True), (f"page {two.title} {relation} {two.pet}.\n", False),
        (f"pets own {one.pet} {relation} {two.pet}\n", True)]


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_notes_have_the_words_of_the_demonstration_in_its_order_and_only_the_models_are_flagged(seed, index):
    case = make_case(seed, "base", index, PLAIN_WORLD)
    lesson = teach(case, ToyTools(case, PLAIN_WORLD), WANDERING, f"notes {seed} {index}")
    pieces = notes(seed, index, PLAIN_WORLD, WANDERING)
    assert [flag for _, flag in pieces] == [message["role"] == "assistant" for message in lesson.messages[1:]]
    for (text, _), message in zip(pieces, lesson.messages[1:], strict=True):
        rest = message["content"]
        for word in text.split():
            assert word in rest
            rest = rest[rest.index(word) + len(word):]
        assert not set("<>{}[]\"") & set(text)


def test_plain_leaves_out_tags_names_of_tools_and_the_thought_of_an_answer():
    call = '{"name":"visit","arguments":{"url":["page Bob"],"goal":" own Bob"}}'
    assert plain(f"<think>\n own.\n</think>\n<tool_call>\n{call}\n</tool_call>") == " own.\npage Bob own Bob"
    assert plain("<tool_response>\npage Bob own cat.\n</tool_response>") == "page Bob own cat."
    assert plain("<think>\nAnswer.\n</think>\n<answer>\npets own cat\n</answer>") == "pets own cat"
