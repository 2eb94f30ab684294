"""Files from elsewhere: trajectories of messages, saved rollouts, lines of an evaluation; and their scoring."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minvenus.agent.policy import load_scorer
from minvenus.agent.record import rollout_to_json
from minvenus.config import ConfigError, ModelConfig, Recipe
from minvenus.files import write_json
from minvenus.igpo.gain import segment_gains, value, wrap_answer
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.report.source import Scorer
from minvenus.report.xray import write_page
from minvenus.types import Question
from tests.report.examples import BROKEN, TOKENIZER, answer, embedded, facts, rollout, search, step_values, visit

TRAJECTORIES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "trajectories"
TURNS = [search("a"), search("a"), visit("p"), BROKEN, visit("q"), answer("cat")]


def messages(turns=TURNS):
    listed = [{"role": "system", "content": "Search."}, {"role": "user", "content": "Whose pet?"}]
    for t, turn in enumerate(turns):
        listed.append({"role": "assistant", "content": "<think>\n" + turn})
        if t < len(turns) - 1:
            listed.append({"role": "user", "content": f"<tool_response>\nresult {t}\n</tool_response>"})
    return listed


def shown(tmp_path, record, **options) -> dict:
    path = tmp_path / "in.json"
    path.write_text(record if isinstance(record, str) else json.dumps(record))
    return embedded(write_page(path, tmp_path / "xray.html", **options).read_text(encoding="utf-8"))


def rising(tokens, lengths, continuation):
    """Made-up scores: the answer's tokens become more probable with every token of context."""
    return [[-10.0 + n / 100 + j / 1000 for j in range(len(continuation))] for n in lengths]


SCORER = Scorer("a model", TOKENIZER, rising, 10_000)


def test_a_trajectory_of_messages_shows_format_tools_duplicates_and_browse_ratio(tmp_path):
    [only] = shown(tmp_path, {"messages": messages(), "gt": "cat"})["rollouts"]
    assert [t["kind"] for t in only["turns"]] == ["search", "search", "visit", "none", "visit", "answer"]
    assert [t["malformed"] for t in only["turns"]] == [False, False, False, True, False, False]
    assert only["turns"][1]["remarks"] == ["the very same call as in turn 1"]
    assert [t["observation"] for t in only["turns"]] == [f"result {t}" for t in range(5)] + [None]
    assert facts(only)["searches, visits"] == "2, 2" and facts(only)["browse ratio"] == "50%"
    assert only["credit"] == {} and only["measured"] == [None] * 6 and only["prediction"] == "cat"


def test_a_last_turn_that_calls_a_tool_is_no_answer_and_an_answer_of_the_users_own_question_is_unknown(tmp_path):
    [only] = shown(tmp_path, {"messages": messages([search(), visit()])})["rollouts"]
    assert only["turns"][1]["kind"] == "none" and "must be an answer" in only["turns"][1]["rule"]
    assert facts(only)["searches, visits"] == "1, 0"
    own = rollout([answer()], question=Question("question", "Why?", ["(unknown)"]))
    assert facts(shown(tmp_path, rollout_to_json(own))["rollouts"][0])["true answer"] == "not known"


def test_a_scored_trajectory_has_values_and_gains_but_nothing_that_needs_a_group(tmp_path):
    data = shown(tmp_path, {"messages": messages(), "gt": "cat"}, scorer=SCORER)
    [only] = data["rollouts"]
    kinds, measured = [t["kind"] for t in only["turns"]], only["measured"]
    assert all(v is not None for v in measured) and measured == sorted(measured)
    own = only["credit"]["paper"]
    values = [v if t in (0, 3, 5) else None for t, v in enumerate(measured)]
    assert own["gains"] == segment_gains(values, kinds, Recipe.paper())
    assert step_values(data, own, "reward") == [own["gains"][2]] * 3 + [-1.0, own["gains"][4], None]
    assert own["advantages"] is None and own["steps"][-1] == []
    explained = {data["explanations"][about]["id"] for about, *_ in data["steps"]}
    assert explained == {"value-before", "value", "gain", "reward"}
    assert [one["name"] for one in data["recipes"]] == ["paper", "released"] and facts(only)["true answer"] == "cat"


def test_the_answer_that_is_given_counts_not_that_of_the_file(tmp_path):
    data = shown(tmp_path, {"messages": messages(), "gt": "cat"}, scorer=SCORER, answer="a small dog")
    assert facts(data["rollouts"][0])["true answer"] == "a small dog"
    [inputs] = [step[2] for step in data["steps"] if data["explanations"][step[0]]["id"] == "value-before"][:1]
    assert len(inputs) == len(TOKENIZER.encode_untrusted("a small dog"))


def test_a_rollout_is_scored_on_its_own_tokens_before_every_turn(tmp_path):
    made, recipe = rollout([search(), visit(), answer()]), Recipe(lead_in="Answer.")
    write_json(tmp_path / "rollout.json", rollout_to_json(made))
    asked = []

    def score(tokens, lengths, continuation):
        asked.append((tokens, lengths, continuation))
        return rising(tokens, lengths, continuation)

    scorer = Scorer("m", TOKENIZER, score, 999)
    path = write_page(tmp_path / "rollout.json", tmp_path / "xray.html", scorer=scorer, recipe=recipe)
    [only] = embedded(path.read_text(encoding="utf-8"))["rollouts"]
    wrapped, starts = wrap_answer("cat", TOKENIZER, recipe), [turn.start for turn in made.turns]
    assert asked == [(made.tokens, starts, wrapped.ids)]
    expected = [row[wrapped.start:] for row in rising(made.tokens, starts, wrapped.ids)]
    assert only["measured"] == [value(row, "log_prob") for row in expected]
    longest = len(made.tokens) + len(wrapped.ids)                            # it needs room for both
    write_page(tmp_path / "rollout.json", path, scorer=replace(scorer, context=longest), recipe=recipe)
    with pytest.raises(ConfigError, match=f"takes {longest - 1} at most"):
        write_page(tmp_path / "rollout.json", path, scorer=replace(scorer, context=longest - 1), recipe=recipe)
    changed = replace(made.turns[0], text="<think>\nOther words.")
    write_json(tmp_path / "rollout.json", rollout_to_json(replace(made, turns=[changed, *made.turns[1:]])))
    with pytest.raises(ConfigError, match="made with another tokenizer than that of m"):
        write_page(tmp_path / "rollout.json", path, scorer=scorer, recipe=recipe)


def test_a_model_folder_scores_as_a_fresh_forward_does(tmp_path):
    shape = ModelConfig(16, 24, 1, 2, 1, head_dim=8, vocab_size=TOKENIZER.size, rope_theta=100.0)
    model, made, recipe = Qwen3(shape, seed=3), rollout([search(), visit(), answer()]), Recipe(lead_in="Answer.")
    weights.save(model, tmp_path / "model", TOKENIZER.files)
    write_json(tmp_path / "rollout.json", rollout_to_json(made))
    scorer = Scorer("m", *load_scorer(tmp_path / "model"))
    path = write_page(tmp_path / "rollout.json", tmp_path / "xray.html", scorer=scorer, recipe=recipe)
    [only] = embedded(path.read_text(encoding="utf-8"))["rollouts"]
    wrapped = wrap_answer("cat", TOKENIZER, recipe)
    for turn, shown in zip(made.turns, only["measured"], strict=True):
        tokens = [*made.tokens[:turn.start], *wrapped.ids]
        logprobs = model(torch.tensor([tokens])).log_softmax(-1)[0].detach()
        first = turn.start + wrapped.start
        expected = [float(logprobs[k - 1, tokens[k]]) for k in range(first, len(tokens))]
        assert shown == pytest.approx(value(expected, "log_prob"), abs=1e-5)
    assert scorer.context == shape.max_position_embeddings


def test_lines_of_an_evaluation_are_grouped_by_question_with_their_verdicts(tmp_path):
    lines = []
    for name, run, verdict in (("a", 0, True), ("b", 0, None), ("a", 1, False)):
        made = rollout([search(), answer()], question=Question(name, f"Pet of {name}?", ["cat"]))
        lines.append(json.dumps(rollout_to_json(made) | {"run": run, "correct": verdict}))
    data = shown(tmp_path, "\n".join(lines) + "\n")
    assert [(g["name"], g["rollouts"]) for g in data["groups"]] == [("a", [0, 2]), ("b", [1])]
    assert [(r["outcome"], r["name"]) for r in data["rollouts"]] == [
        ("right", "run 0"), ("unknown", "run 0"), ("wrong", "run 1")]
    assert [r["outcome"] for r in shown(tmp_path, "\n".join(lines), group="a")["rollouts"]] == ["right", "wrong"]


@pytest.mark.parametrize(("options", "words"), [
    ({"scorer": SCORER}, "does not say what the true answer is"),
    ({"scorer": SCORER, "answer": "  "}, "does not say what the true answer is"),
    ({"scorer": Scorer("small", TOKENIZER, rising, 50), "answer": "cat"},
     r"tokens and its answer \d+; small takes 50 at most")])
def test_what_cannot_be_scored_is_refused_with_the_reason(tmp_path, options, words):
    with pytest.raises(ConfigError, match=words):
        shown(tmp_path, {"messages": messages()}, **options)


def test_a_conversation_that_cannot_be_rendered_is_shown_but_not_scored(tmp_path):
    loose = {"messages": [*messages([search()]), {"role": "user", "content": "Answer now!"},
                          {"role": "assistant", "content": "no thought <answer>cat</answer>"}]}
    assert shown(tmp_path, loose)["rollouts"][0]["turns"][0]["observation"] == "Answer now!"
    with pytest.raises(ConfigError, match="cannot be scored: message 3 must be"):
        shown(tmp_path, loose, scorer=SCORER, answer="cat")


@pytest.mark.parametrize("name", ["rl_0000", "rl_0008", "sft_0000", "sft_0001", "sft_0007"])
def test_the_released_trajectories_can_be_shown_whole(tmp_path, name):
    path = TRAJECTORIES / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"the released trajectory {name}.json is not in ../shared/data/trajectories")
    given = json.loads(path.read_text(encoding="utf-8"))
    page = write_page(path, tmp_path / "xray.html")
    assert page.stat().st_size < 2_000_000
    data = embedded(page.read_text(encoding="utf-8"))
    [only] = data["rollouts"]
    assert len(only["turns"]) == sum(m["role"] == "assistant" for m in given["messages"])
    assert only["turns"][-1]["kind"] == "answer"
    assert "characters are left out" not in json.dumps(data)
