"""The wrapped ground truth: which ids are fed behind a context, and which of them are scored.

The reference is the `tokenizers` library itself on one whole string, with the border rule by
character offsets: from the first token that ends behind the lead-in to the last one that begins
before the end of the answer.
"""

import unicodedata
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import assume, given
from hypothesis import strategies as st

from minvenus.igpo.gain import wrap_truth
from minvenus.igpo.recipes import Recipe
from minvenus.text import tokenizer as tokenizer_module
from minvenus.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "tiny": tokenizer_module.TINY,
    "qwen3": ROOT.parent / "shared" / "data" / "tokenizers" / "qwen3" / "tokenizer.json",
}
RECIPES = {"paper": Recipe.paper(), "released": Recipe.released()}


both_tokenizers = pytest.mark.parametrize("name", FILES)


def present(name: str) -> Path:
    if not FILES[name].exists():
        pytest.skip(f"the real tokenizer is not here: {FILES[name].relative_to(ROOT.parent)}")
    return FILES[name]


@cache
def shipped(path: Path) -> Tokenizer:
    return Tokenizer.from_file(path)


@cache
def library(path: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(path))


def lead_in(recipe: Recipe) -> str:
    return (
        "Now there's enough information to answer\n</think>"
        + "\n" * recipe.newlines_after_think
        + "<answer>\n"
    )


def reference(answer: str, path: Path, recipe: Recipe) -> tuple[list[int], int]:
    """(ids up to the end of the answer, index of its first token), from one encoding of the whole
    string."""
    prefix = lead_in(recipe)
    encoding = library(path).encode(
        prefix + answer + "\n</answer><|im_end|>", add_special_tokens=False
    )
    start = min(i for i, (_, end) in enumerate(encoding.offsets) if end > len(prefix))
    stop = (
        max(i for i, (begin, _) in enumerate(encoding.offsets) if begin < len(prefix) + len(answer))
        + 1
    )
    return encoding.ids[:stop], start


# ------------------------------------------------------------------------- pinned with the real ids

LEAD_IDS = [
    7039,
    1052,
    594,
    3322,
    1995,
    311,
    4226,
    198,
    151668,
]  # the sentence, a newline, </think>
ANSWER_TAG = [27, 9217, 397]  # "<", "answer", ">\n"
PINNED = {
    "Paris": [59604],
    "U.S.": [52, 808, 624],
    "42": [19, 17],
    "东京。": [107513, 8997],
    "No!": [2753, 4894],
    "São Paulo": [50, 3413, 36926],
    "🦜": [123918, 250],
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("answer", PINNED)
def test_ids_with_the_real_tokenizer_are_pinned(answer, recipe):
    """Two newlines are one token (271), one newline is another (198). `.` + newline is one token
    (624), and it is scored."""
    wrapped = wrap_truth(answer, shipped(present("qwen3")), recipe)
    newlines = [271] if recipe.newlines_after_think == 2 else [198]
    assert wrapped.ids[: wrapped.start] == LEAD_IDS + newlines + ANSWER_TAG
    assert wrapped.ids[wrapped.start :] == PINNED[answer]


# ---------------------------------------------------------------------------------- both tokenizers


@both_tokenizers
def test_space_around_an_answer_does_not_matter_and_a_blank_one_is_an_error(name):
    tokenizer = shipped(present(name))
    assert wrap_truth("  Paris \n", tokenizer, Recipe()) == wrap_truth("Paris", tokenizer, Recipe())
    with pytest.raises(ValueError, match="blank"):
        wrap_truth(" \n\t", tokenizer, Recipe())


@both_tokenizers
def test_the_lead_in_sentence_is_a_setting(name):
    tokenizer = shipped(present(name))
    wrapped = wrap_truth("Paris", tokenizer, Recipe(lead_in="I know."))
    assert tokenizer.decode(wrapped.ids) == "I know.\n</think>\n\n<answer>\nParis"


spelled = st.sampled_from(("<|im_end|>", "</think>", "<tool_call>", "</answer>", "Rome", ".", " "))
answers = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12),
    st.sampled_from(("U.S.", "São Paulo", "3.14", "line one\nline two", '"Yes"', "No!")),
    st.text(st.sampled_from("ab .!\"'<>/0é东。\n🦜|"), min_size=1, max_size=8),
    st.lists(spelled, min_size=1, max_size=4).map("".join),
)


@both_tokenizers
@given(answer=answers, recipe=st.sampled_from(list(RECIPES.values())))
def test_decoding_gives_the_lead_in_and_the_answer_back(name, answer, recipe):
    """Whatever the answer: nothing of it is missing, at most the newline behind it is added, no
    added token is formed."""
    assume(answer.strip())
    tokenizer = shipped(present(name))
    wrapped = wrap_truth(answer, tokenizer, recipe)
    text = unicodedata.normalize("NFC", answer.strip())
    assert tokenizer.decode(wrapped.ids[: wrapped.start]) == lead_in(recipe)
    assert tokenizer.decode(wrapped.ids[wrapped.start :]) in (text, text + "\n")
    assert not set(wrapped.ids[wrapped.start :]) & set(tokenizer.added.values())


@both_tokenizers
@given(answer=answers, recipe=st.sampled_from(list(RECIPES.values())))
def test_any_answer_without_added_tokens_is_the_head_of_one_encoding(name, answer, recipe):
    path, answer = present(name), unicodedata.normalize("NFC", answer.strip())
    tokenizer = shipped(path)
    assume(answer and answer.strip() == answer)
    assume(not any(token in answer for token in tokenizer.added))
    wrapped = wrap_truth(answer, tokenizer, recipe)
    assert (wrapped.ids, wrapped.start) == reference(answer, path, recipe)
