"""Exact match and F1: known cases by hand, the stated normalisation, then the properties."""

import string
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.evaluation.answers import ALIAS_MARK, exact_match, f1, split_aliases, tokens

WORDS = ["a", "b", "rome", "2019", "東", "京", "é"]
words = st.lists(st.sampled_from(WORDS), max_size=8)
texts = words.map(" ".join) | st.text(max_size=30).filter(lambda text: ALIAS_MARK not in text)


# ------------------------------------------------------------------------------------------ by hand


USA = ["United States of America", "USA"]
JOINED = "Rome<|answer_split|> Roma <|answer_split|>"


@pytest.mark.parametrize(
    ("prediction", "answers", "match", "score"),
    [
        ("The city of Paris", ["Paris, France"], 0, 1 / 3),  # one token in common: P = 1/4, R = 1/2
        ("a a b", ["a b b"], 0, 2 / 3),  # repeated tokens count as often as both have them
        ("Paul Jean Paul", ["Jean Paul Paul"], 0, 1),  # the order counts in a match only
        ("usa", USA, 1, 1),
        ("united states", USA, 0, 2 / 3),  # the best alias counts
        ("roma", ["Paris", JOINED], 1, 1),
    ],
)
def test_exact_match_and_f1_worked_by_hand(prediction, answers, match, score):
    assert exact_match(prediction, answers) == match
    assert f1(prediction, answers) == pytest.approx(score, abs=1e-15)


@pytest.mark.parametrize("prediction", [None, "", "   ", "?!", "。、"])
def test_no_answer_scores_zero_even_against_itself(prediction):
    blank = prediction or ""
    for pair in ((prediction, ["Rome"]), ("Rome", [blank]), (prediction, [blank])):
        assert exact_match(*pair) == f1(*pair) == 0.0


def test_joined_answers_are_split_without_blanks():
    assert split_aliases(JOINED, "", "Urbs") == ["Rome", "Roma", "Urbs"]


# ------------------------------------------------------------------------------------ normalisation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  Paul\n\tBENEKE ", "paul beneke"),
        ("**2019**", "2019"),
        ("3.14", "3 14"),  # punctuation becomes a space, it is not deleted
        ("U.S.A.", "u s a"),
        ("O'Brien", "o brien"),
        ("O’Brien – “ok”…", "o brien ok"),  # Unicode punctuation goes the way of ASCII's
        ("$5 €5 5°", "5 5 5"),
        ("The Hague", "the hague"),  # articles stay
        ("ＡＢＣ１２３", "abc123"),  # full width
        ("ｶﾞﾝﾀﾞﾑ", "ガ ン ダ ム"),  # half width, voiced marks joined
        ("Sa\u0303o", "s\u00e3o"),  # decomposed = composed
        ("STRASSE Straße", "strasse strasse"),
        ("10² km², 3½", "10 2 km 2 3 1 2"),
        ("CO₂ ﬁn Ⅳ", "co2 fin iv"),
        ("zero\u200bwidth soft\u00adhyphen", "zerowidth softhyphen"),
        ("東京都", "東 京 都"),
        ("佐々木、〇ー", "佐 々 木 〇 ー"),
        ("ジョン・スミス", "ジ ョ ン ス ミ ス"),
        ("2020年東京Olympics第3", "2020 年 東 京 olympics 第 3"),
        ("𠮷𠮷野", "𠮷 𠮷 野"),  # outside the basic plane
        # a Greek letter whose folding needs composing again
        ("\u0390 \u0399\u0308\u0301", "\u0390 \u0390"),
        ("서울 특별시", "서울 특별시"),  # Korean writes spaces
    ],
)
def test_tokens(text, expected):
    assert tokens(text) == expected.split()


def test_the_punctuation_rule_is_the_released_one_within_ascii():
    for char in map(chr, range(128)):
        separates = char in string.punctuation or char.isspace()
        assert (tokens(f"x{char}x") == ["x", "x"]) == separates, repr(char)


# --------------------------------------------------------------------------------------- properties


@given(texts, st.lists(texts, min_size=1, max_size=4))
def test_exact_match_implies_full_f1(prediction, answers):
    if tokens(prediction):
        both = [*answers, prediction]
        assert exact_match(prediction, both) == f1(prediction, both) == 1.0
    if exact_match(prediction, answers):
        assert f1(prediction, answers) == 1.0


@given(st.text())
def test_normalising_twice_is_normalising_once(text):
    once = tokens(text)
    assert tokens(" ".join(once)) == once
    assert "" not in once
    assert not any(unicodedata.category(char)[0] in "PSZ" for char in "".join(once))


@given(words.filter(len), words.filter(len))
def test_f1_is_the_harmonic_mean_of_precision_and_recall(a, b):
    unmatched = list(b)
    hits = sum(1 for word in a if word in unmatched and not unmatched.remove(word))
    precision, recall = hits / len(a), hits / len(b)
    expected = 2 * precision * recall / (precision + recall or 1)
    assert f1(" ".join(a), [" ".join(b)]) == pytest.approx(expected, abs=1e-12)
