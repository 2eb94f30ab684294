"""Many rollouts at once: sharing, threads and deadlines of tools, nothing leaked, nothing computed
twice."""

import threading
import time

from minvenus.agent.protocol import final_answer
from minvenus.text.chat import prompt_ids
from minvenus.types import Question
from tests.agent import scripted
from tests.agent.scripted import (
    TOKENIZER,
    Tools,
    answer,
    budget,
    check_stream,
    policy_for,
    run,
    search,
    visit,
)
from tests.engine.models import check_pool

# ------------------------------------------------------------------------------ sharing and scoring


def test_a_group_shares_its_prompt_and_each_rollout_has_its_own_tools():
    questions = [
        Question(f"q{i}", f"Pet of {name}?", ["cat"])
        for i, name in enumerate(("Bob", "Eve", "Tom"))
    ]
    made = []

    def tools_for(question):
        made.append((question.id, Tools()))
        return made[-1][1]

    policy = policy_for(
        lambda name, turn, attempt: search(name.replace("/", " ")) if turn == 0 else answer(name)
    )
    groups = scripted.run_groups(policy, tools=tools_for, questions=questions, n=4)
    answers = [final_answer(rollout.turns) for group in groups for rollout in group]
    assert answers == [f"0/q{i}/{k}" for i in range(3) for k in range(4)]
    searches = [(name, *tools.seen) for name, tools in made]
    assert searches == [(f"q{i}", ("search", f"0 q{i} {k}")) for i in range(3) for k in range(4)]
    shared = sum(len(prompt_ids(TOKENIZER, scripted.SYSTEM, q.text)) - 1 for q in questions) * 3
    assert policy.engine.counters().shared == shared, "the prompt is computed once for its group"


def test_sequences_stay_open_to_be_scored_and_are_closed_then():
    policy = policy_for([search(), visit(), answer()])
    engine, truth = policy.engine, TOKENIZER.encode_untrusted("cat")

    with scripted.loop_for(policy) as loop:
        group = loop.add(scripted.QUESTION, lambda q: Tools(), 2)
        for episodes in loop.run():
            assert episodes == group and engine.pool.used > 0
            before = engine.counters()
            for episode in episodes:
                assert episode.sequence.tokens is episode.rollout.tokens
                starts = [turn.start for turn in episode.rollout.turns]
                engine.score_many([(episode.sequence, starts, truth)])
            assert engine.counters().prefilled == before.prefilled, (
                "no prefix is computed again to score on it"
            )
        assert engine.pool.used == 0
    check_pool(engine.pool)


def test_equal_seeds_give_equal_rollouts_and_names_separate_them():
    def tokens(seed, name, step=None):
        with scripted.loop_for(scripted.random_policy(seed=seed), budget(2, 400, 15)) as loop:
            a, b = loop.add(scripted.QUESTION, lambda q: Tools(), 2, name=name, step=step)
            list(loop.run())
        assert a.rollout.tokens != b.rollout.tokens
        return tuple(a.rollout.tokens)

    assert tokens(0, "a") == tokens(0, "a")
    assert (
        len({tokens(0, "a"), tokens(0, "b"), tokens(1, "a"), tokens(0, "a", 1), tokens(0, "a", 2)})
        == 5
    )


def test_two_hundred_turns_compute_every_token_once():
    # most turns are malformed
    turns = [
        search(f"Bob {i}", "a") if i % 5 == 0 else [5, 6, TOKENIZER.im_end] for i in range(199)
    ]
    policy = policy_for([*turns, answer()])
    rollout = run(policy, budget(200, 20_000), notices=scripted.QUIET)
    done = policy.engine.counters()
    assert len(rollout.turns) == 200 and rollout.termination == "answered_max_steps"
    assert done.prefilled + done.decoded == len(rollout.tokens) - 1, (
        "the last token is never run, every other one once"
    )
    assert done.shared == done.preemptions == 0


# ------------------------------------------------------------------------------- threads, deadlines


def test_a_tool_that_ignores_its_deadline_is_a_timeout_and_what_it_brings_later_is_dropped():
    release = threading.Event()
    rollout = run(
        [search(), visit(), answer()],
        budget(tool_threads=1, tool_seconds=1.0),
        Tools(search=lambda q: str(release.wait(60))),
    )
    late = "ERROR: the tool search did not answer in time"
    assert rollout.turns[0].observation == late
    assert rollout.turns[0].tool_error == "timeout" and 1.0 <= rollout.turns[0].tool_seconds < 50
    assert rollout.turns[1].observation == "Bob\ncat." and rollout.termination == "answered", (
        "the one place is free"
    )
    [hung] = scripted.agent_threads()
    assert hung.daemon, "or it would keep the process alive"
    assert [turn.seconds < rollout.turns[0].tool_seconds for turn in rollout.turns] == [True] * 3
    release.set()
    hung.join(10)
    assert rollout.turns[0].observation == late
    tools = Tools(search=lambda q: str(threading.current_thread() is threading.main_thread()))
    for threads, own in ((None, "True"), (1, "False")):
        rollout = run([search(), answer()], budget(tool_threads=threads), tools)
        assert rollout.turns[0].observation == own


def test_no_more_calls_run_at_once_than_allowed_and_waiting_does_not_use_up_a_deadline():
    running, most, lock = [0], [0], threading.Lock()

    def busy(queries):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.25)
        with lock:
            running[0] -= 1
        return "x"

    # ten calls, two at a time: the last one waits for a second before it starts
    limits = budget(tool_threads=2, tool_seconds=1.0)
    [group] = scripted.run_groups([search(), answer()], limits, Tools(search=busy), n=10)
    assert most == [2] and [rollout.turns[0].tool_error for rollout in group] == [None] * 10
    assert scripted.all_threads_end()


def test_after_a_cut_no_waiting_call_runs_and_no_result_is_shown():
    release, tools = threading.Event(), Tools(search=lambda q: str(release.wait(20)))
    with scripted.loop_for([search()], budget(tool_threads=1)) as loop:
        group = loop.add(scripted.QUESTION, lambda q: tools, 2)
        while not (tools.seen and all(episode.call for episode in group)):
            loop.step()
        loop.cut_all("enough")
        release.set()
        assert scripted.all_threads_end()
        loop.step()
    assert scripted.all_threads_end() and len(tools.seen) == 1
    for episode in group:
        assert episode.rollout.turns[0].observation is None
        check_stream(episode.rollout)
