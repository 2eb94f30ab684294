"""The comparison: what its methods are, what it refuses, in which order it runs, what it fixed before, and the numbers
that it compares."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from minvenus.config import ConfigError, Recipe, read_json
from minvenus.experiments import compare, scripts
from minvenus.experiments.__main__ import main
from minvenus.experiments.compare import ARMS, CHANGES, PRESETS, CompareConfig, line, read_curves, results
from minvenus.experiments.lab import LabConfig
from minvenus.experiments.scripts import ScriptFailed
from minvenus.flags import parse_flags
from minvenus.report.explain import RECIPES, under_recipes
from minvenus.settings import IGPOConfig, SFTConfig
from tests.report.examples import answer, rollout, saved_batch, visit

# Stands in for both training scripts: notes that it was started and leaves what a run leaves. Accuracy is 0.01 at the
# start, at the end a hundredth for each letter of the folder's name; GRPO's rollouts get short.
TRAIN = """
import json, pathlib, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder, steps = pathlib.Path(given["--out"]), int(given["--steps"])
with (folder.parent / "started.txt").open("a") as file:
    file.write(folder.name + "\\n")
start = {"step": 1, "before_test_exact_match": 0.01, "before_test_right_pages": 0.5, "before_test_turns": 8.0}
end = {"step": steps, "test_exact_match": len(folder.name) / 100, "test_right_pages": 0.75,
       "test_turns": 3.9 if "grpo" in folder.name else 4.0}
folder.mkdir(exist_ok=True)
(folder / "metrics.jsonl").write_text(json.dumps(start) + "\\n" + json.dumps(end) + "\\n")
newest = folder / "checkpoints" / f"step-{steps - (folder.parent / 'stopped').exists():08d}"
newest.mkdir(parents=True, exist_ok=True)
(newest / "state.json").write_text("{}")
(folder / "latest").write_text(newest.name)
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Two methods, two runs each from a start of its own, four steps."""
    for script in ("train_igpo.py", "train_sft.py"):
        (tmp_path / script).write_text(TRAIN)
    monkeypatch.setattr(scripts, "ROOT", tmp_path)
    monkeypatch.setattr(scripts, "LOOK_EVERY", 0.01)
    return CompareConfig(out=str(tmp_path / "out"), methods="grpo paper", seeds=2, checkpoints=2, first_seed=7,
                         first_sampling_seed=70, first_sft_seed=3, sft_steps=4, steps=4, jobs=1)


# ---------------------------------------------------------------------------------------------------------- the methods

DIFFERENCES = {                                                         # of each arm or change from `paper`
    "grpo": {"use_gain": False, "gamma": 1.0},
    "paper": {},
    "released": asdict(Recipe.released()),
    "uncentred": {"center_gain": False},
    "discounted": {"gamma": 0.95},
    "gamma-1": {"gamma": 1.0},
    "no-penalty": {"format_penalty": None},
    "prob": {"gain": "prob"},
    "unscaled": {"normalize": "separate"},
    "unnormalised": {"normalize": "none"},
    "rms": {"spread": "rms"},
    "one": {"spread": "one"},
    "every-turn": {"browse": "off"},
    "reference": {"gain_policy": "reference"},
    "groups-of-8": {"group": 8, "questions": 4},
    "token-mean": {"aggregate": "token-mean"},
    "token-sum": {"aggregate": "seq-mean-token-sum"},
    "rate-3e-4": {"learning_rate": 3e-4},
    "rate-9e-4": {"learning_rate": 9e-4},
    "rate-12e-4": {"learning_rate": 12e-4},
}


@pytest.mark.parametrize("method", [*ARMS, *(f"paper+{change}" for change in CHANGES), "grpo+discounted",
                                    "uncentred+rms+token-sum"])
def test_a_method_differs_from_the_paper_in_what_its_name_says_and_in_nothing_else(method, small):
    config = replace(small, steps=6, questions=3, group=5, hops=2, slack=1, learning_rate=2e-5)
    flags = compare.run_flags(config, Path("tiny"), method, 1)
    started = asdict(parse_flags(IGPOConfig, [str(flag) for flag in flags]))
    shared = {"model": "tiny", "seed": 71, "question_seed": 8, "questions": 3, "group": 5, "hops": 2, "slack": 1,
              "learning_rate": 2e-5, "max_context": 384, "evaluate_every": 10, "rollouts_every": 6}
    expected = asdict(IGPOConfig())
    for values in (expected, started):
        values |= values.pop("recipe")
    expected |= shared
    for part in method.split("+"):
        expected |= DIFFERENCES[part]
    assert started == expected


def test_grpo_has_no_discount_wherever_it_is_called_grpo():
    """In the comparison, in the lab, on the X-ray and in the calculator."""
    recipe = parse_flags(IGPOConfig, list(ARMS["grpo"])).recipe
    assert recipe == Recipe(use_gain=False, gamma=1.0) == RECIPES["GRPO"]
    batch = saved_batch([rollout([visit(), answer()])] * 2, [0, 0], [1.0, 0.0], Recipe(), [[[-2.0], [-1.0]]] * 2)
    assert under_recipes(batch.measured, Recipe())["GRPO"][0].recipe == recipe
    assert {"grpo", "paper", "released", "uncentred"} == set(CompareConfig().methods.split())
    assert LabConfig().methods == CompareConfig().methods


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_settings_with_fresh_seeds_and_folders_of_their_own(preset):
    config = parse_flags(CompareConfig, ["--preset", preset], presets=PRESETS)
    others = [parse_flags(CompareConfig, ["--preset", name], presets=PRESETS) for name in PRESETS if name != preset]
    own = set(range(config.first_seed, config.first_seed + config.seeds))
    assert not any(own & set(range(c.first_seed, c.first_seed + c.seeds)) or c.out == config.out for c in others)
    assert config.checkpoints >= 3 and not own & {50, *range(100, 105), *range(200, 208), *range(7300, 7306)}


def test_the_ablations_have_both_arms_and_the_arm_that_each_is_compared_with():
    methods = PRESETS["ablations"]["methods"].split()
    for arm in ("paper", "uncentred"):
        for change in ("no-penalty", "prob", "unscaled", "gamma-1", "every-turn", "reference", "groups-of-8", "rms"):
            assert {arm, f"{arm}+{change}"} <= set(methods)
    assert {"grpo+token-mean", "grpo+token-sum", "uncentred+token-mean", "uncentred+token-sum"} <= set(methods)
    assert PRESETS["ablations"]["seeds"] >= 8


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(("given", "words"), [
    ({"methods": "paper gpro"}, "methods must be some of grpo paper .*; got 'paper gpro'"),
    ({"methods": " "}, "methods must be"), ({"methods": "paper grpo paper"}, "each once"),
    ({"methods": "paper+probe"}, "with changes after plus signs: discounted .*; got 'paper\\+probe'"),
])
def test_what_cannot_be_compared_is_refused_before_anything_runs(given, words):
    with pytest.raises(ConfigError, match=words):
        CompareConfig(**given)


def test_first_the_starts_then_all_methods_of_a_seed_before_the_next_seed_then_tables_and_page(small, capsys):
    text = compare.main(small)
    started = (Path(small.out) / "started.txt").read_text().split()
    assert started == ["sft-3", "sft-4", "grpo-7", "paper-7", "grpo-8", "paper-8"]
    printed = capsys.readouterr()
    assert "runs 4/4" in printed.err and "4 runs of 4 steps, 1 at a time: about 0:51 in all on 1 quiet" in printed.out
    assert "grpo    0.010 [0.010, 0.010]  0.060 [0.060, 0.060]" in text and "2 of 2" in text and "0 of 2" in text
    assert "paper - grpo  0.000 [0.000, 0.000]  0.010 [0.010, 0.010]" in text
    page = (Path(small.out) / "report.html").read_text()
    assert "0.060 [0.060, 0.060]" in page and "Turns per rollout" in page and "before the first run and not" in page
    assert "Gain of right visits" not in page, "nobody had gains"
    assert "<dt>grpo</dt><dd>Only the final answer is paid" in page, "what the methods are"
    assert read_json(Path(small.out) / "run.json") == asdict(small)


def test_a_run_that_somebody_stopped_is_not_taken_for_a_finished_one(small):
    Path(small.out).mkdir()
    (Path(small.out) / "stopped").touch()
    with pytest.raises(ScriptFailed, match=r"sft-3 was stopped before step 4; the same command goes on there"):
        compare.main(small)
    assert (Path(small.out) / "started.txt").read_text().split() == ["sft-3"]


def test_demonstrations_have_as_many_hops_as_the_questions_and_at_least_four(small, monkeypatch):
    seen = []

    def train_all(label, script, folder, steps, jobs, *_):
        for flags in jobs.values():
            seen.append(parse_flags(SFTConfig, [str(flag) for flag in flags]))

    monkeypatch.setattr(compare, "train_all", train_all)
    for hops in (2, 6):
        compare.start_checkpoints(replace(small, hops=hops, wrong_result=hops / 10))
    found = [(config.seed, config.most_hops, config.wrong_result) for config in seen]
    assert found == [(3, 4, 0.2), (4, 4, 0.2), (3, 6, 0.6), (4, 6, 0.6)]


# ------------------------------------------------------------------------------------------------ what was fixed before


def plan(config) -> dict:
    return read_json(Path(config.out) / "plan.json")


def test_the_plan_is_written_before_the_first_run(small, monkeypatch):
    def train_all(*_):
        assert plan(small)["plan"]["first metric"] == "test_exact_match after step 4" and not plan(small)["changes"]
        raise ScriptFailed("no run")

    monkeypatch.setattr(compare, "train_all", train_all)
    with pytest.raises(ScriptFailed):
        compare.main(small)
    fixed = plan(small)["plan"]
    assert {"methods", "seeds", "first_seed", "first_sampling_seed", "checkpoints", "first_sft_seed"} <= set(fixed)
    assert {"steps", "learning_rate", "hops", "slack", "questions", "group"} <= set(fixed)
    assert not {"out", "jobs"} & set(fixed), "where and how many at a time decide nothing"


def test_what_is_changed_after_the_plan_is_said_and_never_forgotten(small):
    assert "fixed before the first run and not changed" in compare.main(small)
    more = replace(small, seeds=3)
    said = "Changed after the plan was written, when 4 runs had begun: seeds from 2 to 3."
    for text in (compare.main(more), (Path(small.out) / "report.html").read_text()):
        assert said in text and "not changed" not in text
    again = compare.main(more)
    assert again.count("Changed after") == 1, "the same settings again are no further change"
    back = compare.main(small)
    assert said in back and "when 6 runs had begun: seeds from 3 to 2." in back
    assert plan(small)["plan"]["seeds"] == 2


def test_a_plan_that_came_after_runs_says_so(small):
    compare.main(small)
    (Path(small.out) / "plan.json").unlink()
    assert "The plan is not from before the first run: 4 runs had begun." in compare.main(small)


def test_the_command_takes_presets(small, capsys):
    with pytest.raises(SystemExit):
        main(["compare", "--preset", "everything"])
    assert "ablations" in capsys.readouterr().err


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


def run(accuracy, area, start=0.1, turns=8.0):
    """Before the first step, and after step 4; half as many right pages."""
    return {"test_exact_match": {0: start, 4: accuracy}, "area": {0: 0.0, 4: area}, "test_turns": {0: 8.0, 4: turns},
            "test_right_pages": {0: start / 2, 4: accuracy / 2}}


def test_the_tables_with_differences_of_paired_runs_worked_by_hand():
    """Of two runs the interval reaches from one to the other."""
    runs = {"grpo": [run(0.3, 0.2, turns=3.9), run(0.4, 0.2)], "paper": [run(0.5, 0.4), run(0.8, 0.3)],
            "paper+prob": [run(0.6, 0.4), run(0.6, 0.4)]}
    tables = results(runs, 2, 4)
    means, middle, apart, each = tables.values()
    assert means[0] == ["method", "accuracy at step 0", "at step 4", "area under the curve", "right pages at step 4",
                        "collapsed"]
    assert means[1][2:] == ["0.350 [0.300, 0.400]", "0.200 [0.200, 0.200]", "0.175 [0.150, 0.200]", "1 of 2"]
    assert means[2][2] == "0.650 [0.500, 0.800]" and middle[2][2] == means[2][2]
    assert [row[0] for row in apart] == ["method", "paper - grpo", "paper+prob - paper"]
    assert apart[1][2:4] == ["0.300 [0.200, 0.400]", "0.150 [0.100, 0.200]"], "paired: (.2 + .4) / 2"
    assert apart[2][2] == "-0.050 [-0.200, 0.100]"
    assert each == [["start checkpoint", "1", "2"], ["grpo", "0.30", "0.40"], ["paper", "0.50", "0.80"],
                    ["paper+prob", "0.60", "0.60"]]
    assert len(results({"grpo": [run(0.3, 0.2)]}, 1, 4)) == 3, "one method has no differences"


def test_a_line_is_over_the_steps_that_every_run_has_and_a_method_without_one_keeps_its_place():
    both = line("paper", [{5: 0.0, 2: 2.0, 1: 1.0}, {5: 1.0, 2: 3.0, 3: 9.0}])
    assert (both.name, both.x, both.y, both.low, both.high) == ("paper", [2, 5], [2.5, 0.5], [2.0, 0.0], [3.0, 1.0])
    alone = line("single", [{1: 1.0}])
    assert (alone.x, alone.y, alone.low) == ([1], [1.0], None)
    assert line("grpo", [{}, {1: 1.0}]).x == []
