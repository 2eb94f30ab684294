"""The shared records refuse what would be wrong later."""

import pytest

from minvenus.types import Question, Rollout, Sample, Turn, TurnRewards

QUESTION = Question("q1", "Who?", ["Ada"])


def rollout(**changes):
    fields = {
        "question": QUESTION,
        "tokens": [5, 6, 7, 8, 9],
        "sampled": [False, True, True, False, True],
        "logprobs": [None, -1.0, 0.0, None, -2.0],
        "turns": [Turn("search", 1, 3, "a"), Turn("answer", 4, 5, "b")],
        "termination": "answered",
    }
    return Rollout(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampled": [False]}, "lengths differ: tokens 5, sampled 1"),
        ({"logprobs": [None, -1.0, None, None, -2.0]}, "exactly the sampled tokens"),
        ({"logprobs": [-1.0, -1.0, 0.0, None, -2.0]}, "exactly the sampled tokens"),
        ({"turns": []}, "at least one turn"),
        (
            {"turns": [Turn("search", 1, 3, "a"), Turn("answer", 2, 5, "b")]},
            "before the end of the last one",
        ),
        ({"turns": [Turn("search", 1, 3, "a"), Turn("answer", 4, 6, "b")]}, "past the 5 tokens"),
        ({"turns": [Turn("search", 1, 3, "a")]}, "1 sampled tokens lie outside"),
        ({"termination": "bored"}, "answered_token_limit"),
    ],
)
def test_an_inconsistent_rollout_is_refused_with_the_numbers(changes, message):
    with pytest.raises(ValueError, match=message):
        rollout(**changes)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Question("q", " ", ["a"]),
        lambda: Question("q", "Who?", []),
        lambda: Question("q", "Who?", ["a", " "]),
        lambda: Turn("click", 0, 1, ""),
        lambda: Turn("search", 3, 3, ""),
        lambda: Turn("search", -1, 3, ""),
        lambda: TurnRewards([0.0, None], 1.0, [True]),
        lambda: Sample(rollout(), [[-1.0]], 1.0, group=0),
    ],
)
def test_impossible_records_are_refused(build):
    with pytest.raises(ValueError, match=r".+"):
        build()


def test_a_turn_may_hold_tokens_that_were_not_sampled():
    rollout(sampled=[False, True, False, False, True], logprobs=[None, -1.0, None, None, -2.0])


def test_without_marks_no_turn_is_a_penalty():
    assert TurnRewards([0.5, None], 1.0).is_penalty() == [False, False]
