"""From the model to the values of a rollout: where it is asked, what enters the mean, the telescoping sum with a real
model."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import ModelConfig, Recipe
from minvenus.igpo.credit import Measured, measured_values
from minvenus.igpo.gain import WrappedAnswer, answer_logprobs, needed_values, scored_lengths, segment_gains, value
from minvenus.model.qwen3 import Qwen3
from minvenus.types import Question, Rollout, Turn
from tests.igpo import oracle
from tests.igpo.strategies import trajectories
from tests.igpo.test_gain import KINDS, any_gain_recipe

WRAPPED = WrappedAnswer(ids=[7, 8, 9, 3, 4], start=3)


def rollout(kinds, turn_tokens=3, observation_tokens=2, vocabulary=50):
    """A rollout with a prompt of 4 tokens; every turn but the last is followed by an observation."""
    tokens, sampled, turns = [1, 2, 3, 4], [False] * 4, []
    for t, kind in enumerate(kinds):
        start = len(tokens)
        tokens += [(11 * t + j) % vocabulary for j in range(turn_tokens)]
        sampled += [True] * turn_tokens
        turns.append(Turn(kind, start, len(tokens), text=""))
        if t < len(kinds) - 1:
            tokens += [(7 * t + j) % vocabulary for j in range(observation_tokens)]
            sampled += [False] * observation_tokens
    return Rollout(
        Question("q", "where?", ["here"]), tokens, sampled, [-1.0 if s else None for s in sampled], turns, "answered"
    )


def values_of(r, score, recipe, name="r0"):
    """As training does it: ask where it must be asked, keep the truth's log-probs, make values of them."""
    scores = score(r.tokens, scored_lengths(r, recipe), WRAPPED.ids)
    return measured_values(Measured.of(r, answer_logprobs(r, WRAPPED, scores, recipe), 0.0, 0), recipe, name)


def score_by_length(tokens, lengths, continuation):
    """A made-up model: the log-prob of a token depends on the length of the prefix and on the position behind it."""
    return [[-0.125 * length - 0.5 * j for j in range(len(continuation))] for length in lengths]


def test_values_are_asked_for_at_the_start_of_the_turns_that_need_them():
    """Turns start at 4, 9, 14, 19 (3 tokens and 2 of observation each); the truth is the last two of five wrapped
    tokens."""
    r = rollout(["search", "visit", "search", "answer"])
    assert scored_lengths(r, Recipe()) == [4, 14]
    scores = score_by_length(r.tokens, [4, 14], WRAPPED.ids)
    assert answer_logprobs(r, WRAPPED, scores, Recipe()) == [[-2.0, -2.5], None, [-3.25, -3.75], None]
    assert values_of(r, score_by_length, Recipe()) == [-2.25, None, -3.5, None]


def test_the_value_before_anything_was_done_is_that_of_the_prompt_alone():
    """V_0 is measured before the first turn, so that the first turn's gain counts."""
    assert scored_lengths(rollout(["visit", "answer"]), Recipe()) == [4, 9]


@given(trajectories(), any_gain_recipe)
def test_rollout_values_are_there_exactly_where_they_are_needed(trajectory, recipe):
    kinds, _ = trajectory
    r = rollout(kinds)
    values = values_of(r, score_by_length, recipe)
    expected = [oracle.value([-0.125 * turn.start - 0.5 * j for j in (3, 4)], recipe.gain) for turn in r.turns]
    assert [t for t, v in enumerate(values) if v is not None] == needed_values(kinds, recipe)
    for v, e in zip(values, expected, strict=True):
        assert v is None or v == pytest.approx(e, rel=1e-12)


def test_the_model_is_not_asked_when_no_gain_is_to_be_computed():
    for r, recipe in (
        (rollout(["search", "answer"]), Recipe()),
        (rollout(["visit", "answer"]), Recipe(use_gain=False)),
    ):
        assert scored_lengths(r, recipe) == [] and answer_logprobs(r, WRAPPED, [], recipe) == [None, None]


@given(st.lists(st.floats(-1e6, 0.0), min_size=3, max_size=3), st.sampled_from(KINDS))
def test_the_lead_in_tokens_never_enter_the_mean(lead_in, kind):
    """Invariant 8."""
    def score(tokens, lengths, continuation):
        return [[*lead_in, -1.0, -2.0] for _ in lengths]

    assert values_of(rollout(["visit", "answer"]), score, Recipe(gain=kind)) == [value([-1.0, -2.0], kind)] * 2


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_a_value_that_is_not_finite_names_its_rollout_and_turn(bad):
    def score(tokens, lengths, continuation):
        return [[-1.0] * 4 + [bad if length == 14 else -1.0] for length in lengths]

    with pytest.raises(ValueError, match=r"question-7/3.*\b2\b"):
        values_of(rollout(["search", "visit", "search", "answer"]), score, Recipe(), "question-7/3")


@pytest.mark.parametrize("wrong", [[[-1.0] * 5], [[-1.0] * 5] * 3, [[-1.0] * 5, [-1.0] * 2]])
def test_scores_that_do_not_fit_what_was_asked_are_an_error(wrong):
    """One context short, one too many, or a context with the truth's tokens alone."""
    with pytest.raises(ValueError):
        answer_logprobs(rollout(["visit", "answer"]), WRAPPED, wrong, Recipe())


# --------------------------------------------------------------------------------------------------- with a real model


@pytest.mark.parametrize("kind", KINDS)
def test_gains_of_a_real_tiny_model_telescope(kind):
    """Invariants 1 and 2 with log-probs of a transformer, each value from a fresh forward over its own prefix."""
    torch.manual_seed(0)
    model = Qwen3(ModelConfig.preset("tiny")).eval()

    @torch.no_grad()
    def score(tokens, lengths, continuation):
        rows = []
        for length in lengths:
            logits = model(torch.tensor([tokens[:length] + continuation]))   # [1, L, V]
            logp = logits[0, length - 1:-1].double().log_softmax(-1)         # [C, V] row j scores continuation[j]
            rows.append([logp[j, token].item() for j, token in enumerate(continuation)])
        return rows

    kinds = ["search", "visit", "search", "search", "visit", "search", "answer"]
    r, recipe = rollout(kinds, turn_tokens=5, observation_tokens=4), Recipe(browse="off", gain=kind)
    values = values_of(r, score, recipe)
    gains = segment_gains(values, kinds, recipe)
    assert len({round(g, 9) for g in gains[:-1]}) == 6, "a random model changes its mind at every turn"
    assert sum(gains[:-1]) == pytest.approx(values[-1] - values[0], abs=1e-12)
    visits = replace(recipe, browse="segment")
    at_visits = segment_gains(values_of(r, score, visits), kinds, visits)
    assert sum(g for g in at_visits if g is not None) == pytest.approx(values[5] - values[0], abs=1e-12)
    assert at_visits[4] == pytest.approx(sum(gains[2:5]), abs=1e-12)
