"""The content of an X-ray: its turns, its numbers, and a size that is bounded."""

from dataclasses import replace

import pytest

from minvenus.config import ConfigError
from minvenus.igpo.recipes import Recipe
from minvenus.report.xray import default_page, shade
from minvenus.types import Question
from tests.report.examples import (
    BROKEN,
    HOSTILE,
    PAGES,
    Part,
    answer,
    group_of_four,
    hostile_rollout,
    random_batch,
    rollout,
    saved_batch,
    search,
    visit,
    words_of,
    xray,
)
from tests.report.test_curves import SVG
from tests.report.test_source import SCORER

# ------------------------------------------------------------------------------------------ numbers


def small_batch():
    """Three rollouts that have a number of every kind: shared and lone penalties, a search without
    a visit after it, a malformed answer, a second group; under a recipe unlike the named ones."""
    turns = [
        [search(), BROKEN, visit(), search(), BROKEN],
        [search(), search(), visit(), visit("Ada"), answer()],
        [visit(), answer("dog")],
    ]
    logprobs = [
        [[-4.0, -3.0], None, None, [-1.5, -2.0], [-2.0]],
        [[-4.0], None, None, [-2.25], [-0.75]],
        [[-3.0], [-3.5]],
    ]
    made = [rollout(texts) for texts in turns]
    recorded = {"malformed": True, "tool_error": "timeout", "discarded": ["duplicate", "too long"]}
    first = replace(made[0].turns[0], **recorded)  # whatever its text says
    made[0] = replace(made[0], turns=[first, *made[0].turns[1:]])
    run = Recipe(normalize="joint", format_penalty=0.5, ig_weight=0.5, gamma=0.5)
    batch = saved_batch(made, [3, 3, 4], [0.0, 1.0, 0.25], run, logprobs)
    return replace(batch, gain_policy="reference")


def test_the_page_word_for_word(tmp_path):
    """Where it should say something else: python -m tests.report.write_pages"""
    document = xray(tmp_path, small_batch()).read_text(encoding="utf-8")
    assert words_of(document) == (PAGES / "xray.txt").read_text("utf-8")


def test_a_page_of_one_group_keeps_the_batchs_scale(tmp_path):
    batch = random_batch(5, Recipe.paper())
    names = dict.fromkeys(sample.group for sample in batch.samples)
    groups = Part.of(xray(tmp_path, batch)).all("group")
    for name, group in zip(names, groups, strict=True):
        [part] = Part.of(xray(tmp_path, batch, group=str(name))).all("group")
        assert part.texts("arithmetic") == group.texts("arithmetic") and len(names) > 1


def test_a_run_that_scored_nothing_says_so_and_shows_no_gains(tmp_path):
    page = Part.of(xray(tmp_path, group_of_four(Recipe.paper(use_gain=False))))
    assert [pair[0].words for pair in page.all("glossary")[1]] == ["this run", "grpo"]
    assert "No log P(answer) was measured" in page.words and "IG = V" not in page.words


def test_a_group_that_ends_alike_is_remarked_upon_and_its_plot_has_all_rollouts(tmp_path):
    right, malformed = rollout([visit(), answer()]), rollout([visit(), BROKEN])
    rollouts = [right, right, right, malformed]  # whose last outcome is its penalty
    batch = saved_batch(rollouts, [0, 0, 1, 1], [1, 1, 0, 0], Recipe.paper())
    alike, different = Part.of(xray(tmp_path, batch)).all("group")
    assert "All 2 rollouts have the same outcome, 1:" in alike.texts("remark")[0]
    assert not different.all("remark") and alike.get("open") and not different.get("open")
    titles = [line.text for line in alike.element.iter(SVG + "title")]
    assert titles == ["log P(answer)", "rollout 1", "rollout 2"]


def test_the_plot_has_mean_log_probs_before_each_turn_whatever_a_gain_is(tmp_path):
    """From -4 at the bottom (252) to -1 at the top (34); turns from 76 to 504."""
    rollouts = [rollout([visit(), visit(), answer()])] * 2
    rows = [[[-3.0, -1.0], [-1.0], [-4.0]]] * 2
    batch = saved_batch(rollouts, [0, 0], [1, 0], Recipe.paper(gain="prob"), rows)
    lines = Part.of(xray(tmp_path, batch)).element.iter(SVG + "polyline")
    shown = ["76.0,106.67 290.0,34.0 504.0,252.0"] * 2
    assert [line.get("points") for line in lines] == shown


def test_an_advantage_has_one_of_five_strengths_of_blue_or_orange_and_none_at_0():
    advantages = (0.1, -0.4, -0.41, 2.0, 1000.0, -1000.0, 0.0, 1e-12)
    classes = ["plus a1", "minus a1", "minus a2", "plus a5", "plus a5", "minus a5", "none", "none"]
    assert list(map(shade, advantages)) == classes


# -------------------------------------------------------------------------------------------- turns


def test_the_toy_web_is_said_in_english_beside_its_own_words(tmp_path):
    question = Question("test-0", "From Bob own boss?", ["pets own cat boss owl"])
    seen = ["page Bob sings Max sings.", "page Bob own cat boss Eve twin Ida."]
    made = rollout([search(), visit(), answer("pets own cat boss hen")], seen, question)
    page = Part.of(xray(tmp_path, saved_batch([made] * 2, [0, 0], [0.0, 1.0], Recipe.paper())))
    [group] = page.all("group")
    assert group[0].words == "0: From Bob own boss?\n(the pets of Bob and of Bob's boss)"
    assert page.facts["true answer"] == "pets own cat boss owl\n(the cat, the boss's owl)"
    _, opened = group.texts("observation")[:2]
    assert opened.endswith(" boss Eve twin Ida.\n(Bob: pet cat, boss Eve, twin Ida)")


# ------------------------------------------------------------------ size, hostile text and refusals


def test_hostile_text_is_text_wherever_a_model_or_a_web_page_can_put_it(tmp_path):
    plain, made = rollout([search(), visit(), BROKEN, answer()]), hostile_rollout()
    shapes = []
    for one in (plain, made):
        page = Part.of(xray(tmp_path, saved_batch([one, one], [0, 0], [1.0, 0.0], Recipe.paper())))
        shapes.append({(e.tag, *e.attrib) for e in page.element.iter()})
    assert shapes[0] == shapes[1]  # no element and no attribute of their own
    assert page.texts("observation")[1].endswith(" ".join(HOSTILE))
    assert page.texts("verbatim")[0] == made.turns[0].text
    assert "<script" not in (tmp_path / "xray.html").read_text(encoding="utf-8")


def test_a_missing_group_a_page_that_is_too_large_and_a_second_scoring_are_refused(
    tmp_path, monkeypatch
):
    with pytest.raises(ConfigError, match="has no group 3; it has 0"):
        xray(tmp_path, group_of_four(), group="3")
    with pytest.raises(ConfigError, match="training batch with its own numbers: leave out the mod"):
        xray(tmp_path, group_of_four(), scorer=SCORER)
    size = len(xray(tmp_path, group_of_four()).read_text(encoding="utf-8"))
    monkeypatch.setattr("minvenus.report.xray.LARGEST", size)
    xray(tmp_path, group_of_four())
    monkeypatch.setattr("minvenus.report.xray.LARGEST", size - 1)
    with pytest.raises(ConfigError, match="too many rollouts for one page: choose one --group"):
        xray(tmp_path, group_of_four())


def test_the_default_page_is_named_after_the_path():
    page = default_page("/home/runs/two/a/rollouts/b.jsonl")
    assert str(page) == "runs/xray/two-a-b.html"
    assert str(default_page("/b.jsonl")) == "runs/xray/b.html"
