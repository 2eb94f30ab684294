"""The content of an X-ray: its turns, its tokens, its numbers, and a size that is bounded."""

import re
from dataclasses import replace

import pytest

from minvenus.config import ConfigError, Recipe
from minvenus.igpo.credit import credit
from minvenus.report.xray import write_page
from tests.report.examples import (
    BROKEN,
    HOSTILE,
    TOKENIZER,
    answer,
    group_of_four,
    hostile_rollout,
    random_batch,
    rollout,
    saved_batch,
    search,
    step_values,
    visit,
    xray_data,
)


def turns_of(folder, made) -> list[dict]:
    return xray_data(folder, saved_batch([made], [0], [1.0], Recipe.paper()))["rollouts"][0]["turns"]


# ----------------------------------------------------------------------------------------------- numbers


def test_the_numbers_of_the_page_are_those_of_the_saved_batch(tmp_path):
    batch = random_batch(3, Recipe.released(gamma=0.9))
    data = xray_data(tmp_path, batch)
    assert [one["trained"] for one in data["recipes"]] == [True, False, False, False]
    for i, (shown, m) in enumerate(zip(data["rollouts"], batch.measured, strict=True)):
        own, code = shown["credit"]["this run"], batch.credit
        assert own["advantages"] == code.record.advantages[i] and own["gains"] == code.gains[i]
        assert step_values(data, own, "reward") == [*code.rewards[i].turns, code.rewards[i].outcome]
        assert step_values(data, own, "advantage") == own["advantages"]
        assert shown["measured"] == [None if row is None else pytest.approx(sum(row) / len(row)) for row in m.logprobs]
        assert shown["outcome"] == f"{m.outcome:.3g}"


def test_a_page_of_one_group_keeps_the_batchs_scale(tmp_path):
    batch = random_batch(5, Recipe.paper())
    assert len(set(batch.groups)) > 1
    whole = xray_data(tmp_path, batch)
    for group in set(batch.groups):
        part = xray_data(tmp_path, batch, group=group)
        rows = [i for i, g in enumerate(batch.groups) if g == group]
        for shown, row in zip(part["rollouts"], rows, strict=True):
            assert shown["outcome"] == whole["rollouts"][row]["outcome"]
            for name, own in shown["credit"].items():
                assert own["advantages"] == whole["rollouts"][row]["credit"][name]["advantages"]


def test_a_run_that_scored_nothing_says_so_and_shows_no_gains(tmp_path):
    data = xray_data(tmp_path, group_of_four(Recipe.paper(use_gain=False)))
    assert {one["name"]: one["missing"] for one in data["recipes"]} == {
        "this run": False, "paper": True, "released": True, "GRPO": False}
    assert "unscored" in data["conditions"] and "scored" not in data["conditions"]
    assert all(set(shown["credit"]) == {"this run", "GRPO"} for shown in data["rollouts"])


def test_a_group_that_ends_alike_is_remarked_upon(tmp_path):
    right, broken = rollout([visit(), answer()]), rollout([visit(), BROKEN])        # a malformed end is penalised
    batch = saved_batch([right, right, right, broken], [0, 0, 1, 1], [1.0, 1.0, 0.0, 0.0], Recipe.paper())
    alike, different = xray_data(tmp_path, batch)["groups"]
    assert "All 2 rollouts have the same outcome, 1:" in alike["remark"] and different["remark"] is None


def test_the_page_names_the_step_as_the_file_does_and_its_colours_reach_to_the_largest_advantage(tmp_path):
    batch = group_of_four()
    [group] = xray_data(tmp_path, replace(batch, step=20))["groups"]
    assert (tmp_path / "rollouts" / "step-00000020.jsonl").is_file()
    assert "<dt>training step</dt><dd>20</dd>" in (tmp_path / "xray.html").read_text(encoding="utf-8")
    recipes = [Recipe.paper(), Recipe.released(), Recipe.paper(use_gain=False, gamma=1.0)]
    every = [a for recipe in recipes for row in credit(batch.measured, recipe).record.advantages for a in row]
    assert group["largest"] == max(map(abs, every)) and min(every) < 0


# -------------------------------------------------------------------------------------- turns and tokens


def test_a_malformed_turn_names_the_rule_and_shows_what_was_written(tmp_path):
    turns = xray_data(tmp_path, group_of_four())["rollouts"][2]["turns"]
    assert turns[0]["malformed"] and turns[0]["rule"].startswith("The tool call is not JSON")
    assert BROKEN in turns[0]["raw"]
    assert not turns[1]["malformed"] and turns[1]["raw"] is None


def test_what_was_recorded_of_a_turn_is_shown_whatever_its_text_says(tmp_path):
    made = rollout([search(), search(), answer()])
    recorded = replace(made.turns[0], malformed=True, tool_error="timeout", discarded=["duplicate"])
    first, second, last = turns_of(tmp_path, replace(made, turns=[recorded, *made.turns[1:]]))
    assert first["malformed"] and "recorded as malformed" in first["rule"] and first["raw"] and not last["malformed"]
    assert first["remarks"] == ["the tool reported an error: timeout", "attempts thrown away: duplicate"]
    assert second["remarks"] == ["the very same call as in turn 1"] and last["remarks"] == []


def test_tokens_are_those_that_were_sampled_with_their_log_probs(tmp_path):
    made = rollout([search("日本 😀 é"), "…", answer("naïve")], forced=1)
    for turn, shown in zip(made.turns, turns_of(tmp_path, made), strict=True):
        places = range(turn.start, turn.end)
        assert [text for text, _ in shown["tokens"]] == [TOKENIZER.decode([made.tokens[i]]) for i in places]
        assert [x for _, x in shown["tokens"]] == [
            None if made.logprobs[i] is None else pytest.approx(made.logprobs[i], abs=0.0006) for i in places]


def test_a_tokenizer_that_does_not_spell_the_rollouts_is_not_used(tmp_path):
    made = rollout([search(), answer()])
    renamed = replace(made.turns[0], text=made.turns[0].text.replace("Bob", "Ada"))
    for first, used in ((made, True), (replace(made, turns=[renamed, made.turns[1]]), False)):
        data = xray_data(tmp_path, saved_batch([made, first], [0, 0], [1.0, 0.0], Recipe.paper()))
        assert {"tokens" in turn for shown in data["rollouts"] for turn in shown["turns"]} == {used}
        assert ("tokens" in data["conditions"]) == used


# ------------------------------------------------------------------------- size, hostile text and errors


def test_a_text_of_any_length_keeps_both_ends_and_says_what_is_left_out(tmp_path):
    text = "".join(f"{i} " for i in range(10_000))
    shown = turns_of(tmp_path, rollout([search(thought=text), answer()], [text]))[0]
    assert shown["length"] == len(text)
    for cut in (shown["observation"], shown["thought"]):
        head, left_out, tail = re.split(r"\n\[\.\.\. ([\d,]+) characters are left out here \.\.\.\]\n", cut)
        assert text.startswith(head) and text.strip().endswith(tail.strip()) and len(cut) < 30_100
        assert len(head) + int(left_out.replace(",", "")) + len(tail) in (len(text), len(text.strip()))


def test_hostile_text_stands_in_the_data_as_it_is_and_nowhere_else(tmp_path):
    made = hostile_rollout()
    data = xray_data(tmp_path, saved_batch([made, made], [0, 0], [1.0, 0.0], Recipe.paper()))
    html = (tmp_path / "xray.html").read_text(encoding="utf-8")
    assert data["rollouts"][0]["turns"][1]["observation"] == made.turns[1].observation
    for text in HOSTILE:
        if re.search("<[a-z/!]", text):
            assert text not in html
    assert html.count("<script") == html.count("</script>") == 2


def test_a_group_that_is_missing_and_a_page_that_is_too_large_are_refused_with_the_groups(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="has no group 3; it has 0"):
        xray_data(tmp_path, group_of_four(), group=3)
    monkeypatch.setattr("minvenus.report.xray.LARGEST", 1000)
    with pytest.raises(ConfigError, match="4 rollouts, too many for one page: choose one --group of 0"):
        xray_data(tmp_path, group_of_four())


@pytest.mark.parametrize(("content", "words"), [
    ("", "holds no rollout"), ("[1]", "holds no rollout"), ("{", "holds no rollout"),
    ('{"a": 1}', 'no "tokens" and no "messages"'), ('{"messages": 3}', '"messages" must be a list'),
    ('{"messages": [{"role": "user", "content": null}]}', '"messages" must be a list'),
    ('{"messages": [{"role": "user", "content": "q"}]}', "needs a user message and an assistant message"),
    ('{"format": "minvenus credit 1"}', "cannot be credited: 'recipe'"),
    ('{"tokens": [], "format": "other"}', "record 1: not a saved rollout"), (None, "cannot be read")])
def test_a_file_that_cannot_be_shown_is_refused_in_one_line(tmp_path, content, words):
    if content is not None:
        (tmp_path / "in.json").write_text(content)
    with pytest.raises(ConfigError, match=words) as caught:
        write_page(tmp_path / "in.json", tmp_path / "xray.html")
    assert "\n" not in str(caught.value) and not (tmp_path / "xray.html").exists()
