"""From a GGUF file and countries in JSON to trained models: one step of SFT, one of each method."""

import importlib
import json
from contextlib import chdir
from dataclasses import replace
from importlib import metadata
from itertools import chain as joined
from pathlib import Path
from statistics import fmean

import pytest

from minvenus.agent.prompt import read_format
from minvenus.config import ConfigError, ModelConfig
from minvenus.console import table
from minvenus.evaluation.questions import read_questions
from minvenus.experiments import audit_pages, compare, countries, factbook, real, smollm2
from minvenus.experiments.audit import AuditConfig
from minvenus.experiments.audit import main as audit
from minvenus.experiments.audit_pages import Walker, difference_table
from minvenus.experiments.audit_table import Visit, follows_progress, visit_table
from minvenus.experiments.compare import flags_of, trained
from minvenus.experiments.real import RealConfig
from minvenus.files import read_jsonl
from minvenus.flags import parse_flags
from minvenus.igpo.gain import belief, wrap_truth
from minvenus.igpo.recipes import Recipe
from minvenus.settings import EvalConfig
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
    model. They lie where the commands look for them."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "source").mkdir()
    for i, name in enumerate(NAMES):
        after, before = NAMES[(i + 1) % len(NAMES)], NAMES[i - 1]
        borders = f"{after} {90 + i} km; {before} 10 km"
        raw = raw_country(name, f"{name}ville", borders, f"Mount {name} 9 m", f".{name[:2]}")
        (folder / "source" / f"{name}.json").write_text(json.dumps(raw))
    write_gguf(folder / "mini.gguf", {"llama.context_length": 8192})
    with chdir(folder):
        factbook.main(factbook.FactbookConfig(source="source", demonstrations=8))
        smollm2.main(smollm2.SmolLM2Config(gguf="mini.gguf"))
    return folder


@pytest.fixture
def walker(folder):
    return Walker(folder / real.MODEL, Almanac(folder / real.WORLD / "pages"))


def test_a_gain_is_that_of_the_whole_conversation_read_anew(walker):
    path = ["Alma", "Bria"]
    lines = ["land borders", "capital"]
    text = "What is the capital of the country with which Alma shares its longest land border?"
    question = Question("q", text, ["Briaville", "another spelling"], pages=path)
    assert walker.recipe == Recipe(lead_in=factbook.LEAD_IN)
    first, visits = walker.walk(question)
    kinds = [(visit.kind, visit.hop, visit.progress) for visit in visits]
    assert kinds == [
        ("right", 1, 1.0),
        ("wrong", 1, 0.0),
        ("unrelated", 1, 0.0),
        ("right", 2, 1.0),
        ("wrong", 2, 0.0),
        ("repeated", 2, 0.0),
        ("unrelated", 2, 0.0),
    ]
    wrapped = wrap_truth("Briaville", walker.tokenizer, walker.recipe)

    def belief_after(pages):
        """Of a conversation that searches for the path's page and visits these."""
        messages = factbook.opening(walker.format.prompt, question.text)
        for right, page, line in zip(path, pages, lines, strict=False):
            messages += factbook.turn(walker.almanac, right, query=[right])
            messages += factbook.turn(walker.almanac, right, url=[page], goal=line)
        answer = {"role": "assistant", "content": "<think>\nx\n</think>\ny"}
        ids, _, spans = stream([*messages, answer], walker.tokenizer)
        [logprobs] = walker.engine.score(ids[: spans[-1][0]], [wrapped.ids])
        return belief(logprobs[wrapped.start :], "log_prob")

    pages = [walker.pages_at(path, hop, text) for hop in (1, 2)]
    assert pages[0]["wrong"] == "Nola", "a search finds its border with Alma"
    assert pages[1]["wrong"] == "Nola", "the page of Alma names Bria and Nola"
    assert first == pytest.approx(belief_after([]), abs=1e-4)
    after_first = belief_after(["Alma"])
    for visit in visits:
        page = pages[visit.hop - 1][visit.kind]
        gain = belief_after([page]) - first
        if visit.hop == 2:
            gain = belief_after(["Alma", page]) - after_first
        assert visit.gain == pytest.approx(gain, abs=1e-4), page


def test_a_side_page_is_wrong_if_a_page_or_search_led_to_it_and_unrelated_if_nothing_did(
    folder, walker
):
    for question in read_questions(folder / real.WORLD / "train.jsonl"):
        path = question.pages
        for hop, title in enumerate(path, start=1):
            pages = walker.pages_at(path, hop, question.text)
            results = walker.almanac.titles(title)
            near = factbook.linked(walker.almanac, path[hop - 2]) if hop > 1 else results
            assert pages["right"] == title
            assert pages.get("wrong") in (set(near) - set(path) or {None})
            assert pages["unrelated"] not in {*path, *near, *results}
            assert pages.get("repeated") == (path[hop - 2] if hop > 1 else None)


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


def test_the_audit_has_tables_for_each_number_of_hops(folder, walker, tmp_path):
    world = {"model": str(folder / real.MODEL), "world": str(folder / real.WORLD)}
    *parts, total, _ = audit(AuditConfig(**world, questions=5)).split("\n\n")
    walks = {1: [], 2: []}
    for question in read_questions(folder / real.WORLD / "test.jsonl")[:5]:
        walks[len(question.pages)].append(walker.walk(question))
    everything = []
    for hops, part, differences in zip((1, 2), parts[::2], parts[1::2], strict=True):
        beliefs, visits_of_each = zip(*walks[hops], strict=True)
        count = len(beliefs)
        head = f"{count} {hops}-hop questions, log P(truth | question) {fmean(beliefs):+.2f} per "
        visits = list(joined.from_iterable(visits_of_each))
        assert count >= 2
        assert part == f"{head}token, {follows_progress(visits)}\n{table(visit_table(visits))}"
        assert differences == table(difference_table(visits_of_each))
        everything += visits
    assert total == f"all: {follows_progress(everything)}"
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "a.txt").write_text("Ann")
    question = {"question": "What is the capital of Ann?", "answer": "B"}
    for change in ({}, {"pages": ["Ann", "Ann"]}, {"pages": ["Ann"], "question": "Where?"}):
        (tmp_path / "test.jsonl").write_text(json.dumps(question | change))
        with pytest.raises(ConfigError, match="with its pages is no question of the factbook"):
            audit(AuditConfig(model=world["model"], world=str(tmp_path)))


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ([1.0, -0.5], "visit +0.25 ± 0.53, above 0"),  # .75 / sqrt(2)
        ([0.0], "visit +0.00 ± 0.00, not above 0: the right first page costs belief"),
    ],
)
def test_the_mean_gain_of_a_first_right_visit_is_over_all_questions_and_no_other_visit(
    folder, monkeypatch, gains, words
):
    walks = []
    for gain in gains:
        first = Visit("right", 1, gain, 1.0)
        walks.append((0.0, [first, Visit("wrong", 1, 9.0, 0.0), Visit("right", 2, 9.0, 1.0)]))
    monkeypatch.setattr(audit_pages.Walker, "walk", lambda *_: walks.pop())
    text = audit_pages.audit_pages(folder / real.MODEL, folder / real.WORLD, len(gains))
    assert text.endswith(f"mean gain of a first right {words}")


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


SMALL = RealConfig(
    methods="grpo, uncentred", sft_steps=1, steps=1, watched=1, tested=3, audited=3)


def test_the_experiment_from_the_first_audit_to_the_page(folder, monkeypatch, commands, capsys):
    monkeypatch.chdir(folder)
    printed = real.main(SMALL)
    out = Path(SMALL.out)
    scripts, settings, threads = zip(*commands, strict=True)
    assert scripts == ("train_sft.py", *["train_igpo.py"] * 2, *["eval.py"] * 3)
    assert threads == (2, 1, 1, 1, 1, 1), "a script that runs alone has both"
    _, grpo, uncentred, *_ = settings
    same = dict(grpo), dict(uncentred)
    for one in same:
        del one["out"], one["recipe"]
    assert same[0] == same[1], "the same start, questions, seed and budget"
    assert (grpo["recipe"], uncentred["recipe"]) == ("grpo", "uncentred")
    assert grpo["evaluate_questions"] == SMALL.watched, "the questions behind them are trained on"

    [row] = read_jsonl(out / "uncentred-1" / "metrics.jsonl")
    assert row["right_pages"] == row["test_right_pages"] == 0.0, "known, and not found by chance"
    held_out, *rest = read_jsonl(out / "questions.jsonl")
    assert held_out == read_jsonl(real.WORLD / "test.jsonl")[0]
    train = read_jsonl(real.WORLD / "train.jsonl")
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
    [batch] = (out / "uncentred-1" / "rollouts").iterdir()
    batch.with_name("step-00000000.jsonl").write_bytes(batch.read_bytes())
    real.main(SMALL)
    assert contents == {file: file.read_bytes() for file in contents}, "nothing twice"
    assert batch.name in (out / "xray.html").read_text(), "the newest"
    with pytest.raises(ConfigError, match=r"plan.json says steps 1, now it is 2"):
        real.main(replace(SMALL, steps=2))
    commands.clear()
    real.main(replace(SMALL, seeds=2))
    seeds = {Path(settings["out"]).name: settings["seed"] for script, settings, _ in commands
             if script == "train_igpo.py"}
    assert seeds == {"grpo-1": 1, "grpo-2": 2, "uncentred-1": 1, "uncentred-2": 2}


@pytest.mark.seconds(600)  # a model of 135 M parameters
def test_with_the_packages_the_same_runs_on_the_real_model(tmp_path, monkeypatch, commands):
    for package in (smollm2.PACKAGE, countries.PACKAGE):
        if not list(metadata.distributions(name=package)):
            pytest.skip(f"{package} is not installed: make real-model")
    monkeypatch.chdir(tmp_path)
    smollm2.main(smollm2.SmolLM2Config())
    factbook.main(factbook.FactbookConfig(demonstrations=2))
    assert ModelConfig.from_json(real.MODEL) == ModelConfig.preset("smollm2-135m")
    real.main(replace(SMALL, methods="uncentred"))
    start = trained(Path(SMALL.out) / "sft", 1)
    assert read_format(start) == read_format(real.MODEL), "prompt and limits go along"
    assert not ModelConfig.from_json(start).qk_norm
    [row] = read_jsonl(Path(SMALL.out) / "uncentred-1" / "metrics.jsonl")
    assert row["turns"] == 2 and row["outcome"] == 0.0


def test_a_missing_model_or_world_names_its_make_target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no runs/smollm2/config.json: make real-model"):
        real.main(RealConfig())
    real.MODEL.mkdir(parents=True)
    (real.MODEL / "config.json").touch()
    with pytest.raises(ConfigError, match=r"no runs/factbook/manifest.json: make real-model"):
        real.main(RealConfig())
    assert not Path("runs/real").exists()
