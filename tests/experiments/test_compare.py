"""The comparison: what its methods are, what it refuses, in which order it runs, and what it fixed before."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from minvenus.config import ConfigError, read_json
from minvenus.experiments import compare, scripts
from minvenus.experiments.__main__ import COMMANDS, main
from minvenus.experiments.compare import ARMS, CHANGES, PRESETS, CompareConfig, register
from minvenus.experiments.lab import LabConfig
from minvenus.flags import parse_flags
from minvenus.igpo.recipes import RECIPES, Recipe
from minvenus.report.explain import under_recipes
from minvenus.settings import IGPOConfig, SFTConfig
from tests.report.examples import answer, rollout, saved_batch, visit

# Stands in for both training scripts: notes that it was started and with which flags, and leaves what a run leaves.
# Accuracy is 0.01 at the start; GRPO's rollouts get short. A file "stopped" says after which step somebody stopped it.
TRAIN = """
import json, pathlib, sys
END = {"grpo-7": 0.1, "grpo-8": 0.2, "grpo-9": 0.6, "paper-7": 0.5, "paper-8": 0.3, "paper-9": 0.7}
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder, steps = pathlib.Path(given["--out"]), int(given["--steps"])
with (folder.parent / "started.txt").open("a") as file:
    file.write(folder.name + "\\n")
start = {"step": 1, "before_test_exact_match": 0.01, "before_test_right_pages": 0.5, "before_test_turns": 8.0}
end = {"step": steps, "test_exact_match": END.get(folder.name, 0.0), "test_right_pages": 0.75,
       "test_turns": 3.9 if "grpo" in folder.name else 4.0}
folder.mkdir(exist_ok=True)
(folder / "flags.json").write_text(json.dumps(given))
(folder / "metrics.jsonl").write_text(json.dumps(start) + "\\n" + json.dumps(end) + "\\n")
stopped = folder.parent / "stopped"
if made := int(stopped.read_text()) if stopped.exists() else steps:
    newest = folder / "checkpoints" / f"step-{made:08d}"
    newest.mkdir(parents=True, exist_ok=True)
    (newest / "state.json").write_text("{}")
    (folder / "latest").write_text(newest.name)
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Two methods, three runs each from two starts, four steps."""
    for script in ("train_igpo.py", "train_sft.py"):
        (tmp_path / script).write_text(TRAIN)
    monkeypatch.setattr(scripts, "ROOT", tmp_path)
    monkeypatch.setattr(scripts, "LOOK_EVERY", 0.01)
    return CompareConfig(
        out=str(tmp_path / "out"),
        methods="grpo paper",
        seeds=3,
        checkpoints=2,
        first_seed=7,
        first_sampling_seed=70,
        first_sft_seed=3,
        sft_steps=5,
        steps=4,
        jobs=1,
    )


# ---------------------------------------------------------------------------------------------------------- the methods

DIFFERENCES = {  # of each arm or change from `paper`
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
    **{
        f"rate-{rate}": {"learning_rate": float(rate)}
        for rate in ("3e-4", "6e-4", "9e-4", "12e-4", "18e-4")
    },
}


@pytest.mark.parametrize(
    "method",
    [
        *ARMS,
        *(f"paper+{change}" for change in CHANGES),
        "grpo+discounted",
        "uncentred+rms+token-sum",
    ],
)
def test_a_method_differs_from_the_paper_in_what_its_name_says_and_in_nothing_else(method, small):
    config = replace(small, steps=6, questions=3, group=5, hops=2, slack=1, learning_rate=2e-5)
    flags = compare.run_flags(config, Path("tiny"), method, 1)
    started = asdict(parse_flags(IGPOConfig, [str(flag) for flag in flags]))
    shared = {
        "model": "tiny",
        "seed": 71,
        "question_seed": 8,
        "questions": 3,
        "group": 5,
        "hops": 2,
        "slack": 1,
        "learning_rate": 2e-5,
        "max_context": 384,
        "evaluate_every": 10,
        "rollouts_every": 6,
    }
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
    assert recipe == Recipe(use_gain=False, gamma=1.0)
    batch = saved_batch(
        [rollout([visit(), answer()])] * 2, [0, 0], [1.0, 0.0], Recipe(), [[[-2.0], [-1.0]]] * 2
    )
    assert under_recipes(batch.samples, Recipe())["grpo"][0].recipe == RECIPES["grpo"]
    assert {"grpo", "paper", "released", "uncentred"} == set(CompareConfig().methods.split())
    assert LabConfig().methods == CompareConfig().methods


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_settings_with_fresh_seeds_and_folders_of_their_own(
    preset, monkeypatch, capsys
):
    config = parse_flags(CompareConfig, ["--preset", preset], presets=PRESETS)
    others = [
        parse_flags(CompareConfig, ["--preset", name], presets=PRESETS)
        for name in PRESETS
        if name != preset
    ]
    own = set(range(config.first_seed, config.first_seed + config.seeds))
    assert not any(
        own & set(range(c.first_seed, c.first_seed + c.seeds)) or c.out == config.out
        for c in others
    )
    assert config.checkpoints >= 3 and not own & {
        50,
        *range(100, 105),
        *range(200, 208),
        *range(7300, 7306),
    }
    assert config.methods.startswith("grpo"), "the others are compared with it"
    starts = [
        set(range(c.first_sft_seed, c.first_sft_seed + c.checkpoints)) for c in (config, *others)
    ]
    assert preset != "rates" or not starts[0] & set().union(*starts[1:]), (
        "tuned on other starts than are reported"
    )
    monkeypatch.setitem(COMMANDS, "compare", (CompareConfig, lambda given: given == config))
    main(["compare", "--preset", preset])
    assert capsys.readouterr().out == "True\n"


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"methods": "paper gpro"}, "methods must be some of grpo paper .*; got 'paper gpro'"),
        ({"methods": " "}, "methods must be"),
        ({"methods": "paper grpo paper"}, "each once"),
        (
            {"methods": "paper+probe"},
            "with changes after plus signs: discounted .*; got 'paper\\+probe'",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(given, words):
    with pytest.raises(ConfigError, match=words):
        CompareConfig(**given)


def test_first_the_starts_then_all_methods_of_a_seed_before_the_next_seed_then_tables_and_page(
    small, capsys
):
    text = compare.main(small)
    started = (Path(small.out) / "started.txt").read_text().split()
    assert started == [
        "sft-3",
        "sft-4",
        "grpo-7",
        "paper-7",
        "grpo-8",
        "paper-8",
        "grpo-9",
        "paper-9",
    ]
    printed = capsys.readouterr()
    assert (
        "runs 6/6" in printed.err
        and "6 runs of 4 steps, 1 at a time: about 0:52 in all on 1 quiet" in printed.out
    )
    assert (
        "grpo    0.010 [0.010, 0.010]  0.300 [0.100, 0.600]" in text
        and "3 of 3" in text
        and "0 of 3" in text
    )
    assert "paper - grpo  0.000 [0.000, 0.000]  0.200 [0.100, 0.400]" in text, (
        "paired by seed: .4, .1, .1"
    )
    assert re.search(
        r"start checkpoint +1 +2 +1\ngrpo +0.10 +0.20 +0.60\npaper +0.50 +0.30 +0.70", text
    )
    page = (Path(small.out) / "report.html").read_text()
    assert (
        "0.300 [0.100, 0.600]" in page
        and "Turns per rollout" in page
        and "before the first run and not" in page
    )
    assert "Gain of right visits" not in page, "nobody had gains"
    assert "<dt>grpo</dt><dd>Only the final answer is paid" in page, "what the methods are"
    assert read_json(Path(small.out) / "run.json") == asdict(small)


@pytest.mark.parametrize(("hops", "most_hops"), [(2, 4), (6, 6)])
def test_runs_of_one_number_have_the_same_start_questions_and_sampling_seed_whatever_their_method(
    small, hops, most_hops
):
    """And runs of different numbers take turns through the checkpoints, with questions and sampling of their own.
    Demonstrations have as many hops as the questions and at least four."""
    compare.main(replace(small, jobs=2, hops=hops, wrong_result=0.25))
    folder = Path(small.out)
    for seed in (3, 4):
        flags = read_json(folder / f"sft-{seed}" / "flags.json")
        taught = parse_flags(SFTConfig, [word for pair in flags.items() for word in pair])
        assert (taught.seed, taught.most_hops, taught.wrong_result, taught.steps) == (
            seed,
            most_hops,
            0.25,
            5,
        )
    for method in ("grpo", "paper"):
        for i, start in enumerate(("sft-3", "sft-4", "sft-3")):
            flags = read_json(folder / f"{method}-{7 + i}" / "flags.json")
            assert flags["--model"] == str(
                folder / start / "checkpoints" / "step-00000005" / "model"
            )
            assert (flags["--question-seed"], flags["--seed"], flags["--steps"]) == (
                str(7 + i),
                str(70 + i),
                "4",
            )


# ------------------------------------------------------------------------------------------------ what was fixed before


@pytest.mark.parametrize("made", [0, 4])
def test_the_plan_is_there_before_the_first_run_and_one_that_somebody_stopped_is_not_taken_for_a_finished_one(
    small, made
):
    Path(small.out).mkdir()
    (Path(small.out) / "stopped").write_text(f"{made}")
    with pytest.raises(
        ConfigError, match=r"sft-3 was stopped before step 5; the same command goes on there"
    ):
        compare.main(small)
    assert (Path(small.out) / "started.txt").read_text().split() == ["sft-3"]
    [plan] = read_json(Path(small.out) / "plan.json")["plans"]
    fixed = plan["settings"]
    decide = {key: value for key, value in asdict(small).items() if key not in ("out", "jobs")}
    assert plan["runs"] == 0 and fixed.pop("first metric") == "test_exact_match after step 4"
    assert fixed.pop("flags") == {"grpo": "--no-use-gain --gamma 1", "paper": ""}
    assert fixed == decide | {
        key: fixed[key] for key in ("second metric", "statistics", "collapsed")
    }


def test_what_is_changed_after_the_plan_is_said_and_never_forgotten(tmp_path):
    """Also before any run has begun: start checkpoints may have been looked at by then."""
    for _ in range(2):
        [said] = register(tmp_path, {"seeds": 3, "steps": 40}, 0)
        assert "fixed before the first run and not changed" in said
    changes = []
    for begun, seeds, steps, words in (
        (0, 2, 40, "seeds from 3 to 2"),
        (4, 3, 40, "seeds from 2 to 3"),
        (5, 1, 80, "seeds from 3 to 1, steps from 40 to 80"),
    ):
        changes.append(f"Changed after the plan was written, when {begun} runs had begun: {words}.")
        for _ in range(2):
            assert register(tmp_path, {"seeds": seeds, "steps": steps}, begun) == changes, (
                "said once"
            )
    (tmp_path / "plan.json").unlink()
    assert register(tmp_path, {}, 3) == [
        "The plan is not from before the first run: 3 runs had begun."
    ]
    (tmp_path / "plan.json").write_text('{"plan": {}}')
    with pytest.raises(
        ConfigError, match=r"plan\.json is of another version: give the comparison another --out"
    ):
        register(tmp_path, {}, 3)


def test_another_meaning_of_a_method_is_a_change_of_the_plan(small, monkeypatch):
    small = replace(small, methods="grpo", checkpoints=1)
    compare.main(small)
    monkeypatch.setitem(compare.ARMS, "grpo", ("--no-use-gain", "--gamma", "0.5"))
    for text in (compare.main(small), (Path(small.out) / "report.html").read_text()):
        assert "when 3 runs had begun: flags from " in text and "not changed" not in text
