"""The comparison: what its methods are, what it refuses, in which order it runs what is left, and what stops it."""

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from minvenus.config import ConfigError
from minvenus.experiments import compare, scripts
from minvenus.experiments.compare import METHODS, CompareConfig
from minvenus.experiments.demo import DemoConfig
from minvenus.experiments.scripts import ScriptFailed
from minvenus.flags import parse_flags
from minvenus.settings import IGPOConfig


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Two methods, two seeds, four steps; runs are done by fake_run.py."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "out").mkdir()
    shutil.copy(Path(__file__).with_name("fake_run.py"), tmp_path / "train_igpo.py")
    monkeypatch.setattr(scripts, "ROOT", tmp_path)
    monkeypatch.setattr(scripts, "LOOK_EVERY", 0.01)
    return CompareConfig(model=str(tmp_path / "model"), out=str(tmp_path / "out"), methods="grpo paper", seeds=2,
                         first_seed=7, steps=4, jobs=1)


def order(config) -> list[str]:
    """What the runs have noted since the last time."""
    path = Path(config.out) / "order.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


# ---------------------------------------------------------------------------------------------------------- the methods

CHANGES = {
    "grpo": {"use_gain": False},
    "paper": {},
    "released": {"browse": "segment", "discount_over": "rewards", "penalty_scope": "segment",
                 "newlines_after_think": 1},
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


def flat(config: IGPOConfig) -> dict:
    values = asdict(config)
    return values | values.pop("recipe")


def test_methods_are_started_with_the_same_settings_and_differ_in_exactly_what_they_say(small):
    config = replace(small, steps=6, questions=3, group=5, hops=2, slack=1, learning_rate=2e-5)
    shared = {"model": config.model, "seed": 8, "steps": 6, "questions": 3, "group": 5, "hops": 2, "slack": 1,
              "learning_rate": 2e-5, "evaluate_every": 10, "rollouts_every": 6}
    plain = flat(IGPOConfig())
    assert METHODS.keys() == CHANGES.keys()
    for method, changes in CHANGES.items():
        flags = compare.flags_of(config, Path(config.model), method, 8)
        started = flat(parse_flags(IGPOConfig, [str(flag) for flag in flags]))
        assert started == plain | shared | {"out": f"{config.out}/{method}-8"} | changes


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(("given", "words"), [
    ({"methods": "paper gpro"}, "methods must be some of grpo paper .*; got 'paper gpro'"),
    ({"methods": " "}, "methods must be"), ({"methods": "paper grpo paper"}, "each once"),
    ({"model": "nowhere"}, "'nowhere'"),
])
def test_what_cannot_be_compared_is_refused_before_anything_runs(given, words):
    with pytest.raises(ConfigError, match=words):
        CompareConfig(**given)


def test_a_folder_of_runs_with_other_settings_is_refused_and_left_as_it_is(small):
    compare.main(replace(small, methods="paper", seeds=1))
    before = {path: path.read_bytes() for path in Path(small.out).rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"other settings: hops was 4, is 2; .*Use the same, or another --out"):
        compare.main(replace(small, hops=2, learning_rate=1e-5))
    assert {path: path.read_bytes() for path in Path(small.out).rglob("*") if path.is_file()} == before


# --------------------------------------------------------------------------------------------------------- running them


def test_all_methods_of_a_seed_run_before_the_next_seed_and_the_table_and_page_are_written(small, capsys):
    text = compare.main(small)
    names = ["grpo-7", "paper-7", "grpo-8", "paper-8"]
    assert order(small) == [f"{word} {name}" for name in names for word in ("start", "end")]
    assert "4 runs of 4 steps, 0 of them done before" in (out := capsys.readouterr().out) and "4/4 paper-8" in out
    assert re.search(r"grpo +0.060 ± 0.000", text) and re.search(r"paper - grpo +0.010 ± 0.000", text)
    page = (Path(small.out) / "report.html").read_text()
    assert "0.060 ± 0.000" in page and "0.010 ± 0.000" in page and "Turns per rollout" in page
    assert "Gain of right visits" not in page, "nobody had gains"
    assert json.loads((Path(small.out) / "run.json").read_text()) == asdict(small)


def test_finished_runs_are_only_read_and_others_go_on(small, capsys):
    compare.main(replace(small, seeds=1))
    order(small)
    compare.main(small)
    assert order(small) == ["start grpo-8", "end grpo-8", "start paper-8", "end paper-8"]
    assert "4 runs of 4 steps, 2 of them done before" in capsys.readouterr().out
    text = compare.main(replace(small, methods="paper"))
    assert order(small) == [] and "paper" in text and "grpo" not in text


def test_a_run_that_fails_stops_the_comparison_names_its_log_and_lets_the_others_save(small):
    (Path(small.out) / "fail").write_text("paper-7\n")
    (Path(small.out) / "wait").write_text("grpo-7\n")
    with pytest.raises(ScriptFailed, match=f"paper-7 ended .* 3; its last lines are in {small.out}/paper-7/log.txt"):
        compare.main(replace(small, jobs=2))
    assert (Path(small.out) / "paper-7" / "log.txt").read_text() == "out of luck\n"
    stopped = order(small)
    assert stopped[-1] == "end grpo-7" and "start grpo-8" not in stopped
    for name in ("fail", "wait"):
        (Path(small.out) / name).unlink()
    compare.main(small)                                                    # the same command goes on
    assert [line for line in order(small) if line.startswith("start")] == [
        "start grpo-7", "start paper-7", "start grpo-8", "start paper-8"]


def test_a_run_that_somebody_stopped_is_not_taken_for_a_finished_one(small):
    (Path(small.out) / "short").write_text("grpo-7\n")
    with pytest.raises(ScriptFailed, match=r"grpo-7 was stopped before step 4; the same command goes on there"):
        compare.main(small)
    assert order(small) == ["start grpo-7", "end grpo-7"]


def test_without_a_checkpoint_one_is_trained_as_the_demo_does(small, monkeypatch):
    seen = []

    def train(*arguments):
        seen.append(arguments)
        return Path(small.model)

    monkeypatch.setattr(compare, "train", train)
    compare.main(replace(small, model=None, methods="paper", seeds=1))
    assert seen == [("train_sft.py", Path(small.out) / "sft", DemoConfig().sft_steps)]
