"""The command: counts that add up, bad lines, whole files or none, the correctness filter, JSON
documents, Parquet."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import pytest

from minvenus.config import ConfigError
from minvenus.files import claimed
from minvenus.sft import __main__ as command
from minvenus.sft.__main__ import CleanConfig, input_files, run
from minvenus.sft.dataset import load
from minvenus.text.tokenizer import Tokenizer
from minvenus.types import UNKNOWN
from tests.scripts import exit_code
from tests.sft.conversations import (
    answer_of,
    contents,
    conversation,
    observation,
    of_turns,
    think,
)


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def read(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def start(folder, rows, **options):
    source = write(folder / "in.jsonl", rows)
    config = CleanConfig(source, str(folder / "out" / "train.jsonl"), **options)
    return run(config), config


def ended_with(source, out, *more):
    return exit_code(command.main, CleanConfig, ["--in", source, "--out", str(out), *more])


# ---------------------------------------------------------------------------------------- the whole


def test_the_command_worked_by_hand(tmp_path, capsys):
    rows = [of_turns(50, "short"), "garbage", "", of_turns(100, "medium"), of_turns(101, "long")]
    unanswered = of_turns(3)
    unanswered["messages"].pop()
    rows += ["[1]", {"no": "chat"}, unanswered]
    source, out = write(tmp_path / "in.jsonl", rows), tmp_path / "out" / "train.jsonl"
    assert ended_with(source, out) == 0
    terminal = capsys.readouterr()
    stats = json.loads((tmp_path / "out" / "stats.json").read_text())
    assert json.loads(terminal.out) == stats
    settings = asdict(CleanConfig(source, str(out)))
    assert stats["settings"] == settings and stats["files"] == [source]
    assert [settings[x] for x in ("prompt_mode", "correct", "seed")] == ["template", "off", 42]
    names = ["source", "bad_lines", "stage2_valid", "stage3_correct", "final_resampled"]
    assert [stats["rows"][name] for name in names] == [7, 2, 3, 3, 8]
    assert stats["drop_reasons"] == {"missing_question_or_gt": 1, "last_message_not_assistant": 1}
    assert stats["turn_buckets"] == {"<=50": 1, "51-100": 1, ">100": 1}
    assert [stats[f"turns_{name}"] for name in ("in", "kept", "dropped")] == [253, 251, 2]
    assert Counter(row["question"] for row in read(out)) == {"short": 1, "medium": 2, "long": 5}
    assert sorted(p.name for p in out.parent.iterdir()) == [".lock", "stats.json", "train.jsonl"]
    places = [line.split(":")[0] for line in terminal.err.splitlines()]
    assert places == [f"{source}, line {n}" for n in (2, 6)]
    examples, _ = load(read(out), Tokenizer.tiny(), max_tokens=100_000)
    assert len(examples) == 8, "training reads what is written"


def test_the_order_is_a_function_of_the_seed(tmp_path):
    rows = [of_turns(turns, f"Q{i}") for i, turns in enumerate((1, 51, 1, 101))]

    def order(**options):
        return [row["question"] for row in read(start(tmp_path, rows, **options)[1].out)]

    assert order(seed=42) == [f"Q{i}" for i in (2, 3, 3, 3, 3, 1, 3, 0, 1)] != order(seed=1)
    assert sorted(order(seed=42)) == sorted(order(seed=1))


def test_a_folder_of_files_is_read_in_the_order_of_their_names_and_not_of_the_disk(
    tmp_path, monkeypatch, capsys
):
    names = ["a.jsonl", "b.jsonl", "c.jsonl"]
    out = tmp_path / "in" / "out.jsonl"  # the output is no input
    write(tmp_path / "in" / "notes.json", ["no trajectory, and not read"])
    for name in names:
        write(tmp_path / "in" / name, [of_turns(2, name), *["garbage"] * 4])

    def backwards(folder, pattern):
        return [path for path in sorted(folder.iterdir(), reverse=True) if path.match(pattern)]

    monkeypatch.setattr(Path, "glob", backwards)
    stats = run(CleanConfig(str(tmp_path / "in"), str(out)))
    assert [Path(name).name for name in stats["files"]] == names
    assert sorted(row["question"] for row in read(out)) == names
    assert stats["rows"]["bad_lines"] == 12 and len(capsys.readouterr().err.splitlines()) == 10


@pytest.mark.parametrize("given", ["", "a.json"])
def test_a_json_file_is_one_record_over_many_lines(tmp_path, given):
    (tmp_path / "in").mkdir()
    for name, row in (("a.json", of_turns(2, "A")), ("b.json", [of_turns(2, "B")])):
        (tmp_path / "in" / name).write_text(json.dumps(row, indent=2))
    stats = run(CleanConfig(str(tmp_path / "in" / given), str(tmp_path / "out.jsonl")))
    assert [row["question"] for row in read(tmp_path / "out.jsonl")] == ["A"]
    assert stats["rows"].get("bad_lines", 0) == stats["rows"]["source"] - 1 == (given == "")
    for name in ("c.jsonl", "train-c.parquet"):  # the kinds of files that come first
        (tmp_path / "in" / name).touch()
        assert [file.name for file in input_files(str(tmp_path / "in"))] == [name]


# ---------------------------------------------------------------------------------- what goes wrong


def test_a_second_process_in_the_same_folder_is_refused_and_changes_nothing(tmp_path):
    source = write(tmp_path / "in" / "raw.jsonl", [of_turns(2)])
    refused = pytest.raises(ConfigError, match="another process is cleaning into")
    with claimed(tmp_path, "cleaning"), refused:
        run(CleanConfig(source, str(tmp_path / "out.jsonl")))
    assert not (tmp_path / "out.jsonl").exists()


def test_half_a_character_in_the_name_of_a_tool_loses_no_statistics(tmp_path):
    strange = think("a") + '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'
    record = conversation("Where?", strange, observation(), answer_of())
    _, config = start(tmp_path, [record])
    assert json.loads(config.stats_path.read_text())["pruned_tool_name_counts"] == {"?": 1}


def test_nothing_kept_is_no_success_and_leaves_the_files_of_an_earlier_cleaning(tmp_path, capsys):
    out, stats = tmp_path / "out.jsonl", tmp_path / "stats.json"
    source = write(tmp_path / "in.jsonl", [of_turns(2, answer="in Rome")])
    assert ended_with(source, out) == 0
    before = out.read_bytes(), stats.read_bytes()
    assert ended_with(source, out, "--correct", "exact_match") == 2
    terminal = capsys.readouterr()
    assert "nothing was kept" in terminal.err and '"answer_not_correct": 1' in terminal.out
    assert before == (out.read_bytes(), stats.read_bytes())


@pytest.mark.parametrize("renames", [0, 1])
def test_an_interruption_leaves_the_old_files_or_new_data_and_never_statistics_of_other_data(
    tmp_path, monkeypatch, renames
):
    source, out = write(tmp_path / "in.jsonl", [of_turns(2)] * 3), tmp_path / "out.jsonl"
    assert ended_with(source, out, "--seed", "1") == 0
    old, done, rename = out.read_text(), [], Path.replace
    write(tmp_path / "in.jsonl", [of_turns(3)] * 2)

    def interrupted(path, target):
        if len(done) == renames:
            raise KeyboardInterrupt
        done.append(target)
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    assert ended_with(source, out) == 130
    assert done == [out][:renames] and (len(read(out)) == 2 if renames else out.read_text() == old)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == [".lock", "in.jsonl", "out.jsonl"], "no half file"


def test_a_judge_without_its_settings_is_refused_before_any_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "clean", Mock(side_effect=AssertionError("work")))
    source = write(tmp_path / "in.jsonl", [of_turns(1)])
    assert ended_with(source, tmp_path / "out.jsonl", "--correct", "judge") == 2
    assert "JUDGE_" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"in_": ""}, "both --in FILE and --out FILE.jsonl"),
        ({"out": "x.parquet"}, "both --in FILE and --out FILE.jsonl"),
        ({"in_": "{folder}/empty"}, "empty is no file and no"),
        ({"in_": "{folder}/empty/../in.jsonl", "out": "{input}"}, "must differ"),
        ({"in_": "{folder}/stats.json"}, "must differ"),
    ],
)
def test_impossible_options_are_refused_before_any_work(tmp_path, change, words):
    source = write(tmp_path / "in.jsonl", [])
    (tmp_path / "empty").mkdir()
    (tmp_path / "stats.json").touch()
    change = {name: value.format(input=source, folder=tmp_path) for name, value in change.items()}
    with pytest.raises(ConfigError, match=words):
        CleanConfig(**({"in_": source, "out": str(tmp_path / "out.jsonl")} | change))


# --------------------------------------------------------------------------------- options, filters


def test_the_judge_keeps_only_what_is_correct_and_counts_unknown_verdicts_apart(
    tmp_path, monkeypatch
):
    def grade(questions, answers):
        assert {*answers} == {"in Rome"} and all(q.answers == ["Rome"] for q in questions)
        return [{"right": 1.0, "wrong": 0.0, "odd": None}[q.text] for q in questions]

    make_grader = Mock(return_value=Mock(grade=grade))
    monkeypatch.setattr(command, "make_grader", make_grader)
    rows = [of_turns(2, name, "in Rome") for name in ("wrong", "odd", "right", "odd")]
    stats, config = start(tmp_path, rows, correct="judge")
    assert [row["question"] for row in read(config.out)] == ["right"]
    reasons = [("judge_could_not_tell", 2), ("answer_not_correct", 1)]
    assert [*stats["drop_reasons"].items()] == reasons, "the most frequent first"
    assert stats["rows"]["stage2_valid"] == 4 and stats["rows"]["stage3_correct"] == 1
    assert stats["turn_buckets"] == {"<=50": 1}
    make_grader.assert_called_once_with("judge", tmp_path / "out")
    make_grader.return_value.close.assert_called_once_with()


def test_without_a_true_answer_a_record_can_be_trained_on_but_not_be_found_correct(tmp_path):
    rows = [of_turns(1), of_turns(1) | {"gt": UNKNOWN}]
    assert start(tmp_path, rows)[0]["rows"]["final_resampled"] == 2
    stats, config = start(tmp_path, rows, correct="exact_match")
    assert stats["drop_reasons"] == {"no_true_answer": 1} and len(read(config.out)) == 1


def test_the_system_prompt_comes_from_a_file_or_from_the_row(tmp_path):
    (tmp_path / "prompt.txt").write_text("Mine: {x}\n")
    for mode, expected in (("template", "Mine: {x}\n"), ("row", "Be good.")):
        options = {"system_prompt": str(tmp_path / "prompt.txt"), "prompt_mode": mode}
        _, config = start(tmp_path, [of_turns(1)], **options)
        assert contents(read(config.out)[0])[0] == expected


def test_a_folder_of_parquet_files_gives_the_same_records(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [of_turns(1, f"Q{i}") for i in range(70)]  # more than one batch of the reader
    (tmp_path / "in").mkdir()
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "in" / "train-0.parquet")
    run(CleanConfig(str(tmp_path / "in"), str(tmp_path / "out.jsonl")))
    written = {row["question"] for row in read(tmp_path / "out.jsonl")}
    assert written == {row["question"] for row in rows}
