"""The comparison: what its methods are, what it refuses, in which order it runs, and the numbers that it compares."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from minvenus.config import ConfigError, Recipe, read_json
from minvenus.console import table
from minvenus.experiments import compare, scripts
from minvenus.experiments.compare import METHODS, CompareConfig, read_curves, tables
from minvenus.experiments.demo import DemoConfig
from minvenus.experiments.scripts import ScriptFailed
from minvenus.flags import parse_flags
from minvenus.settings import IGPOConfig

# Stands in for train_igpo.py: notes that it was started and leaves what a run leaves. Accuracy is 0.01 at the start, at
# the end a hundredth for each letter of the folder's name.
TRAIN = """
import json, pathlib, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder, steps = pathlib.Path(given["--out"]), int(given["--steps"])
with (folder.parent / "started.txt").open("a") as file:
    file.write(folder.name + "\\n")
start = {"step": 1, "before_test_exact_match": 0.01, "before_test_right_pages": 0.5}
end = {"step": steps, "test_exact_match": len(folder.name) / 100, "test_right_pages": 0.75, "test_turns": 8.0}
(folder / "metrics.jsonl").write_text(json.dumps(start) + "\\n" + json.dumps(end) + "\\n")
newest = folder / "checkpoints" / f"step-{steps - (folder.parent / 'stopped').exists():08d}"
newest.mkdir(parents=True)
(newest / "state.json").write_text("{}")
(folder / "latest").write_text(newest.name)
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Two methods, two seeds, four steps."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "train_igpo.py").write_text(TRAIN)
    monkeypatch.setattr(scripts, "ROOT", tmp_path)
    monkeypatch.setattr(scripts, "LOOK_EVERY", 0.01)
    return CompareConfig(model=str(tmp_path / "model"), out=str(tmp_path / "out"), methods="grpo paper", seeds=2,
                         first_seed=7, steps=4, jobs=1)


# ---------------------------------------------------------------------------------------------------------- the methods

def test_methods_are_started_with_the_same_settings_and_differ_in_the_recipe_or_two_settings_of_the_loss(small):
    config = replace(small, steps=6, questions=3, group=5, hops=2, slack=1, learning_rate=2e-5)
    shared = {"model": config.model, "seed": 8, "steps": 6, "questions": 3, "group": 5, "hops": 2, "slack": 1,
              "learning_rate": 2e-5, "evaluate_every": 10, "rollouts_every": 6}
    seen = []
    for method in METHODS:
        flags = compare.flags_of(config, Path(config.model), method, 8)
        started = asdict(parse_flags(IGPOConfig, [str(flag) for flag in flags]))
        own = {key: started.pop(key) for key in ("recipe", "aggregate", "gain_policy")}
        others = {key: value for key, value in asdict(IGPOConfig()).items() if key not in own}
        assert started == others | shared | {"out": f"{config.out}/{method}-8"}
        assert own not in seen, "no two methods are the same"
        seen.append(own)
    paper, grpo = seen[list(METHODS).index("paper")]["recipe"], seen[list(METHODS).index("grpo")]["recipe"]
    assert paper == asdict(Recipe.paper()) and grpo == paper | {"use_gain": False}


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(("given", "words"), [
    ({"methods": "paper gpro"}, "methods must be some of grpo paper .*; got 'paper gpro'"),
    ({"methods": " "}, "methods must be"), ({"methods": "paper grpo paper"}, "each once"),
    ({"model": "nowhere"}, "'nowhere'"),
])
def test_what_cannot_be_compared_is_refused_before_anything_runs(given, words):
    with pytest.raises(ConfigError, match=words):
        CompareConfig(**given)


def test_all_methods_of_a_seed_run_before_the_next_seed_and_the_table_and_page_are_written(small, capsys):
    text = compare.main(small)
    assert (Path(small.out) / "started.txt").read_text().split() == ["grpo-7", "paper-7", "grpo-8", "paper-8"]
    assert "runs 4/4" in capsys.readouterr().err
    assert re.search(r"grpo +0.060 ± 0.000", text) and re.search(r"paper - grpo +0.010 ± 0.000", text)
    page = (Path(small.out) / "report.html").read_text()
    assert "0.060 ± 0.000" in page and "0.010 ± 0.000" in page and "Turns per rollout" in page
    assert "Gain of right visits" not in page, "nobody had gains"
    assert read_json(Path(small.out) / "run.json") == asdict(small)


def test_a_run_that_somebody_stopped_is_not_taken_for_a_finished_one(small):
    Path(small.out).mkdir()
    (Path(small.out) / "stopped").touch()
    with pytest.raises(ScriptFailed, match=r"grpo-7 was stopped before step 4; the same command goes on there"):
        compare.main(small)
    assert (Path(small.out) / "started.txt").read_text().split() == ["grpo-7"]


def test_without_a_checkpoint_one_is_trained_as_the_demo_does(small, monkeypatch):
    seen = []

    def train(*arguments):
        seen.append(arguments)
        return Path(small.model)

    monkeypatch.setattr(compare, "train", train)
    compare.main(replace(small, model=None, methods="paper", seeds=1))
    assert seen == [("train_sft.py", Path(small.out) / "sft", DemoConfig().sft_steps)]


# --------------------------------------------------------------------------------------------------------- the numbers


def test_the_numbers_of_a_run_come_from_its_metrics(tmp_path):
    metrics = [{"step": 1, "gain_right": 1.0, "before_test_exact_match": 0.1, "before_test_right_pages": 0.05},
               {"step": 2, "gain_right": None, "test_exact_match": 0.2, "test_right_pages": 0.1},
               {"step": 3, "gain_right": 3.0},
               {"step": 4, "gain_right": 4.0, "test_exact_match": 0.6, "test_right_pages": 0.3}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    run = read_curves(tmp_path)
    assert run["test_exact_match"] == {0: 0.1, 2: 0.2, 4: 0.6} and run["gain_wrong"] == {}
    assert run["gain_right"] == {1: 1.0, 3: 3.0, 4: 4.0}, "a step without a right visit has none"
    # the area is the mean over the evaluations after step 0, which says nothing of a method
    assert run["area"] == {2: 0.2, 4: pytest.approx(0.4)}


def run(accuracy, area, start=0.1):
    """Before the first step, and after step 4; half as many right pages."""
    return {"test_exact_match": {0: start, 4: accuracy}, "area": {4: area},
            "test_right_pages": {0: start / 2, 4: accuracy / 2}}


def test_the_tables_word_for_word_and_differences_paired_by_seed():
    runs = {"grpo": {1: run(0.3, 0.2), 2: run(0.3, 0.2)}, "paper": {2: run(0.6, 0.4), 1: run(0.4, 0.3)}}
    # accuracies 0.4 and 0.6: half is 12.706 * 0.1; areas 0.3 and 0.4, pages 0.2 and 0.3: half of that
    assert [table(part).splitlines() for part in tables(runs, 4)] == [[
        "method          accuracy at step 4  area under the curve  right pages at step 4  each seed",
        "start (step 0)       0.100 ± 0.000                                0.050 ± 0.000  0.10 0.10",
        "grpo                 0.300 ± 0.000         0.200 ± 0.000          0.150 ± 0.000  0.30 0.30",
        "paper                0.500 ± 1.271         0.350 ± 0.635          0.250 ± 0.635  0.60 0.40"], [
        "method        accuracy at step 4  area under the curve  right pages at step 4",
        "paper - grpo       0.200 ± 1.271         0.150 ± 0.635          0.100 ± 0.635"]]
    paired = {"grpo": {1: run(0.1, 0), 2: run(0.3, 0)}, "paper": {2: run(0.4, 0), 1: run(0.2, 0)}}
    assert tables(paired, 4)[1][1][1] == "0.100 ± 0.000"
    assert len(tables({"paper": runs["paper"]}, 4)) == 1
