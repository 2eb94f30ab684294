"""How rollouts end: turns, context and clock, each exact."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minvenus.agent.prompt import Notices
from minvenus.agent.record import rollout_from_json, rollout_to_json
from minvenus.agent.show import show
from minvenus.config import ConfigError
from tests.agent import scripted
from tests.agent.scripted import (
    BROKEN,
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

PROMPT, size = scripted.PROMPT, scripted.size
ROOM = 61  # of a turn: 60 tokens, and an im_end


# ----------------------------------------------------------------------------------- the turn limit


def test_the_last_allowed_turn_is_announced_and_ends_the_rollout_whatever_comes():
    assert run([search(), answer()], budget(3)).termination == "answered", (
        "an early answer is not a forced one"
    )
    forced = run([search(), visit(), answer()], budget(3))
    assert forced.termination == "answered_max_steps"
    assert forced.turns[1].observation == "Bob\ncat.\n\n" + Notices().last_turn
    tools = Tools()
    ignored = run([search(), visit(), search("Eva")], budget(3), tools)
    assert ignored.termination == "max_steps" and len(tools.seen) == 2, "the last call is not run"
    assert (
        ignored.turns[-1].kind == "none"
        and ignored.turns[-1].tool is None
        and ignored.turns[-1].malformed
    )


@pytest.mark.parametrize(
    ("turn", "termination"),
    [(answer(), "answered"), (search(), "max_steps"), (BROKEN, "max_steps")],
)
def test_with_one_turn_there_is_nothing_to_announce(turn, termination):
    rollout = run([turn], budget(8, PROMPT + ROOM), max_turns=1)
    assert rollout.termination == termination and len(rollout.turns) == 1


# -------------------------------------------------------------------------------- the context limit


def test_the_context_limit_is_exact_to_the_token():
    page, notice = "Bob. " * 120, Notices().context
    after = PROMPT + len(scripted.ids_of(search()))
    free = (
        after + size(page) + ROOM + size(notice) + ROOM
    )  # another free turn, the notice and the last turn fit
    with_page = (
        after + size(f"{page}\n\n{notice}") + ROOM
    )  # the page, the notice and the last turn fit

    def at(limit):
        return run([search(), answer()], budget(8, limit), Tools(search=lambda q: page))

    assert at(free).termination == "answered" and at(free).turns[0].observation == page
    for limit in (free - 1, with_page, with_page - 1):
        assert at(limit).termination == "answered_token_limit"
    assert (
        at(free - 1).turns[0].observation
        == at(with_page).turns[0].observation
        == f"{page}\n\n{notice}"
    )
    assert at(with_page - 1).turns[0].observation == notice


def test_before_the_last_allowed_turn_nothing_is_kept_in_reserve():
    page = "Bob. " * 120
    shown = f"{page}\n\n{Notices().last_turn}"
    fits = PROMPT + len(scripted.ids_of(search())) + size(shown) + ROOM
    ends = [
        run([search(), answer()], budget(2, limit), Tools(search=lambda q: page))
        for limit in (fits, fits - 1)
    ]
    assert [r.termination for r in ends] == ["answered_max_steps", "answered_token_limit"]
    assert ends[0].turns[0].observation == shown


def test_a_prompt_without_room_is_refused_with_the_numbers_before_anything_runs():
    least = PROMPT + ROOM + size(Notices().context) + ROOM
    with pytest.raises(
        ConfigError, match=f"prompt of {PROMPT} tokens .* at least {least}, not {least - 1}"
    ):
        run([answer()], budget(8, least - 1))
    assert run([answer()], budget(8, least)).termination == "answered"
    with pytest.raises(ConfigError, match="raise the number of pages"):
        run([answer()], budget(8, 38_401))
    assert run([answer()], budget(8, 38_400)).termination == "answered"
    with pytest.raises(ConfigError, match=f"at least {least - 40}, not"):
        run([answer()], budget(8, least - 41, last_turn_tokens=20))


@pytest.mark.parametrize(
    ("limit", "termination", "turns"),
    [(0, "answered", 7), (2, "malformed", 2), (3, "malformed", 6), (4, "answered", 7)],
)
@pytest.mark.parametrize("broken", [BROKEN, search().replace("search", "click")])
def test_so_many_turns_in_a_row_that_cannot_be_read_end_a_rollout_with_a_name_of_its_own(
    broken, limit, termination, turns
):
    script = [broken, broken, search(), broken, broken, broken, answer()]
    rollout = run(script, budget(8, max_malformed=limit))
    assert (rollout.termination, len(rollout.turns), rollout.error) == (termination, turns, None)
    assert run([broken], budget(3, max_malformed=3)).termination == "max_steps", (
        "the last turn has its own name"
    )


TURNS = [search(), visit(), BROKEN, search("Eva Bob Joe", "Find boss. " * 5), [5] * 90]


@given(
    st.lists(st.sampled_from(TURNS), max_size=7),
    st.integers(0, 400),
    st.integers(400, 1100),
    st.integers(1, 9),
)
@settings(max_examples=max(5, settings.default.max_examples // 2))
def test_no_rollout_ever_exceeds_a_limit_and_the_stream_is_sound(turns, length, context, max_turns):
    tools = Tools(visit=lambda urls, goal: "cat " * length)
    rollout = run([*turns, answer()], budget(max_turns, context, max_observation_tokens=300), tools)
    assert len(rollout.tokens) <= context and len(rollout.turns) <= max_turns
    assert all(sum(rollout.sampled[t.start : t.end]) <= 60 for t in rollout.turns)
    assert len(rollout.turns) == max_turns or rollout.termination != "max_steps"
    assert rollout.termination.startswith("answered") == (rollout.turns[-1].kind == "answer")


# ---------------------------------------------------------------------------- the clock, and a stop


def test_the_wall_clock_ends_a_rollout_in_the_middle_of_a_turn_with_what_there_is():
    policy = policy_for([[5] * 20_000])
    with scripted.loop_for(policy, budget(3, 38_000, 15_000, time_limit=1000.0)) as loop:
        [episode] = loop.add(scripted.QUESTION, lambda q: Tools())
        while len(episode.sequence.tokens) < PROMPT + 2:
            loop.step()
        episode.started -= 900.0
        assert loop.step() == []
        episode.started -= 100.0
        for ended in loop.run():
            assert ended == [episode]
            assert episode.sequence.tokens is episode.rollout.tokens and not episode.sequence.job, (
                "open and whole, to be scored"
            )
    rollout = episode.rollout
    assert rollout.termination == "timeout" and rollout.seconds >= 1000.0 and any(rollout.sampled)
    check_stream(rollout)
    check_pool(policy.engine.pool)


def test_the_wall_clock_ends_a_rollout_while_its_tool_runs():
    release = threading.Event()

    def hang(queries):
        episode.started -= 1000.0  # the time is over as soon as the tool runs
        return str(release.wait(60))

    with scripted.loop_for([search()], budget(3, time_limit=1000.0, tool_threads=1)) as loop:
        [episode] = loop.add(scripted.QUESTION, lambda q: Tools(search=hang))
        list(loop.run())
        assert scripted.agent_threads(), "the tool was not waited for: it still runs"
        [other] = loop.add(scripted.QUESTION, lambda q: Tools(), name="other", max_turns=2)
        list(loop.run())
    assert other.rollout.turns[0].observation.startswith("Bob sings"), "its thread is free"
    last = episode.rollout.turns[-1]
    assert episode.rollout.termination == "timeout"
    assert last.tool["name"] == "search" and last.observation is None and last.malformed
    release.set()
    assert scripted.all_threads_end()


def test_before_anything_was_written_the_last_turn_is_blank_and_nothing_in_it_counts_as_sampled(
    capsys,
):
    rollout = run(policy_for([search()], step_tokens=4), budget(3, time_limit=1e-9), watch=show)
    assert "  no call  The turn has no complete <tool_call>" in capsys.readouterr().out
    [turn] = rollout.turns
    assert (
        rollout.termination == "timeout"
        and rollout.tokens[turn.start :] == [TOKENIZER.im_end]
        and turn.malformed
    )
    assert not any(rollout.sampled)


@pytest.mark.parametrize("event", ["turn", "observation", "discarded"])
@pytest.mark.parametrize("script", [[search(), search()], [BROKEN, BROKEN]])
def test_an_error_at_any_moment_leaves_a_whole_rollout(event, script):
    def watch(own, episode):
        if own == event and episode.rollout is None and (episode.turns or event == "discarded"):
            raise OSError("the reader is gone")

    policy = policy_for(script)
    with scripted.loop_for(policy, budget(retries=1), watch=watch) as loop:
        group = loop.add(scripted.QUESTION, lambda q: Tools(), 2)
        with pytest.raises(OSError, match="gone"):
            list(loop.run())
        loop.watch = lambda event, episode: None
        loop.cut_all("gone")
    for rollout in [episode.rollout for episode in group]:
        assert (rollout.termination, rollout.error) == ("error", "gone")
        assert not rollout.turns[-1].malformed, (
            "it was cut, so its format says nothing about the model"
        )
        assert rollout_from_json(rollout_to_json(rollout)) == rollout
        check_stream(rollout)
    assert policy.engine.pool.used == 0


def test_a_call_in_a_turn_that_was_cut_is_not_run_and_the_turn_is_no_search():
    tools, call = Tools(), scripted.ids_of(search())[:-1]
    with scripted.loop_for([[*call, *[5] * 50]]) as loop:
        [episode] = loop.add(scripted.QUESTION, lambda q: tools)
        while len(episode.sequence.tokens) < PROMPT + len(call):
            loop.step()
        loop.cut_all("enough")
    [turn] = episode.rollout.turns
    assert turn.text == "<think>\n" + search() and (turn.kind, turn.tool, tools.seen) == (
        "none",
        None,
        [],
    )
