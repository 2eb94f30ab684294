"""The page of a run: a figure for whatever was logged, links to X-rays, and no figure for what was
not."""

import json
import re
from dataclasses import asdict

import pytest

from minvenus.config import ConfigError
from minvenus.evaluation.aggregate import wilson
from minvenus.igpo.recipes import Recipe
from minvenus.report.curves import BOTTOM, LEFT, RIGHT, TOP
from minvenus.report.run_page import PLOTS, write_run_page
from minvenus.report.saved import path_of, save_batch
from minvenus.train.settings import IGPOConfig
from tests.report.examples import (
    PAGES,
    answer,
    random_batch,
    rollout,
    saved_batch,
    visit,
    words_of,
)


def log(run, rows, **settings):
    run.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, **row}) + "\n" for step, row in enumerate(rows, 1)]
    (run / "metrics.jsonl").write_text("".join(lines))
    (run / "run.json").write_text(json.dumps(asdict(IGPOConfig(**settings))))


NAMES = """outcome turns groups_without_outcome_signal groups_without_any_signal gain_mean
    browse_correct browse_wrong malformed entropy""".split()
ROW = dict.fromkeys(NAMES, 0.5)


def test_a_run_of_igpo_has_its_curves_and_links_to_its_first_and_last_saved_step(tmp_path):
    log(tmp_path, [ROW] * 9 + [ROW | {"test_exact_match": 0.75}], evaluate_questions=100)
    made = [rollout([visit(), answer()])] * 2
    for step in (1, 5, 10):
        save_batch(tmp_path, saved_batch(made, [0, 0], [1.0, 0.0], Recipe.paper(), step=step))
    html = write_run_page(tmp_path).read_text(encoding="utf-8")
    assert "Right pages" not in html, "nothing was logged of them"
    pages = ["xray-step-00000001.html", "xray-step-00000010.html"]
    assert re.findall('<a href="(.*?)">X-ray of', html) == pages
    assert sorted(path.name for path in tmp_path.glob("xray-*")) == pages


def every_number(run):
    """A run that has logged all that the page draws but one line, each with its own number."""
    names = dict.fromkeys(name for plot in PLOTS for name in plot.lines)
    row = {name: (i + 1) / 64 for i, name in enumerate(names)} | {"gain_mean": 0.0}
    del row["outcome"]
    log(run, [row, {"turns": 3.0} | row], evaluate_questions=8)
    return write_run_page(run).read_text(encoding="utf-8")


def test_the_page_word_for_word(tmp_path):
    """Where it should say something else: python -m tests.report.write_pages"""
    assert words_of(every_number(tmp_path / "a run")) == (PAGES / "run.txt").read_text("utf-8")


def test_a_saved_step_that_does_not_add_up_is_named_on_the_page_and_hides_nothing_else(tmp_path):
    log(tmp_path, [ROW])
    save_batch(tmp_path, random_batch(1, Recipe.paper()))
    path = path_of(tmp_path, 19)
    path.write_text(path.read_text().replace('"advantages": [', '"advantages": [7.5, ', 1))
    html = write_run_page(tmp_path).read_text(encoding="utf-8")
    assert "stored and computed arithmetic differ" in html and "Right answers" in html


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"has no metrics\.jsonl"):
        write_run_page(tmp_path)


def test_the_numbers_before_training_begin_the_lines(tmp_path):
    before = {"before_test_exact_match": 0.25, "before_test_turns": 6.0}
    after = {"test_exact_match": 0.875, "test_turns": 5.0}
    log(tmp_path, [ROW | before, ROW, ROW | after], evaluate_questions=8)
    html = write_run_page(tmp_path).read_text(encoding="utf-8")
    [band] = re.findall(r'<polygon points="([^"]*)"', html)  # only exact match has an interval
    high = (BOTTOM - float(band.split()[0].split(",")[1])) / (BOTTOM - TOP)
    assert high == pytest.approx(wilson(2, 8)[1], abs=1e-4), "of as many questions as are held out"
    steps = [float(point.split(",")[0]) for point in band.split()]
    assert steps == [LEFT, RIGHT, RIGHT, LEFT], "from step 0 to step 3 and back"
