"""Demonstrations: experts are right and well formed, weaknesses show as often as asked and as what they are; token budgets."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.agent.protocol import is_well_formed, parse_turn
from minvenus.config import ConfigError
from minvenus.evaluation.answers import exact_match
from minvenus.text.chat import stream, unwrap
from minvenus.text.tokenizer import Tokenizer
from minvenus.text.toy_words import NAMES, PETS, RELATIONS, VERBS
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_teachers import ENDINGS, LAST_TURN, LEAD_IN, NOT_READ, SYSTEM, Teacher
from minvenus.tools.toyweb_world import ALIAS, FIRST

rates = st.sampled_from([0.0, 0.2, 0.5])
teachers = st.builds(Teacher, wrong_result=rates, wrong_relation=rates, malformed=rates, at_once=st.just(0.1),
                     stop_early=st.just(0.2), from_snippet=st.just(0.2), skip_visit=st.just(0.2), cut_off=rates)
NOTICE = f"\n\n{LAST_TURN}"


def call(thought, body):
    return f"<think>\n{thought}\n</think>\n<tool_call>\n{body}\n</tool_call>"


def turns(messages):
    return [m["content"] for m in messages[2::2]]


def calls(messages):
    """(parsed turn, observation without a notice) of every turn before the answer."""
    return [(parse_turn(text), unwrap(m["content"], 3).removesuffix(NOTICE))
            for text, m in zip(turns(messages), messages[3::2], strict=False)]


# ------------------------------------------------------------------------------------------------------------ the expert


def test_the_expert_on_two_hops_word_for_word():
    web = ToyWeb(0, hops=(2,))
    case = web.case("train-0")
    first, second = (case.pages[title] for title in case.path)
    messages, = web.demonstrations(1, Teacher())
    one, two, relation = first.title, second.title, case.relations[0]
    assert [m["content"] for m in messages[:2]] == [SYSTEM, f"From {one} own {relation}?"]
    assert turns(messages) == [
        call(" own.", f'{{"name":"search","arguments":{{"query":[" own {one}"]}}}}'),
        call(" own.", f'{{"name":"visit","arguments":{{"url":["page {one}"],"goal":" own {one}"}}}}'),
        call(f" own {relation}.", f'{{"name":"search","arguments":{{"query":[" {relation} {two}"]}}}}'),
        call(f" {relation}.", f'{{"name":"visit","arguments":{{"url":["page {two}"],"goal":" {relation} {two}"}}}}'),
        f"<think>\n{LEAD_IN}\n</think>\n<answer>\npets own {first.pet} {relation} {second.pet}\n</answer>"]
    seen = [observation for _, observation in calls(messages)]
    assert seen[1::2] == [first.text(f"own {one}"), f"page {two} {relation} {second.pet}."]
    assert seen[0].startswith(f"page {one} {first.verb} ") and seen[2].startswith(f"page {two} {second.verb} ")


@given(st.integers(0, 10**6), teachers)
def test_a_search_says_what_was_read_last_and_what_comes_next_and_a_visit_what_was_searched(seed, teacher):
    for lesson in ToyWeb(seed).lessons(8, teacher):
        query = None
        for parsed, _ in calls(lesson.messages):
            if parsed.kind == "search":
                query, = parsed.arguments["query"]
                *done, asked = parsed.thought.rstrip(".").split()
                assert asked == query.split()[0] and len(done) == (asked != FIRST)
            elif parsed.kind == "visit":
                assert parsed.arguments["goal"] == query and parsed.thought.strip() == query.split()[0] + "."


@given(st.integers(0, 10**6), st.sampled_from([0.0, 1.0]), st.sampled_from(["line", "json"]))
def test_experts_are_well_formed_and_right(seed, aliases, results):
    web = ToyWeb(seed, aliases=aliases, results=results)
    for lesson in web.lessons(4, Teacher(), split="test"):
        *before, last = turns(lesson.messages)
        assert all(is_well_formed(text, final=False) for text in before) and is_well_formed(last, final=True)
        assert exact_match(parse_turn(last).answer, web.case(lesson.question_id).question.answers) == 1.0
        assert len(before) + 1 == web.max_turns(lesson.question_id) and lesson.weaknesses == []
        assert not any(observation.startswith("ERROR") for _, observation in calls(lesson.messages))


# -------------------------------------------------------------------------------------------------------- the weak ones


@given(st.integers(0, 10**6), teachers)
def test_a_lesson_shows_exactly_the_weaknesses_it_names(seed, teacher):
    web = ToyWeb(seed)
    for lesson in web.lessons(8, teacher):
        case, shown = web.case(lesson.question_id), Counter(lesson.weaknesses)
        *before, last = turns(lesson.messages)
        assert sum(not is_well_formed(text, final=False) for text in before) == shown["malformed"]
        assert [obs for parsed, obs in calls(lesson.messages) if obs.startswith("ERROR")] == [NOT_READ] * shown["malformed"]
        well = [parsed for text, parsed in ((t, parse_turn(t)) for t in before) if is_well_formed(text, final=False)]
        visits = [(parsed.arguments["url"][0], True) for parsed in well if parsed.kind == "visit"]
        labels = Counter(visit.kind for visit in case.classify(visits))
        assert labels["failed"] == 0 and shown["cut_off"] == sum(m["content"].count(NOTICE) for m in lesson.messages)
        if not {*ENDINGS, "cut_off"} & set(lesson.weaknesses):
            assert labels["right"] == case.hops and parse_turn(last).answer == case.question.answers[0]
            assert labels["wrong"] + labels["repeated"] == shown["wrong_result"] + shown["wrong_relation"]
        elif not shown["cut_off"]:
            assert labels["right"] < case.hops
        assert is_well_formed(last, final=True) and parse_turn(last).answer.split()[1::2] == [FIRST, *case.relations]
        assert not shown["at_once"] or not before


def test_a_page_opened_by_mistake_says_nothing_about_the_answer():
    """The goal names the page that was wanted, so that only its own page has a pet for it."""
    for lesson in ToyWeb(3).lessons(40, Teacher(wrong_result=1.0)):
        visits = [(parsed.arguments, seen) for parsed, seen in calls(lesson.messages) if parsed.kind == "visit"]
        right = [arguments["url"] == [f"page {arguments['goal'].split()[-1]}"] for arguments, _ in visits]
        assert right == [False, True] * (len(visits) // 2)
        assert [bool(set(PETS) & set(seen.rstrip(".").split())) for _, seen in visits] == right


def test_who_is_cut_off_is_told_once_right_before_the_answer_and_knows_what_it_has_read():
    lengths = set()
    for lesson in ToyWeb(5, hops=(3,)).lessons(60, Teacher(cut_off=1.0)):
        case = ToyWeb(5, hops=(3,)).case(lesson.question_id)
        told = [m["content"].endswith(f"{NOTICE}\n</tool_response>") for m in lesson.messages]
        assert told == [False] * (len(told) - 2) + [True, False] and lesson.weaknesses == ["cut_off"]
        read = sum(parsed.kind == "visit" for parsed, _ in calls(lesson.messages))
        assert parse_turn(turns(lesson.messages)[-1]).answer.split()[2::2][:read] == case.pets[:read]
        lengths.add(len(turns(lesson.messages)))
    assert lengths == {2, 3, 4, 5, 6, 7}, "anywhere on the way, after the last page too"


@pytest.mark.parametrize("name", ["wrong_result", "wrong_relation", "malformed", "at_once", "stop_early", "from_snippet",
                                  "skip_visit", "cut_off"])
def test_rates_are_honoured(name):
    """Within four standard deviations of the binomial; chances are hops, links, calls or demonstrations."""
    rate, count = 0.3, 400
    web = ToyWeb(1, hops=(3,))
    lessons = web.lessons(count, Teacher(**{name: rate}))
    chances = count * {"wrong_result": 3, "wrong_relation": 2, "malformed": 6}.get(name, 1)
    seen = sum(lesson.weaknesses.count(name) for lesson in lessons)
    assert abs(seen - rate * chances) < 4 * math.sqrt(chances * rate * (1 - rate))
    assert all(set(lesson.weaknesses) <= {name} for lesson in lessons)


def test_malformed_calls_cannot_be_run_by_the_parser_either_or_are_penalised():
    lessons = ToyWeb(2, hops=(2,)).lessons(40, Teacher(malformed=1.0))
    broken = [text for lesson in lessons for text in turns(lesson.messages)[:-1:2]]
    assert len(broken) == 160 and len({"</tool_call>" in text for text in broken}) == 2
    assert not any(is_well_formed(text, final=False) or parse_turn(text).kind in ("search", "visit") for text in broken)


@given(st.integers(0, 100), teachers)
def test_the_same_seeds_give_the_same_lessons_and_others_other_ones(seed, teacher):
    one, two = ToyWeb(seed), ToyWeb(seed)
    assert one.lessons(4, teacher, seed=1) == two.lessons(4, teacher, seed=1)
    assert one.demonstrations(4, teacher) == [lesson.messages for lesson in two.lessons(4, teacher)]
    noisy = Teacher(wrong_result=0.5, wrong_relation=0.5)
    assert one.lessons(8, noisy, seed=1) != one.lessons(8, noisy, seed=2)


def test_a_world_without_room_for_a_mistake_does_not_show_it():
    web = ToyWeb(0, hops=(3,), links=1, distractors=0)
    for lesson in web.lessons(5, Teacher(wrong_result=1.0, wrong_relation=1.0)):
        assert lesson.weaknesses == [] and len(turns(lesson.messages)) == 7


@pytest.mark.parametrize("wrong", [{"malformed": 1.1}, {"at_once": -0.1}, {"at_once": 0.6, "stop_early": 0.6}])
def test_impossible_rates_are_refused(wrong):
    with pytest.raises(ConfigError):
        Teacher(**wrong)


# ------------------------------------------------------------------------------------------------------------- tokens


def test_every_word_has_one_id_in_its_form():
    tiny = Tokenizer.tiny()
    assert [word for word in [*NAMES, *PETS, *RELATIONS, *VERBS, FIRST, ALIAS] if len(tiny.encode(" " + word)) != 1] == []


def test_expert_rollouts_keep_their_token_budgets():
    tiny, web = Tokenizer.tiny(), ToyWeb(4)
    lengths = {web.case(lesson.question_id).hops: len(stream(lesson.messages, tiny)[0]) for lesson in web.lessons(40, Teacher())}
    assert lengths == {1: 119, 2: 211, 3: 303, 4: 395}               # under 120 for one hop, under 400 for four
    assert len({len(stream(m, tiny)[0]) for m in web.demonstrations(40, Teacher(), split="test")}) == 4
