"""What the toy web writes, said in English: worked by hand, and nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.tools.toyweb_words import with_words

TEXTS = {
    "From Kim own?": "the pets of Kim",
    "From Kim own guard?": "the pets of Kim and of Kim's guard",
    "From Kim own guard pupil rival?": (
        "the pets of Kim, of Kim's guard, of that guard's pupil and of that pupil's rival"
    ),
    "After Kim own?": "the pet of Kim",
    "After Kim own guard pupil rival?": "the pet of Kim's guard's pupil's rival",
    "pets own cat guard owl pupil hen": "the cat, the guard's owl, the pupil's hen",
    "pet own cat": "the cat",
    "pet rival bat": "the rival's bat",
    "page Kim own cat guard Abe host Tim.": "Kim: pet cat, guard Abe, host Tim",
    "page Abe guard owl.": "Abe: pet owl",
    "page Abe.": "Abe: nothing",
    "page Kim guard Abe.\npage Tim own emu.\n\nAnswer.": "Kim: guard Abe; Tim: pet emu",
}


@pytest.mark.parametrize(("text", "words"), TEXTS.items())
def test_questions_answers_and_pages_by_hand(text, words):
    assert with_words(text) == f"{text}\n({words})"


@pytest.mark.parametrize(
    "text",
    [
        *("", "pets", "From Rome?", "After all.", "page 3", "page Kim sings Tim sings.", "Answer."),
        *("ERROR: no such page.", "From Kim own guard, please?", "Who has pets?", "<b>"),
    ],
)
def test_any_other_text_is_left_alone(text):
    assert with_words(text) == text


@given(st.text() | st.lists(st.sampled_from("From After pets pet page own Kim cat.".split())))
def test_whatever_a_model_or_a_page_writes_comes_first_and_unchanged(text):
    text = text if isinstance(text, str) else " ".join(text)
    assert with_words(text).startswith(text)
