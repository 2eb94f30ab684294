"""Two evaluations against each other, and the published numbers beside them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.evaluation.compare import bootstrap_interval, paired_difference
from minvenus.evaluation.published import ACCURACY, BENCHMARKS, KS, PASS_AT_K, published_table
from tests.evaluation.test_aggregate import N, U, Y, judged, runs_of

# ------------------------------------------------------------------------------------------------------------ A against B


def test_the_paired_difference_by_hand():
    a = runs_of({"p": [Y, N], "q": [N, N], "r": [Y, Y], "s": [U, U], "only a": [Y]})
    b = runs_of({"p": [Y, Y], "q": [N, U], "r": [N, Y], "s": [Y, Y], "only b": [N], "nor a": [Y]})
    found = paired_difference(a, b)
    assert found.value == 0.0 and (found.questions, found.better, found.worse) == (3, 1, 1)        # +1/2, 0, -1/2
    assert (found.unpaired, found.unknown) == (3, 1)
    assert (found.low, found.high) == (-0.5, 0.5)                    # all three the same: 1/27 each, more than 2.5 %


def test_nothing_in_common_has_no_difference():
    found = paired_difference(runs_of({"a": [Y]}), runs_of({"b": [Y]}))
    assert found.value is found.low is found.high is None and found.unpaired == 2


@given(judged, judged, st.integers(0, 5))
def test_swapping_the_two_negates_the_difference_and_the_seed_fixes_the_interval(x, y, seed):
    a, b = runs_of(x), runs_of(y)
    there, back = (paired_difference(p, q, samples=100, seed=seed) for p, q in ((a, b), (b, a)))
    assert there == paired_difference(a, b, samples=100, seed=seed)
    assert there.value == pytest.approx(-back.value) and (there.better, there.worse) == (back.worse, back.better)
    assert -1 <= there.low <= there.high <= 1
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))     # the same draws, every sign turned


def test_pairing_sees_a_small_steady_gain_that_the_spread_between_questions_hides():
    easy, hard = {f"e{i}": [Y] * 4 for i in range(40)}, {f"h{i}": [N] * 4 for i in range(40)}
    found = paired_difference(runs_of(easy | hard), runs_of(easy | {name: [Y, N, N, N] for name in hard}))
    assert found.value == pytest.approx(0.125) and found.low > 0.08 and found.high < 0.17


def test_the_bootstrap_interval_covers_the_truth_about_95_times_in_100():
    rng, trials = random.Random(5), 300
    hits = 0
    for trial in range(trials):
        values = [rng.choices([-1, 0, 1], [0.1, 0.6, 0.3])[0] for _ in range(50)]        # the true mean is 0.2
        low, high = bootstrap_interval(values, samples=200, seed=trial)
        hits += low <= 0.2 <= high
    assert 0.90 <= hits / trials <= 0.985


@pytest.mark.parametrize(("values", "samples"), [([], 100), ([1.0], 39)])
def test_an_interval_of_nothing_is_refused(values, samples):
    with pytest.raises(ValueError, match="at least one value"):
        bootstrap_interval(values, samples)


# -------------------------------------------------------------------------------------------------------------- published


def test_the_published_table_is_whole_and_its_differences_are_the_stated_ones():
    assert all(len(numbers) == len(BENCHMARKS) for numbers in ACCURACY.values())
    gains = [rl - sft for rl, sft in zip(ACCURACY["DR-Venus-4B-RL"], ACCURACY["DR-Venus-4B-SFT"], strict=True)]
    assert gains == pytest.approx([2.3, 2.0, -1.0, 5.7, 5.4, 1.9])
    assert len(published_table().splitlines()) == 1 + len(ACCURACY) and "29.1" in published_table()


def test_the_published_curves_rise_start_at_the_accuracy_and_are_multiples_of_a_question():
    for (benchmark, model), curve in PASS_AT_K.items():
        assert len(curve) == len(KS) and list(curve) == sorted(curve)
        assert curve[0] == ACCURACY[model][BENCHMARKS.index(benchmark)]
        questions = {"BrowseComp": 300, "BrowseComp-ZH": 289}[benchmark]
        assert all(round(round(value * questions / 100) * 100 / questions, 1) == value for value in curve[1:])
