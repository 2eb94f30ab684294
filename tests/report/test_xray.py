"""The content of an X-ray: its turns, its tokens, its numbers, and a size that is bounded."""

from dataclasses import replace

import pytest

from minvenus.config import ConfigError, Recipe
from minvenus.igpo.credit import credit
from tests.report.examples import (
    BROKEN,
    HOSTILE,
    TOKENIZER,
    Part,
    answer,
    group_of_four,
    hostile_rollout,
    random_batch,
    rollout,
    saved_batch,
    search,
    visit,
    xray,
)
from tests.report.test_source import SCORER


def turns_of(folder, made):
    return Part.of(xray(folder, saved_batch([made], [0], [1.0], Recipe.paper()))).all("turn")


# ----------------------------------------------------------------------------------------------- numbers


def test_the_numbers_of_the_page_are_those_of_the_saved_batch(tmp_path):
    batch = random_batch(3, Recipe.released(gamma=0.9))
    page = Part.of(xray(tmp_path, batch))
    assert page.texts("switch") == ["paid bythis run (trained)paperreleasedGRPO"]
    for i, shown in enumerate(page.all("rollout")):
        found = [turn.numbers("r0") for turn in shown.all("turn")]
        rewards = batch.credit.rewards[i]
        assert [turn["advantage"] for turn in found] == batch.credit.record.advantages[i]
        assert [turn["reward"] for turn in found] == [*rewards.turns, rewards.outcome]
        assert [turn.get("gain") for turn in found] == batch.credit.gains[i]
        assert f"outcome {batch.measured[i].outcome:.3g}" in shown[0].words
        about = [letter.get("title").split()[-1] for letter in shown[0].all("strip", "r0")[0]]
        assert about == [f"{a:.3f}" for a in batch.credit.record.advantages[i]]


def test_a_page_of_one_group_keeps_the_batchs_scale(tmp_path):
    batch = random_batch(5, Recipe.paper())
    names = dict.fromkeys(m.group for m in batch.measured)
    for name, group in zip(names, Part.of(xray(tmp_path, batch)).all("group"), strict=True):
        [part] = Part.of(xray(tmp_path, batch, group=name)).all("group")
        assert part.texts("arithmetic") == group.texts("arithmetic") and len(names) > 1


def test_a_run_that_scored_nothing_says_so_and_shows_no_gains(tmp_path):
    page = Part.of(xray(tmp_path, group_of_four(Recipe.paper(use_gain=False))))
    states = [(label.words, label[0].get("disabled") is None) for label in list(page.all("switch")[0])[1:]]
    assert states == [("this run (trained)", True), ("paper", False), ("released", False), ("GRPO", True)]
    assert "No log P(answer) was measured" in page.words and not page.all("gain")
    assert page.all("arithmetic", "r3") and not page.all("arithmetic", "r1")


def test_a_group_that_ends_alike_is_remarked_upon(tmp_path):
    right, broken = rollout([visit(), answer()]), rollout([visit(), BROKEN])        # a malformed end is penalised
    batch = saved_batch([right, right, right, broken], [0, 0, 1, 1], [1.0, 1.0, 0.0, 0.0], Recipe.paper())
    alike, different = Part.of(xray(tmp_path, batch)).all("group")
    assert "All 2 rollouts have the same outcome, 1:" in alike.texts("remark")[0] and not different.all("remark")


def test_the_page_names_the_step_as_the_file_does_and_its_colours_reach_to_the_largest_advantage(tmp_path):
    batch = group_of_four()
    path = xray(tmp_path, replace(batch, step=20))
    assert "<h1>Rollouts of step-00000020.jsonl</h1>" in path.read_text(encoding="utf-8")
    assert "<dt>training step</dt><dd>20</dd>" in path.read_text(encoding="utf-8")
    recipes = [Recipe.paper(), Recipe.released(), Recipe.paper(use_gain=False, gamma=1.0)]
    every = {f"r{k}": [a for row in credit(batch.measured, recipe).record.advantages for a in row]
             for k, recipe in enumerate(recipes)}
    largest = max(abs(a) for listed in every.values() for a in listed)
    for recipe, advantages in every.items():
        chips = [chip.get("class").split()[-2:] for chip in Part.of(path).all("chip", recipe)]
        assert chips == [["plus" if a > 0 else "minus", f"a{min(k for k in range(6) if 5 * abs(a) <= k * largest)}"]
                         for a in advantages]


# -------------------------------------------------------------------------------------- turns and tokens


def test_a_malformed_turn_names_the_rule_and_shows_what_was_written(tmp_path):
    first, second, _ = Part.of(xray(tmp_path, group_of_four())).all("rollout")[2].all("turn")
    assert first.texts("notice")[0].startswith("✗ malformed: The tool call is not JSON")
    assert BROKEN in first.texts("raw")[0] and not second.all("notice") and not second.all("raw")


def test_what_was_recorded_of_a_turn_is_shown_whatever_its_text_says(tmp_path):
    made = rollout([search(), search(), answer()])
    recorded = replace(made.turns[0], malformed=True, tool_error="timeout", discarded=["duplicate"])
    first, second, last = turns_of(tmp_path, replace(made, turns=[recorded, *made.turns[1:]]))
    assert first.texts("notice") == ["✗ malformed: recorded as malformed when it was sampled",
                                      "the tool reported an error: timeout", "attempts thrown away: duplicate"]
    assert second.texts("notice") == ["the very same call as in turn 1"] and not last.all("notice")


def test_tokens_are_those_that_were_sampled_with_their_log_probs(tmp_path):
    made = rollout([search("日本 😀 é"), "…", answer("naïve")], forced=1)
    for turn, shown in zip(made.turns, turns_of(tmp_path, made), strict=True):
        tokens = shown.all("tokens")[0].all("verbatim")[0]
        for i, token in zip(range(turn.start, turn.end), tokens, strict=True):
            assert token.words.replace("↵", "") == TOKENIZER.decode([made.tokens[i]])
            assert token.get("title") == (f"log-prob {made.logprobs[i]:.3f}" if made.sampled[i]
                                          else "not sampled, never trained")


def test_a_tokenizer_that_does_not_spell_the_rollouts_is_not_used(tmp_path):
    made = rollout([search(), answer()])
    renamed = replace(made.turns[0], text=made.turns[0].text.replace("Bob", "Ada"))
    for other, count in ((made, 4), (replace(made, turns=[renamed, made.turns[1]]), 0)):
        page = Part.of(xray(tmp_path, saved_batch([made, other], [0, 0], [1.0, 0.0], Recipe.paper())))
        assert len(page.all("tokens")) == count


# ---------------------------------------------------------------------- size, hostile text and refusals


def test_hostile_text_is_text_wherever_a_model_or_a_web_page_can_put_it(tmp_path):
    plain, made = rollout([search(), visit(), BROKEN, answer()]), hostile_rollout()
    shapes = []
    for one in (plain, made):
        page = Part.of(xray(tmp_path, saved_batch([one, one], [0, 0], [1.0, 0.0], Recipe.paper())))
        shapes.append({(e.tag, *e.attrib) for e in page.element.iter()})
    assert shapes[0] == shapes[1]                                  # no element and no attribute of their own
    assert page.texts("observation")[1].endswith(" ".join(HOSTILE))
    assert page.texts("thought")[0] == "thought" + " ".join(HOSTILE)
    assert "<script" not in (tmp_path / "xray.html").read_text(encoding="utf-8")


def test_a_missing_group_a_page_that_is_too_large_and_a_second_scoring_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="has no group 3; it has 0"):
        xray(tmp_path, group_of_four(), group=3)
    monkeypatch.setattr("minvenus.report.xray.LARGEST", 1000)
    with pytest.raises(ConfigError, match="is a training batch with its own numbers: leave out the model"):
        xray(tmp_path, group_of_four(), scorer=SCORER)
    with pytest.raises(ConfigError, match="4 rollouts, too many for one page: choose one --group of 0"):
        xray(tmp_path, group_of_four())
