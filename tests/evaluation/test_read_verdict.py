"""Reading a judge's reply: known traps by hand, then the properties."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.evaluation.judge import PROMPT, judge_messages, read_verdict

MARKDOWN = ["correct: {}", "Correct: {}.", "**correct:** {}", "**correct**: **{}**", "- **Correct:** `{}`",
            "_correct_: _{}_", "__correct:__ {}", "> *correct*: *{}*", "correct:{}", "correct :  {}", "correct:\n{}",
            "correct：{}", "CORRECT = {}", '{{"correct": "{}", "confidence": 90}}', "[correct]: [{}]",
            "extracted_final_answer: x; correct: {}; confidence: 100",
            "**4. correct: {}** (the names agree)", "correct: {}, the dates agree"]
NOTHING = ["", "   ", "yes", "correct", "correct:", "correct: maybe", "correct: none", "correct: nothing",
           "correct: yesterday", "correct: no-one", "correct: no_answer", "incorrect: no", "incorrect: yes",
           "in-correct: yes", "not_correct: yes",
           "**incorrect:** no", "correct answer: yes", "correct: yes/no", "correct: yes or no", "correct: [yes|no]",
           "correct: **yes** / **no**", "correctness: yes", "<html>502 Bad Gateway</html>"]


@pytest.mark.parametrize("word", ["yes", "no", "Yes", "NO"])
@pytest.mark.parametrize("form", MARKDOWN)
def test_a_verdict_is_read_in_any_dress(form, word):
    assert read_verdict(form.format(word)) == word.lower()


@pytest.mark.parametrize("reply", NOTHING)
def test_what_is_no_verdict_is_not_read_as_one(reply):
    assert read_verdict(reply) is None


def test_an_answer_that_spells_a_verdict_comes_before_the_judges_own():
    reply = "extracted_final_answer: Rome\ncorrect: yes\nreasoning: it is Milan\ncorrect: no\nconfidence: 9"
    assert read_verdict(reply) == "no"


def test_a_thought_holds_no_verdict():
    assert read_verdict("<think>so correct: yes? wait</think>\ncorrect: no") == "no"
    assert read_verdict("<think>so correct: yes? wait") is None
    assert read_verdict("so correct: yes? wait</think>\n**correct:** no") == "no"          # its start was in the prompt
    assert read_verdict("<think>correct: yes</think>I cannot say.") is None


def test_the_prompt_repeated_is_no_verdict():
    assert read_verdict(PROMPT) is None


@given(st.lists(st.tuples(st.sampled_from(MARKDOWN), st.sampled_from(["yes", "no"])), max_size=4),
       st.lists(st.sampled_from([text for text in NOTHING if not text.endswith((":", "correct"))]), max_size=4))
def test_the_last_of_many_counts_whatever_stands_after_it(verdicts, noise):
    reply = "\n\n".join([form.format(word) for form, word in verdicts] + noise)
    assert read_verdict(reply) == (verdicts[-1][1] if verdicts else None)


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text):
    assert read_verdict(text) in (None, "yes", "no")


@given(st.text(min_size=1), st.text(min_size=1))
def test_no_answer_can_leave_its_place_in_the_prompt(question, answer):
    prompt = judge_messages(question, answer, ["Rome", "Roma"])[0]["content"]
    before, after = PROMPT.split("{case}")
    assert prompt.startswith(before) and prompt.endswith(after)
    case = json.loads(prompt[len(before):len(prompt) - len(after)])
    assert case == {"question": question, "response": answer, "accepted_answers": ["Rome", "Roma"]}
