"""The X-ray's content: the numbers that it shows are those that training used, under every recipe, and its size is bounded."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minvenus.config import ConfigError, Recipe
from minvenus.igpo.credit import credit
from minvenus.igpo.gain import needed_values
from minvenus.report.content import page_data
from minvenus.report.credits import as_change, recipes_for
from minvenus.report.page import embedded_size
from minvenus.report.saved import path_of, save_batch
from minvenus.report.source import Source, case_of, numbered, read_source
from minvenus.report.xray import chosen, document, write_page
from tests.igpo.strategies import recipes
from tests.report.examples import (
    BROKEN,
    HOSTILE,
    TOKENIZER,
    answer,
    hostile_rollout,
    random_batch,
    rollout,
    saved_batch,
    search,
    visit,
)


def embedded(html: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])


def source_of(batch) -> Source:
    cases = [case_of(r, g) for r, g in zip(batch.rollouts, batch.groups, strict=True)]
    return Source("step-000019.jsonl", numbered(cases), batch)


def xray(folder, batch, **options) -> dict:
    save_batch(folder, batch)
    return embedded(write_page(path_of(folder, batch.step), folder / "xray.html", **options).read_text(encoding="utf-8"))


GROUP = [[search(), visit(), answer()], [search(), visit(), search(), answer("dog")], [BROKEN, answer()],
         [visit(), answer("dog")]]


def small_batch(recipe=None):
    return saved_batch([rollout(turns) for turns in GROUP], [0, 0, 0, 0], [1.0, 0.0, 1.0, 0.0], recipe or Recipe.paper())


# ---------------------------------------------------------------------------------- the number shown is the number computed


def test_one_rollout_worked_by_hand(tmp_path):
    """Two rollouts of a visit and an answer: gains 2 and 1, outcomes 1 and 0; every z is 1 or -1 but for the epsilons."""
    batch = saved_batch([rollout([visit(), answer()])] * 2, [7, 7], [1.0, 0.0], Recipe.paper(gamma=0.5),
                        [[[-4.0, -2.0], [-1.0, -1.0]], [[-3.0], [-2.0]]])
    data = xray(tmp_path, batch)
    first = data["rollouts"][0]
    own = first["arithmetic"]["this run"]
    assert first["measured"] == [-3.0, -1.0] and own["gains"] == [2.0, None] and own["turn_rewards"] == [2.0]
    assert own["group_stats"]["gain_mean"] == 1.5 and own["group_stats"]["outcome_mean"] == 0.5
    assert own["advantages"] == pytest.approx([1.5, 1.0], abs=1e-4)
    assert first["arithmetic"]["GRPO"]["advantages"] == pytest.approx([1.0, 1.0], abs=1e-4)
    assert [r["name"] for r in data["recipes"]] == ["this run", "paper", "released", "GRPO"]
    assert data["recipes"][0]["described"] == "paper with gamma 0.5" and data["groups"][0]["name"] == "7"


@given(st.integers(0, 2**32 - 1), recipes(use_gain=(True, False)))
@settings(max_examples=max(5, settings.default.max_examples // 2))
def test_every_number_in_the_page_is_the_advantage_codes_own_number(seed, recipe):
    batch = random_batch(seed, recipe)
    data = embedded(document(page_data(source_of(batch), [None] * len(batch.rollouts), TOKENIZER)))
    shown = {r["name"]: r for r in data["recipes"]}
    assert sum(r["trained"] for r in shown.values()) == 1
    for name, other in recipes_for(recipe).items():
        asked = all(m.logprobs[t] is not None for m in batch.measured for t in needed_values(m.kinds, other))
        assert (shown[name]["missing"] is None) == asked
        if asked:
            whole = credit(batch.measured, other)
            for i, m in enumerate(batch.measured):
                assert data["rollouts"][i]["arithmetic"][name] == json.loads(json.dumps(whole.arithmetic(i, m.group)))
        else:
            assert all(name not in r["arithmetic"] for r in data["rollouts"])
    for r, m in zip(data["rollouts"], batch.measured, strict=True):
        assert (r["outcome"], r["logprobs"]) == (m.outcome, m.logprobs)
        assert [t["kind"] for t in r["turns"]] == m.kinds and [t["malformed"] for t in r["turns"]] == m.malformed
        assert r["measured"] == [None if row is None else pytest.approx(sum(row) / len(row)) for row in m.logprobs]


def test_a_page_of_one_group_keeps_the_batchs_scale():
    batch = random_batch(5, Recipe.paper())
    assert len(set(batch.groups)) > 1
    whole = page_data(source_of(batch), [None] * len(batch.rollouts))
    for group in set(batch.groups):
        part_source = chosen(source_of(batch), group)
        part = page_data(part_source, [None] * len(part_source.cases))
        assert part["rollouts"] == [whole["rollouts"][i] for i, g in enumerate(batch.groups) if g == group]
        assert part["recipes"] == whole["recipes"]


def test_a_recipe_is_told_by_what_it_changes():
    assert as_change(Recipe.paper(center_gain=False, gamma=0.5)) == "paper with center_gain off, gamma 0.5"
    assert as_change(Recipe.released(use_gain=False)) == "released with use_gain off"
    assert list(recipes_for(Recipe.released(lead_in="Answer."))) == ["paper", "released", "GRPO"]


def test_a_run_that_scored_nothing_says_so_and_shows_no_gains(tmp_path):
    data = xray(tmp_path, small_batch(Recipe.paper(use_gain=False)))
    assert {r["name"]: r["missing"] is None for r in data["recipes"]} == {"this run": True, "paper": False, "released": False,
                                                                          "GRPO": True}
    assert data["scored_by"] is None and all(set(r["arithmetic"]) == {"this run", "GRPO"} for r in data["rollouts"])


# ------------------------------------------------------------------------------------------------------------ turns


def test_a_malformed_turn_names_the_rule_and_shows_what_was_written(tmp_path):
    turns = xray(tmp_path, small_batch())["rollouts"][2]["turns"]
    assert turns[0]["malformed"] and turns[0]["rule"].startswith("The tool call is not JSON") and BROKEN in turns[0]["raw"]
    assert not turns[1]["malformed"] and turns[1]["rule"] is None and turns[1]["raw"] is None


def test_a_repeated_call_names_the_first_one():
    made = rollout([search("a"), search("b"), search("a"), visit("a"), search("a"), answer()])
    turns = page_data(Source("f", numbered([case_of(made, "q")])), [None])["rollouts"][0]["turns"]
    assert [t["repeats"] for t in turns] == [None, None, 0, None, 0, None]


TEXTS = [search(), visit(), BROKEN, search("日本 😀 é"), "…", answer("naïve 日本")]


@given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=5), st.none() | st.integers(0, 4))
def test_tokens_spell_the_turn_and_those_that_are_trained_are_those_that_were_sampled(turns, forced):
    made = rollout(turns, forced=forced)
    data = page_data(Source("f", numbered([case_of(made, "q")])), [None], TOKENIZER)["rollouts"][0]
    for turn, shown in zip(made.turns, data["turns"], strict=True):
        tokens, size = shown["tokens"], turn.end - turn.start
        counts = tokens["count"] or [1] * size
        sampled = tokens["sampled"] or [1] * len(counts)
        assert sum(counts) == size == shown["span"][1] - shown["span"][0]
        assert "".join(tokens["text"]) == TOKENIZER.decode(made.tokens[turn.start:turn.end])
        assert [bool(s) for s, n in zip(sampled, counts, strict=True) for _ in range(n)] == made.sampled[turn.start:turn.end]
        assert [x is None for x in tokens["logprob"]] == [not s for s in sampled]


def test_a_tokenizer_that_does_not_spell_the_rollout_is_not_used(tmp_path):
    made = rollout([search(), answer()])
    changed = replace(made, turns=[replace(made.turns[0], text=made.turns[0].text.replace("Bob", "Ada")), made.turns[1]])
    batch = saved_batch([changed, made], [0, 0], [1.0, 0.0], Recipe.paper())
    assert all(t["tokens"] is None for r in xray(tmp_path, batch)["rollouts"] for t in r["turns"])


# ------------------------------------------------------------------------------------------------------------- size


def long_rollout(observation: str, thought: str):
    turns = [(search if t % 3 else visit)(f"page {t}", thought) for t in range(99)]
    return rollout([*turns, answer()], [f"{t} {observation}" for t in range(99)])


@pytest.mark.parametrize(("observation", "thought"), [
    ("A page about Bob, who sings and has a cat. " * 90, "I have to look for the friend of Bob first. " * 12),
    ("<p>&amp;</p>" * 350, "I think that <b> & </b> 日本 😀 " * 25)])
def test_a_rollout_of_100_turns_gives_a_page_under_2_mb(tmp_path, observation, thought):
    batch = saved_batch([long_rollout(observation, thought)], [0], [1.0], Recipe.paper(browse="off"))
    save_batch(tmp_path, batch)
    path = write_page(path_of(tmp_path, 19), tmp_path / "xray.html")
    assert path.stat().st_size < 2_000_000
    data = embedded(path.read_text(encoding="utf-8"))
    shown = data["rollouts"][0]["turns"]
    assert len(shown) == 100
    cut = [t["observation"] for t in shown if t["observation"] and "characters are left out here" in t["observation"]]
    whole = sum(embedded_size(t.observation or "") + embedded_size(t.text) for t in batch.rollouts[0].turns)
    assert bool(cut) == (whole > 1_000_000) and bool(data["cut"]) == bool(cut)
    for text in cut:
        left_out = int(re.search(r"\[\.\.\. ([\d,]+) characters", text)[1].replace(",", ""))
        head, tail = re.split(r"\n\[\.\.\. [\d,]+ characters are left out here \.\.\.\]\n", text)
        original = next(t.observation for t in batch.rollouts[0].turns if (t.observation or "").startswith(head))
        assert len(head) + left_out + len(tail) == len(original) and original.startswith(head) and original.endswith(tail)


# ---------------------------------------------------------------------------------------------------- hostile text


def test_hostile_text_stands_in_the_data_as_it_is_and_nowhere_else(tmp_path):
    made = hostile_rollout()
    save_batch(tmp_path, saved_batch([made, made], [0, 0], [1.0, 0.0], Recipe.paper()))
    html = write_page(path_of(tmp_path, 19), tmp_path / "xray.html").read_text(encoding="utf-8")
    data = embedded(html)
    assert data["rollouts"][0]["turns"][1]["observation"] == made.turns[1].observation
    for text in HOSTILE:
        if re.search("<[a-z/!]", text):
            assert text not in html
    assert html.count("<script") == html.count("</script>") == 2


# ------------------------------------------------------------------------------------------------------------ errors


def test_a_group_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    save_batch(tmp_path, small_batch())
    with pytest.raises(ConfigError, match="has no group 3; it has 0"):
        write_page(path_of(tmp_path, 19), tmp_path / "xray.html", group=3)


@pytest.mark.parametrize(("content", "words"), [
    ("", "holds no rollout"), ("[1]", "holds no rollout"), ("{", "neither JSON nor"), ("[]", "holds no rollout"),
    ('{"a": 1}', 'no "rollout", no "tokens" and no "messages"'), ('{"messages": 3}', '"messages" must be a list'),
    ('{"messages": [{"role": "user", "content": "q"}]}', "needs a user message and an assistant message"),
    ('{"format": "minvenus credit 1"}', "is not a rollout with its reward arithmetic"),
    ('{"rollout": {"format": "other"}}', "record 1: not a saved rollout")])
def test_a_file_that_cannot_be_shown_is_refused_in_one_line(tmp_path, content, words):
    (tmp_path / "in.json").write_text(content)
    with pytest.raises(ConfigError, match=words) as caught:
        write_page(tmp_path / "in.json", tmp_path / "xray.html")
    assert "\n" not in str(caught.value) and not (tmp_path / "xray.html").exists()


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_source(tmp_path / "none.jsonl")
