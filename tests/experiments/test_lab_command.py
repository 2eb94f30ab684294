"""python -m minvenus.experiments.lab: its flags, its table and its page."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from minvenus.config import ConfigError
from minvenus.experiments.lab.__main__ import PRESETS, main
from minvenus.experiments.lab.config import PROFILES, LabConfig, gains_named
from minvenus.experiments.lab.credit import METHODS, Curve
from minvenus.experiments.lab.tables import Result, cells, compare, shown_steps

SMALL = ["--steps", "4", "--seeds", "2", "--groups", "2"]


def test_the_command_prints_a_row_per_method_and_writes_one_page_that_needs_nothing_else(tmp_path, capsys):
    assert main([*SMALL, "--gains", "equal front .5/.4/.3/.3:-.1~.2", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert all(len(re.findall(rf"^{name} .*±", printed, re.M)) == 3 for name in METHODS)
    assert "right visits 0.50 0.40 0.30 0.30, wrong -0.10, noise 0.20" in printed
    page = (tmp_path / "lab.html").read_text()
    plots = re.findall("<svg.*?</svg>", page, re.S)
    assert len(plots) == 6 and all(ET.fromstring(plot) is not None for plot in plots)
    assert not re.search(r"<script|href|src=|url\(", page)
    assert (tmp_path / "run.json").is_file()


def test_the_page_shows_the_numbers_of_the_table(tmp_path, capsys):
    main([*SMALL, "--gains", "noisy", "--methods", "paper", "--out", str(tmp_path)])
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("paper "))
    shown = re.findall(r"<td>([\d.]+ ±[\d.]+)</td>", (tmp_path / "lab.html").read_text())
    assert shown == re.findall(r"\S+ ±\S+", row) and len(shown) == 3


def test_a_second_run_prints_and_writes_the_same(tmp_path, capsys):
    texts = []
    for _ in range(2):
        main([*SMALL, "--gains", "noisy", "--out", str(tmp_path)])
        texts.append((capsys.readouterr().out, (tmp_path / "lab.html").read_bytes()))
    assert texts[0] == texts[1]


def test_cells_worked_by_hand():
    result = Result([Curve([0.1, 0.5], [3.0, 5.0]), Curve([0.1, 0.7], [3.0, 6.0])])
    assert cells(result, [0, 1]) == ["0.10 ±0.00", "0.60 ±0.14", "5.5 ±0.7"]
    assert cells(Result(result.curves[:1]), [1]) == ["0.50 ±0.00", "5.0 ±0.0"]


def test_grpo_is_the_same_whatever_the_gains():
    config = LabConfig(steps=3, seeds=1, gains="front noisy", methods="grpo paper")
    results = compare(config)
    assert results["front"]["grpo"].curves == results["noisy"]["grpo"].curves
    alone = compare(LabConfig(steps=3, seeds=1, gains="noisy", methods="grpo"))
    assert alone["noisy"]["grpo"].curves == results["front"]["grpo"].curves


@pytest.mark.parametrize("steps, shown", [(80, [0, 20, 40, 60, 79]), (60, [0, 20, 40, 59]), (2, [0, 1]), (1, [0]),
                                          (200, [0, 40, 80, 120, 160, 199])])
def test_shown_steps(steps, shown):
    assert shown_steps(steps) == shown


@pytest.mark.parametrize("name, right", [("equal", [0.8] * 4), ("rising", [0.4, 0.6, 0.9, 1.3]), ("back", [0.1, 0.1, 0.1, 2.9]),
                                         ("front", [2.6, 0.2, 0.2, 0.2]), ("measured", [0.47, 0.43, 0.45, 0.40])])
def test_profiles_of_four_hops(name, right):
    assert gains_named(name, 4).right == pytest.approx(right)


@pytest.mark.parametrize("hops", [1, 2, 6])
def test_profiles_differ_in_shape_and_not_in_size(hops):
    for name in set(PROFILES) - {"measured"}:
        assert np.mean(gains_named(name, hops).right) == pytest.approx(0.8)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_is_a_valid_setting(preset):
    assert LabConfig(**PRESETS[preset]).worlds()


@pytest.mark.parametrize("change, message", [
    ({"methods": "paper grop"}, "grpo paper released"), ({"gains": "equal fornt"}, "'fornt': neither one of equal"),
    ({"gains": ".5/.4"}, "4 hops need 4 finite numbers, got 2"), ({"gains": "nan/1/1/1"}, "finite"),
    ({"gains": " "}, "at least one"),
    ({"hops": 6, "visits": 8, "gains": "measured"}, "4 hops, not of 6"), ({"visits": 3}, "4 hops need at least as many visits"),
    ({"right": 0.6, "wrong": 0.6}, "add up to 1"), ({"group_size": 1}, "at least 2"), ({"learning_rate": 0.0}, "above 0"),
    ({"gains": ".5/.4/.3/.3:0~-1"}, "neither"), ({"seeds": 0}, "at least 1, got 0")])
def test_settings_that_make_no_sense_are_refused_with_the_reason(change, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        LabConfig(**change)


def test_a_misspelt_method_ends_the_command_with_code_2(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--methods", "ppo"])
    assert stopped.value.code == 2 and "grpo paper released" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_said_and_the_table_is_still_printed(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main([*SMALL, "--gains", "equal", "--methods", "grpo", "--out", str(tmp_path / "file")]) == 1
    done = capsys.readouterr()
    assert "could not be written" in done.err and "grpo" in done.out
