"""The pictures of the README: they show the numbers of the run, and the same run gives the same files."""

import json
import shutil
import xml.etree.ElementTree as ET

import pytest

from minvenus.config import ConfigError
from minvenus.experiments import pictures
from minvenus.experiments.calculator import EXAMPLES
from minvenus.experiments.compare import CompareConfig
from minvenus.experiments.lab import LabConfig
from minvenus.experiments.pictures import (
    BROWSERS,
    PicturesConfig,
    curves_picture,
    main,
    telling_rollout,
)
from minvenus.experiments.theory import TheoryConfig
from minvenus.flags import save_config
from minvenus.igpo.credit import assign_credit
from minvenus.igpo.recipes import RECIPES, Recipe
from minvenus.report.curves import COLOURS, METHODS
from minvenus.report.saved import save_batch
from tests.report.examples import group_of_four


def texts(path) -> list[str]:
    return [node.text or "" for node in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_pictures_show_the_gains_and_advantages_of_a_rollout_and_every_example_twice_the_same(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(pictures, "LAB", LabConfig(seeds=2, steps=2))
    monkeypatch.setattr(pictures, "THEORY", TheoryConfig(group=2))
    batch = group_of_four()
    save_batch(tmp_path / "demo" / "igpo", batch)
    if not any(map(shutil.which, BROWSERS)):
        with pytest.raises(ConfigError, match="no browser"):
            main(PicturesConfig(demo=str(tmp_path / "demo"), out=str(tmp_path / "a")))
    else:
        written = main(PicturesConfig(demo=str(tmp_path / "demo"), out=str(tmp_path / "a"))).split()
        assert len(written) == 9
        assert (tmp_path / "a" / "xray.png").read_bytes().startswith(b"\x89PNG")
        main(PicturesConfig(demo=str(tmp_path / "demo"), out=str(tmp_path / "b")))
        for file in (tmp_path / "a").glob("*.svg"):
            assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    credited = assign_credit(batch.samples, Recipe.paper())
    i = telling_rollout(credited)
    shown = texts(tmp_path / "a" / "rollout-light.svg")
    assert {f"gain {gain:+.2f}" for gain in credited.gains[i] if gain is not None} <= set(shown)
    assert {f"{a:+.2f}" for a in credited.advantages[i]} <= set(shown)
    assert texts(tmp_path / "a" / "rollout-dark.svg") == shown
    assert {*EXAMPLES, *RECIPES} <= set(texts(tmp_path / "a" / "examples-dark.svg"))
    for name in ("lab-front", "theory-front"):
        assert {"paper", "uncentred"} <= set(texts(tmp_path / "a" / f"{name}-dark.svg"))


def test_curves_of_a_comparison_have_a_line_and_a_band_for_each_method_and_without_one_there_is_no_picture(
    tmp_path,
):
    config = CompareConfig(
        out=str(tmp_path / "elsewhere"), methods="grpo uncentred", seeds=2, first_seed=5, steps=2
    )
    assert curves_picture(tmp_path) is None
    save_config(config, tmp_path)  # the folder may have been moved
    for name, shares in {
        "grpo-5": (0.1, 0.2),
        "grpo-6": (0.1, 0.4),
        "uncentred-5": (0.1, 0.8),
        "uncentred-6": (0.1, 0.9),
    }.items():
        rows = [{"step": step, "test_exact_match": share} for step, share in enumerate(shares, 1)]
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    drawn = ET.fromstring(curves_picture(tmp_path))
    lines = [line.get("stroke") for line in drawn.iter("{http://www.w3.org/2000/svg}polyline")]
    bands = [band.get("fill") for band in drawn.iter("{http://www.w3.org/2000/svg}polygon")]
    assert lines == bands == [COLOURS[METHODS["grpo"]], COLOURS[METHODS["uncentred"]]]
    assert {"grpo", "uncentred"} <= {
        node.text for node in drawn.iter("{http://www.w3.org/2000/svg}text")
    }


def test_without_a_demo_the_command_says_what_to_run_first(tmp_path):
    with pytest.raises(ConfigError, match="make demo"):
        main(PicturesConfig(demo=str(tmp_path)))
