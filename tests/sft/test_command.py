"""The command: streaming, counts that add up, bad lines, whole files or none, the correctness filter, Parquet."""

import json
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.files import claimed
from minvenus.sft import __main__ as command
from minvenus.sft.__main__ import CleanConfig, run
from minvenus.sft.clean import clean, copies
from minvenus.sft.dataset import load, read_records
from minvenus.text.tokenizer import Tokenizer
from tests.scripts import exit_code
from tests.sft.conversations import (
    answer_of,
    contents,
    conversation,
    observation,
    of_turns,
    records,
    search_turn,
)

ROOT = Path(__file__).resolve().parents[2]


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows),
        encoding="utf-8",
    )
    return str(path)


def ended_with(argv):
    return exit_code(command.main, CleanConfig, argv)


def read(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def start(tmp_path, rows, **options):
    config = CleanConfig(
        write(tmp_path / "in.jsonl", rows), str(tmp_path / "out" / "train.jsonl"), **options
    )
    return run(config), config


# ------------------------------------------------------------------------------------------------------------ the whole


def test_the_command_worked_by_hand(tmp_path, capsys):
    rows = [of_turns(50, "short"), "garbage", "", of_turns(100, "medium"), of_turns(101, "long")]
    rows += ["[1]", {"no": "chat"}, '{"a": ']
    source, out = write(tmp_path / "in.jsonl", rows), tmp_path / "out" / "train.jsonl"
    assert ended_with(["--in", source, "--out", str(out)]) == 0
    said = capsys.readouterr()
    stats = json.loads((tmp_path / "out" / "stats.json").read_text())
    assert (
        json.loads(said.out) == stats
        and stats["settings"]["in_"] == source
        and stats["files"] == [source]
    )
    assert stats["rows"] == {
        "source": 7,
        "bad_lines": 3,
        "stage2_valid": 3,
        "stage3_correct": 3,
        "final_resampled": 8,
    }
    assert stats["drop_reasons"] == {"missing_question_or_gt": 1}
    assert stats["turn_buckets"] == {
        "original": {"<=50": 1, "51-100": 1, ">100": 1},
        "resampled": {"<=50": 1, "51-100": 2, ">100": 5},
    }
    assert (
        stats["turns_in"] == stats["turns_kept"] == 251
        and stats["duplicate_tool_turns_removed"] == 0
    )
    assert stats["tools_after_cleaning"] == {"search": 248}
    assert Counter(row["question"] for row in read(out)) == {"short": 1, "medium": 2, "long": 5}
    assert sorted(p.name for p in out.parent.iterdir()) == [".lock", "stats.json", "train.jsonl"]
    assert [line.split(":")[0] for line in said.err.splitlines()] == [
        f"{source}, line {n}" for n in (2, 6, 8)
    ]
    assert len(load(read_records(out), Tokenizer.tiny(), max_tokens=100_000)[0]) == 8, (
        "training reads what is written"
    )


@settings(max_examples=max(5, settings.default.max_examples // 4))
@given(
    st.lists(records() | st.sampled_from(["{", "[]", "3", ""]), max_size=8),
    st.booleans(),
    st.integers(0, 99),
)
def test_the_file_holds_what_clean_gives_and_the_counts_add_up(
    tmp_path_factory, rows, resample, seed
):
    stats, config = start(tmp_path_factory.mktemp("run"), rows, resample=resample, seed=seed)
    kept = [out for row in rows if isinstance(row, dict) and (out := clean(row)[0])]
    expected = [
        out for out in kept for _ in range(copies(len(out["messages"]) // 2) if resample else 1)
    ]
    assert Path(config.out).exists() == bool(kept), "nothing kept, nothing written"
    written = read(config.out) if kept else []
    assert sorted(map(json.dumps, written)) == sorted(map(json.dumps, expected))
    count = stats["rows"]
    assert count["source"] == sum(row != "" for row in rows)
    assert (
        count["source"]
        == count["bad_lines"] + sum(stats["drop_reasons"].values()) + count["stage3_correct"]
    )
    assert count["stage3_correct"] == count["stage2_valid"] == len(kept)
    assert (
        count["final_resampled"] == len(written) == sum(stats["turn_buckets"]["resampled"].values())
    )
    assert stats["turns_in"] == stats["turns_kept"] + stats["turns_dropped"] + sum(
        stats[f"{why}_turns_removed"]
        for why in ("unreadable_tool", "pruned_tool", "duplicate_tool")
    )
    assert sum(stats["tools_after_cleaning"].values()) + len(kept) == stats["turns_kept"]


def test_the_order_is_a_function_of_the_seed(tmp_path):
    rows = [of_turns(turns, f"Q{i}") for i, turns in enumerate((1, 51, 1, 101))]
    orders = [
        [row["question"] for row in read(start(tmp_path, rows, seed=seed)[1].out)]
        for seed in (42, 1)
    ]
    assert orders[0] == [f"Q{i}" for i in (2, 3, 3, 3, 3, 1, 3, 0, 1)] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_a_folder_of_files_is_read_in_the_order_of_their_names_and_not_of_the_disk(
    tmp_path, monkeypatch
):
    names, out = (
        ["a.jsonl", "b.jsonl", "c.jsonl"],
        tmp_path / "in" / "out.jsonl",
    )  # the output is no input
    for name in names:
        write(tmp_path / "in" / name, [of_turns(2, name), "garbage"])
    monkeypatch.setattr(
        Path,
        "glob",
        lambda folder, pattern: [
            path for path in sorted(folder.iterdir(), reverse=True) if path.match(pattern)
        ],
    )
    stats = run(CleanConfig(str(tmp_path / "in"), str(out)))
    assert [Path(name).name for name in stats["files"]] == names and stats["rows"]["bad_lines"] == 3
    assert sorted(row["question"] for row in read(out)) == names


# ------------------------------------------------------------------------------------------------------ what goes wrong


def test_a_second_process_in_the_same_folder_is_refused_and_changes_nothing(tmp_path):
    source = write(tmp_path / "in" / "raw.jsonl", [of_turns(2)])
    with (
        claimed(tmp_path, "cleaning"),
        pytest.raises(ConfigError, match="another process is cleaning into"),
    ):
        run(CleanConfig(source, str(tmp_path / "out.jsonl")))
    assert not (tmp_path / "out.jsonl").exists()


def test_half_a_character_in_the_name_of_a_tool_loses_no_statistics(tmp_path):
    strange = of_turns(3)
    strange["messages"][2]["content"] = (
        '<think>a</think><tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'
    )
    stats = run(CleanConfig(write(tmp_path / "in.jsonl", [strange]), str(tmp_path / "out.jsonl")))
    saved = json.loads((tmp_path / "stats.json").read_text(encoding="utf-8"))
    assert stats["pruned_tool_name_counts"] == {"\ud800": 1} and saved[
        "pruned_tool_name_counts"
    ] == {"?": 1}


def test_nothing_kept_is_said_is_no_success_and_leaves_the_files_of_an_earlier_cleaning(
    tmp_path, capsys
):
    out, stats = tmp_path / "out.jsonl", tmp_path / "stats.json"
    assert (
        ended_with(["--in", write(tmp_path / "good.jsonl", [of_turns(2)]), "--out", str(out)]) == 0
    )
    before = out.read_bytes(), stats.read_bytes()
    source = write(tmp_path / "in.jsonl", [of_turns(2, answer="in Rome")])
    assert ended_with(["--in", source, "--out", str(out), "--correct", "exact_match"]) == 2
    said = capsys.readouterr()
    assert "nothing was kept" in said.err and '"answer_not_correct": 1' in said.out
    assert before[0] and before == (out.read_bytes(), stats.read_bytes())


@pytest.mark.parametrize("renames", [0, 1])
def test_an_interruption_leaves_the_old_files_or_new_data_and_never_statistics_of_other_data(
    tmp_path, monkeypatch, renames
):
    source, out = write(tmp_path / "in.jsonl", [of_turns(2)] * 3), tmp_path / "out.jsonl"
    assert ended_with(["--in", source, "--out", str(out), "--seed", "1"]) == 0
    old, done, rename = out.read_text(), [], Path.replace
    write(tmp_path / "in.jsonl", [of_turns(3)] * 2)

    def interrupted(path, target):
        if len(done) == renames:
            raise KeyboardInterrupt
        done.append(target)
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    assert ended_with(["--in", source, "--out", str(out)]) == 130
    assert done == [out][:renames] and (len(read(out)) == 2 if renames else out.read_text() == old)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "in.jsonl", "out.jsonl"], (
        "no half file"
    )


def test_a_judge_without_its_settings_is_refused_before_any_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "fill", Mock(side_effect=AssertionError("work")))
    source = write(tmp_path / "in.jsonl", [of_turns(1)])
    assert (
        ended_with(["--in", source, "--out", str(tmp_path / "out.jsonl"), "--correct", "judge"])
        == 2
    )
    assert "JUDGE_" in capsys.readouterr().err and [path.name for path in tmp_path.iterdir()] == [
        "in.jsonl"
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"in_": ""}, "both --in FILE and --out FILE.jsonl"),
        ({"out": "x.parquet"}, "both --in FILE and --out FILE.jsonl"),
        ({"in_": "nowhere.jsonl"}, "nowhere.jsonl is no file"),
        ({"in_": "{folder}/empty"}, "empty is no file and no"),
        ({"in_": "{folder}/empty/../in.jsonl", "out": "{input}"}, "must differ"),
        ({"in_": "{folder}/stats.json"}, "must differ"),
        ({"correct": "maybe"}, "exact_match"),
    ],
)
def test_impossible_options_are_refused_before_any_work(tmp_path, change, words):
    source = write(tmp_path / "in.jsonl", [])
    (tmp_path / "empty").mkdir()
    (tmp_path / "stats.json").touch()
    change = {name: value.format(input=source, folder=tmp_path) for name, value in change.items()}
    with pytest.raises(ConfigError, match=words):
        CleanConfig(**({"in_": source, "out": str(tmp_path / "out.jsonl")} | change))


# ----------------------------------------------------------------------------------------------------- options, filters


def test_the_judge_keeps_only_what_is_correct_and_counts_unknown_verdicts_apart(
    tmp_path, monkeypatch
):
    def grade(questions, answers):
        assert {*answers} == {"in Rome"} and all(q.answers == ["Rome"] for q in questions)
        return [{"right": 1.0, "wrong": 0.0, "odd": None}[q.text] for q in questions]

    judge = Mock(return_value=Mock(grade=grade))
    monkeypatch.setattr(command, "make_grader", judge)
    rows = [of_turns(2, name, "in Rome") for name in ("wrong", "odd", "right", "odd")]
    stats, config = start(tmp_path, rows, correct="judge")
    assert [row["question"] for row in read(config.out)] == ["right"]
    assert stats["drop_reasons"] == {"answer_not_correct": 1, "judge_could_not_tell": 2}
    assert stats["rows"]["stage2_valid"] == 4 and stats["rows"]["stage3_correct"] == 1
    judge.assert_called_once_with("judge", tmp_path / "out")
    judge.return_value.close.assert_called_once_with()


def test_the_system_prompt_comes_from_a_file_and_one_without_a_text_is_refused(tmp_path):
    (tmp_path / "prompt.txt").write_text("Mine: {x}\n")
    _, config = start(tmp_path, [of_turns(1)], system_prompt=str(tmp_path / "prompt.txt"))
    assert contents(read(config.out)[0])[0] == "Mine: {x}\n"
    for bad in (" \n", "{}", '{"messages": [{"content": 3}]}'):
        (tmp_path / "prompt.txt").write_text(bad)
        with pytest.raises(ConfigError, match="the system prompt"):
            start(tmp_path, [of_turns(1)], system_prompt=str(tmp_path / "prompt.txt"))


def test_memory_does_not_grow_with_the_file(tmp_path):
    page = observation("All of it is known. " * 1650)
    body = [text for i in range(3) for text in (search_turn(f"q {i}"), page)]
    line = json.dumps(conversation("Where?", *body, answer_of())).encode() + b"\n"  # about 100 kB
    peaks = {}
    for size in (5, 200):
        source = tmp_path / f"{size}.jsonl"
        source.write_bytes(line * size)
        tracemalloc.start()
        assert (
            run(CleanConfig(str(source), str(tmp_path / "out.jsonl")))["rows"]["final_resampled"]
            == size
        )
        peaks[size] = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
    assert source.stat().st_size > 19e6
    assert peaks[200] < peaks[5] + 0.5, f"MB at the peak, by lines of 0.1 MB: {peaks}"


def test_cleaning_needs_no_torch():
    code = "import sys, minvenus.sft.__main__; assert 'torch' not in sys.modules and 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_folder_of_parquet_files_gives_the_same_records(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [of_turns(2, f"Q{i}") for i in range(70)]  # more than one batch of the reader
    (tmp_path / "in").mkdir()
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "in" / "train-0.parquet")
    run(CleanConfig(str(tmp_path / "in"), str(tmp_path / "out.jsonl")))
    written = sorted(read(tmp_path / "out.jsonl"), key=lambda row: int(row["question"][1:]))
    assert written == [clean(row)[0] for row in rows]
