"""Lessons: turns are well formed and true, experts are right, base texts follow from themselves."""

import hashlib
import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.agent.protocol import format_error, parse_turn
from minvenus.evaluation.answers import exact_match
from minvenus.text.chat import stream
from minvenus.text.messages import unwrap
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.toyweb import FIRST, NAMES, PETS, RELATIONS, VERBS, ToyWeb
from minvenus.tools.toyweb_lessons import (
    LAST_TURN,
    LEAD_IN,
    SYSTEM,
    Teacher,
    demonstrations,
    notes,
    reading,
)

TINY = Tokenizer.tiny()
rates = st.sampled_from([0.0, 0.2, 0.5])
teachers = st.builds(
    Teacher,
    wrong_result=rates,
    wrong_relation=rates,
    at_once=st.just(0.1),
    stop_early=st.just(0.2),
    cut_off=rates,
)
NOTICE = f"\n\n{LAST_TURN}"


def turns(messages):
    return [m["content"] for m in messages[2::2]]


def calls(messages):
    """(parsed turn, observation without a notice) of every turn before the answer."""
    return [
        (parse_turn(text), unwrap(m["content"], 3).removesuffix(NOTICE))
        for text, m in zip(turns(messages), messages[3::2], strict=False)
    ]


def test_every_text_of_a_seed_is_the_one_that_the_committed_base_model_was_trained_on():
    """The texts of all kinds, as one hash: another draw anywhere would give another base model."""
    teacher = Teacher(
        wrong_result=0.5, wrong_relation=0.3, at_once=0.1, stop_early=0.1, cut_off=0.5
    )
    texts = [
        demonstrations(ToyWeb(seed, hops), 24, teacher, split, seed)
        for seed in (0, 7)
        for hops in (None, 4)
        for split in ("train", "test")
    ]
    texts += [
        [question.text, question.answers] for question in ToyWeb(3, test=64).questions("test")
    ]
    texts += [[reading(seed, i), notes(seed, i)] for seed in (0, 1) for i in range(24)]
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    assert digest == "ef941e8cf903371fdd02484a89fcd7fcba995c0ea2130002efb015304c341e6a"


@given(st.integers(0, 10**6), teachers | st.just(Teacher()))
def test_every_turn_is_well_formed_and_says_what_it_does_and_the_pages_that_were_read_are_answered(
    seed, teacher
):
    web = ToyWeb(seed)
    for i, messages in enumerate(demonstrations(web, 8, teacher)):
        case, read, query = web.case(f"train-{i}"), set(), None
        *before, last = turns(messages)
        assert [m["content"] for m in messages[:2]] == [SYSTEM, case.question.text]
        assert all(not format_error(text, final=False) for text in before)
        assert not format_error(last, final=True) and f"\n{LEAD_IN}\n" in last
        for parsed, seen in calls(messages):
            assert not seen.startswith("ERROR")
            if parsed.kind == "search":  # the thought: what was read last, what comes next
                (query,) = parsed.arguments["query"]
                *done, asked = parsed.thought.rstrip(".").split()
                assert asked == query.split()[0] and len(done) == (asked != FIRST)
                continue
            relation, name = query.split()
            title = parsed.arguments["url"][0].split()[1]
            assert parsed.arguments["goal"] == query and parsed.thought.strip() == f"{relation}."
            assert bool(set(PETS) & set(seen.rstrip(".").split())) == (title == name)
            read |= {title} & {name}
        answer = parse_turn(last).answer.split()
        assert answer[1::2] == case.relations
        for title, pet in zip(case.path, answer[2::2], strict=True):
            assert pet == case.pages[title].pet or title not in read
        noticed = [m["content"].endswith(f"{NOTICE}\n</tool_response>") for m in messages]
        assert not any(noticed[:-2] + noticed[-1:]), "right before the answer"
        assert teacher.cut_off or not any(noticed)
        if teacher == Teacher():
            assert exact_match(" ".join(answer), case.question.answers) == 1.0
            assert len(turns(messages)) == web.max_turns(case.question.id)


@given(st.integers(0, 10**6), teachers | st.just(Teacher()))
def test_asked_for_the_last_pet_a_teacher_goes_the_same_way_and_answers_with_that_pet_only(
    seed, teacher
):
    """Pets that it has not read are drawn for both answers."""
    every = demonstrations(ToyWeb(seed), 8, teacher)
    last = demonstrations(ToyWeb(seed, asks="last"), 8, teacher)
    for i, (one, other) in enumerate(zip(every, last, strict=True)):
        case = ToyWeb(seed, asks="last").case(f"train-{i}")
        assert other[1]["content"] == case.question.text != one[1]["content"]
        assert other[2:-1] == one[2:-1]
        pair = parse_turn(turns(one)[-1]).answer.split()[-2:]
        assert parse_turn(turns(other)[-1]).answer.split() == ["pet", *pair]
        if teacher == Teacher():
            assert exact_match(" ".join(["pet", *pair]), case.question.answers) == 1.0


def test_the_same_seeds_give_the_same_demonstrations_and_others_other_ones():
    noisy = Teacher(wrong_result=0.5, wrong_relation=0.5)
    lessons, same, other = (
        demonstrations(ToyWeb(11, train=4), 8, noisy, seed=seed) for seed in (1, 1, 2)
    )
    assert lessons == same != other
    first, again = lessons[:4], lessons[4:]  # around the four questions again
    assert [m[1] for m in first] == [m[1] for m in again] and first != again


def test_every_word_has_one_id_after_a_space():
    words = [*NAMES, *PETS, *RELATIONS, *VERBS, FIRST]
    assert [word for word in words if len(TINY.encode(" " + word)) != 1] == []


@pytest.mark.parametrize("split", ["train", "test"])
def test_expert_rollouts_keep_their_token_budgets(split):
    """Under 120 tokens for one hop, under 400 for four."""
    lengths = set()
    for messages in demonstrations(ToyWeb(4), 40, Teacher(), split):
        lengths.add((len(turns(messages)) // 2, len(stream(messages, TINY)[0])))
    assert lengths == {(1, 119), (2, 211), (3, 303), (4, 395)}


# ----------------------------------------------------------------------- texts of the base model


@given(st.integers(0, 10**6), st.integers(0, 10))
def test_flagged_pieces_follow_from_what_is_above_them(seed, index):
    """A relation is on one page only, and is followed there by the pet or name that followed it
    before. Every page is read three times more."""
    pieces, known, title = reading(seed, index), {}, None
    whole = "".join(text for text, _ in pieces)
    assert re.fullmatch(r"(page( [A-Z]\w+ \w+ [a-z]+)( [a-z]+ [A-Z]\w+)*\.\n)+", whole)
    for (text, _), (following, flag) in pairwise(pieces):
        title = text.split()[1] if text.startswith("page ") else title
        relation = text.split()[-1]
        if relation in {FIRST, *RELATIONS}:
            assert flag == (relation in known)
            assert known.setdefault(relation, (title, following)) == (title, following)
        else:
            assert not flag
    assert sum(flag for _, flag in pieces) == 3 * len(known) > 0


def test_names_of_test_questions_are_in_no_lesson_and_in_no_question_of_training():
    web = ToyWeb(0)
    names = {title for i in range(64) for title in web.case(f"test-{i}").pages}
    lessons = demonstrations(web, 64, Teacher(wrong_result=0.5))
    seen = [message["content"] for messages in lessons for message in messages]
    seen += [question.text for question in ToyWeb(1, train=64).questions("train")]
    assert not names & set(re.findall(r"\w+", " ".join(seen)))
