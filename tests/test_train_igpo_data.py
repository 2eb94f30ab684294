"""train_igpo.py on a file of questions with tools other than the toy web: here three questions about a folder of
three notes.

The model is random and its rollouts follow a script, as in tests/test_train_igpo.py; documents and tools are real ones.
"""

import json
import os
import signal
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest

import minvenus.engine
import train_igpo
from minvenus.config import ConfigError, Recipe
from minvenus.evaluation import questions as question_files
from minvenus.files import latest_checkpoint, read_jsonl
from minvenus.flags import parse_flags
from minvenus.report.saved import load_batch, path_of
from minvenus.settings import IGPO_PRESETS, IGPOConfig
from minvenus.tools import base
from minvenus.tools.base import FailureGuard, ToolResult
from minvenus.tools.web import make_tools
from minvenus.train import update as updating
from tests.agent.scripted import Tools, answer, engine_for, search, visit
from tests.evaluation.local_judge import QUICK, planted, yes_to  # noqa: F401
from tests.train.igpo_runs import command, small_igpo, write_model
from tests.train.runs import TINY, content, one_thread

PETS = {"Ann": "cat", "Bob": "dog", "Cleo": "hen"}


@pytest.fixture(scope="module", autouse=True)
def single_thread():
    with one_thread():
        yield


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Ann's question is held out; those of Bob and Cleo are asked in every step."""
    folder = tmp_path_factory.mktemp("notes")
    (folder / "docs").mkdir()
    for name, pet in PETS.items():
        (folder / "docs" / f"{name}.txt").write_text(f"{name}\n\nThe pet of {name} is a {pet}.\n")
    lines = [{"id": name, "question": f"Pet of {name}?", "answer": [pet, f"a {pet}"]} for name, pet in PETS.items()]
    (folder / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "system.txt").write_text("Search and visit.")
    return small_igpo(write_model(folder / "model"), data=str(folder / "questions.jsonl"),
                      tools=f"folder:{folder / 'docs'}", hops=4, steps=2,
                      system_prompt=str(folder / "system.txt"), evaluate_questions=1, evaluate_every=1,
                      max_turns=5, max_turn_tokens=96, max_context=1024, rollouts_every=1)


def play(name, turn, attempt):
    """Of a question the first rollout looks it up and is right, the second guesses "fox"; a held-out one is looked
    up, too."""
    _, question, rollout = name.split("/")
    person = question.split()[-1]
    return [search(person), visit(f"{person}.txt"), answer(PETS[person])][turn] if rollout == "0" else answer("fox")


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    def engine(model, pages, page_size, *_, **__):
        return engine_for(play, pages=pages, page_size=page_size, model=model)

    for module in (minvenus.engine, train_igpo):
        monkeypatch.setattr(module, "Engine", engine)


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """A run that was never stopped: its folder."""
    run = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_igpo, "Engine", lambda model, pages, size, *_, **__: engine_for(play, pages, size, model))
        train_igpo.main(replace(config, out=str(run)))
    return run


# -------------------------------------------------------------------------------------------------------------- a run


def test_a_run_on_a_file_reads_its_folder_and_has_no_number_that_only_the_toy_web_knows(whole, config):
    rows = read_jsonl(whole / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["outcome"] == 0.5 and row["turns"] == 2 and row["updates"] == 1 and "gain_mean" in row
        assert row["test_exact_match"] == 1.0 and row["test_turns"] == 3
        assert not {"right_pages", "gain_right", "gain_wrong", "test_right_pages"} & row.keys()
    assert rows[0]["before_test_exact_match"] == 1.0 and "before_test_right_pages" not in rows[0]
    batch = load_batch(path_of(whole, 2))
    assert {rollout.question.id for rollout in batch.rollouts} == {"Bob", "Cleo"}, "Ann is held out"
    assert batch.recipe.lead_in == Recipe().lead_in and batch.rollouts[0].system == "Search and visit."
    looked_up = batch.rollouts[0]
    assert f"is a {PETS[looked_up.question.id]}" in looked_up.turns[1].observation


def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(whole, config, tmp_path, monkeypatch):
    config, update = replace(config, out=str(tmp_path)), updating.igpo_update

    def signalled(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return update(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(train_igpo, "igpo_update", signalled)
        train_igpo.main(config)
    assert (tmp_path / "latest").read_text() == "step-00000001\n"
    train_igpo.main(config)
    assert content(tmp_path) == content(whole)


def test_a_run_does_not_go_on_with_other_questions_or_another_prompt(config, tmp_path):
    data, system = tmp_path / "mine.jsonl", tmp_path / "system.txt"
    lines = [json.dumps({"question": f"Pet of {name}?", "answer": "cat", "id": name}) for name in PETS]
    data.write_text("\n".join(lines))
    system.write_text("Search.")
    config = replace(config, out=str(tmp_path / "run"), data=str(data), system_prompt=str(system), steps=1,
                     evaluate_questions=0)
    train_igpo.main(config)
    assert "test_exact_match" not in read_jsonl(tmp_path / "run" / "metrics.jsonl")[0], "no question is held out"
    train_igpo.main(config)
    system.write_text("Visit.")
    with pytest.raises(ConfigError, match="was made with other data or another prompt"):
        train_igpo.main(config)
    system.write_text("Search.")
    data.write_text("\n".join(lines[:2]))
    with pytest.raises(ConfigError, match="was made with other data or another prompt"):
        train_igpo.main(config)


# ---------------------------------------------------------------------------------------------------- tools that fail


class Breaking:
    """In the place of make_tools: the folder's tools, which fail after `left` calls; -1 = they are well."""

    def __init__(self, spec):
        self.real, self.left = make_tools(spec), -1

    def __call__(self, spec, seed=0):
        return Tools(lambda queries: self.answer(lambda: self.real.search(queries)),
                     lambda urls, goal: self.answer(lambda: self.real.visit(urls, goal)))

    def answer(self, call):
        self.left -= self.left > 0
        return ToolResult("ERROR: down", "http") if self.left == 0 else call()


@pytest.mark.parametrize(("calls", "saved", "rows"), [(1, None, 0), (3, None, 0), (7, 1, 1), (9, 1, 1)],
                         ids=["before step 1", "in step 1", "in the evaluation after it", "in step 2"])
def test_tools_that_fail_too_often_stop_the_run_with_the_reason_and_a_checkpoint(calls, saved, rows, whole, config,
                                                                                 tmp_path, monkeypatch, capsys):
    """Two calls of every evaluation and four of every step. Once the tools are well again the run ends as if nothing
    was, but for an evaluation that was not made."""
    config, tools = replace(config, out=str(tmp_path), save_every=100), Breaking(config.tools)
    monkeypatch.setattr(question_files, "make_tools", tools)
    monkeypatch.setattr(base, "FailureGuard", partial(FailureGuard, window=1, limit=0.5))
    tools.left = calls
    assert command(config) == 2
    err = capsys.readouterr().err
    assert "1 of the last 1 tool calls failed" in err and "check the network" in err and "Traceback" not in err
    newest, log = latest_checkpoint(tmp_path), tmp_path / "metrics.jsonl"
    assert (newest and newest.name) == (saved and f"step-{saved:08d}") and len(read_jsonl(log)) == rows
    tools.left = -1
    assert command(config) == 0
    ours, theirs = content(tmp_path), content(whole)
    if calls == 7:
        assert "test_exact_match" not in read_jsonl(log)[0]
        del ours["metrics.jsonl"], theirs["metrics.jsonl"]
    assert ours == theirs


def test_only_live_tools_run_in_threads(config, monkeypatch, tmp_path):
    """What folders and recordings say comes at once and in order, so that such runs are reproducible."""
    for name in ("SERPER_BASE_URL", "EXTRACT_BASE_URL", "EXTRACT_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SERPER_API_KEY", "planted")
    limits = []
    for tools in (config.tools, f"record:{tmp_path / 'cassette'}", "live"):
        settings = replace(config, tools=tools, tool_threads=3, tool_seconds=7.0, max_observation_tokens=99)
        with closing(train_igpo.questions_of(settings)) as source:
            loop = train_igpo.loop_of(settings, source, engine_for(play), TINY)
            limits.append(loop().limits)
    assert [own.tool_threads for own in limits] == [None, 3, 3]
    assert {(own.tool_seconds, own.max_observation_tokens) for own in limits} == {(7.0, 99)}


# ----------------------------------------------------------------------------------------------------------- settings


def test_a_text_that_is_held_out_is_trained_on_nowhere(config, tmp_path):
    data = tmp_path / "twice.jsonl"
    data.write_text("".join(json.dumps({"question": f"Pet of {name}?", "answer": "cat"}) + "\n" for name in "ABACA"))
    source = train_igpo.questions_of(replace(config, data=str(data)))
    assert [question.text for question in source.held_out] == ["Pet of A?"]
    assert [question.text for question in source.training] == ["Pet of B?", "Pet of C?"]


def test_a_question_that_comes_twice_in_a_step_is_sampled_under_two_names(config):
    """Where an epoch of the two training questions ends within a step of three."""
    asked = []

    class Loop:
        def add(self, question, tools_for, n, *, name, step, max_turns):
            asked.append((step, name))
            return []

        def run(self):
            pass

    with closing(train_igpo.questions_of(config)) as source:
        train_igpo.collect(Loop(), source, 3, replace(config, questions=3))
    assert sorted(name for _, name in asked if "again" not in name) == ["Bob", "Cleo"] and len({*asked}) == 3
    assert {step for step, _ in asked} == {2}, "random streams count steps from 0"


def test_the_preset_of_the_4b_model_with_a_file_live_tools_and_a_judge_is_a_valid_run(config):
    flags = ["--preset", "dr-venus-4b", "--model", config.model, "--data", config.data, "--tools", "live", "--judge"]
    large = parse_flags(IGPOConfig, flags, presets=IGPO_PRESETS)
    assert (large.data, large.tools, large.judge, large.group, large.max_turns) == (config.data, "live", True, 8, 200)
    assert large.evaluate_questions == 0, "no evaluation on the live web that nobody asked for"
    assert IGPOConfig().evaluate_questions == 128


@pytest.mark.parametrize(("flags", "words"), [
    (["--tools", "toyweb"], "the toy web answers its own questions only"),
    (["--data", "toyweb"], "needs a file of questions: give --data FILE"),
    (["--data", "nowhere.jsonl"], "data must be 'toyweb' or a file of questions; got 'nowhere.jsonl'"),
    (["--data", __file__], "does not end in .jsonl, .parquet, .csv"),
    (["--tools", "web"], "tools must be one of toyweb, folder:PATH, live"),
    (["--tools", "folder:nowhere"], "nowhere is not a folder"),
    (["--tools", "live"], "live search needs SERPER_API_KEY"),
    (["--tools", "replay:nowhere"], "nowhere is no recording"),
    (["--questions", "3"], "has 3 questions: 1 are held out, 2 others are left to train on, and a step takes 3"),
    (["--evaluate-questions", "-1"], "evaluate_questions must be at least 0"),
    (["--tool-seconds", "0"], "tool_seconds must be above 0"),
    (["--max-observation-tokens", "1"], "max_observation_tokens must be at least 64"),
    (["--tool-threads", "0"], "tool_threads must be at least 1"),
    (["--system-prompt", "nowhere"], "the system prompt cannot be read from nowhere"),
])
def test_a_wrong_command_line_is_one_message_and_exit_code_2(flags, words, config, tmp_path, capsys, monkeypatch):
    for name in ("SERPER_API_KEY", "SERPER_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    assert command(replace(config, out=str(tmp_path)), *flags) == 2
    err = capsys.readouterr().err
    assert words in err and "Traceback" not in err and not (tmp_path / "latest").exists()
