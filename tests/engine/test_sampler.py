"""Sampling: worked cases, and chi-square tests of what is drawn.

Every chi-square test uses fixed seeds, so it passes or fails always; its threshold is the value
that a correct sampler would exceed with probability 1e-6 for a random seed. With the 11 such
comparisons below, a change of seeds gives a false alarm with probability 1.1e-5.
"""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from minvenus.engine import Engine
from minvenus.engine.sampler import Noise, Sampling, drawn_logits, invert
from tests.engine.models import FixedLogits

# upper 1e-6 points of the chi-square distribution, by degrees of freedom
CRITICAL = {1: 23.93, 2: 27.63, 3: 30.66, 4: 33.38, 5: 35.89, 6: 38.26, 7: 40.52}
LOGITS = torch.tensor([0.3, -1.0, 1.2, 0.0, 2.0, -0.4, 0.9, 0.1])


def assert_follows(tokens, probabilities):
    """Pearson's chi-square of the counts; ids of probability 0 must not appear at all."""
    counts = torch.bincount(torch.tensor(tokens), minlength=len(probabilities)).double()
    expected = torch.tensor(probabilities, dtype=torch.float64) * len(tokens)
    assert counts[expected == 0].sum() == 0
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = float(((counts - expected).square() / expected).sum())
    assert statistic < CRITICAL[len(expected) - 1], (statistic, counts.tolist(), expected.tolist())


def softmax(values):
    total = math.fsum(math.exp(v) for v in values if v is not None)
    return [0.0 if v is None else math.exp(v) / total for v in values]


def drawn(logits, sampling, written=()):
    """The probabilities that tokens are drawn with."""
    return (
        drawn_logits(torch.tensor([logits]).float(), sampling, len(logits), [written])[0]
        .softmax(dim=-1)
        .tolist()
    )


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(100, temperature=0.7), LOGITS.tolist()),
        (Sampling(100, temperature=0.7, top_k=3), [None, None, 1.2, None, 2.0, None, 0.9, None]),
        (Sampling(100, temperature=0.7, top_p=0.6), [None, None, 1.2, None, 2.0, None, None, None]),
        (Sampling(100, temperature=2.0), LOGITS.tolist()),
        (Sampling(100), LOGITS.tolist()),
    ],
)
def test_draws_of_the_engine_follow_the_distribution_across_sequences_and_steps(sampling, kept):
    """60 sequences of 100 tokens from a mock model with fixed logits. At 0.7: 0.559 of id 4, 0.178
    of id 2, then 0.116."""
    engine = Engine(FixedLogits(LOGITS.tolist()), pages=600, page_size=16)
    groups = engine.generate([[1], [2], [3]], sampling, n=20)
    completions = [c for group in groups for c in group]
    wanted = softmax([None if z is None else z / sampling.temperature for z in kept])
    assert_follows([t for c in completions for t in c.tokens], wanted)
    assert_follows([c.tokens[0] for c in completions], wanted)  # one draw of every generator
    plain = softmax([z / sampling.temperature for z in LOGITS.tolist()])
    assert completions[0].logprobs == pytest.approx(
        [math.log(plain[t]) for t in completions[0].tokens], abs=1e-5
    )


def test_top_p_is_cut_after_the_temperature_worked_by_hand():
    """0.6, 0.3, 0.1 at temperature 2 are 0.474, 0.335, 0.191: the first two are needed for 0.55.
    Before it, one would do."""
    logits = [math.log(p) for p in (0.6, 0.3, 0.1)]
    roots = [math.sqrt(0.6), math.sqrt(0.3)]
    got = drawn(logits, Sampling(1, temperature=2.0, top_p=0.55))
    assert got == pytest.approx([roots[0] / sum(roots), roots[1] / sum(roots), 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (0.76, 4), (1.0, 4)]
)
def test_where_the_mass_is_reached_exactly_no_further_id_is_kept(top_p, kept):
    got = drawn([0.0] * 4, Sampling(1, top_p=top_p))  # four ids of exactly a quarter
    assert sorted(got, reverse=True) == [pytest.approx(1 / kept)] * kept + [0.0] * (4 - kept)


def test_top_p_counts_within_the_top_k():
    """Of 0.4, 0.3, 0.2, 0.1 the top two are 4/7 and 3/7, so the first alone reaches 0.55; of all
    four it would not."""
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert drawn(logits, Sampling(1, top_k=2, top_p=0.55)) == [1, 0, 0, 0]


def test_a_penalty_is_subtracted_before_the_temperature():
    got = drawn(
        [0.2, 0.1, 0.0], Sampling(1, temperature=0.5, presence_penalty=0.3), written=[1, 2, 1]
    )
    assert got == pytest.approx(softmax([0.4, -0.4, -0.6]), abs=1e-6)


def test_a_presence_penalty_counts_an_id_once_however_often_it_was_written():
    """0.4 less leaves the first id at 0.6, ahead of the second. Counted twice it would fall to 0.2,
    three times behind it."""
    engine = Engine(FixedLogits([1.0, 0.5, 0.0]), pages=9)
    [[c]] = engine.generate([[1]], Sampling(6, temperature=0, presence_penalty=0.4))
    assert c.tokens == [0] * 6
    [[c]] = engine.generate([[1]], Sampling(4, temperature=0, presence_penalty=0.6))
    assert c.tokens == [0, 1, 0, 0]  # 0.4 < 0.5; then 0.4 > -0.1


def test_ids_beyond_the_last_token_are_never_drawn_but_count_in_the_plain_softmax():
    engine = Engine(FixedLogits(LOGITS.tolist()), pages=90, vocab_limit=4)
    assert engine.generate([[1]], Sampling(1, temperature=0))[0][0].tokens == [2]
    [group] = engine.generate([[1]], Sampling(100), n=40)
    assert_follows(
        [t for c in group for t in c.tokens],
        softmax([*LOGITS[:4].tolist(), None, None, None, None]),
    )
    wanted = [math.log(softmax(LOGITS.tolist())[t]) for t in group[0].tokens]
    assert group[0].logprobs == pytest.approx(wanted, abs=1e-5)


def test_inversion_worked_by_hand_and_at_the_edges():
    weights = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]])
    uniform = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53], dtype=torch.float64)
    assert invert(weights.expand(6, -1), uniform).tolist() == [1, 1, 3, 3, 4, 4]


@given(
    st.lists(st.integers(-9, 9), min_size=2, max_size=12, unique=True),
    st.integers(1, 12),
    st.floats(0.05, 0.999),
    st.floats(0.3, 3.0),
)
def test_top_k_and_top_p_keep_the_fewest_most_probable_that_reach_p(values, k, p, temperature):
    order = sorted(range(len(values)), key=lambda i: -values[i])[:k]
    total = math.fsum(math.exp(values[i] / temperature) for i in order)
    reached, kept = 0.0, []
    for i in order:
        assume(abs(reached - p) > 1e-5)  # float32 may see the border on its other side
        if reached < p:
            kept.append(i)
        reached += math.exp(values[i] / temperature) / total
    sampling = Sampling(1, top_k=k, top_p=p, temperature=temperature)
    wanted = softmax([v / temperature if i in kept else None for i, v in enumerate(values)])
    assert drawn(values, sampling) == pytest.approx(wanted, abs=1e-5)


def first(*name):
    noise = Noise(*name)
    return [noise.draw() for _ in range(100)]  # more than one refill


def test_noise_depends_on_seed_step_question_and_rollout_and_on_nothing_else():
    assert first(0, 3, 1) == first(0, 3, 1)
    names = [(0, 3, 1), (1, 3, 1), (0, 4, 1), (0, 3, 2), (0, "3/1", 1)]
    names += [(0, 3, 1, step) for step in range(3)]
    # these would be one if the parts ran together
    names += [(1, 23, 4), (12, 3, 4), (1, 2, 34), (1, 2, 3, 45), (1, 52, 3, 4), (14, 52, 3)]
    assert len({tuple(first(*name)) for name in names}) == len(names)
    assert first(0, 3, 1)[0] == pytest.approx(0.8262, abs=1e-4)  # the same in every process
    assert first(0, "q", 1, 7) == first(0, "7 q", 1)  # the bytes of the name are a promise


def test_every_part_of_the_name_reaches_the_samples_of_the_engine():
    """One prompt, one changed part at a time."""
    model, sampling = FixedLogits([0.0] * 40), Sampling(12)
    names = [(0, "q", 0, None), (1, "q", 0, None), (0, "r", 0, None)]
    names += [(0, "q", 1, None), (0, "q", 0, 1), (0, "q", 0, 2)]
    drawn = set()
    for seed, question, rollout, step in names:
        engine = Engine(model, pages=9, seed=seed)
        [turn] = engine.turn([engine.open([1], question, rollout, step)], sampling)
        drawn.add(tuple(turn.tokens))
        group = engine.open_group([[1], [1]], question, rollout, step)
        parts = [(s.question, s.rollout, s.step) for s in group]
        assert parts == [(question, rollout, step), (question, rollout + 1, step)]
        assert engine.turn(group, sampling)[0] == turn, "a group's first is the sequence alone"
    assert len(drawn) == 6


@pytest.mark.parametrize(
    "own", [{"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.5}, {"presence_penalty": 3.0}]
)
def test_a_turn_draws_the_same_beside_one_with_other_settings(own):
    def turns(**samplings):
        engine = Engine(FixedLogits(LOGITS.tolist()), pages=9)
        sequences = {name: engine.open([1], name) for name in samplings}
        for name, sequence in sequences.items():
            engine.start(sequence, samplings[name])
        while engine.scheduler.running():
            engine.step()
        return {name: (s.tokens[1:], s.logprobs) for name, s in sequences.items()}

    plain, other = Sampling(30), Sampling(30, **own)
    alone = turns(plain=plain) | turns(other=other)
    assert turns(plain=plain, other=other) == alone == turns(other=other, plain=plain)
    again = alone | turns(third=plain)  # drawn with the first, which is not beside it
    assert turns(plain=plain, other=other, third=plain) == again


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -1.0),
        ("temperature", 9e-4),
        ("temperature", 1001),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("presence_penalty", math.nan),
    ],
)
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        Sampling(**{"max_tokens": 9, name: value})
    assert Sampling(1, temperature=1e-3) and Sampling(1, temperature=1e3)


def test_one_sequence_with_logits_that_are_not_finite_is_an_error_beside_others_too():
    engine = Engine(FixedLogits([0.0, 1.0]), pages=9)
    sequences = [engine.open([1], name) for name in "ab"]
    for sequence in sequences:
        engine.start(sequence, Sampling(1))
    with pytest.raises(ValueError, match="no token can be drawn"):
        engine.sampler.draw(sequences, torch.tensor([[0.0, 1.0], [0.0, math.nan]]))
    assert [sequence.tokens for sequence in sequences] == [[1], [1]]
