"""Files of infer.py and eval.py: saved rollouts, lines of an evaluation; and their scoring by a
model."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minvenus.agent.load import load_scorer
from minvenus.agent.record import rollout_to_json
from minvenus.config import ConfigError, ModelConfig
from minvenus.igpo.gain import wrap_truth
from minvenus.igpo.recipes import Recipe
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.report.saved import Scorer, read_source, scored
from minvenus.report.xray import write_page
from minvenus.types import Question
from tests.agent import scripted
from tests.report.examples import (
    BROKEN,
    PAGES,
    TOKENIZER,
    Part,
    answer,
    rollout,
    search,
    visit,
    words_of,
)

MADE = rollout([search("a"), search("a"), visit("p"), BROKEN, visit("q"), answer("cat")],
               question=replace(scripted.QUESTION, answers=["cat", "kitten"]))
LEAD_IN = Recipe(lead_in="Answer.")


def rising(tokens, lengths, continuation):
    """Made-up scores: the answer's tokens become more probable with every token of context."""
    return [[-10.0 + n / 100 + j / 1000 for j in range(len(continuation))] for n in lengths]


SCORER = Scorer("a model", TOKENIZER, rising, Recipe.paper())


def saved(folder, record) -> Path:
    path = folder / "in.json"
    path.write_text(record if isinstance(record, str) else json.dumps(record))
    return path


def shown(folder, record, **options):
    return Part.of(write_page(saved(folder, record), folder / "xray.html", **options))


@pytest.mark.parametrize(("name", "scorer"), [("trajectory", None), ("scored", SCORER)])
def test_the_page_of_a_trajectory_word_for_word(tmp_path, name, scorer):
    """Scored, it has beliefs and gains but nothing that needs a group. Where it should say
    something else: python -m tests.report.write_pages"""
    path = saved(tmp_path, rollout_to_json(MADE))
    document = write_page(path, tmp_path / "xray.html", scorer=scorer).read_text(encoding="utf-8")
    assert words_of(document) == (PAGES / f"{name}.txt").read_text("utf-8")


def test_the_truth_of_the_users_own_question_is_not_known(tmp_path):
    own = rollout([answer()], question=Question("question", "Why?", ["(unknown)"]))
    for given, words in ((None, "does not say what the true answer is"), ("  ", "is blank")):
        with pytest.raises(ConfigError, match=words):
            shown(tmp_path, rollout_to_json(own), scorer=replace(SCORER, answer=given))


def test_a_run_that_failed_shows_its_reason_and_no_format_error(tmp_path):
    failed = scripted.run([search("a"), search("b")], stop=[1])
    page = shown(tmp_path, rollout_to_json(failed))
    assert "stopped by the user" in page.all("rollout")[0][0].words
    assert "malformed:" not in page.words


def test_the_answer_that_is_given_counts_not_that_of_the_file(tmp_path):
    scorer = replace(SCORER, answer=" a small dog\n")
    page = shown(tmp_path, rollout_to_json(MADE) | {"exact_match": True}, scorer=scorer)
    assert page.facts["true answer"] == "a small dog"
    assert "outcome 1" in page.all("rollout")[0][0].words
    tokens = len(TOKENIZER.encode_untrusted("a small dog"))
    assert page.words.count(f"token {tokens} = ") == 3, "of three V"
    assert f"token {tokens + 1}" not in page.words


def test_a_rollout_must_be_of_the_models_tokenizer(tmp_path):
    changed = replace(MADE.turns[0], text="<think>\nOther words.")
    other = rollout_to_json(replace(MADE, turns=[changed, *MADE.turns[1:]]))
    with pytest.raises(ConfigError, match="made with another tokenizer than that of a model"):
        read_source(saved(tmp_path, other), None, SCORER)


def test_a_model_folder_scores_the_answer_before_every_turn_as_a_fresh_forward_does(tmp_path):
    """The rollout and the truth together fill the context of the model."""
    made = rollout([search(), visit(), answer()])
    wrapped = wrap_truth("cat", TOKENIZER, LEAD_IN)
    longest = made.turns[-1].start + len(wrapped.ids)
    shape = ModelConfig(16, 24, 1, 2, 1, head_dim=8, vocab_size=TOKENIZER.size, rope_theta=100.0,
                        max_position_embeddings=longest)
    model = Qwen3(shape, seed=3)
    weights.save(model, tmp_path / "model", TOKENIZER.files)
    tokenizer, score, _ = load_scorer(tmp_path / "model")
    scorer = Scorer("m", tokenizer, score, LEAD_IN)
    [[case]] = read_source(saved(tmp_path, rollout_to_json(made)), None, scorer)[0].values()
    for turn, row in zip(made.turns, case.sample.truth_logprobs, strict=True):
        tokens = [*made.tokens[: turn.start], *wrapped.ids]
        logprobs = model(torch.tensor([tokens])).log_softmax(-1)[0].detach()
        truth = range(turn.start + wrapped.start, len(tokens))
        assert row == pytest.approx([float(logprobs[k - 1, tokens[k]]) for k in truth], abs=1e-5)
    with pytest.raises(ConfigError, match=f"the model has room for {longest} "):
        scored(case, replace(scorer, answer="cat cat"))


def test_lines_of_an_evaluation_are_grouped_by_question_with_their_verdicts(tmp_path):
    lines = []
    for name, verdict in (("a", True), ("b", None), ("a", False)):
        made = rollout([search(), answer()], question=Question(name, f"Pet of {name}?", ["cat"]))
        lines.append(json.dumps(rollout_to_json(made) | {"exact_match": verdict}))
    first, second = shown(tmp_path, "\n".join(lines)).all("group")
    assert first[0].words == "a: Pet of a?" and second[0].words == "b: Pet of b?"
    heads = [[box[0].words for box in group.all("rollout")] for group in (first, second)]
    assert heads == [
        ["rollout 1outcome 1answeredcatSA", "rollout 2outcome 0answeredcatSA"],
        ["rollout 1outcome unknownansweredcatSA"],
    ]
    assert len(shown(tmp_path, "\n".join(lines), group="a").all("rollout")) == 2


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("", "is empty"),
        ('{"a": 1}\n{"a"', "line 2: not JSON"),
        ('{"a": 1}', "line 1: not a saved rollout"),
        (
            '{"format": "minvenus credit 2"}',
            "no batch of rollouts with their reward arithmetic: 'rollout'",
        ),
    ],
)
def test_a_file_that_cannot_be_shown_is_refused_in_one_line(tmp_path, record, message):
    with pytest.raises(ConfigError, match=message) as caught:
        shown(tmp_path, record)
    assert "\n" not in str(caught.value) and not (tmp_path / "xray.html").exists()
