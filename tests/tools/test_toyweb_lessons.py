"""Lessons: turns are well formed and true, experts are right, base texts follow from themselves."""

import hashlib
import json
import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from minvenus.agent.protocol import format_error, parse_turn
from minvenus.evaluation.answers import exact_match
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
    texts += demonstrations(ToyWeb(5, asks="last"), 24, teacher)
    texts += [[reading(seed, i), notes(seed, i)] for seed in (0, 1) for i in range(24)]
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    assert digest == "975e29c40b74623b3173586ce67af465231f9d73413c2305e8d3b74a34dce580"


@given(st.integers(0, 10**6), teachers | st.just(Teacher()), st.sampled_from(["every", "last"]))
def test_every_turn_is_well_formed_and_says_what_it_does_and_the_pages_that_were_read_are_answered(
    seed, teacher, asks
):
    web = ToyWeb(seed, asks=asks)
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
        first = 0 if asks == "every" else -1
        assert answer[1::2] == case.relations[first:]
        for title, pet in zip(case.path[first:], answer[2::2], strict=True):
            assert pet == case.pages[title].pet or title not in read
        noticed = [m["content"].endswith(f"{NOTICE}\n</tool_response>") for m in messages]
        assert not any(noticed[:-2] + noticed[-1:]), "right before the answer"
        assert teacher.cut_off or not any(noticed)
        if teacher == Teacher():
            assert exact_match(" ".join(answer), case.question.answers) == 1.0
            assert len(turns(messages)) == web.max_turns(case.question.id)


def test_every_word_has_one_id_after_a_space():
    words = [*NAMES, *PETS, *RELATIONS, *VERBS, FIRST]
    assert [word for word in words if len(TINY.encode(" " + word)) != 1] == []


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
