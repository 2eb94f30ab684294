"""The comparison: what its methods are, what it refuses, in which order it runs, and its plan."""

import html
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from minvenus.config import ConfigError, read_json
from minvenus.experiments import compare
from minvenus.experiments.__main__ import main
from minvenus.experiments.compare import CompareConfig
from minvenus.experiments.lab import LabConfig
from minvenus.experiments.methods import CHANGES, METHODS, PRESETS, method_recipe, split_names
from minvenus.flags import parse_flags
from minvenus.igpo.recipes import RECIPES
from minvenus.train.settings import IGPOConfig, SFTConfig

# Stands in for both training scripts: notes that it was started and with which flags, and leaves
# what a run leaves. Accuracy is 0.01 at the start; GRPO's rollouts get short. A file "stopped" says
# after which step somebody stopped it.
TRAIN = """
import json, pathlib, sys
END = {"grpo-7": 0.1, "grpo-8": 0.2, "grpo-9": 0.6, "paper-7": 0.5, "paper-8": 0.3, "paper-9": 0.7}
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder, steps = pathlib.Path(given["--out"]), int(given["--steps"])
with (folder.parent / "started.txt").open("a") as file:
    file.write(folder.name + "\\n")
start = {"step": 1, "before_test_exact_match": 0.01, "before_test_right_pages": 0.5,
         "before_test_turns": 8.0}
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
    monkeypatch.setattr(compare, "ROOT", tmp_path)
    monkeypatch.setattr(compare, "LOOK_EVERY", 0.01)
    seeds = {"first_seed": 7, "first_sampling_seed": 70, "first_sft_seed": 3}
    sizes = {"seeds": 3, "checkpoints": 2, "sft_steps": 5, "steps": 4, "jobs": 1}
    return CompareConfig(out=str(tmp_path / "out"), methods="grpo, paper", **seeds, **sizes)


# ------------------------------------------------------------------------------------ the methods

DIFFERENCES = {  # what each change does to the settings of train_igpo.py
    "- penalty": {"format_penalty": None},
    "+ penalty": {"format_penalty": 1.0},
    "/ gamma .95": {"gamma": 0.95},
    "/ gamma 1": {"gamma": 1.0},
    "/ prob": {"gain": "prob"},
    "/ unscaled": {"normalize": "separate"},
    "/ std": {"spread": "std"},
    "/ rms": {"spread": "rms"},
    "/ one": {"spread": "one"},
    "/ every turn": {"browse": "off"},
    "/ reference": {"gain_policy": "reference"},
    "/ groups of 8": {"group": 8, "questions": 4},
    "/ token-mean": {"aggregate": "token-mean"},
    "/ token-sum": {"aggregate": "seq-mean-token-sum"},
    **{f"/ rate {n}e-4": {"learning_rate": n * 1e-4} for n in (3, 6, 9, 12, 18)},
}


@pytest.mark.parametrize(
    "method",
    [*RECIPES, *(f"paper {change}" for change in CHANGES), "raw_ig / rms - penalty / token-sum"],
)
def test_a_method_is_its_recipe_with_the_changes_behind_it_and_nothing_else(method, small):
    config = replace(small, steps=6, hops=1, learning_rate=2e-5)
    flags = compare.flags_of(compare.run_settings(config, Path("tiny"), method, 1))
    settings = asdict(parse_flags(IGPOConfig, flags))
    name, *changes = re.split(" (?=[-+/] )", method)
    expected = asdict(IGPOConfig(recipe=RECIPES[name]))
    for values in (expected, settings):
        values |= values.pop("recipe") | values.pop("loss")
    expected |= {"model": "tiny", "seed": 71, "question_seed": 8, "hops": 1, "max_context": 256}
    expected |= {"learning_rate": 2e-5, "evaluate_every": 10, "rollouts_every": 6}
    for change in changes:
        expected |= DIFFERENCES[change]
    assert settings == pytest.approx(expected)


def test_the_lab_gives_a_method_the_same_recipe():
    assert method_recipe("grpo") == RECIPES["grpo"]
    assert method_recipe("raw_ig / rms - penalty") == replace(
        RECIPES["raw_ig"], spread="rms", format_penalty=None
    )
    assert LabConfig().methods == "grpo, paper, released, raw_ig, uncentred"
    for recipe in LabConfig().methods.split(", "):
        assert CompareConfig().methods.count(recipe) == 1, "the comparison has all five, changed"


PLANNED = {
    name: parse_flags(CompareConfig, ["--preset", name], presets=PRESETS) for name in PRESETS
}


def test_without_flags_it_is_the_comparison_that_the_page_shows():
    """And with a preset the one that is planned in docs/experiment.md: hops, the lowest share of
    wrong results, steps, runs, starts, methods."""
    page = (Path(__file__).parents[2] / "docs" / "comparison.html").read_text(encoding="utf-8")
    facts = dict(re.findall("<dt>([^<]*)</dt><dd>([^<]*)</dd>", html.unescape(page)))
    for name, setting in compare.plan_of(CompareConfig()).items():
        assert facts[name] == str(setting)
    sizes = {}
    for name, c in PLANNED.items():
        count = len(c.methods.split(","))
        sizes[name] = (c.hops, c.wrong_result, c.steps, c.seeds, c.checkpoints, count, c.asks)
    assert sizes == {
        "methods": (4, 0.5, 40, 15, 5, 5, "every"),
        "penalty": (4, 0.5, 40, 5, 5, 5, "every"),
        "last": (4, 0.5, 40, 15, 5, 3, "last"),
        "sparse": (5, 0.7, 60, 5, 5, 3, "every"),
        "rates": (4, 0.5, 40, 3, 3, 25, "every"),
        "own": (4, 0.5, 40, 5, 5, 5, "every"),
    }


def test_each_method_has_the_rate_that_was_best_for_it_and_that_its_stored_runs_had():
    results = Path(__file__).parents[2] / "docs" / "results"
    accuracy = {}
    for file in ("rates.txt", "rates-igpo.txt"):
        for line in (results / file).read_text(encoding="utf-8").split("\n\n")[0].splitlines()[3:]:
            name, _, after, *_ = re.split(r"\s{2,}", line)
            accuracy[name] = float(after.split()[0])
    best = []
    for method in METHODS:
        rates = [name for name in accuracy if name.startswith(f"{method} / rate")]
        best.append(max(rates, key=accuracy.get))
    assert split_names(PLANNED["own"].methods) == best
    stored = (results / "own.txt").read_text(encoding="utf-8").splitlines()[3:8]
    assert [re.split(r"\s{2,}", line)[0] for line in stored] == best


def test_presets_have_seeds_and_folders_of_their_own(monkeypatch, capsys):
    """Only that with penalties has the starts and seeds of the headline: they are compared run by
    run."""
    fresh = [config for name, config in PLANNED.items() if name != "penalty"]
    for first, count in (("first_seed", "seeds"), ("first_sft_seed", "checkpoints")):
        used = []
        for config in fresh:
            start = getattr(config, first)
            used += range(start, start + getattr(config, count))
            assert config.methods.startswith("grpo"), "the others are compared with it"
        unseen = set(used) - {50, *range(100, 105), *range(200, 208), *range(7300, 7306)}
        assert len(unseen) == len(used)
    assert len({config.out for config in PLANNED.values()}) == len(PLANNED)
    monkeypatch.setattr(compare, "main", lambda settings: settings == PLANNED["last"])
    main(["compare", "--preset", "last"])
    assert capsys.readouterr().out == "True\n"


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ("paper, gpro", "methods must be some of grpo, paper, .*; got 'paper, gpro'"),
        (" ", "methods must be"),
        ("paper, grpo, paper", "each once"),
        ("paper / probe", "with changes behind it: - penalty, .*; got 'paper / probe'"),
        ("paper / penalty", "got 'paper / penalty'"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(methods, words):
    with pytest.raises(ConfigError, match=words):
        CompareConfig(methods=methods)


# --------------------------------------------------------------------------------------- the runs


def test_first_the_starts_then_all_methods_of_a_seed_before_the_next_seed_then_tables_and_page(
    small, capsys
):
    text = compare.main(small)
    folder = Path(small.out)
    runs = ["grpo-7", "paper-7", "grpo-8", "paper-8", "grpo-9", "paper-9"]
    assert (folder / "started.txt").read_text().split() == ["sft-3", "sft-4", *runs]
    printed = capsys.readouterr()
    assert "runs 6/6" in printed.err
    assert "6 runs of 4 steps, 1 at a time: about 0:52 in all on 1 quiet" in printed.out
    assert "grpo    0.010 [0.010, 0.010]  0.300 [0.100, 0.600]" in text
    assert "3 of 3" in text and "0 of 3" in text
    # paired by seed: .4, .1, .1
    assert "paper minus grpo  0.000 [0.000, 0.000]  0.200 [0.100, 0.400]" in text
    each = r"start checkpoint +1 +2 +1\ngrpo +0.10 +0.20 +0.60\npaper +0.50 +0.30 +0.70"
    assert re.search(each, text)
    assert text.endswith(f"\n\npage: {folder / 'report.html'}")
    page = (folder / "report.html").read_text()
    assert "0.300 [0.100, 0.600]" in page and "<dt>first_seed</dt><dd>7</dd>" in page
    assert read_json(folder / "run.json") == asdict(small)


@pytest.mark.parametrize(("hops", "most_hops", "asks"), [(2, 4, "every"), (6, 6, "last")])
def test_runs_of_one_number_have_the_same_start_questions_and_sampling_seed_in_every_method(
    small, hops, most_hops, asks, capsys
):
    """And runs of different numbers take turns through the checkpoints, with questions and sampling
    of their own. Demonstrations have as many hops as the questions and at least four."""
    small = replace(small, methods="grpo, raw_ig / rms - penalty", jobs=2)
    compare.main(replace(small, hops=hops, wrong_result=0.25, asks=asks))
    cost = int(6 * 4 * 8 * 4 * hops * 0.017 / 2)  # seconds
    assert f"2 at a time: about 0:{cost} in all on 2 quiet cores" in capsys.readouterr().out
    folder = Path(small.out)
    for seed in (3, 4):
        flags = read_json(folder / f"sft-{seed}" / "flags.json")
        taught = parse_flags(SFTConfig, [word for pair in flags.items() for word in pair])
        settings = (taught.seed, taught.most_hops, taught.wrong_result, taught.asks, taught.steps)
        assert settings == (seed, most_hops, 0.25, asks, 5)
    for method in ("grpo", "raw_ig-over-rms-without-penalty"):
        for i, start in enumerate(("sft-3", "sft-4", "sft-3")):
            flags = read_json(folder / f"{method}-{7 + i}" / "flags.json")
            assert Path(flags["--model"]) == folder / start / "checkpoints/step-00000005/model"
            assert (flags["--question-seed"], flags["--seed"]) == (f"{7 + i}", f"{70 + i}")
            assert (flags["--asks"], flags["--steps"]) == (asks, "4")
            assert flags["--max-context"] == f"{192 * hops}"


# --------------------------------------------------------------------------------------- the plan


@pytest.mark.parametrize("steps", [0, 4])
def test_the_plan_is_there_before_the_first_run_and_a_stopped_run_is_not_taken_for_a_finished_one(
    small, steps
):
    folder = Path(small.out)
    folder.mkdir()
    (folder / "stopped").write_text(f"{steps}")
    stopped = r"sft-3 was stopped before step 5; the same command goes on there"
    with pytest.raises(ConfigError, match=stopped):
        compare.main(small)
    assert (folder / "started.txt").read_text().split() == ["sft-3"]
    plan = read_json(folder / "plan.json")
    assert plan["first metric"] == "test_exact_match after step 4"
    assert plan["recipes"] == {"grpo": {"recipe": "grpo"}, "paper": {"recipe": "paper"}}
    settings = asdict(small)
    del settings["out"], settings["jobs"]
    assert plan == plan | settings


def test_a_comparison_is_planned_once_and_goes_on_only_with_the_same_plan(small):
    """Other settings, another meaning of a method and runs from before the plan need another
    folder; another number of processes does not."""
    small = replace(small, methods="paper / rms", checkpoints=1)
    compare.main(small)
    plan = (Path(small.out) / "plan.json").read_bytes()
    compare.main(replace(small, jobs=2))
    with pytest.raises(ConfigError, match=r"json says hops 4, now it is 1: .* another --out"):
        compare.main(replace(small, hops=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CHANGES, "/ rms", {"spread": "one"})
        with pytest.raises(ConfigError, match=r"says recipes .*rms.* now it is .*one"):
            compare.main(small)
    assert (Path(small.out) / "plan.json").read_bytes() == plan
    (Path(small.out) / "plan.json").unlink()
    with pytest.raises(ConfigError, match=r"has runs and no plan\.json: .* another --out"):
        compare.main(small)
