"""train_igpo.py on a file of questions with tools other than the toy web: here three questions
about a folder of three notes.

The model is random and its rollouts follow a script, as in tests/test_train_igpo.py; documents and
tools are real ones."""

import json
import shutil
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import train_igpo
from minvenus import setup
from minvenus.agent import rollout
from minvenus.agent.prompt import TOYWEB, read_format
from minvenus.config import ConfigError
from minvenus.evaluation import questions as question_files
from minvenus.evaluation.questions import open_questions
from minvenus.files import latest_checkpoint, read_jsonl
from minvenus.igpo.recipes import RECIPES
from minvenus.model.weights import start_folder
from minvenus.report.saved import load_batch, path_of
from minvenus.tools.base import FailureGuard, ToolError
from minvenus.tools.web import make_tools
from tests.agent.scripted import Tools, answer, engine_for, search, visit
from tests.train.igpo_runs import small_igpo, write_model
from tests.train.runs import TINY, command, content

PETS = {"Ann": "cat", "Bob": "dog", "Cleo": "hen"}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Ann's question is held out; those of Bob and Cleo are asked in every step."""
    folder = tmp_path_factory.mktemp("notes")
    (folder / "docs").mkdir()
    for name, pet in PETS.items():
        (folder / "docs" / f"{name}.txt").write_text(f"{name}\n\nThe pet of {name} is a {pet}.\n")
    lines = [
        {"id": name, "question": f"Pet of {name}?", "answer": [pet, f"a {pet}"]}
        for name, pet in PETS.items()
    ]
    (folder / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "system.txt").write_text("Search and visit.")
    return small_igpo(
        write_model(folder / "model"),
        data=str(folder / "questions.jsonl"),
        tools=f"folder:{folder / 'docs'}",
        hops=4,
        steps=2,
        system_prompt=str(folder / "system.txt"),
        evaluate_questions=1,
        evaluate_every=1,
        max_turns=5,
        max_turn_tokens=96,
        max_context=1024,
        rollouts_every=1,
    )


def play(name, turn, attempt):
    """Of a question the first rollout looks it up and is right, the second guesses "fox"; a
    held-out one is looked up, too."""
    _, question, rollout = name.split("/")
    person = question.split()[-1]
    return (
        [search(person), visit(f"{person}.txt"), answer(PETS[person])][turn]
        if rollout == "0"
        else answer("fox")
    )


@pytest.fixture(autouse=True, scope="module")
def scripted():
    def engine(model, pages, page_size, *_, **__):
        return engine_for(play, pages=pages, page_size=page_size, model=model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup, "Engine", engine)
        yield


@pytest.fixture(scope="module")
def whole(config, scripted, tmp_path_factory):
    """A run that was never stopped: its folder."""
    run = tmp_path_factory.mktemp("whole")
    train_igpo.main(replace(config, out=str(run)))
    return run


# -------------------------------------------------------------------------------------------- a run


def test_a_run_on_a_file_reads_its_folder_and_has_no_number_that_only_the_toy_web_knows(
    whole, config
):
    rows = read_jsonl(whole / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert (
            row["outcome"] == 0.5
            and row["turns"] == 2
            and row["updates"] == 1
            and "gain_mean" in row
        )
        assert row["test_exact_match"] == 1.0 and row["test_turns"] == 3
        assert not {"right_pages", "gain_right", "gain_wrong", "test_right_pages"} & row.keys()
    assert rows[0]["before_test_exact_match"] == 1.0 and "before_test_right_pages" not in rows[0]
    batch = load_batch(path_of(whole, 2))
    assert {sample.rollout.question.id for sample in batch.samples} == {"Bob", "Cleo"}, (
        "Ann is held out"
    )
    assert (
        batch.recipe.lead_in == TOYWEB.lead_in
        and batch.samples[0].rollout.system == "Search and visit."
    )
    told = read_format(latest_checkpoint(whole) / "model")
    assert told == replace(TOYWEB, system="Search and visit."), (
        "the trained model's folder says so, too"
    )
    looked_up = batch.samples[0].rollout
    assert f"is a {PETS[looked_up.question.id]}" in looked_up.turns[1].observation


def test_an_evaluation_leaves_nothing_that_the_next_step_could_find(config, tmp_path, monkeypatch):
    """A run that goes on right there begins with an empty cache, and sums in other batches have
    other last bits."""
    computed, real = [], train_igpo.score_truth

    def score_truth(scorer, *rest):
        computed.append(scorer.counters().prefilled)
        return real(scorer, *rest)

    monkeypatch.setattr(train_igpo, "score_truth", score_truth)
    for every in (1, 100):  # before the second step there is an evaluation, or none
        train_igpo.main(replace(config, evaluate_every=every, out=str(tmp_path / str(every))))
    assert computed[:2] == computed[2:]


def test_a_run_does_not_go_on_with_other_questions_another_prompt_start_or_judge(
    config, tmp_path, monkeypatch
):
    data, system, start = tmp_path / "mine.jsonl", tmp_path / "system.txt", tmp_path / "start"
    shutil.copytree(start_folder(config.model), start)
    (start / "more.json").write_text("{}")
    lines = [
        json.dumps({"question": f"Pet of {name}?", "answer": "cat", "id": name}) for name in PETS
    ]
    data.write_text("\n".join(lines))
    system.write_text("Search.")
    config = replace(
        config,
        out=str(tmp_path / "run"),
        model=str(start),
        data=str(data),
        system_prompt=str(system),
        steps=1,
        evaluate_questions=0,
    )
    train_igpo.main(config)
    assert "test_exact_match" not in read_jsonl(tmp_path / "run" / "metrics.jsonl")[0], (
        "no question is held out"
    )
    for file, other in (
        (system, "Visit."),
        (start / "more.json", "[]"),
        (data, "\n".join(lines[:2])),
    ):
        before = file.read_text()
        file.write_text(other)
        with pytest.raises(
            ConfigError, match="was made with other data, another prompt, start model or judge"
        ):
            train_igpo.main(config)
        file.write_text(before)
    train_igpo.main(config)
    judge = SimpleNamespace(name="another judge", close=lambda: None)
    monkeypatch.setattr(train_igpo, "grader_of", lambda config: judge)
    with pytest.raises(ConfigError, match="or judge than now"):
        train_igpo.main(config)


# ---------------------------------------------------------------------------------- tools that fail


class Breaking:
    """In the place of make_tools: the folder's tools, which fail after `left` calls; -1 = they are
    well."""

    def __init__(self, spec):
        self.real, self.left = make_tools(spec), -1

    def __call__(self, spec):
        return Tools(
            lambda query: self.answer(lambda: self.real.search(query)),
            lambda url, goal: self.answer(lambda: self.real.visit(url, goal)),
        )

    def answer(self, call):
        self.left -= self.left > 0
        if self.left == 0:
            raise ToolError("http", "down")
        return call()


def test_tools_that_fail_too_often_stop_the_run_with_the_reason_and_a_checkpoint(
    whole, config, tmp_path, monkeypatch, capsys
):
    """In the second step: two calls of every evaluation, four of every step. Once the tools are
    well again the run ends as if nothing was."""
    config, tools = replace(config, out=str(tmp_path), save_every=100), Breaking(config.tools)
    monkeypatch.setattr(question_files, "make_tools", tools)
    monkeypatch.setattr(rollout, "FailureGuard", partial(FailureGuard, window=1, limit=0.5))
    tools.left = 9
    assert command("train_igpo.py", config) == 2
    err = capsys.readouterr().err
    assert (
        "1 of the last 1 tool calls failed" in err
        and "check the network" in err
        and "Traceback" not in err
    )
    assert (
        latest_checkpoint(tmp_path).name == "step-00000001"
        and len(read_jsonl(tmp_path / "metrics.jsonl")) == 1
    )
    tools.left = -1
    assert command("train_igpo.py", config) == 0
    *_, model, report = capsys.readouterr().out.splitlines()
    assert model == f"model: {latest_checkpoint(tmp_path) / 'model'}"
    assert Path(report.removeprefix("report: ")).read_text().startswith("<!DOCTYPE html>")
    assert content(tmp_path) == content(whole)


def test_only_tools_that_may_hang_run_in_threads(config, monkeypatch, tmp_path):
    """What a folder says comes at once and in order, so that such runs are reproducible. All have
    the model's notices, and are admitted by the expected length."""
    config = replace(config, expected_context=300)
    monkeypatch.setenv("SERPER_API_KEY", "planted")
    cassette = f"record:{tmp_path / 'cassette'}"
    for tools, threads in ((config.tools, None), (cassette, 16), ("live", 16)):
        with closing(open_questions(config.data, tools, limit=1)) as source:
            loop = train_igpo.rollout_loop(config, TOYWEB, source, engine_for(play), TINY)
        assert loop.tools.threads == threads and loop.format.notices == TOYWEB.notices
        assert loop.writer.expected_context == 300
    assert train_igpo.question_source(config).turn_limit == config.max_turns == 5


# ----------------------------------------------------------------------------------------- settings


def test_a_text_that_is_held_out_is_trained_on_nowhere(config, tmp_path):
    data = tmp_path / "twice.jsonl"
    data.write_text(
        "".join(
            json.dumps({"question": f"Pet of {name}?", "answer": "cat"}) + "\n" for name in "ABACA"
        )
    )
    source = open_questions(str(data), config.tools, limit=1)
    assert [question.text for question in source.held_out] == ["Pet of A?"]
    assert [question.text for question in source.training] == ["Pet of B?", "Pet of C?"]


def test_a_question_or_an_answer_without_room_is_refused_before_the_first_step(
    config, tmp_path, capsys
):
    """Not in the step that takes it: by then the run could go on neither without the question nor
    with more room. The first question of the file is held out. The checks of many questions take
    minutes, so they are announced; those of the toy web are left out."""
    long = {"id": "long", "question": "pet " * 400, "answer": "cat"}
    others, data = Path(config.data).read_text(), tmp_path / "questions.jsonl"
    tight = replace(config, data=str(data), pages=64, out=str(tmp_path / "run"))
    for question, words in (
        (long, "question 'long': with its prompt of "),
        (long | {"question": "Pet?", "answer": "cat " * 200}, "question 'long': its answer of "),
    ):
        line = json.dumps(question) + "\n"
        for text in (others + line, line + others):
            data.write_text(text)
            with pytest.raises(ConfigError, match=words):
                train_igpo.main(tight)
            assert {path.name for path in (tmp_path / "run").iterdir()} == {".lock"}

    grpo = replace(tight, recipe=RECIPES["grpo"])  # no answer is scored, so none needs room
    with closing(train_igpo.question_source(grpo)) as source:
        capsys.readouterr()
        train_igpo.rollout_loop(grpo, TOYWEB, source, engine_for(play, 64, 16), TINY)
        toy = replace(grpo, data="toyweb", tools="toyweb")
        train_igpo.rollout_loop(toy, TOYWEB, source, engine_for(play, 64, 16), TINY)
    assert capsys.readouterr().out == "questions   4, each checked for room\n"


def test_the_toy_web_has_the_turns_and_held_out_questions_of_its_settings():
    """Of 1, 2, 3 and 4 hops in turn, and one turn more than they need."""
    source = open_questions(None, "toyweb", slack=1, limit=8)
    for questions in (source.held_out, source.training[:8]):
        turns = [source.max_turns(question) for question in questions]
        assert turns == [4, 6, 8, 10, 4, 6, 8, 10]
    few = replace(source, turn_limit=2)
    assert {few.max_turns(question) for question in few.held_out} == {2}, "what is asked for counts"
    assert not {question.text for question in source.held_out} & {
        question.text for question in source.training
    }


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tools", "toyweb"], "the toy web answers its own questions only"),
        (["--data", "nowhere.jsonl"], "nowhere.jsonl does not exist"),
        (["--tools", "web"], "tools must be one of toyweb, folder:PATH, almanac:PATH, live"),
        (["--tools", "live"], "live search needs SERPER_API_KEY"),
        (
            ["--data", "toyweb", "--tools", "toyweb", "--questions", "5000"],
            "has 2048 questions to train on, beside",
        ),
        (
            ["--questions", "3"],
            "has 2 questions to train on, beside 1 to evaluate on, and a step takes 3",
        ),
        (["--system-prompt", "nowhere"], "the system prompt cannot be read from nowhere"),
    ],
)
def test_a_wrong_command_line_is_one_message_and_exit_code_2(
    flags, words, config, tmp_path, capsys, monkeypatch
):
    for name in ("SERPER_API_KEY", "SERPER_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    assert command("train_igpo.py", replace(config, out=str(tmp_path)), *flags) == 2
    err = capsys.readouterr().err
    assert words in err and "Traceback" not in err and not (tmp_path / "latest").exists()
