"""The comparison: what its methods are, what it refuses, in which order it runs what is left, and what stops it."""

import json
import re
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
done = steps - (folder.parent / "stopped").exists()
(folder / "checkpoints" / f"step-{done}").mkdir(parents=True)
(folder / "checkpoints" / f"step-{done}" / "state.json").write_text("{}")
(folder / "latest").write_text(f"step-{done}")
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


def started(config) -> list[str]:
    """The runs that were started since the last time."""
    path = Path(config.out) / "started.txt"
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
    assert started(small) == ["grpo-7", "paper-7", "grpo-8", "paper-8"]
    done = capsys.readouterr()
    assert "4 runs of 4 steps, 0 of them done before" in done.out and "runs 4/4" in done.err
    assert re.search(r"grpo +0.060 ± 0.000", text) and re.search(r"paper - grpo +0.010 ± 0.000", text)
    page = (Path(small.out) / "report.html").read_text()
    assert "0.060 ± 0.000" in page and "0.010 ± 0.000" in page and "Turns per rollout" in page
    assert "Gain of right visits" not in page, "nobody had gains"
    assert json.loads((Path(small.out) / "run.json").read_text()) == asdict(small)


def test_finished_runs_are_only_read_and_others_go_on(small, capsys):
    compare.main(replace(small, seeds=1))
    started(small)
    compare.main(small)
    assert started(small) == ["grpo-8", "paper-8"]
    assert "4 runs of 4 steps, 2 of them done before" in capsys.readouterr().out
    text = compare.main(replace(small, methods="paper"))
    assert started(small) == [] and "paper" in text and "grpo" not in text


def test_a_run_that_somebody_stopped_is_not_taken_for_a_finished_one(small):
    Path(small.out).mkdir()
    (Path(small.out) / "stopped").touch()
    with pytest.raises(ScriptFailed, match=r"grpo-7 was stopped before step 4; the same command goes on there"):
        compare.main(small)
    assert started(small) == ["grpo-7"]


def test_without_a_checkpoint_one_is_trained_as_the_demo_does(small, monkeypatch):
    seen = []

    def train(*arguments):
        seen.append(arguments)
        return Path(small.model)

    monkeypatch.setattr(compare, "train", train)
    compare.main(replace(small, model=None, methods="paper", seeds=1))
    assert seen == [("train_sft.py", Path(small.out) / "sft", DemoConfig().sft_steps)]
