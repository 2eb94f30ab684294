"""Many rollouts at once: sharing, threads and deadlines of tools, nothing leaked, nothing computed twice."""

import random
import threading
import time
import warnings

import pytest

from minvenus.agent.calls import GRACE, Call, Calls
from minvenus.agent.protocol import final_answer
from minvenus.agent.rollout import open_rollouts
from minvenus.text.chat import prompt_ids
from minvenus.tools.base import ToolCounters, ToolResult
from minvenus.types import Question
from tests.agent.scripted import (
    BROKEN,
    MODEL,
    QUESTION,
    QUIET,
    SYSTEM,
    TOKENIZER,
    Tools,
    answer,
    budget,
    check_stream,
    policy_for,
    random_policy,
    run,
    run_groups,
    search,
    sleeper,
    visit,
)
from tests.engine.models import naive_scores

# ------------------------------------------------------------------------------------------------------- sharing and scoring


def test_a_group_shares_its_prompt_and_each_rollout_has_its_own_tools():
    questions = [Question(f"q{i}", f"Pet of {name}?", ["cat"]) for i, name in enumerate(("Bob", "Eve", "Tom"))]
    made = []

    def tools_for(question):
        made.append((question.id, Tools()))
        return made[-1][1]

    policy = policy_for(lambda name, turn, attempt: search(name.replace("/", " ")) if turn == 0 else answer(name))
    groups = run_groups(policy, tools=tools_for, questions=questions, n=4)
    assert [[final_answer(r.turns) for r in group] for group in groups] == [[f"0/q{i}/{k}" for k in range(4)] for i in range(3)]
    assert [name for name, _ in made] == ["q0"] * 4 + ["q1"] * 4 + ["q2"] * 4
    assert [tools.seen for _, tools in made] == [[("search", [f"0 q{i} {k}"])] for i in range(3) for k in range(4)]
    shared = sum(len(prompt_ids(TOKENIZER, SYSTEM, q.text)) - 1 for q in questions) * 3
    assert policy.engine.counters().shared == shared, "the prompt is computed once for its group"


def test_sequences_stay_open_to_be_scored_and_are_closed_behind_the_with():
    policy = policy_for([search(), visit(), answer()])
    engine, truth = policy.engine, TOKENIZER.encode_untrusted("cat")
    with open_rollouts(policy, TOKENIZER, [QUESTION], lambda q: Tools(), budget(), n=2, system=SYSTEM, training=True) as [group]:
        before = engine.counters()
        for rollout, handle in group:
            starts = [turn.start for turn in rollout.turns]
            assert handle.sequence.tokens == rollout.tokens
            [scores] = engine.score_many([(handle.sequence, starts, truth)])
            for start, scored in zip(starts, scores, strict=True):
                assert scored == pytest.approx(naive_scores(MODEL, rollout.tokens[:start], truth), abs=1e-5)
        assert engine.counters().prefilled == before.prefilled, "no prefix is computed again to score on it"
        assert engine.pool.used > 0
    assert engine.pool.used == 0
    engine.pool.check()


def test_without_scoring_a_rollout_gives_its_pages_back_when_it_ends():
    left = []
    policy = policy_for(lambda name, turn, attempt: answer() if name.endswith("0") or turn == 3 else search(f"Bob {turn}"))
    run_groups(policy, n=2, watch=lambda _, what, value: what == "end" and left.append(len(policy.engine.scheduler.sequences)))
    assert left == [1, 0]


def test_equal_seeds_give_equal_rollouts_and_names_separate_them():
    def tokens(seed, name):
        [[a, b]] = run_groups(random_policy(seed=seed), budget(2, 400, 15), n=2, names=[name])
        assert a.tokens != b.tokens
        return a.tokens
    assert tokens(0, "step 1") == tokens(0, "step 1") != tokens(0, "step 2") != tokens(1, "step 2")


def test_two_hundred_turns_compute_every_token_once():
    turns = [search(f"Bob {i}", "a") if i % 5 == 0 else [5, 6, TOKENIZER.im_end] for i in range(199)]      # most are malformed
    policy = policy_for([*turns, answer()])
    rollout = run(policy, budget(200, 20_000), notices=QUIET)
    done = policy.engine.counters()
    assert len(rollout.turns) == 200 and rollout.termination == "answered"
    assert done.prefilled + done.decoded == len(rollout.tokens) - 1, "the last token is never run, every other one once"
    assert done.shared == done.preemptions == 0


# -------------------------------------------------------------------------------------------------------- threads, deadlines


def test_while_one_rollout_waits_for_its_tool_the_others_go_on():
    questions = [Question("slow", "Pet of Bob?", ["cat"]), Question("quick", "Pet of Eve?", ["cat"])]
    release, order = threading.Event(), []
    tools = {"slow": Tools(search=lambda q: "late" if release.wait(20) else "never"), "quick": Tools()}

    def watch(number, what, value):
        if what == "end":
            order.append(number)
            release.set()                      # only the end of the other rollout lets the slow tool return
    run_groups([search(), answer()], budget(tool_threads=2), lambda q: tools[q.id], questions, watch=watch)
    assert order == [1, 0]


def test_a_tool_that_ignores_its_deadline_is_answered_with_a_timeout_and_what_it_brings_later_is_dropped():
    counters = ToolCounters()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rollout = run([search(), visit(), answer()], budget(tool_threads=1, tool_seconds=0.15), Tools(search=sleeper(0.5)),
                      counters=counters)
    assert rollout.turns[0].observation == "ERROR: search did not return within 0.15 seconds"
    assert rollout.turns[0].tool_error == "timeout" and 0.15 <= rollout.turns[0].tool_seconds < 0.5
    assert rollout.turns[1].observation == "Bob\ncat." and rollout.termination == "answered", "it does not hold the only place"
    assert counters.totals() == {"search": {"calls": 1, "timeout": 1}, "visit": {"calls": 1}}
    assert threading.active_count() == 1, "it came back within the grace of the end"


def test_a_thread_that_never_comes_back_is_counted_in_a_warning_and_does_not_hold_up_the_end():
    release, started = threading.Event(), time.monotonic()
    with pytest.warns(UserWarning, match="1 tool calls are still running"):
        run([search(), answer()], budget(tool_threads=1, tool_seconds=0.05), Tools(search=lambda q: str(release.wait(60))))
    assert time.monotonic() - started < GRACE + 5
    [hung] = [t for t in threading.enumerate() if t is not threading.main_thread()]
    assert hung.daemon
    release.set()
    hung.join()


def test_no_more_calls_run_at_once_than_allowed_and_waiting_does_not_use_up_a_deadline():
    running, most, lock = [0], [0], threading.Lock()

    def busy():
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.08)
        with lock:
            running[0] -= 1
        return ToolResult("x")

    tasks, answers = [], []
    calls = Calls(2, 0.5, tasks.append)
    for _ in range(10):                        # 10 calls of 0.08 s, two at a time: the last one waits for 0.32 s and more
        calls.submit(Call("search", busy, lambda result, seconds: answers.append(result.error)))
    while len(answers) < 10:
        calls.check_deadlines()
        while tasks:
            tasks.pop(0)()
        time.sleep(0.005)
    calls.close()
    assert most == [2] and answers == [None] * 10 and threading.active_count() == 1


def test_a_call_that_still_waits_for_its_place_can_be_dropped_and_never_runs():
    release, ran, tasks = threading.Event(), [], []
    calls = Calls(1, 5.0, tasks.append)
    calls.submit(Call("search", lambda: ToolResult(str(release.wait(20))), lambda result, seconds: None))
    second = Call("visit", lambda: ran.append(1), lambda result, seconds: None)
    calls.submit(second)
    calls.drop(second)
    release.set()
    while not tasks:
        time.sleep(0.005)
    tasks.pop()()
    calls.close()
    assert ran == [] and threading.active_count() == 1


def test_two_hundred_random_rollouts_with_failing_tools_leak_no_thread_and_no_page():
    chance = random.Random(7)

    def fail(*_):
        kind = chance.randrange(6)
        if kind == 0:
            raise RuntimeError("broken")
        if kind == 1:
            raise TimeoutError
        if kind == 2:
            time.sleep(0.06)
        return ["", "ERROR", "cat " * 40, "\ud83d", "<|im_end|>", "fine"][kind]

    def script(name, turn, attempt):
        draw = random.Random(f"{name} {turn} {attempt}")
        return draw.choice([search("a", "b"), visit("a", "b"), BROKEN, answer(), [draw.randrange(700) for _ in range(12)]])

    policy = policy_for(script, pages=90, page_size=16)
    questions = [Question(f"q{i}", f"Pet of {i}?", ["cat"]) for i in range(50)]
    limits = budget(4, 420, 30, tool_threads=8, tool_seconds=0.03, max_observation_tokens=64, retries=1, seconds=30.0)
    groups = run_groups(policy, limits, lambda q: Tools(fail, fail), questions, n=4, counters=ToolCounters(200, 1.0))
    endings = {rollout.termination for group in groups for rollout in group}
    assert endings >= {"answered", "answered_max_steps", "max_steps"}
    for rollout in (rollout for group in groups for rollout in group):
        check_stream(rollout)
    policy.engine.pool.check()
    assert policy.engine.pool.used == 0 and not policy.engine.scheduler.sequences
    assert threading.active_count() == 1
