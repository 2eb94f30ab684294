"""The loop: the stream it writes, its answer to each kind of turn, what it throws away, what
training refuses."""

import pytest

from minvenus.agent.protocol import final_answer
from minvenus.agent.show import row, shortened, show
from minvenus.config import ConfigError
from minvenus.engine import Sampling
from minvenus.tools.base import FailureGuard, Text, TooManyFailures
from tests.agent import scripted
from tests.agent.scripted import (
    BROKEN,
    TOKENIZER,
    Tools,
    answer,
    budget,
    policy_for,
    run,
    search,
    visit,
)
from tests.engine.models import naive_scores

# ------------------------------------------------------------------------- a rollout worked by hand


def test_search_visit_answer_worked_by_hand():
    tools = Tools()
    turns = [search(), visit(), answer()]
    rollout = run(turns, tools=tools)
    assert [t.observation for t in rollout.turns] == ["Bob sings", "Bob\ncat.", None]
    assert [t.text for t in rollout.turns] == ["<think>\n" + turn for turn in turns]
    assert tools.seen == [("search", "Bob"), ("visit", "Bob", "pet")]
    assert [t.kind for t in rollout.turns] == ["search", "visit", "answer"]
    assert not any(t.malformed for t in rollout.turns)
    assert rollout.turns[1].tool == {"name": "visit", "arguments": {"url": ["Bob"], "goal": "pet"}}
    assert (
        rollout.termination == "answered"
        and final_answer(rollout.turns) == "cat"
        and any(rollout.sampled)
    )


def test_log_probs_are_those_of_the_full_softmax_at_the_temperature_for_exactly_these_tokens():
    for policy, temperature in (
        ([search(), BROKEN, answer()], 1.0),
        (scripted.random_policy(Sampling(1, temperature=0.7, top_p=0.5)), 0.7),
    ):
        rollout = run(policy, budget(3, 600))
        assert len(rollout.turns) == 3
        for i, logprob in enumerate(rollout.logprobs):
            if logprob is not None:
                [expected] = naive_scores(
                    scripted.MODEL, rollout.tokens[:i], [rollout.tokens[i]], temperature
                )
                assert logprob == pytest.approx(expected, abs=1e-5)


# ----------------------------------------------------------------------------------- kinds of turns


def test_a_malformed_turn_is_kept_answered_and_marked():
    rollout = run([search(), BROKEN, answer()], notices=scripted.QUIET)
    assert [t.kind for t in rollout.turns] == ["search", "none", "answer"]
    assert [t.malformed for t in rollout.turns] == [False, True, False]
    assert (
        rollout.turns[1].observation == "ERROR: cannot read the call."
        and rollout.turns[1].tool is rollout.turns[1].tool_error is None
    )
    assert "not JSON" in run([BROKEN, answer()]).turns[0].observation
    unknown = run([search().replace("search", "click"), answer()]).turns[0]
    assert (unknown.kind, unknown.tool_error, unknown.malformed) == ("none", "bad_arguments", False)
    assert unknown.observation.startswith("ERROR: There is no tool 'click'")


def test_a_turn_cut_by_its_cap_gets_an_unsampled_end_and_one_that_just_fits_does_not():
    exact = scripted.ids_of(answer())
    whole = run([answer()], budget(2, 1500, len(exact)))
    assert whole.termination == "answered" and all(whole.sampled[whole.turns[0].start :])
    cut = run([answer()], budget(2, 1500, len(exact) - 1))
    assert (
        cut.tokens[cut.turns[0].start : cut.turns[0].end] == exact
        and cut.sampled[cut.turns[0].end - 1] is False
    )


def test_a_turn_that_ends_with_end_of_text_is_closed_for_it():
    rollout = run([[*scripted.ids_of(answer())[:-1], TOKENIZER.end_of_text]])
    assert rollout.tokens[-2:] == [TOKENIZER.end_of_text, TOKENIZER.im_end] and rollout.sampled[
        -2:
    ] == [True, False]
    assert final_answer(rollout.turns) == "cat" and not rollout.turns[-1].malformed


def test_an_invented_tool_response_is_malformed_and_only_what_stands_before_it_is_run():
    tools, invented = Tools(), search() + "\n<tool_response>\nBob is mine\n</tool_response>"
    rollout = run([invented, answer()], tools=tools)
    assert (
        rollout.turns[0].kind == "search"
        and rollout.turns[0].malformed
        and tools.seen == [("search", "Bob")]
    )
    stopping = policy_for([invented, answer()], Sampling(1, stop_ids=(TOKENIZER.tool_response,)))
    assert run(stopping).turns[0].text.endswith("</tool_call>\n<tool_response>"), (
        "as a stop id it ends the turn"
    )


# ------------------------------------------------------------------------ observations of all kinds


def test_a_long_result_is_cut_to_its_cap_and_says_so():
    limits = budget(8, 3000, max_observation_tokens=100)
    rollout = run([search(), answer()], limits, Tools(search=lambda q: "cat " * 900))
    shown = rollout.turns[0].observation
    assert len(TOKENIZER.encode_untrusted(shown)) <= 100 and "characters shown]" in shown


@pytest.mark.parametrize("threads", [None, 2])
def test_too_many_failures_and_a_wrong_set_up_stop_the_run_with_the_reason_and_leave_nothing_open(
    threads,
):
    def unset(queries):
        raise ConfigError("no key")

    def failing(queries):
        return Text("ERROR: x", "http")

    for tool, error, words in (
        (unset, ConfigError, "no key"),
        (failing, TooManyFailures, "2 of the last 2 tool calls failed"),
    ):
        policy = policy_for([search()])
        with pytest.raises(error, match=words):
            run(
                policy,
                budget(tool_threads=threads),
                Tools(search=tool),
                guard=FailureGuard(window=3),
            )
        assert policy.engine.pool.used == 0 and not policy.engine.scheduler.sequences


def test_calls_that_succeed_count_in_the_share_of_those_that_failed():
    """Every second call fails: of the last three one or two, where two are allowed."""
    results = [Text("ERROR: x", "http"), Text("Bob sings")] * 3
    policy = policy_for([*map(search, "abcdef"), answer()])
    tools = Tools(search=lambda query: results["abcdef".index(query)])
    guard = FailureGuard(window=3, limit=0.7)
    assert run(policy, budget(), tools, guard=guard).termination == "answered"


# ------------------------------------------------------------------------------ retries (inference)


def retry_run(attempts_of_turn, retries):
    """attempts_of_turn: the attempts at each turn, the last one repeated; then an answer."""

    def script(name, turn, attempt):
        options = attempts_of_turn[turn] if turn < len(attempts_of_turn) else [answer()]
        return options[min(attempt, len(options) - 1)]

    return run(policy_for(script), budget(8, 3000, 400, retries=retries))


def test_bad_attempts_are_thrown_away_as_if_they_had_never_been():
    rollout = retry_run(
        [[BROKEN, BROKEN, search()], [search(), visit()], ["Ha. " * 80, answer()]], retries=2
    )
    assert [t.discarded for t in rollout.turns] == [
        ["malformed", "malformed"],
        ["duplicate"],
        ["repetition"],
    ]
    assert rollout.tokens == run([search(), visit(), answer()]).tokens


def test_the_last_attempt_is_taken_as_it_is():
    rollout = retry_run([[search()], [search()], [BROKEN]], retries=2)
    assert [len(t.discarded) for t in rollout.turns] == [0, 2, 2, 0]
    assert rollout.turns[1].kind == "search" and rollout.turns[2].kind == "none"


def test_a_duplicate_is_the_exact_call_and_a_repetition_more_than_five_tails():
    turns = retry_run([[visit()], [visit().replace('"pet"', '"home"')], [visit()]], 1).turns
    assert turns[1].discarded == [] and turns[2].discarded == ["duplicate"], "of any earlier call"
    tail = "x" * 49 + "y"
    assert retry_run([["ab" * 25 + tail * 5]], 1).turns[0].discarded == ["malformed"]
    assert retry_run([["ab" * 25 + tail * 6]], 1).turns[0].discarded == ["repetition"]


def test_another_attempt_of_a_random_policy_is_another_draw():
    policy, seen = scripted.random_policy(), []

    discard = policy.discard

    def noting(episode):
        seen.append(tuple(episode.stream.written))
        discard(episode)

    policy.discard = noting
    [group] = scripted.run_groups(policy, budget(1, 200, 8, retries=2), n=2)
    last = {tuple(rollout.tokens[rollout.turns[0].start :][:8]) for rollout in group}
    assert len({*seen} | last) == 6


# -------------------------------------------------------------------- what it looks like for people


def test_every_turn_with_its_call_and_result_discarded_attempts_and_the_end_are_shown(capsys):
    def script(name, turn, attempt):
        return [search(), BROKEN if attempt == 0 else visit(), "Hm", answer()][turn]

    rollout = run(
        policy_for(script),
        budget(retries=1),
        Tools(search=lambda q: Text("ERROR: none", "empty")),
        watch=show,
    )
    shown = capsys.readouterr().out
    first, tokens = rollout.turns[0], len(rollout.tokens)
    places = [
        shown.index(words)
        for words in (
            f"turn 1     {first.seconds:.2f} s, {first.end - first.start} tokens\n",
            "  thought  Start.\n",
            '  search   {"query": ["Bob"]}\n',
            f"  result   ({first.tool_seconds:.2f} s, error: empty)",
            "(attempt thrown away: malformed)",
            "turn 2",
            '  visit    {"url": ["Bob"], "goal": "pet"}\n',
            "Bob\n           cat.",
            "turn 3",
            "  no call  The turn has no complete",
            "<think>\n           Hm\n",
            "turn 4",
            "answer     cat\n",
            f"ended      answered (4 turns, {tokens} tokens, {rollout.seconds:.2f} s)\n",
        )
    ]
    assert places == sorted(places)


def test_control_characters_of_a_page_never_reach_the_terminal(capsys):
    row("page", "a\033[2Jb\x9b31m\rc\x07\n\td")
    assert capsys.readouterr().out == "page       a[2Jb31mc\n               d\n"


def test_a_long_observation_is_cut_to_a_few_lines_and_says_so():
    shown = shortened("x" * 200 + "\n" + "\n".join("abcdefghi"))
    assert shown.splitlines() == ["x" * 160 + " ...", *"abcde", "... 4 more lines"]
