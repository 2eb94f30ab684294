"""Scoring against its definition: a fresh forward for every prefix."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minvenus.engine import Engine, Sampling
from tests.engine.models import (
    CountingModel,
    check_engine,
    naive_greedy,
    naive_scores,
    poisoned,
    sharp_model,
)

MODEL = sharp_model()
TOKENS = torch.randint(0, 40, (60,), generator=torch.Generator().manual_seed(1)).tolist()
ANSWER = [3, 1, 4, 1, 5]


def close(got, wanted, temperature=1.0):
    """To 1e-5, as far as float32 goes; a temperature divides the logits and their rounding."""
    return all(
        a == pytest.approx(b, abs=1e-5 / temperature) for a, b in zip(got, wanted, strict=True)
    )


def test_the_boundaries_of_a_living_sequence_cost_the_continuations_only():
    model = CountingModel(MODEL)
    engine = poisoned(Engine(model, pages=40, page_size=4))
    sequence = engine.open(list(TOKENS))
    engine.turn([sequence], Sampling(4))
    model.count, before = 0, engine.counters()
    boundaries = [1, 13, 20, 21, 60, 64]  # inside a page, at its edges, and the very end
    [scores] = engine.score_many([(sequence, boundaries, ANSWER)])
    done = engine.counters()
    assert model.count == len(boundaries) * len(ANSWER) == done.scored
    assert (done.prefilled, done.decoded) == (before.prefilled, before.decoded)
    assert close(scores, [naive_scores(MODEL, sequence.tokens[:n], ANSWER) for n in boundaries])
    engine.close(sequence)
    assert engine.pool.used == 0
    check_engine(engine)


def test_an_observation_that_is_not_computed_yet_is_computed_once_for_all_of_its_boundaries():
    model = CountingModel(MODEL)
    engine = Engine(model, pages=40, page_size=4)
    sequence = engine.open(TOKENS[:30])
    engine.turn([sequence], Sampling(3))
    sequence.tokens += TOKENS[30:]
    model.count = 0
    engine.score_many([(sequence, [33, 50, 63], ANSWER)])
    assert model.count == 1 + 30 - 1 + 3 * len(
        ANSWER
    )  # the drawn token and the observation but its last
    engine.turn([sequence], Sampling(1))
    assert model.count == 30 + 3 * len(ANSWER) + 1  # and the next turn finds them there


def test_the_value_of_a_groups_prompt_is_computed_once_for_all_rollouts():
    model = CountingModel(MODEL)
    engine = Engine(model, pages=100, page_size=4)
    group = engine.open_group([TOKENS[:30] for _ in range(4)])
    engine.turn(group, Sampling(6))
    model.count = 0
    scores = engine.score_many([(s, [30, 36], ANSWER) for s in group] + [(group[0], [30], [9])])
    assert (
        model.count == (1 + 4) * len(ANSWER) + 1
    )  # one prompt, four ends, and another continuation
    for sequence, got in zip(group, scores, strict=False):
        assert close(got, [naive_scores(MODEL, sequence.tokens[:n], ANSWER) for n in (30, 36)])


def test_prefixes_given_as_tokens_are_computed_once_and_found_again():
    model = CountingModel(MODEL)
    engine = Engine(model, pages=40, page_size=4)
    continuations = [[1, 2], [3], [4, 5, 6]]
    assert close(
        engine.score(TOKENS, continuations), [naive_scores(MODEL, TOKENS, c) for c in continuations]
    )
    assert model.count == 59 + 6
    assert close(engine.score(TOKENS, [[7]], 0.7), [naive_scores(MODEL, TOKENS, [7], 0.7)], 0.7)
    assert model.count == 59 + 6 + 3 + 1  # the last page was not full: its 3 tokens run again


@pytest.mark.parametrize("lengths", [(20, 8), (8, 20)])
def test_one_prefix_in_two_requests_is_computed_once_and_as_far_as_the_longer_needs(lengths):
    model = CountingModel(MODEL)
    engine = Engine(model, pages=40, page_size=4)
    got = engine.score_many([(TOKENS[:20], [n], ANSWER) for n in lengths])
    naive = [naive_scores(MODEL, TOKENS[:n], ANSWER) for n in lengths]
    assert close([scores for [scores] in got], naive)
    assert model.count == 19 + 2 * len(ANSWER)


def test_one_text_with_two_borders_is_scored_after_each():
    requests = [(TOKENS[:n], [n], TOKENS[n:12]) for n in (8, 5)]
    got = Engine(MODEL, pages=40, page_size=4).score_many(requests)
    assert close([scores for [scores] in got], [naive_scores(MODEL, p, c) for p, _, c in requests])


def test_scores_beside_a_turn_that_runs_are_those_of_a_fresh_forward():
    """One step gives hidden states to all of them: each job finds its own, whichever runs first."""
    engine = poisoned(Engine(MODEL, pages=80, page_size=4, step_tokens=50))
    parts = (TOKENS[20:], TOKENS[:20], TOKENS[10:])
    older, sequence, younger = (engine.open(part, i) for i, part in enumerate(parts))
    engine.score(sequence, [[1]])  # its prefix is computed
    for other in (older, younger):
        engine.start(other, Sampling(20, temperature=0))
    lengths = [9, 15, 20]
    [scores] = engine.score_many([(sequence, lengths, ANSWER)], 2.0)
    assert close(scores, [naive_scores(MODEL, TOKENS[:n], ANSWER, 2.0) for n in lengths])
    while older.job or younger.job:
        engine.step()
    for other, prompt in ((older, TOKENS[20:]), (younger, TOKENS[10:])):
        assert other.tokens[len(prompt) :] == naive_greedy(MODEL, prompt, 20)


@pytest.mark.parametrize("pages", range(21, 33))
def test_a_preempted_scoring_starts_again_with_nothing_kept(pages):
    """An older sequence decodes beside it and takes its pages, here when it has scored some chunks
    of its continuation."""
    engine = poisoned(Engine(MODEL, pages=pages, page_size=2, step_tokens=3))
    old = engine.open(TOKENS[:12])
    engine.start(old, Sampling(24, temperature=0))
    continuation = TOKENS[30:50]
    [[scores]] = engine.score_many([(TOKENS[12:20], [8], continuation)])
    assert close([scores], [naive_scores(MODEL, TOKENS[12:20], continuation)])
    while old.job:
        engine.step()
    assert old.tokens[12:] == naive_greedy(MODEL, TOKENS[:12], 24)
    check_engine(engine)


def test_a_scored_fork_gives_its_pages_to_those_that_wait():
    """25 pages of the prefix, room for three forks of two pages more: nine boundaries need no
    preemption."""
    engine = poisoned(Engine(MODEL, pages=31, page_size=2))
    prefix, lengths = engine.open(TOKENS[:50]), list(range(10, 50, 5))
    [found] = engine.score_many([(prefix, lengths, ANSWER[:2])])
    assert close(found, [naive_scores(MODEL, TOKENS[:n], ANSWER[:2]) for n in lengths])
    assert engine.counters().preemptions == 0
    check_engine(engine)


def some(low, high, most):
    return st.lists(st.integers(low, high), min_size=1, max_size=most)


requests = st.lists(
    st.tuples(some(0, 39, 30), some(1, 30, 4), some(0, 39, 7)), min_size=1, max_size=4
)


@settings(max_examples=max(5, settings.default.max_examples // 2))
@given(
    requests,
    st.sampled_from([2, 3, 16]),
    st.sampled_from([3, 8, 1000]),
    st.sampled_from([0.5, 1.0]),
    st.booleans(),
)
def test_any_batch_of_prefixes_and_continuations_equals_a_forward_for_each(
    requests, page_size, step_tokens, temperature, tight
):
    requests = [
        (tokens, [min(n, len(tokens)) for n in lengths], c) for tokens, lengths, c in requests
    ]
    pages = (
        -(-37 // page_size) if tight else 200
    )  # tight: one request fits, so others are preempted
    engine = poisoned(Engine(MODEL, pages=pages, page_size=page_size, step_tokens=step_tokens))
    got = engine.score_many(requests, temperature)
    for (tokens, lengths, continuation), scores in zip(requests, got, strict=True):
        wanted = [naive_scores(MODEL, tokens[:n], continuation, temperature) for n in lengths]
        assert close(scores, wanted, temperature)
    check_engine(engine)
    assert engine.pool.used == 0


def test_impossible_requests_are_refused_with_the_numbers_and_leave_nothing_behind():
    engine = Engine(MODEL, pages=4, page_size=4)
    border = r"lie in 1 to 3, the number of tokens; got "
    for requests, message in (
        ([([1, 2, 3], [4], [1])], border + r"\[4\]"),
        ([([1, 2, 3], [1], [1]), ([1, 2, 3], [0], [1])], border + r"\[0\]"),
        ([([1, 2, 3], [], [1])], border + r"\[\]"),
        ([([1, 2, 3], [3], [])], "need at least one token, all in 0 to 39"),
        ([(TOKENS[:15], [1, 15], [1, 2, 3])], "need 5 pages of 4 for 15 tokens and up to 3 more"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.score_many(requests)
        assert not engine.scheduler.sequences and engine.pool.used == 0
