"""Question files: each format by hand, every way to be unreadable, and that reading loses and
merges nothing."""

import base64
import csv
import hashlib
import itertools
import json
import operator
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from minvenus.agent.observation import result_text
from minvenus.config import ConfigError
from minvenus.evaluation.answers import ALIAS_MARK
from minvenus.evaluation.questions import QuestionSource, decrypt, open_questions, read_questions
from minvenus.tools.base import run_tool
from minvenus.types import Question, Turn

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
    key = itertools.cycle(hashlib.sha256(canary.encode()).digest())
    return base64.b64encode(bytes(map(operator.xor, text.encode(), key))).decode()


def encrypted(text: str, answer: str, topic: str, canary: str) -> list[str]:
    return [encrypt(text, canary), encrypt(answer, canary), topic, canary]


def browsecomp(folder, *rows):
    path = folder / "browse.csv"
    with path.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([["problem", "answer", "problem_topic", "canary"], *rows])
    return path


# ---------------------------------------------------------------------------- formats, each by hand


def test_jsonl_and_the_released_form(tmp_path):
    lines = [
        '{"id": 0, "question": " Capital of Italy? ", "answer": "Rome", "source": 3, "x": 1}',
        "",
        f'{{"question": "羅馬?", "answer": ["a", " b {ALIAS_MARK}c", "a"], "pages": ["Ann"]}}',
        RELEASED,
    ]
    first, second, third = read_questions(write(tmp_path, *lines))
    assert first == Question("0", "Capital of Italy?", ["Rome"], "3")
    assert replace(second, id="x") == Question("x", "羅馬?", ["a", "b", "c"], pages=["Ann"])
    assert replace(third, id="") == Question("", "Who wrote it?", ["Ada", "Ada King"], "web_qa")


def test_right_pages_of_a_file_are_known_with_an_almanac_that_has_them(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "ann.txt").write_text("Ann\npet: cat\n")
    almanac = f"almanac:{tmp_path / 'docs'}"
    path = write(tmp_path, {"question": "Pet?", "answer": "cat", "pages": ["Ann"]})
    source = open_questions(path, almanac)
    [question] = source.held_out
    arguments = {"url": ["Bob", "Ann"], "goal": "pet"}
    text = result_text(run_tool(source.tools, "visit", arguments))
    turn = Turn("visit", 0, 1, "", {"name": "visit", "arguments": arguments}, text)
    done = SimpleNamespace(question=question, turns=[turn, turn])
    labels = [["failed", "right"], ["failed", "repeated"]]
    assert source.visits([done]) == ([labels], [1])
    assert source.immediate and source.max_turns(question) == 200

    other = open_questions(path, f"folder:{tmp_path / 'docs'}")
    assert other.visits([done]) == ([[[], []]], [None]), "other tools have other addresses"
    path = write(tmp_path, {"question": "Pet?", "answer": "cat", "pages": ["Zoe"], "id": "q"})
    words = "does not fit almanac:.* question 'q' needs the page 'Zoe', which is not there"
    with pytest.raises(ConfigError, match=words):
        open_questions(path, almanac)


def test_the_released_parquet_columns(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
    from pyarrow import parquet

    path = tmp_path / "q.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([RELEASED, RELEASED]), path)
    assert [question.answers for question in read_questions(path)] == [["Ada", "Ada King"]] * 2


def test_cells_that_another_program_encrypted():
    """Made with perl's Digest::SHA and string XOR; the first is longer than one key of 32 bytes."""
    cell = (
        "uXHWd1fHudqIrduXTSWC5gmAE9wS1UAVXhqnyGb7jcWcOc0/UJKi34ro3dMIZIDtR44YjxGdSwRfXrnIJ+bb1"
        "49qmT5Bkr/GmePKmxc="
    )
    text = "Who built the longest bridge over the river, and in which year was it opened?"
    assert decrypt(cell, "bird-42") == text
    assert decrypt("tHZ6/BVxVdib/tuN67ODpUfWT5xU", "bird-42") == "Zoë Ångström, 1932"


def test_a_browsecomp_file_is_decrypted_row_by_row_each_with_its_own_canary(tmp_path):
    film = encrypted("Which film?\nThe second.", "Alien", "Film\nof 1979", "c1")
    path = browsecomp(tmp_path, film, encrypted("Welche Stadt? 羅馬", "Köln", "", "c2"))
    # a byte order mark is no part of the first column
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    first, second = (replace(question, id="") for question in read_questions(path))
    assert first == Question("", "Which film?\nThe second.", ["Alien"], "Film\nof 1979")
    assert second == Question("", "Welche Stadt? 羅馬", ["Köln"])


# ------------------------------------------------------------------------------------- ids, no loss


def test_made_ids_follow_the_text_and_not_the_place_and_equal_texts_stay_apart(tmp_path):
    def ids(*texts):
        records = [{"question": text, "answer": "x"} for text in texts]
        return [question.id for question in read_questions(write(tmp_path, *records))]

    odd = "谁？" * 90 + 'a/b\t"c"\n\\ d'
    one, two, again, other = ids("first", "second", " first ", odd)
    assert again == one + "-2" and ids("second", odd, "first") == [two, other, one]
    assert one.startswith("first-") and two.startswith("second-"), "people read them"
    assert len(other) <= 49 and not set(other) & set(" /\\\n\t'\""), "a flag"


# ----------------------------------------------------------------------------------------- refusals


def refused(path, *words):
    with pytest.raises(ConfigError) as caught:
        read_questions(path)
    assert all(word in str(caught.value) for word in (str(path), *words)), caught.value


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ('{"query": "x", "gold": "y"}', "'gold': 'y'"),
        ('{"question": "x", "answer": " <|answer_split|> "}', "non-blank answer"),
        ('{"question": "x", "answer": ["a", 4]}', "list of texts"),
        ('{"question": "x", "answer": "y", "id": "q"}', "there twice"),
        ('{"question": "x", "answer": "y", "pages": []}', "list of texts"),
        ('{"question": "x", "answer": "y", "pages": "Ann"}', "list of texts"),
        ('{"question": "x", "answer": "y", "pages": ["Ann", 3]}', "list of texts"),
        ('{"question": "half \\ud83d?", "answer": "y"}', "surrogates not allowed"),
        ('{"question": "x", "answer": ["y", "\\ude00"], "id": "r"}', "surrogates not allowed"),
        ('{"question": "x", "answer": "y", "id": "\\ude00"}', "surrogates not allowed"),
        (RELEASED | {"prompt": [{"role": "system", "content": "Who?"}]}, "one user message"),
        (RELEASED | {"reward_model": {"ground_truth": ["a", "b"]}}, '"ground_truth": text'),
    ],
)
def test_an_unreadable_line_is_an_error_that_names_file_line_and_reason(tmp_path, line, reason):
    fine = '{"id": "q", "question": "fine", "answer": "y"}'
    refused(write(tmp_path, fine, "", line), "line 3: ", reason)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (["Who was it?", "Rome", "t", "c"], "does not decrypt"),
        (encrypted("", "x", "t", "c"), "no text"),
        ([*encrypted("Who was it, in which year?", "x", "t", "c")[:3], "b"], "does not decrypt"),
        (encrypted("Wer?", "", "t", "c"), "non-blank answer"),
    ],
)
def test_a_row_that_does_not_decrypt_names_its_line(tmp_path, row, reason):
    fine = encrypted("fine?", "x", "t", "c")
    refused(browsecomp(tmp_path, fine, row), "line 3: ", reason)
    fine[2] = "a topic\nof two lines"
    refused(browsecomp(tmp_path, fine, row), "line 4: ", reason)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b"\n", "no questions"),
        ("a.txt", b"x", ".jsonl, .parquet"),
        ("a.jsonl", None, "does not exist"),
        ("a.jsonl", b'{"question": "\xff", "answer": "y"}\n', "line 1: not JSON"),
        ("a.csv", b"name,answer\na,b\n", "line 2: a question is"),
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
    assert len(open_questions("toyweb", "toyweb", limit=256).held_out) == 256
    with pytest.raises(ConfigError, match="toyweb has 256 questions to evaluate on, not 257"):
        open_questions("toyweb", "toyweb", limit=257)


def test_the_toy_web_knows_its_right_pages_and_other_tools_are_closed():
    web = open_questions(None, "toyweb", hops=3)
    done = SimpleNamespace(question=web.held_out[0], turns=[])
    assert web.visits([done]) == ([[]], [3])
    tools = Mock()
    QuestionSource([], tools=tools).close()
    tools.close.assert_called_once_with()


def test_a_question_that_comes_twice_in_a_step_has_a_second_name():
    """Five questions, two in a step: every second epoch ends within a step."""
    training = [Question(str(i), "Who?", ["x"]) for i in range(5)]
    steps = [QuestionSource([], training, per_step=2, seed=1).of_step(i) for i in range(1, 41)]
    asked = [question.id for groups in steps for _, question in groups]
    assert all(sorted(asked[i : i + 5]) == list("01234") for i in range(0, 80, 5)), "every epoch"
    twice = [groups for groups in steps if groups[0][1] == groups[1][1]]
    assert twice and all(groups[1][0] == f"again {groups[0][0]}" for groups in twice)
