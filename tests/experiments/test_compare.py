"""The comparison: what its methods are, what it refuses, in which order it runs, the numbers that it compares, and
their means and intervals over seeds."""

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from minvenus.config import ConfigError, ModelConfig, Recipe, read_json
from minvenus.console import table
from minvenus.experiments import compare, scripts
from minvenus.experiments.compare import METHODS, T95, CompareConfig, interval, line, read_curves, results, shown
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
    (tmp_path / "model" / "config.json").write_text(json.dumps(ModelConfig.preset("tiny").to_hf()))
    (tmp_path / "train_igpo.py").write_text(TRAIN)
    monkeypatch.setattr(scripts, "ROOT", tmp_path)
    monkeypatch.setattr(scripts, "LOOK_EVERY", 0.01)
    return CompareConfig(model=str(tmp_path / "model"), out=str(tmp_path / "out"), methods="grpo paper", seeds=2,
                         first_seed=7, steps=4, jobs=1)


# ---------------------------------------------------------------------------------------------------------- the methods

PAPER = asdict(Recipe.paper()) | {"aggregate": "seq-mean-token-mean", "gain_policy": "current"}
DIFFERENCES = {                                                         # of each method from `paper`
    "grpo": {"use_gain": False},
    "paper": {},
    "released": asdict(Recipe.released()),
    "uncentred": {"center_gain": False},
    "unnormalised": {"normalize": "none"},
    "unscaled": {"normalize": "separate"},
    "no-browse": {"browse": "off"},
    "no-penalty": {"format_penalty": 0.0},
    "gamma-1": {"gamma": 1.0},
    "reference": {"gain_policy": "reference"},
    "token-mean": {"aggregate": "token-mean"},
    "uncentred-unscaled": {"center_gain": False, "normalize": "separate"},
    "grpo-gamma-1": {"use_gain": False, "gamma": 1.0},
}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_differs_from_the_paper_in_what_its_name_says_and_in_nothing_else(method, small):
    config = replace(small, steps=6, questions=3, group=5, hops=2, slack=1, learning_rate=2e-5)
    flags = compare.flags_of(config, Path(config.model), method, 8)
    started = asdict(parse_flags(IGPOConfig, [str(flag) for flag in flags]))
    own = started.pop("recipe") | {key: started.pop(key) for key in ("aggregate", "gain_policy")}
    assert own == PAPER | DIFFERENCES[method]
    shared = {"model": config.model, "out": f"{config.out}/{method}-8", "seed": 8, "steps": 6, "questions": 3,
              "group": 5, "hops": 2, "slack": 1, "learning_rate": 2e-5, "evaluate_every": 10, "rollouts_every": 6}
    assert started == {key: value for key, value in asdict(IGPOConfig()).items() if key in started} | shared


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
    assert re.search(r"grpo +0.010 ± 0.000 +0.060 ± 0.000", text)
    assert re.search(r"paper - grpo +0.000 ± 0.000 +0.010 ± 0.000", text)
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


def test_the_table_word_for_word_and_differences_paired_by_seed():
    runs = {"grpo": [run(0.3, 0.2), run(0.4, 0.2)], "paper": [run(0.5, 0.4), run(0.8, 0.3)]}
    # accuracies 0.3 and 0.4: half is 12.706 * 0.05; their halves as pages; 0.5 and 0.8: 12.706 * 0.15
    assert table(results(runs, 4)).splitlines() == [
        "method        accuracy at step 0      at step 4  area under the curve  right pages at step 4  each seed",
        "grpo               0.100 ± 0.000  0.350 ± 0.635         0.200 ± 0.000          0.175 ± 0.318  0.30 0.40",
        "paper              0.100 ± 0.000  0.650 ± 1.906         0.350 ± 0.635          0.325 ± 0.953  0.50 0.80",
        "paper - grpo       0.000 ± 0.000  0.300 ± 1.271         0.150 ± 0.635          0.150 ± 0.635  0.20 0.40"]
    assert table(results({"grpo": [run(0.3, 0.2)]}, 4)).splitlines() == [
        "method  accuracy at step 0  at step 4  area under the curve  right pages at step 4  each seed",
        "grpo                 0.100      0.300                 0.200                  0.150       0.30"]


# ---------------------------------------------------------------------------------------------------- means over seeds


def test_intervals_by_hand():
    assert interval([1.0, 2.0, 3.0]) == (2.0, pytest.approx(2.48434, abs=1e-5))    # spread 1; 4.303 / sqrt(3)
    assert interval([0.0, 1.0]) == (0.5, pytest.approx(6.353))     # sqrt(1/2); 12.706 * sqrt(1/2) / sqrt(2)
    many = [0.0, 1.0] * 10                                         # sqrt(20 / 4 / 19), and the last of the points
    assert interval(many) == (0.5, pytest.approx(2.228 * math.sqrt(5 / 19) / math.sqrt(20)))
    assert shown([1.0, 2.0, 3.0]) == "2.000 ± 2.484" and shown([0.25, 0.25]) == "0.250 ± 0.000"
    assert shown([0.25]) == "0.250", "a single run has a mean and no interval"


@pytest.mark.parametrize(("freedom", "point"), list(enumerate(T95, 1)))
def test_95_percent_of_students_distribution_lie_within_each_point(freedom, point):
    """Simpson's rule over the density, twice the half from 0 to the point."""
    def density(t):
        scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
        return scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)
    n = 2000
    inner = sum((4 if k % 2 else 2) * density(point * k / n) for k in range(1, n))
    assert 2 * point / n / 3 * (density(0) + inner + density(point)) == pytest.approx(0.95, abs=5e-5)


def test_a_line_is_over_the_steps_that_every_run_has_and_a_method_without_one_keeps_its_place():
    both = line("paper", [{5: 0.0, 2: 2.0, 1: 1.0}, {5: 1.0, 2: 3.0, 3: 9.0}])
    assert (both.name, both.x, both.y) == ("paper", [2, 5], [2.5, 0.5])
    assert both.low == pytest.approx([2.5 - 6.353, 0.5 - 6.353])
    assert both.high == pytest.approx([2.5 + 6.353, 0.5 + 6.353])
    alone = line("single", [{1: 1.0}])
    assert (alone.x, alone.y, alone.low) == ([1], [1.0], None)
    assert line("grpo", [{}, {1: 1.0}]).x == []
