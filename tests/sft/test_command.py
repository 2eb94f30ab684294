"""The command: streaming, counts that add up, bad lines, whole files or none, the correctness filter, Parquet."""

import json
import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minvenus.agent.prompt import SYSTEM_PROMPT, read_prompt
from minvenus.config import ConfigError
from minvenus.evaluation.judge import JudgeUnreliable, Verdict
from minvenus.sft import __main__ as command
from minvenus.sft.__main__ import CleanConfig, main, run
from minvenus.sft.clean import clean, copies
from minvenus.sft.dataset import load, read_records
from minvenus.text.tokenizer import Tokenizer
from tests.sft.conversations import answer_of, contents, conversation, observation, records, search_turn

ROOT = Path(__file__).resolve().parents[2]


def of_turns(turns, name="Q", answer="Rome"):
    body = [text for i in range(turns - 1) for text in (search_turn(f"{name} {i}"), observation())]
    return conversation(name, *body, answer_of(answer))


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows),
                    encoding="utf-8")
    return str(path)


def read(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def start(tmp_path, rows, **options):
    config = CleanConfig(write(tmp_path / "in.jsonl", rows), str(tmp_path / "out" / "train.jsonl"), **options)
    return run(config), config


# ------------------------------------------------------------------------------------------------------------ the whole


def test_the_command_worked_by_hand(tmp_path, capsys):
    rows = [of_turns(50, "short"), "garbage", "", of_turns(100, "medium"), of_turns(101, "long")]
    rows += ["[1]", {"no": "chat"}, '{"a": ']
    source, out = write(tmp_path / "in.jsonl", rows), tmp_path / "out" / "train.jsonl"
    assert main(["--in", source, "--out", str(out)]) == 0
    stats = json.loads((tmp_path / "out" / "stats.json").read_text())
    assert stats["rows"] == {"source": 7, "bad_lines": 3, "stage1_normalized": 3, "stage2_valid": 3,
                             "stage3_correct": 3, "final_resampled": 8}
    assert stats["drop_reasons"] == {"missing_question_or_gt": 1}
    assert stats["turn_buckets"] == {"original": {"<=50": 1, "51-100": 1, ">100": 1},
                                     "resampled": {"<=50": 1, "51-100": 2, ">100": 5}}
    assert stats["long_share"] == {"original": 1 / 3, "resampled": 5 / 8}
    assert stats["multiplier_distribution"] == {"1": 1, "2": 1, "5": 1}
    assert Counter(row["question"] for row in read(out)) == {"short": 1, "medium": 2, "long": 5}
    assert sorted(p.name for p in out.parent.iterdir()) == ["stats.json", "train.jsonl"]
    said = capsys.readouterr()
    assert [line.split(":")[0] for line in said.err.splitlines()] == [f"{source}, line {n}" for n in (2, 6, 8)]
    assert re.search(r"^written, by turns: 51-100 +2$", said.out, re.M) and str(out) in said.out


def test_every_field_of_the_protocol_is_in_the_stats_but_the_tables_per_file(tmp_path):
    stats, config = start(tmp_path, [of_turns(3)])
    wanted = ("input files output_dir system_prompt_mode allowed_tools turn_formula resample_policy rows "
              "pruned_tool_turns_removed pruned_tool_response_turns_removed pruned_tool_name_counts "
              "duplicate_tool_turns_removed drop_reasons tools_after_cleaning turn_buckets multiplier_distribution "
              "artifacts")
    assert set(wanted.split()) <= set(stats) and stats == json.loads(config.stats_path.read_text())


@settings(max_examples=max(5, settings.default.max_examples // 4))
@given(st.lists(records() | st.sampled_from(["{", "[]", "3", ""]), max_size=8), st.booleans(), st.booleans(),
       st.integers(0, 99))
def test_the_file_holds_what_clean_gives_and_the_counts_add_up(tmp_path_factory, rows, resample, shuffle, seed):
    stats, config = start(tmp_path_factory.mktemp("run"), rows, resample=resample, shuffle=shuffle, seed=seed)
    kept = [out for row in rows if isinstance(row, dict) and (out := clean(row)[0])]
    expected = [out for out in kept for _ in range(copies(len(out["messages"]) // 2) if resample else 1)]
    written = read(config.out)
    assert shuffle or written == expected
    assert sorted(map(json.dumps, written)) == sorted(map(json.dumps, expected))
    count = stats["rows"]
    assert count["source"] == sum(row != "" for row in rows)
    assert count["source"] == count["bad_lines"] + sum(stats["drop_reasons"].values()) + count["stage3_correct"]
    assert count["stage3_correct"] == count["stage2_valid"] == len(kept)
    assert count["final_resampled"] == len(written) == sum(stats["turn_buckets"]["resampled"].values())
    assert sum(int(k) * n for k, n in stats["multiplier_distribution"].items()) == len(written)
    turns = stats["turns"]
    assert turns["turns_in"] == turns["turns_kept"] + turns["turns_dropped"] + sum(
        stats[f"{why}_turns_removed"] for why in ("unreadable_tool", "pruned_tool", "duplicate_tool"))
    assert sum(stats["tools_after_cleaning"].values()) + len(kept) == turns["turns_kept"]


def test_the_same_seed_gives_the_same_bytes_and_another_one_another_order(tmp_path):
    rows = [of_turns(2, f"Q{i}") for i in range(30)]
    texts = []
    for seed in (1, 1, 2):
        _, config = start(tmp_path, rows, seed=seed)
        texts.append(Path(config.out).read_bytes())
    assert texts[0] == texts[1] != texts[2]
    assert sorted(texts[0].splitlines()) == sorted(texts[2].splitlines())


def test_the_order_of_a_seed_is_fixed(tmp_path):
    rows = [of_turns(turns, f"Q{i}") for i, turns in enumerate((1, 51, 1, 101))]
    _, config = start(tmp_path, rows)
    assert [row["question"] for row in read(config.out)] == [f"Q{i}" for i in (2, 3, 3, 3, 3, 1, 3, 0, 1)]


def test_a_folder_of_files_is_read_in_the_order_of_their_names_and_not_of_the_disk(tmp_path, monkeypatch):
    names = ["b.jsonl", "c.jsonl", "a.jsonl"]
    for name in names:
        write(tmp_path / "in" / name, [of_turns(2, name), "garbage"])
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [folder / n for n in names if Path(n).match(pattern)])
    stats = run(CleanConfig(str(tmp_path / "in"), str(tmp_path / "out.jsonl"), shuffle=False))
    assert [row["question"] for row in read(tmp_path / "out.jsonl")] == sorted(names)
    assert [Path(name).name for name in stats["files"]] == sorted(names) and stats["rows"]["bad_lines"] == 3


def test_training_reads_what_the_command_writes(tmp_path):
    _, config = start(tmp_path, [of_turns(2, f"Q{i}") for i in range(3)])
    examples, loaded = load(read_records(config.out), Tokenizer.tiny(), max_tokens=100_000)
    assert len(examples) == loaded.kept == 3
    with pytest.raises(ConfigError, match=r"the ending of --out must be one of .jsonl"):
        CleanConfig(config.in_, str(tmp_path / "out.parquet"))


# ------------------------------------------------------------------------------------------------------ what goes wrong


def test_nothing_kept_is_said_and_is_no_success(tmp_path, capsys):
    source = write(tmp_path / "in.jsonl", [{"question": "Q", "gt": "x", "messages": []}])
    assert main(["--in", source, "--out", str(tmp_path / "out.jsonl")]) == 1
    said = capsys.readouterr()
    assert "nothing was kept" in said.err and "too_short" in said.out


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("renames", [0, 1])
def test_an_interruption_leaves_the_old_files_or_new_data_and_never_statistics_of_other_data(
        tmp_path, monkeypatch, capsys, error, renames):
    source, out = write(tmp_path / "in.jsonl", [of_turns(2)] * 3), tmp_path / "out.jsonl"
    assert main(["--in", source, "--out", str(out), "--seed", "1"]) == 0
    old, done, rename = (out.read_text(), (tmp_path / "stats.json").read_text()), [], Path.replace
    write(tmp_path / "in.jsonl", [of_turns(3)] * 2)

    def fails(path, target):
        if len(done) == renames:
            raise error
        done.append(target)
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", fails)
    assert main(["--in", source, "--out", str(out)]) == (130 if error is KeyboardInterrupt else 1)
    assert "stats.json was written" in capsys.readouterr().err
    if renames == 0:
        assert out.read_text() == old[0] and not done
    else:
        assert done == [out] and len(read(out)) == 2
    assert not (tmp_path / "stats.json").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"], "no half file is left"


def test_an_interruption_while_cleaning_leaves_the_old_files_untouched(tmp_path, monkeypatch):
    source, out = write(tmp_path / "in.jsonl", [of_turns(2)] * 3), tmp_path / "out.jsonl"
    assert main(["--in", source, "--out", str(out)]) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "report", interrupted)
    assert main(["--in", source, "--out", str(out)]) == 130
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(("change", "words"), [
    ({"in_": ""}, "both --in FILE and --out FILE"), ({"in_": "nowhere.jsonl"}, "nowhere.jsonl does not exist"),
    ({"out": "x.txt"}, ".jsonl"), ({"out": "{folder}/stats.json"}, ".jsonl"), ({"in_": "{folder}/empty"}, "holds no"),
    ({"out": "{input}"}, "must differ"), ({"in_": "{folder}/empty/../in.jsonl", "out": "{input}"}, "must differ"),
    ({"correct": "maybe"}, "exact_match"), ({"prompt_mode": "x"}, "template, row"),
])
def test_impossible_options_are_refused_before_any_work(tmp_path, change, words):
    source = write(tmp_path / "in.jsonl", [])
    (tmp_path / "empty").mkdir()
    change = {name: value.format(input=source, folder=tmp_path) for name, value in change.items()}
    with pytest.raises(ConfigError, match=words):
        CleanConfig(**({"in_": source, "out": str(tmp_path / "out.jsonl")} | change))


# ----------------------------------------------------------------------------------------------------- options, filters


def test_the_correctness_filter_by_exact_match(tmp_path):
    rows = [of_turns(2, answer, answer) for answer in ("Rome", "the city of Rome", "rome!")]
    stats, config = start(tmp_path, rows, shuffle=False, correct="exact_match")
    assert [row["question"] for row in read(config.out)] == ["Rome", "rome!"]
    assert stats["drop_reasons"] == {"answer_not_correct": 1} and stats["rows"]["stage2_valid"] == 3
    assert stats["turn_buckets"]["original"]["<=50"] == stats["turn_buckets"]["resampled"]["<=50"] == 2


class FakeJudge:
    threads = 2

    def __init__(self, cache):
        assert cache.name == "judge.sqlite"

    def verdict(self, question, answer):
        assert question.answers == ["Rome"] and answer == "in Rome"
        return Verdict({"right": "yes", "wrong": "no", "odd": "unknown"}[question.text], "judge")

    def close(self):
        pass


def test_the_judge_keeps_only_what_it_found_correct_and_unknown_verdicts_are_counted_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "Judge", FakeJudge)
    rows = [of_turns(2, name, "in Rome") for name in ("wrong", "odd", "right", "odd")]
    stats, config = start(tmp_path, rows, shuffle=False, correct="judge")
    assert [row["question"] for row in read(config.out)] == ["right"]
    assert stats["drop_reasons"] == {"answer_not_correct": 1, "judge_could_not_tell": 2} and stats["correct"] == "judge"
    assert stats["rows"]["stage2_valid"] == 4 and stats["rows"]["stage3_correct"] == 1


def test_a_judge_that_cannot_be_relied_on_ends_the_command(tmp_path, monkeypatch, capsys):
    def unreliable(self, question, answer):
        raise JudgeUnreliable("6 of the last 50 verdicts are unknown")

    monkeypatch.setattr(command, "Judge", FakeJudge)
    monkeypatch.setattr(FakeJudge, "verdict", unreliable)
    source = write(tmp_path / "in.jsonl", [of_turns(2)])
    assert main(["--in", source, "--out", str(tmp_path / "out.jsonl"), "--correct", "judge"]) == 1
    assert "6 of the last 50" in capsys.readouterr().err and not (tmp_path / "out.jsonl").exists()


def test_a_judge_without_settings_is_refused_before_any_work(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("JUDGE_BASE_URL", raising=False)
    monkeypatch.setattr(command, "fill", lambda *_: pytest.fail("it has begun to clean"))
    source = write(tmp_path / "in.jsonl", [of_turns(2)])
    assert main(["--in", source, "--out", str(tmp_path / "out.jsonl"), "--correct", "judge"]) == 1
    assert "JUDGE_BASE_URL" in capsys.readouterr().err


def test_the_system_prompt_comes_from_a_text_or_a_trajectory(tmp_path):
    text, trajectory = tmp_path / "prompt.txt", write(tmp_path / "t.json", [of_turns(1)])
    text.write_text("Mine: {x}\n")
    assert read_prompt(text) == "Mine: {x}\n" and read_prompt(trajectory) == "Be good."
    for bad in ("", " \n", "{}", '{"messages": [{"content": 3}]}'):
        text.write_text(bad)
        with pytest.raises(ConfigError):
            read_prompt(text)
    _, config = start(tmp_path, [of_turns(1)], system_prompt=trajectory)
    assert contents(read(config.out)[0])[0] == "Be good."


def test_our_own_prompt_lists_both_tools_as_json_and_ends_with_the_date():
    tools = [json.loads(line)["function"]
             for line in SYSTEM_PROMPT.split("<tools>\n")[1].split("\n</tools>")[0].splitlines()]
    required = {tool["name"]: tool["parameters"]["required"] for tool in tools}
    assert required == {"search": ["query"], "visit": ["url", "goal"]}
    assert SYSTEM_PROMPT.endswith("</tool_call>\n\nCurrent date: 2026-03-01\n")


# --------------------------------------------------------------------------------------------------- memory and Parquet


def test_memory_does_not_grow_with_the_file(tmp_path):
    page = observation("All of it is known. " * 1650)
    body = [text for i in range(3) for text in (search_turn(f"q {i}"), page)]
    line = json.dumps(conversation("Where?", *body, answer_of())).encode() + b"\n"           # about 100 kB
    peaks = {}
    for size in (5, 200):
        source = tmp_path / f"{size}.jsonl"
        source.write_bytes(line * size)
        tracemalloc.start()
        assert run(CleanConfig(str(source), str(tmp_path / "out.jsonl")))["rows"]["final_resampled"] == size
        peaks[size] = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
    assert source.stat().st_size > 19e6
    assert peaks[200] < peaks[5] + 0.5, f"MB at the peak, by lines of 0.1 MB: {peaks}"


def test_cleaning_needs_no_torch():
    code = "import sys, minvenus.sft.__main__; assert 'torch' not in sys.modules and 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_parquet_path_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "in.parquet").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"minvenus\[parquet\]"):
        CleanConfig(str(tmp_path / "in.parquet"), str(tmp_path / "out.jsonl"))


def test_a_folder_of_parquet_files_gives_the_same_records(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [of_turns(2, f"Q{i}") for i in range(70)]                     # more than one batch of the reader
    (tmp_path / "in").mkdir()
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "in" / "train-0.parquet")
    run(CleanConfig(str(tmp_path / "in"), str(tmp_path / "out.jsonl"), shuffle=False))
    assert read(tmp_path / "out.jsonl") == [clean(row)[0] for row in rows]
