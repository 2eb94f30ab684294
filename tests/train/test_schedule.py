"""What a step is made of before the model sees it: its learning rate, its trajectories, and those that are held out."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.sft.dataset import Example
from minvenus.train.data import batch_indices, fingerprint, split
from minvenus.train.optim import learning_rate


def test_warm_up_and_cosine_worked_by_hand():
    """Six steps, two of warm-up: half, all; then (1 + cos(pi k / 4)) / 2 for k = 0 1 2 3."""
    rates = [learning_rate(step, 6, 2.0, 2) for step in range(6)]
    assert rates == pytest.approx([1.0, 2.0, 2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5)])
    assert [learning_rate(step, 6, 2.0, 2, cosine=False) for step in range(6)] == [1.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    assert [learning_rate(step, 2, 3.0, 2) for step in range(2)] == [1.5, 3.0]
    assert learning_rate(0, 1, 3.0, 0) == 3.0


@given(st.integers(1, 500), st.floats(0, 1), st.floats(1e-6, 1.0))
def test_every_step_moves_up_to_the_peak_and_down_again(steps, share, peak):
    warmup = int(share * steps)
    rates = [learning_rate(step, steps, peak, warmup) for step in range(steps)]
    assert all(0 < rate <= peak for rate in rates)
    top = max(warmup - 1, 0)
    assert rates[top] == pytest.approx(peak)
    assert rates[:top + 1] == sorted(rates[:top + 1]) and rates[top:] == sorted(rates[top:], reverse=True)


@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 3), st.integers(-5, 10**12))
def test_every_epoch_has_every_example_once(total, batch, epochs, seed):
    steps = -(-total * (epochs + 1) // batch)
    order = [i for step in range(steps) for i in batch_indices(step, batch, total, seed)]
    for epoch in range(epochs + 1):
        assert sorted(order[epoch * total:(epoch + 1) * total]) == list(range(total))


def test_the_seed_and_the_epoch_reach_the_order():
    def first_epoch(seed, epoch=0):
        return [i for step in range(4) for i in batch_indices(4 * epoch + step, 5, 20, seed)]

    assert first_epoch(0) == first_epoch(0)
    assert len({tuple(first_epoch(seed, epoch)) for seed in range(5) for epoch in range(5)}) == 25
    assert first_epoch(0) != list(range(20))


def test_no_examples_are_an_error():
    with pytest.raises(ValueError, match="no examples"):
        batch_indices(0, 4, 0, 0)


def example(number):
    return Example(torch.tensor([1, number], dtype=torch.int32), torch.tensor([False, True]), (2,))


def numbers(examples):
    return [int(e.tokens[1]) for e in examples]


def test_copies_of_a_held_out_trajectory_are_not_trained_on():
    training, held_out = split([example(n) for n in (1, 2, 3, 1, 4, 3, 2, 3)], 2)
    assert numbers(held_out) == [2, 3] and numbers(training) == [1, 1, 4]
    assert [numbers(part) for part in split([example(1), example(1)], 0)] == [[1, 1], []]


@given(st.lists(st.integers(0, 12), min_size=1), st.integers(0, 14))
def test_held_out_trajectories_are_different_ones_and_never_trained_on(drawn, count):
    examples = [example(n) for n in drawn]
    if count >= len(set(drawn)):
        with pytest.raises(ConfigError, match=f"{len(set(drawn))} different trajectories are not enough to hold {count} out"):
            split(examples, count)
        return
    training, held_out = (numbers(part) for part in split(examples, count))
    assert len(set(held_out)) == len(held_out) == count and not set(held_out) & set(training)
    assert training == [n for n in drawn if n not in held_out], "all others stay, in their order"


def test_the_fingerprint_sees_tokens_masks_and_order():
    a, b = example(1), Example(torch.tensor([1, 2, 3], dtype=torch.int32), torch.tensor([False, True, True]), (3,))
    masked = Example(b.tokens, torch.tensor([False, False, True]), (3,))
    prints = [fingerprint(examples) for examples in ([a, b], [b, a], [a, masked], [a], [example(2), b])]
    assert len(set(prints)) == len(prints) and fingerprint([example(1), b]) == prints[0]
