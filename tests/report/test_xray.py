"""The content of an X-ray: its turns, its tokens, its numbers, and a size that is bounded."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import ConfigError, Recipe
from minvenus.igpo.credit import credit
from minvenus.report.page import embedded_size
from minvenus.report.source import turn_tokens
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
    visit,
    xray_data,
)


def turns_of(folder, texts: list[str]) -> list[dict]:
    return xray_data(folder, saved_batch([rollout(texts)], [0], [1.0], Recipe.paper()))["rollouts"][0]["turns"]


# ----------------------------------------------------------------------------------------------- numbers


def test_the_numbers_of_the_page_are_those_of_the_saved_batch(tmp_path):
    batch = random_batch(3, Recipe.released(gamma=0.9))
    data = xray_data(tmp_path, batch)
    assert [one["trained"] for one in data["recipes"]] == [True, False, False, False]
    for i, (shown, m) in enumerate(zip(data["rollouts"], batch.measured, strict=True)):
        own, code = shown["credit"]["this run"], batch.credit
        assert own["advantages"] == code.record.advantages[i] and own["gains"] == code.gains[i]
        assert own["rewards"] == [*code.rewards[i].turns, code.rewards[i].outcome]
        assert shown["measured"] == [None if row is None else pytest.approx(sum(row) / len(row)) for row in m.logprobs]
        for t, listed in enumerate(own["steps"]):
            about, value, _, _ = data["steps"][listed[-1]]
            assert data["explanations"][about]["id"] == "advantage" and value == code.record.advantages[i][t]


def test_a_page_of_one_group_keeps_the_batchs_scale(tmp_path):
    batch = random_batch(5, Recipe.paper())
    assert len(set(batch.groups)) > 1
    whole = xray_data(tmp_path, batch)
    for group in set(batch.groups):
        part = xray_data(tmp_path, batch, group=group)
        rows = [i for i, g in enumerate(batch.groups) if g == group]
        for shown, row in zip(part["rollouts"], rows, strict=True):
            for name, own in shown["credit"].items():
                assert own["advantages"] == whole["rollouts"][row]["credit"][name]["advantages"]


def test_a_run_that_scored_nothing_says_so_and_shows_no_gains(tmp_path):
    data = xray_data(tmp_path, group_of_four(Recipe.paper(use_gain=False)))
    missing = {one["name"]: one["missing"] is not None for one in data["recipes"]}
    assert missing == {"this run": False, "paper": True, "released": True, "GRPO": False}
    assert "unscored-run" in data["conditions"]
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


# ------------------------------------------------------------------------------------------------- turns


def test_a_malformed_turn_names_the_rule_and_shows_what_was_written(tmp_path):
    turns = xray_data(tmp_path, group_of_four())["rollouts"][2]["turns"]
    assert turns[0]["malformed"] and turns[0]["rule"].startswith("The tool call is not JSON")
    assert BROKEN in turns[0]["raw"]
    assert not turns[1]["malformed"] and turns[1]["raw"] is None


def test_a_turn_that_was_recorded_as_malformed_is_shown_so_whatever_its_text_says(tmp_path):
    made = rollout([search(), answer()])
    changed = replace(made, turns=[replace(made.turns[0], malformed=True), made.turns[1]])
    data = xray_data(tmp_path, saved_batch([changed], [0], [1.0], Recipe.paper()))
    first, second = data["rollouts"][0]["turns"]
    assert first["malformed"] and "recorded as malformed" in first["rule"] and first["raw"] and not second["malformed"]


def test_a_turn_that_is_cut_inside_a_character_shows_all_of_its_tokens():
    made = rollout([search("日本 😀"), answer()])
    start = made.turns[0].start
    for end in range(start + 1, made.turns[0].end + 1):
        shown = turn_tokens(made, start, end, TOKENIZER)
        assert "".join(text for text, _ in shown) == TOKENIZER.decode(made.tokens[start:end])


def test_a_repeated_call_names_the_first_one(tmp_path):
    turns = turns_of(tmp_path, [search("a"), search("b"), search("a"), visit("a"), search("a"), answer()])
    assert [turn["repeats"] for turn in turns] == [None, None, 0, None, 0, None]
    assert turns[4]["remarks"] == ["the very same call as in turn 1"]


TEXTS = [search(), visit(), BROKEN, search("日本 😀 é"), "…", answer("naïve 日本")]


@given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=5), st.none() | st.integers(0, 4))
def test_tokens_spell_the_turn_and_have_log_probs_where_they_were_sampled(turns, forced):
    made = rollout(turns, forced=forced)
    for turn in made.turns:
        shown = turn_tokens(made, turn.start, turn.end, TOKENIZER)
        ids = made.tokens[turn.start:turn.end]
        assert "".join(text for text, _ in shown) == TOKENIZER.decode(ids)
        sampled = [i for i, flag in zip(ids, made.sampled[turn.start:turn.end], strict=True) if flag]
        assert "".join(text for text, logprob in shown if logprob is not None) == TOKENIZER.decode(sampled)
        total = sum(x for x in made.logprobs[turn.start:turn.end] if x is not None)
        assert sum(x for _, x in shown if x is not None) == pytest.approx(total, abs=0.001 * len(shown))


def test_a_tokenizer_that_does_not_spell_the_rollout_is_not_used(tmp_path):
    made = rollout([search(), answer()])
    renamed = replace(made.turns[0], text=made.turns[0].text.replace("Bob", "Ada"))
    for first, used in ((made, True), (replace(made, turns=[renamed, made.turns[1]]), False)):
        data = xray_data(tmp_path, saved_batch([first, made], [0, 0], [1.0, 0.0], Recipe.paper()))
        assert {turn["tokens"] is not None for shown in data["rollouts"] for turn in shown["turns"]} == {used}


# -------------------------------------------------------------------------------------------------- size


@pytest.mark.parametrize(("observation", "thought"), [
    ("A page about Bob, who sings and has a cat. " * 90, "I have to look for the friend of Bob first. " * 12),
    ("<p>&amp;</p>" * 350, "I think that <b> & </b> 日本 😀 " * 25)])
def test_a_rollout_of_100_turns_gives_a_page_under_2_mb_that_says_what_it_leaves_out(tmp_path, observation, thought):
    turns = [(search if t % 3 else visit)(f"page {t}", thought) for t in range(99)]
    made = rollout([*turns, answer()], [f"{t} {observation}" for t in range(99)])
    data = xray_data(tmp_path, saved_batch([made], [0], [1.0], Recipe.paper(browse="off")))
    assert (tmp_path / "xray.html").stat().st_size < 2_000_000
    shown = data["rollouts"][0]["turns"]
    whole = sum(embedded_size(turn.observation or "") + embedded_size(turn.text) for turn in made.turns)
    assert len(shown) == 100 and ("shortened" in data["conditions"]) == (whole > 1_000_000)
    for turn, seen in zip(made.turns[:-1], shown, strict=False):
        assert seen["came_back"] == f"{len(turn.observation):,} characters"        # the true length, shortened or not
        if seen["observation"] != turn.observation:
            gap = r"\n\[\.\.\. ([\d,]+) characters are left out here \.\.\.\]\n"
            head, left_out, tail = re.split(gap, seen["observation"])
            assert turn.observation.startswith(head) and turn.observation.endswith(tail)
            assert len(head) + int(left_out.replace(",", "")) + len(tail) == len(turn.observation)


def test_some_of_every_text_stays_however_small_the_room(tmp_path, monkeypatch):
    monkeypatch.setattr("minvenus.report.xray.TEXT", 1)
    turns = turns_of(tmp_path, [search(thought="Think. " * 400)] * 3 + [answer()])
    assert all(turn["thought"].startswith("Think.") and "are left out here" in turn["thought"] for turn in turns[:3])
    assert turns[3]["answer"] == "cat"


# ----------------------------------------------------------------------------------- hostile text, errors


def test_hostile_text_stands_in_the_data_as_it_is_and_nowhere_else(tmp_path):
    made = hostile_rollout()
    data = xray_data(tmp_path, saved_batch([made, made], [0, 0], [1.0, 0.0], Recipe.paper()))
    html = (tmp_path / "xray.html").read_text(encoding="utf-8")
    assert data["rollouts"][0]["turns"][1]["observation"] == made.turns[1].observation
    for text in HOSTILE:
        if re.search("<[a-z/!]", text):
            assert text not in html
    assert html.count("<script") == html.count("</script>") == 2


def test_a_group_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    with pytest.raises(ConfigError, match="has no group 3; it has 0"):
        xray_data(tmp_path, group_of_four(), group=3)


def test_a_page_that_no_browser_would_open_is_refused_with_its_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("minvenus.report.xray.LARGEST", 1000)
    with pytest.raises(ConfigError, match="4 rollouts, too many for one page: choose one group of 0"):
        xray_data(tmp_path, group_of_four())


@pytest.mark.parametrize(("content", "words"), [
    ("", "holds no rollout"), ("[1]", "holds no rollout"), ("{", "neither JSON nor"), ("[]", "holds no rollout"),
    ('{"a": 1}', 'no "rollout", no "tokens" and no "messages"'), ('{"messages": 3}', '"messages" must be a list'),
    ('{"messages": [{"role": "user", "content": "q"}]}', "needs a user message and an assistant message"),
    ('{"format": "minvenus credit 1"}', "is not a rollout with its reward arithmetic"),
    ('{"rollout": {"format": "other"}}', "record 1: not a saved rollout"), (None, "cannot be read")])
def test_a_file_that_cannot_be_shown_is_refused_in_one_line(tmp_path, content, words):
    if content is not None:
        (tmp_path / "in.json").write_text(content)
    with pytest.raises(ConfigError, match=words) as caught:
        write_page(tmp_path / "in.json", tmp_path / "xray.html")
    assert "\n" not in str(caught.value) and not (tmp_path / "xray.html").exists()
