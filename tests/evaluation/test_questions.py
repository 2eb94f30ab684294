"""Question files: each format by hand, every way to be unreadable, and that reading loses and merges nothing."""

import base64
import csv
import hashlib
import json
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.evaluation.answers import ALIAS_MARK
from minvenus.evaluation.questions import decrypt, open_questions, read_questions
from minvenus.types import Question

RELEASED = {
    "data_source": "web_qa",
    "prompt": [{"role": "user", "content": "Who wrote it?"}],
    "reward_model": {"ground_truth": f"Ada{ALIAS_MARK}Ada King", "style": "rule"},
    "extra_info": {"index": 3},
}


def write(folder, *lines, name="questions.jsonl"):
    path = folder / name
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return path


def encrypt(text: str, canary: str) -> str:
    """By whole numbers, unlike the code under test."""
    data, digest = text.encode(), hashlib.sha256(canary.encode()).digest()
    key = (digest * (len(data) // 32 + 1))[: len(data)]
    return base64.b64encode(
        (int.from_bytes(data) ^ int.from_bytes(key)).to_bytes(len(data))
    ).decode()


def browsecomp(folder, *rows, columns=("problem", "answer", "problem_topic", "canary")):
    path = folder / "browse.csv"
    with path.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([columns, *rows])
    return path


# ------------------------------------------------------------------------------------------------ formats, each by hand


def test_jsonl_and_the_released_form(tmp_path):
    first = {
        "id": 7,
        "question": " Capital of Italy? ",
        "answer": "Rome",
        "source": "geo",
        "more": 1,
    }
    second = {"question": "羅馬?", "answer": ["a", f" b {ALIAS_MARK}c", "a"], "id": "x"}
    *own, released = read_questions(write(tmp_path, first, "", second, RELEASED))
    assert own == [
        Question("7", "Capital of Italy?", ["Rome"], "geo"),
        Question("x", "羅馬?", ["a", "b", "c"]),
    ]
    assert (released.text, released.source, released.answers) == (
        "Who wrote it?",
        "web_qa",
        ["Ada", "Ada King"],
    )


def test_the_released_parquet_columns(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
    from pyarrow import parquet

    path = tmp_path / "q.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([RELEASED, RELEASED]), path)
    first, second = read_questions(path)
    assert first.answers == ["Ada", "Ada King"] and first.source == "web_qa"
    assert second.id == first.id + "-2"


def test_cells_that_another_program_encrypted():
    """Made with perl's Digest::SHA and string XOR; the first is longer than one key of 32 bytes."""
    cell = "uXHWd1fHudqIrduXTSWC5gmAE9wS1UAVXhqnyGb7jcWcOc0/UJKi34ro3dMIZIDtR44YjxGdSwRfXrnIJ+bb149qmT5Bkr/GmePKmxc="
    assert (
        decrypt(cell, "bird-42")
        == "Who built the longest bridge over the river, and in which year was it opened?"
    )
    assert decrypt("tHZ6/BVxVdib/tuN67ODpUfWT5xU", "bird-42") == "Zoë Ångström, 1932"


def test_a_browsecomp_file_is_decrypted_row_by_row_each_with_its_own_canary(tmp_path):
    path = browsecomp(
        tmp_path,
        [encrypt("Which film?\nThe second.", "c1"), encrypt("Alien", "c1"), "Film", "c1"],
        [encrypt("Welche Stadt? 羅馬", "c2"), encrypt("Köln", "c2"), "", "c2"],
    )
    path.write_bytes(
        b"\xef\xbb\xbf" + path.read_bytes()
    )  # a byte order mark is no part of the first column
    first, second = read_questions(path)
    assert (first.text, first.source, first.answers) == (
        "Which film?\nThe second.",
        "Film",
        ["Alien"],
    )
    assert (second.text, second.source, second.answers) == ("Welche Stadt? 羅馬", None, ["Köln"])


# ------------------------------------------------------------------------------------------------------- ids, no loss


def test_made_ids_follow_the_text_and_not_the_place_and_equal_texts_stay_apart(tmp_path):
    rows = [{"question": text, "answer": "x"} for text in ("first", "second", " first ")]
    one, two, again = (question.id for question in read_questions(write(tmp_path, *rows)))
    assert again == one + "-2" and len({one, two, again}) == 3
    assert one.startswith("first-") and two.startswith("second-"), "people read them"
    assert [question.id for question in read_questions(write(tmp_path, *rows[1::-1]))] == [two, one]


texts = st.text(min_size=1, max_size=20).filter(
    lambda text: text.strip() and ALIAS_MARK not in text
)


@given(st.lists(st.tuples(texts, st.lists(texts, min_size=1, max_size=3)), min_size=1, max_size=6))
@example(
    [
        (text, ["x"])
        for text in ("???", "Who founded Rome? And why, and when, and with whom?", "谁？" * 90)
    ]
)
def test_every_question_comes_back_once_in_order_with_an_id_that_fits_a_line_a_flag_and_a_file_name(
    tmp_path_factory, rows
):
    records = [{"question": text, "answer": answers} for text, answers in rows]
    read = read_questions(write(tmp_path_factory.mktemp("q"), *records))
    assert [q.text for q in read] == [text.strip() for text, _ in rows]
    assert [q.answers for q in read] == [
        list(dict.fromkeys(a.strip() for a in answers)) for _, answers in rows
    ]
    assert len({q.id for q in read}) == len(rows)
    assert all(len(q.id) <= 51 and not set(q.id) & set(" /\\\n\t'\"") for q in read)


# ----------------------------------------------------------------------------------------------------------- refusals


def refused(path, *words):
    with pytest.raises(ConfigError) as caught:
        read_questions(path)
    assert all(word in str(caught.value) for word in (str(path), *words)), caught.value


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ({"query": "x", "gold": "y"}, "'gold': 'y'"),
        ({"question": "x", "answer": f" {ALIAS_MARK} "}, "non-blank answer"),
        ({"question": "x", "answer": ["a", 4]}, "list of texts"),
        ({"question": "x", "answer": "y", "id": True}, '"id": text or number'),
        ({"question": "x", "answer": "y", "source": 2}, '"source": text'),
        ({"question": "x", "answer": "y", "id": "q"}, "there twice"),
        (RELEASED | {"prompt": [{"role": "system", "content": "Who?"}]}, "one user message"),
        (RELEASED | {"reward_model": {"ground_truth": ["a", "b"]}}, '"ground_truth": text'),
    ],
)
def test_an_unreadable_line_is_an_error_that_names_file_line_and_reason(tmp_path, line, reason):
    refused(
        write(tmp_path, {"id": "q", "question": "fine", "answer": "y"}, "", line),
        "line 3: ",
        reason,
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (["Who was it?", "Rome", "t", "c"], "does not decrypt"),
        (["", encrypt("x", "c"), "t", "c"], "no text"),
        (
            [encrypt("Who was it, in which year?", "c"), encrypt("x", "c"), "t", "another"],
            "does not decrypt",
        ),
        ([encrypt("Wer?", "c"), "", "t", "c"], "non-blank answer"),
        (["a", "b"], "a question is"),
    ],
)
def test_a_row_that_does_not_decrypt_names_its_line(tmp_path, row, reason):
    refused(
        browsecomp(tmp_path, [encrypt("fine?", "c"), encrypt("x", "c"), "t", "c"], row),
        "line 3: ",
        reason,
    )


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b"\n", "no questions"),
        ("a.txt", b"x", ".jsonl, .parquet"),
        ("a.jsonl", None, "does not exist"),
        (
            "a.jsonl",
            b'{"question": "x", "answer": "y"}\n{"question": "\xff", "answer": "y"}\n',
            "line 2",
        ),
        ("a.csv", b"name,answer\na,b\n", "line 2"),
        ("a.csv", b"", "no questions"),
        ("a.csv", b"problem\n\xff", "utf-8"),
        ("a.csv", b'problem,answer,canary\n"a\n', "line"),
        ("a.parquet", b"PAR1", "minvenus[parquet]"),
    ],
)
def test_a_file_without_questions_is_an_error_and_not_an_empty_evaluation(
    tmp_path, monkeypatch, name, content, words
):
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)  # the extra is not installed
    if content is not None:
        (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, words)


def test_all_questions_of_the_toy_web_can_be_taken_and_more_held_out_ones_are_refused():
    assert len(open_questions("toyweb", "toyweb", limit=256, per_step=2048).held_out) == 256
    with pytest.raises(ConfigError, match="toyweb has 256 questions to evaluate on, not 257"):
        open_questions("toyweb", "toyweb", limit=257, per_step=8)


def test_every_epoch_has_each_training_question_once_and_one_that_comes_twice_has_two_names(
    tmp_path,
):
    """Five questions, two in a step: every second epoch ends within a step."""
    rows = [{"id": str(i), "question": f"Who is {i}?", "answer": "x"} for i in range(7)]
    (tmp_path / "page.txt").write_text("x")
    path = str(write(tmp_path, *rows))
    source = open_questions(path, f"folder:{tmp_path}", 1, limit=2, per_step=2)
    steps = [source.of_step(step) for step in range(1, 41)]
    asked = [question.id for groups in steps for _, question in groups]
    epochs = [asked[i : i + 5] for i in range(0, 80, 5)]
    assert all(sorted(epoch) == ["2", "3", "4", "5", "6"] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 10, "each in an order of its own"
    twice = [groups for groups in steps if groups[0][1] == groups[1][1]]
    assert twice and all(groups[1][0] == f"again {groups[0][0]}" for groups in twice)
    assert all(len(dict(groups)) == 2 for groups in steps)
