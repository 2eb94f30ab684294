"""Copies by turns, and the paper's own arithmetic."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.sft.resample import bucket, copies, count_turns, long_share, order, resampled


def test_the_papers_numbers():
    before = {"<=50": 3_720, "51-100": 4_400, ">100": 1_245}
    after = resampled(before)
    assert sum(before.values()) == 9_365 and sum(after.values()) == 18_745
    assert f"{long_share(before):.2%}" == "13.29%" and f"{long_share(after):.2%}" == "33.21%"
    turns = [50] * 3_720 + [51] * 2_000 + [100] * 2_400 + [101] * 1_245
    assert sum(map(copies, turns)) == 18_745
    assert Counter(map(bucket, turns)) == before
    assert Counter(bucket(turns[i]) for i in order(map(copies, turns), seed=42)) == after


@pytest.mark.parametrize(("turns", "count"), [(1, 1), (50, 1), (51, 2), (100, 2), (101, 5), (400, 5)])
def test_the_borders(turns, count):
    assert copies(turns) == count


def test_turns_count_the_answer_and_impossible_numbers_are_refused():
    assert count_turns([{}] * 3) == 1 and count_turns([{}] * 51) == 25
    with pytest.raises(ValueError, match="got 0"):
        copies(0)
    assert long_share({}) is None


@given(st.lists(st.sampled_from([1, 2, 5]), max_size=40), st.integers(0, 2**40))
def test_a_shuffle_is_a_permutation_that_its_seed_decides(counts, seed):
    plain, shuffled = order(counts, None), order(counts, seed)
    assert list(plain) == [i for i, count in enumerate(counts) for _ in range(count)]
    assert sorted(shuffled) == list(plain) and shuffled == order(counts, seed)


def test_another_seed_gives_another_order_and_the_order_of_a_seed_is_fixed():
    assert order([1] * 50, 1) != order([1] * 50, 2)
    assert list(order([1, 2, 1, 5], 42)) == [2, 3, 3, 3, 3, 1, 3, 0, 1]


def test_shuffled_copies_are_rarely_neighbours():
    shuffled = order([5] * 1000, seed=0)
    assert sum(a == b for a, b in pairwise(shuffled)) < 20      # 4 expected, 4,000 without a shuffle
