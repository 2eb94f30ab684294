"""BM25 against its formula by hand, and its order."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.tools.bm25 import BM25, words


def test_two_texts_worked_by_hand():
    index = BM25(["red fish red", "blue"], k1=1.5, b=0.75)
    # N = 2, mean length 2; "red" is in one text: idf = ln(1 + 1.5/1.5) = ln 2; f = 2, |d| = 3: norm = 1.5 (0.25 + 0.75 * 1.5)
    assert index.search("red") == [(0, pytest.approx(math.log(2) * 2 * 2.5 / (2 + 1.5 * 1.375)))]
    assert index.search("green") == []


def test_words_ignore_case_width_and_punctuation_and_chinese_has_one_per_character():
    assert words("The ＲＩＶＥＲ-museum's 2nd_floor, Straße") == ["the", "river", "museum", "s", "2nd", "floor", "strasse"]
    assert words("北京 river") == ["北", "京", "river"]


def test_equal_scores_keep_the_order_of_the_texts_and_top_cuts():
    index = BM25(["a b", "a b", "a b", "c"])
    assert [i for i, _ in index.search("a")] == [0, 1, 2]
    assert [i for i, _ in index.search("a", top=2)] == [0, 1]


@pytest.mark.parametrize("texts", [[], [""], ["", "..."]])
def test_texts_without_words_are_found_by_nothing(texts):
    assert BM25(texts).search("a") == []


@given(st.lists(st.lists(st.sampled_from("abcde"), max_size=6).map(" ".join), max_size=6), st.sampled_from("abcde"))
def test_a_text_is_found_exactly_if_it_shares_a_word_with_the_query(texts, word):
    found = BM25(texts).search(word)
    assert sorted(i for i, _ in found) == [i for i, text in enumerate(texts) if word in text.split()]
    assert all(score > 0 for _, score in found)
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
