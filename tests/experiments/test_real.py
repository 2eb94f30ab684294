"""From a GGUF file and countries in JSON to trained models: one step of SFT, one of each method."""

import importlib
import json
from dataclasses import replace
from importlib import metadata
from itertools import chain as joined
from statistics import fmean

import pytest

from minvenus.agent.prompt import read_format
from minvenus.config import ConfigError, ModelConfig
from minvenus.console import table
from minvenus.evaluation.questions import read_questions
from minvenus.experiments import compare, countries, factbook, real, smollm2
from minvenus.experiments.audit import AuditConfig
from minvenus.experiments.audit import main as audit
from minvenus.experiments.audit_pages import (
    Walker,
    difference_table,
    first_visit_words,
    rank_words,
)
from minvenus.experiments.audit_table import Visit, visit_table
from minvenus.experiments.compare import flags_of, trained
from minvenus.experiments.real import RealConfig
from minvenus.files import read_jsonl
from minvenus.flags import parse_flags
from minvenus.igpo.gain import belief, wrap_truth
from minvenus.igpo.recipes import Recipe
from minvenus.settings import EvalConfig, InferConfig
from minvenus.text.chat import stream
from minvenus.tools.almanac import Almanac
from minvenus.train.presets import IGPO_PRESETS, SFT_PRESETS
from minvenus.train.settings import IGPOConfig, SFTConfig
from minvenus.types import Question
from tests.experiments.test_factbook import raw_country
from tests.experiments.test_smollm2 import write_gguf

NAMES = "Alma Bria Cora Dela Ebba Fria Gola Hema Iska Jora Kima Lora Mina Nola".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A ring of countries, each with its longest border to the next, as a world; a miniature of the
    model."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "source").mkdir()
    for i, name in enumerate(NAMES):
        after, before = NAMES[(i + 1) % len(NAMES)], NAMES[i - 1]
        borders = f"{after} {90 + i} km; {before} 10 km"
        raw = raw_country(name, f"{name}ville", borders, f"Mount {name} 9 m", f".{name[:2]}")
        (folder / "source" / f"{name}.json").write_text(json.dumps(raw))
    world = {"source": str(folder / "source"), "out": str(folder / "world")}
    factbook.main(factbook.FactbookConfig(**world, demonstrations=8))
    write_gguf(folder / "mini.gguf", {"llama.context_length": 8192})
    model = {"gguf": str(folder / "mini.gguf"), "out": str(folder / "model")}
    smollm2.main(smollm2.SmolLM2Config(**model))
    return folder


def test_a_gain_is_that_of_the_whole_conversation_read_anew(folder):
    walker = Walker(folder / "model", Almanac(folder / "world" / "pages"))
    path = ["Alma", "Bria"]
    chain = factbook.Chain(path, ["land borders", "capital"], "Briaville")
    question = Question("q", chain.text, [chain.answer, "another spelling"], pages=path)
    assert walker.recipe == Recipe(lead_in=factbook.LEAD_IN)
    first, visits = walker.walk(question)
    kinds = [(visit.kind, visit.hop, visit.progress) for visit in visits]
    assert kinds == [
        ("right", 1, 1.0),
        ("right", 2, 1.0),
        ("wrong", 1, 0.0),
        ("unrelated", 1, 0.0),
        ("wrong", 2, 0.0),
        ("repeated", 2, 0.0),
        ("unrelated", 2, 0.0),
    ]
    wrapped = wrap_truth("Briaville", walker.tokenizer, walker.recipe)

    def belief_after(pages):
        """Of a conversation that searches for the path's page and visits these."""
        messages = factbook.opening(walker.format.prompt, question.text)
        for right, page, line in zip(path, pages, chain.lines, strict=False):
            messages += factbook.turn(walker.almanac, right, "search", {"query": [right]})
            messages += factbook.visit(walker.almanac, right, page, line)
        answer = {"role": "assistant", "content": "<think>\nx\n</think>\ny"}
        ids, _, spans = stream([*messages, answer], walker.tokenizer)
        [logprobs] = walker.engine.score(ids[: spans[-1][0]], [wrapped.ids])
        return belief(logprobs[wrapped.start :], "log_prob")

    other = walker.side_pages(question, 2)["wrong"]
    assert other == "Nola", "the page of Alma names Bria and Nola"
    assert walker.side_pages(question, 1)["wrong"] == "Nola", "a search finds its border with Alma"
    assert first == pytest.approx(belief_after([]), abs=1e-4)
    after_first = belief_after(["Alma"])
    for visit, page in ((visits[1], "Bria"), (visits[4], other), (visits[5], "Alma")):
        gain = belief_after(["Alma", page]) - after_first
        assert visit.gain == pytest.approx(gain, abs=1e-4), page
    assert visits[0].gain == pytest.approx(after_first - first, abs=1e-4)


def test_a_side_page_is_wrong_if_a_page_or_search_led_to_it_and_unrelated_if_nothing_did(folder):
    walker = Walker(folder / "model", Almanac(folder / "world" / "pages"))
    for question in read_questions(folder / "world" / "train.jsonl"):
        path = question.pages
        for hop, title in enumerate(path, start=1):
            sides = walker.side_pages(question, hop)
            results = walker.almanac.titles(title)
            near = factbook.linked(walker.almanac, path[hop - 2]) if hop > 1 else results
            assert sides.get("wrong") in (set(near) - set(path) or {None})
            assert sides["unrelated"] not in {*path, *near, *results}
            assert sides.get("repeated") == (path[hop - 2] if hop > 1 else None)


def test_the_right_page_is_compared_with_the_others_of_its_question_and_hop():
    walks = [
        [Visit("right", 1, 1.0, 1.0), Visit("right", 2, 0.0, 1.0), Visit("wrong", 1, 0.5, 0.0)],
        [Visit("right", 1, -1.0, 1.0), Visit("wrong", 1, 0.5, 0.0), Visit("wrong", 2, 9.0, 0.0)],
    ]
    walks[1].append(Visit("right", 2, 3.0, 1.0))
    assert table(difference_table(walks)).splitlines()[1:] == [
        "wrong         1      2  -0.50   0.71       50%",  # 0.5 and -1.5: spread 1, of two
        "wrong         2      1  -6.00   0.00        0%",
    ]


def test_the_audit_has_a_table_for_each_number_of_hops(folder, tmp_path):
    world = {"model": str(folder / "model"), "world": str(folder / "world")}
    text = audit(AuditConfig(**world, questions=5))
    *parts, total, first = text.split("\n\n")
    walker = Walker(folder / "model", Almanac(folder / "world" / "pages"))
    everything = []
    questions = read_questions(folder / "world" / "test.jsonl")
    for hops, part, differences in zip((1, 2), parts[::2], parts[1::2], strict=True):
        chosen = [question for question in questions if len(question.pages) == hops][:2]
        beliefs, walks = zip(*map(walker.walk, chosen), strict=True)
        head = f"2 {hops}-hop questions, log P(truth | question) {fmean(beliefs):+.2f} per token, "
        visits = list(joined.from_iterable(walks))
        assert part == f"{head}{rank_words(visits)}\n{table(visit_table(visits))}"
        assert differences == table(difference_table(walks))
        assert differences.startswith("right less  hop  count")
        everything += visits
    assert (total, first) == (f"all: {rank_words(everything)}", first_visit_words(everything))
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "a.txt").write_text("Ann")
    (tmp_path / "test.jsonl").write_text(
        '{"question": "What is the capital of Ann?", "answer": "B"}\n'
    )
    with pytest.raises(ConfigError, match=r"no question of .*test\.jsonl is one of the factbook"):
        audit(AuditConfig(model=world["model"], world=str(tmp_path)))
    with pytest.raises(ConfigError, match="--world FOLDER needs --model FOLDER"):
        AuditConfig(run="r", world=world["world"])


def test_the_mean_gain_of_a_first_right_visit_is_over_all_questions_and_no_other_visit():
    visits = [Visit("right", 1, 1.0, 1.0), Visit("right", 1, -0.5, 1.0), Visit("wrong", 1, 9, 0.0)]
    words = first_visit_words([*visits, Visit("right", 2, 9.0, 1.0)])
    assert words == "mean gain of a first right visit +0.25 ± 0.53, above 0"  # .75 / sqrt(2)
    words = first_visit_words([Visit("right", 1, 0.0, 1.0)])
    assert words.endswith("± 0.00, not above 0: the right first page costs belief")
    words = first_visit_words(visits[1:])
    assert "visit -0.50 ± 0.00, not above 0: the right first page costs belief" in words


# -------------------------------------------------------------------------------------- make real

SCRIPTS = {  # script -> its settings, its presets, what makes it small
    "train_sft.py": (
        SFTConfig,
        SFT_PRESETS,
        {"max_tokens": 4096, "pack_tokens": 4096, "batch": 1, "validation": 1},
    ),
    "train_igpo.py": (
        IGPOConfig,
        IGPO_PRESETS,
        {"questions": 1, "group": 2, "max_turns": 2, "max_turn_tokens": 8},
    ),
    "eval.py": (EvalConfig, {}, {"max_turns": 2, "max_new_tokens": 8}),
    "infer.py": (InferConfig, {}, {"max_turns": 2, "max_new_tokens": 8}),
}


@pytest.fixture
def commands(monkeypatch):
    """Scripts run in this process, and small. Gives (script, settings, threads) of each."""
    seen = []

    def run_all(script, jobs, at_once=1, logs=None, threads=1):
        for name, settings in jobs.items():
            config, presets, small = SCRIPTS[script]
            parsed = parse_flags(config, flags_of(settings | small), presets=presets)
            seen.append((script, settings, threads))
            importlib.import_module(script.removesuffix(".py")).main(parsed)
            yield name

    monkeypatch.setattr(compare, "run_all", run_all)
    monkeypatch.setattr(real, "run_all", run_all)
    return seen


def small_config(folder, out, methods):
    folders = {"model": folder / "model", "world": folder / "world", "out": out}
    return RealConfig(
        **{name: str(path) for name, path in folders.items()},
        methods=methods,
        sft_steps=1,
        steps=1,
        watched=1,
        tested=3,
        audited=3,
    )


def test_the_experiment_from_the_first_audit_to_the_page(folder, tmp_path, commands, capsys):
    config = small_config(folder, tmp_path / "out", "grpo, uncentred")
    printed = real.main(config)
    out = tmp_path / "out"
    scripts, settings, threads = zip(*commands, strict=True)
    assert scripts == (
        "train_sft.py", "eval.py", "train_igpo.py", "train_igpo.py", "eval.py", "eval.py",
        "infer.py",
    )
    assert threads == (2, 2, 1, 1, 1, 1, 1), "a script that runs alone has both"
    _, _, grpo, uncentred, *_ = settings
    same = dict(grpo), dict(uncentred)
    for one in same:
        del one["out"], one["recipe"]
    assert same[0] == same[1], "the same start, questions, seed and budget"
    assert (grpo["recipe"], uncentred["recipe"]) == ("grpo", "uncentred")

    [row] = read_jsonl(out / "uncentred-1" / "metrics.jsonl")
    assert row["right_pages"] == row["test_right_pages"] == 0.0, "known, and not found by chance"
    held_out, *rest = read_jsonl(out / "questions.jsonl")
    assert held_out == read_jsonl(folder / "world" / "test.jsonl")[0]
    train = read_jsonl(folder / "world" / "train.jsonl")
    assert rest == [row for row in train if row["source"] != "1-hop"]
    shown = capsys.readouterr().out
    for name in ("start", "sft"):
        text = (out / f"audit-{name}.txt").read_text()
        assert "mean gain of a first right visit" in text and text in shown
    text = (out / "results.txt").read_text()
    assert printed.startswith(text.rstrip())
    head, sft, *models = text.splitlines()[1:5]
    assert head.split()[:2] == ["model", "accuracy"] and "right pages" in head
    assert sft.startswith("sft ")
    assert [row.split()[0] for row in models] == ["grpo-1", "uncentred-1"]
    for page in ("report.html", "xray.html"):
        assert str(out / page) in printed and (out / page).stat().st_size > 5000

    contents = {file: file.read_bytes() for file in out.rglob("*.jsonl")}
    real.main(config)
    assert contents == {file: file.read_bytes() for file in out.rglob("*.jsonl")}, "nothing twice"
    with pytest.raises(ConfigError, match=r"plan.json says steps 1, now it is 2"):
        real.main(replace(config, steps=2))
    [batch] = (out / "uncentred-1" / "rollouts").iterdir()
    batch.with_name("step-00000000.jsonl").write_bytes(batch.read_bytes())
    assert batch.name in real.xray(out / "uncentred-1").read_text(), "the newest"
    commands.clear()
    real.main(replace(config, seeds=2))
    assert [settings["seed"] for script, settings, _ in commands if script == "train_igpo.py"] == [
        1, 1, 2, 2,
    ]


@pytest.mark.seconds(600)  # a model of 135 M parameters
def test_with_the_packages_the_same_runs_on_the_real_model(tmp_path, commands, capsys):
    for package in (smollm2.PACKAGE, countries.PACKAGE):
        if not list(metadata.distributions(name=package)):
            pytest.skip(f"{package} is not installed: make real-model")
    smollm2.main(smollm2.SmolLM2Config(out=str(tmp_path / "model")))
    factbook.main(factbook.FactbookConfig(out=str(tmp_path / "world"), demonstrations=2))
    assert ModelConfig.from_json(tmp_path / "model") == ModelConfig.preset("smollm2-135m")
    real.main(small_config(tmp_path, tmp_path / "out", "uncentred"))
    start = trained(tmp_path / "out" / "sft", 1)
    assert read_format(start) == read_format(tmp_path / "model"), "prompt and limits go along"
    assert not ModelConfig.from_json(start).qk_norm
    [row] = read_jsonl(tmp_path / "out" / "uncentred-1" / "metrics.jsonl")
    assert row["turns"] == 2 and row["outcome"] == 0.0


def test_a_missing_model_or_world_names_its_make_target(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere has no config.json: make real-model"):
        real.main(RealConfig(model="nowhere", out=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"nowhere has no manifest.json: make real-model"):
        real.main(RealConfig(model=str(folder / "model"), world="nowhere", out=str(tmp_path)))
    assert not [*tmp_path.iterdir()]
