"""Lessons: turns are well formed and true, experts are right, texts for a base model follow from themselves."""

import hashlib
import json
import re
from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.agent.protocol import is_well_formed, parse_turn
from minvenus.evaluation.answers import exact_match
from minvenus.text.chat import stream, unwrap
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.toyweb import FIRST, NAMES, PETS, RELATIONS, VERBS, ToyWeb, make_case
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
    """The texts of all kinds, as one hash: another draw anywhere would give another base model and other results."""
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
    assert digest == "e2c05bd4d65d8c235b9546225e99dc3121423a92e30b3b43de806ef86aa77257"


@given(st.integers(0, 10**6), teachers | st.just(Teacher()))
def test_every_turn_is_well_formed_and_says_what_it_does_and_the_pages_that_were_read_are_answered(
    seed, teacher
):
    web = ToyWeb(seed)
    for i, messages in enumerate(demonstrations(web, 8, teacher)):
        case, read, query = web.case(f"train-{i}"), set(), None
        *before, last = turns(messages)
        assert [m["content"] for m in messages[:2]] == [
            SYSTEM,
            case.question.text,
        ] and f"\n{LEAD_IN}\n" in last
        assert all(is_well_formed(text, final=False) for text in before) and is_well_formed(
            last, final=True
        )
        for parsed, seen in calls(messages):
            assert not seen.startswith("ERROR")
            if parsed.kind == "search":  # the thought: what was read last, what comes next
                (query,) = parsed.arguments["query"]
                *done, asked = parsed.thought.rstrip(".").split()
                assert asked == query.split()[0] and len(done) == (asked != FIRST)
            else:  # only the page that was wanted has a pet for its goal
                title = parsed.arguments["url"][0].split()[1]
                assert (
                    parsed.arguments["goal"] == query
                    and parsed.thought.strip() == query.split()[0] + "."
                )
                assert bool(set(PETS) & set(seen.rstrip(".").split())) == (
                    title == query.split()[1]
                )
                read |= {title} & {query.split()[1]}
        said = parse_turn(last).answer.split()
        assert said[1::2] == case.relations
        for title, pet in zip(case.path, said[2::2], strict=True):
            assert pet == case.pages[title].pet or title not in read
        told = [m["content"].endswith(f"{NOTICE}\n</tool_response>") for m in messages]
        assert not any(told[:-2] + told[-1:]) and (teacher.cut_off or not any(told)), (
            "right before the answer"
        )
        if teacher == Teacher():
            assert exact_match(" ".join(said), case.question.answers) == 1.0
            assert len(turns(messages)) == web.max_turns(case.question.id)


@pytest.mark.parametrize(
    ("weakness", "chances", "shown"),
    [
        ("wrong_result", 4, lambda messages: len(turns(messages)) - 9),  # one visit more
        (
            "wrong_relation",
            3,
            lambda messages: (len(turns(messages)) - 9) / 2,
        ),  # a search and a visit more
        ("at_once", 1, lambda messages: len(turns(messages)) == 1),
        ("stop_early", 1, lambda messages: 1 < len(turns(messages)) < 9),
        ("cut_off", 1, lambda messages: NOTICE in messages[-2]["content"]),
    ],
)
def test_each_weakness_shows_at_about_its_rate(weakness, chances, shown):
    for rate in (0.2, 0.6):
        made = demonstrations(ToyWeb(9, hops=4), 400, Teacher(**{weakness: rate}))
        assert fmean(map(shown, made)) / chances == pytest.approx(rate, abs=0.06)


def test_the_same_seeds_give_the_same_demonstrations_and_others_other_ones():
    web, noisy = ToyWeb(11, train=4), Teacher(wrong_result=0.5, wrong_relation=0.5)
    made = demonstrations(web, 8, noisy, seed=1)
    assert (
        made
        == demonstrations(ToyWeb(11, train=4), 8, noisy, seed=1)
        != demonstrations(web, 8, noisy, seed=2)
    )
    first, again = made[:4], made[4:]  # around the four questions again
    assert [m[1] for m in first] == [m[1] for m in again] and first != again


def test_every_word_has_one_id_after_a_space():
    assert [
        word
        for word in [*NAMES, *PETS, *RELATIONS, *VERBS, FIRST]
        if len(TINY.encode(" " + word)) != 1
    ] == []


def test_expert_rollouts_keep_their_token_budgets():
    web = ToyWeb(4)
    for split in ("train", "test"):
        made = demonstrations(web, 40, Teacher(), split)
        lengths = {(len(turns(messages)) // 2, len(stream(messages, TINY)[0])) for messages in made}
        assert lengths == {
            (1, 119),
            (2, 211),
            (3, 303),
            (4, 395),
        }  # under 120 for one hop, under 400 for four


@given(st.integers(0, 10**6), st.integers(0, 10))
def test_flagged_pieces_follow_from_what_is_above_them(seed, index):
    """A relation is on one page only, and is followed there by the pet or name that followed it before. Every page is
    read three times more."""
    pieces, known, title = reading(seed, index), {}, None
    assert re.fullmatch(
        r"(page( [A-Z]\w+ \w+ [a-z]+)( [a-z]+ [A-Z]\w+)*\.\n)+", "".join(text for text, _ in pieces)
    )
    for (text, _), (following, flag) in pairwise(pieces):
        title = text.split()[1] if text.startswith("page ") else title
        relation = text.split()[-1]
        if relation in {FIRST, *RELATIONS}:
            assert flag == (relation in known) and known.setdefault(
                relation, (title, following)
            ) == (title, following)
        else:
            assert not flag
    assert sum(flag for _, flag in pieces) == 3 * len(known) > 0


def test_names_of_test_questions_are_in_the_replayed_texts_and_in_no_demonstration_and_no_training_question():
    """What demo.py says of them. The replayed texts have the names, but no web of a test question."""
    web = ToyWeb(0)
    tested = [web.case(f"test-{i}") for i in range(64)]
    names = {title for case in tested for title in case.pages}
    taught = " ".join(
        message["content"]
        for messages in demonstrations(web, 64, Teacher(wrong_result=0.5))
        for message in messages
    )
    asked = " ".join(question.text for question in ToyWeb(1, train=64).questions("train"))
    assert not names & set(re.findall(r"\w+", taught + " " + asked))
    replayed = ["".join(text for text, _ in notes(1, i)) for i in range(64)]
    assert names & set(re.findall(r"\w+", " ".join(replayed)))
    webs = [make_case(1, "base", i).pages for i in range(64)]  # those of the replayed texts
    assert not any(case.pages in webs for case in tested)
