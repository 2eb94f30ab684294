"""The pictures of the README: they show the numbers of the run, and the same run gives the same
files."""

import json
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from docs import make_pictures
from docs.make_pictures import BROWSERS, curves_picture, main, method_name, telling_rollout
from minvenus.experiments.compare import CompareConfig
from minvenus.experiments.lab import LabConfig
from minvenus.flags import save_config
from minvenus.igpo.recipes import RECIPES
from minvenus.report.curves import COLOURS
from minvenus.report.saved import save_batch
from tests.report.examples import group_of_four

SVG = "{http://www.w3.org/2000/svg}"


def texts(path) -> list[str]:
    return [node.text or "" for node in ET.parse(path).iter(f"{SVG}text")]


def test_pictures_show_the_gains_and_advantages_of_a_rollout_and_every_example_twice_the_same(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(make_pictures, "LAB", LabConfig(seeds=2, steps=2))
    monkeypatch.setattr(make_pictures, "GROUP", 2)
    batch = group_of_four()
    demo, none, a, b = (str(tmp_path / name) for name in ("demo", "no comparison", "a", "b"))
    save_batch(tmp_path / "demo" / "igpo", batch)
    if not any(map(shutil.which, BROWSERS)):
        with pytest.raises(SystemExit, match="no browser"):
            main(demo, none, a)
    else:
        main(demo, none, a)
        assert len(list((tmp_path / "a").iterdir())) == 10
        for name in ("xray.png", "real.png"):
            assert (tmp_path / "a" / name).read_bytes().startswith(b"\x89PNG")
        main(demo, none, b)
        for file in (tmp_path / "a").glob("*.svg"):
            assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    i = telling_rollout(batch)
    shown = texts(tmp_path / "a" / "rollout-light.svg")
    assert "(recipe paper)" in " ".join(shown)
    assert method_name(replace(RECIPES["uncentred"], format_penalty=None)) == "uncentred - penalty"
    assert {f"gain {gain:+.2f}" for gain in batch.credit.gains[i] if gain is not None} <= set(shown)
    assert {f"{advantage:+.2f}" for advantage in batch.credit.advantages[i]} <= set(shown)
    assert texts(tmp_path / "a" / "rollout-dark.svg") == shown
    stored = make_pictures.Path("docs/pictures/examples-dark.svg")
    assert (tmp_path / "a" / "examples-dark.svg").read_bytes() == stored.read_bytes()
    for name in ("lab-front", "theory-front"):
        assert {"paper", "uncentred"} <= set(texts(tmp_path / "a" / f"{name}-dark.svg"))


def test_curves_of_a_comparison_have_a_line_and_a_band_for_each_method(tmp_path):
    methods = {"grpo": (0.2, 0.4), "uncentred": (0.8, 0.9)}
    config = CompareConfig(methods=", ".join(methods), seeds=2, first_seed=5, steps=2)
    save_config(config, tmp_path)  # the folder may have been moved
    for method, shares in methods.items():
        for seed, share in enumerate(shares, 5):
            folder = tmp_path / f"{method}-{seed}"
            folder.mkdir()
            rows = [{"step": 1, "test_exact_match": 0.1}, {"step": 2, "test_exact_match": share}]
            (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    picture = ET.fromstring(curves_picture(tmp_path))
    lines = [line.get("stroke") for line in picture.iter(f"{SVG}polyline")]
    bands = [band.get("fill") for band in picture.iter(f"{SVG}polygon")]
    assert lines == bands == list(COLOURS[:2])
    assert set(methods) <= {node.text for node in picture.iter(f"{SVG}text")}


def test_without_a_demo_the_command_says_what_to_run_first(tmp_path):
    with pytest.raises(SystemExit, match="make demo"):
        main(str(tmp_path))
