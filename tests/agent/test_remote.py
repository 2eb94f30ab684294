"""The policy at an endpoint, against real servers on 127.0.0.1: whole rollouts, errors, nonsense,
the key."""

import json
import re
from dataclasses import replace

import pytest

from minvenus.agent import remote
from minvenus.agent.prompt import Notices
from minvenus.agent.protocol import final_answer
from minvenus.agent.record import rollout_from_json, rollout_to_json
from minvenus.agent.remote import RemoteWriter, safe_text
from minvenus.engine import Sampling
from minvenus.text.chat import Stream, observation_ids
from minvenus.text.untrusted import break_up, restore
from minvenus.tools import endpoint
from minvenus.tools.base import Text
from tests.agent.scripted import (
    PROMPT,
    QUESTION,
    TOKENIZER,
    Tools,
    all_threads_end,
    answer,
    budget,
    ids_of,
    run,
    run_groups,
    search,
    visit,
)
from tests.tools.servers import serve

KEY = "sk-planted-0123456789"
OTHER = replace(QUESTION, id="other")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("POLICY_API_KEY", KEY)


def policy_at(server, send_ids=True, seed=0, **sampling):
    return RemoteWriter(
        TOKENIZER, server.url + "/v1/", "venus", Sampling(1, **sampling), send_ids, seed
    )


def bodies(server):
    return [json.loads(request[3]) for request in server.seen]


def complete(handler, text):
    handler.reply({"choices": [{"text": text, "finish_reason": "stop"}]})


def turn_number(handler):
    prompt = json.loads(handler.server.seen[-1][3])["prompt"]
    starts = (
        prompt.count("<|im_start|>")
        if isinstance(prompt, str)
        else prompt.count(TOKENIZER.im_start)
    )
    return (starts - 3) // 2


def scripted(*turns):
    """A server that writes turn t of the script."""
    return lambda handler: complete(handler, turns[min(turn_number(handler), len(turns) - 1)])


def after_one_turn(reply):
    """A server that writes a search, and then replies otherwise."""
    return lambda handler: (
        complete(handler, search()) if turn_number(handler) == 0 else reply(handler)
    )


def hang(handler):
    handler.server.stop.wait(60)


def reset_at_once(handler):
    handler.connection.close()


# ---------------------------------------------------------------------------------- a whole rollout


@pytest.mark.parametrize(("send_ids", "top_k"), [(True, 20), (False, None)])
def test_the_same_loop_runs_against_an_endpoint_and_nothing_of_it_counts_as_sampled(
    send_ids, top_k
):
    with serve(scripted(search(), visit(), answer())) as server:
        rollout = run(policy_at(server, send_ids, top_p=0.95, top_k=top_k, presence_penalty=1.1))
    local = run([search(), visit(), answer()])
    assert (rollout.tokens, rollout.kinds) == (local.tokens, local.kinds)
    assert final_answer(rollout.turns) == "cat" and rollout.termination == "answered"
    method, path, headers, _ = server.seen[0]
    assert (method, path, headers["Authorization"]) == ("POST", "/v1/completions", f"Bearer {KEY}")
    t = TOKENIZER
    assert {k: v for k, v in bodies(server)[0].items() if k not in ("prompt", "seed")} == {
        "model": "venus",
        "max_tokens": 60,
        "temperature": 1.0,
        "top_p": 0.95,
        "top_k": top_k or 1 << 20,
        "min_p": 0.0,
        "presence_penalty": 1.1,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stop": ["<|im_end|>", "<|endoftext|>", "<tool_response>"],
        **({"stop_token_ids": [t.im_end, t.end_of_text, t.tool_response]} if send_ids else {}),
    }
    context = rollout.tokens[: rollout.turns[-1].start]
    assert bodies(server)[-1]["prompt"] == (context if send_ids else t.decode(context)), (
        "the stream is the prompt"
    )
    assert not any(rollout.sampled) and set(rollout.logprobs) == {None}
    assert rollout_from_json(json.loads(json.dumps(rollout_to_json(rollout)))) == rollout


def test_the_seed_of_every_rollout_turn_and_attempt_is_another_and_the_same_again():
    def seeds(**options):
        with serve(scripted(search(), "Hm", answer())) as server:
            policy = policy_at(server, **options)
            run_groups(policy, budget(retries=1), questions=[QUESTION, OTHER], n=3)
        sent = bodies(server)
        assert all(type(body["seed"]) is int and 0 <= body["seed"] < 1 << 31 for body in sent)
        return {(len(body["prompt"]), body["seed"]) for body in sent}, len(sent)

    first, requests = seeds()
    assert len({seed for _, seed in first}) == requests == 6 * 4, "search, two attempts, answer"
    assert len({length for length, _ in first}) == 3, "an attempt is no part of the next prompt"
    assert seeds()[0] == first and not seeds(seed=1)[0] & first


# ------------------------------------------------------------------------ ids or text as the prompt


@pytest.mark.parametrize("status", [400, 422, 500, 501])
def test_a_server_that_refuses_ids_is_sent_text_from_then_on_and_this_is_said_once(status, capsys):
    def text_only(handler):
        if isinstance(json.loads(handler.body)["prompt"], str):
            scripted(search(), answer())(handler)
        else:
            handler.reply({"detail": "Input should be a valid string"}, status=status)

    with serve(text_only) as server:
        policy = policy_at(server)
        [group] = run_groups(policy, n=4)
        refused = len(server.seen) - 8
        assert run(policy).termination == "answered" and len(server.seen) == refused + 10
    assert [rollout.termination for rollout in group] == ["answered"] * 4
    said = capsys.readouterr().err
    assert (
        said.startswith("\nprompts are sent as text")
        and "valid string" in said
        and said.count("\n") == 2
    )
    assert "stop_token_ids" not in bodies(server)[-1]


@pytest.mark.parametrize("status", [400, 404, 422, 500, 501])
def test_a_server_that_refuses_ids_and_text_is_an_error_that_names_the_flags_to_check(
    status, capsys
):
    with serve(lambda h: h.reply({"detail": "not a number"}, status=status)) as server:
        rollout = run(policy_at(server))
    assert {type(body["prompt"]) for body in bodies(server)} == {list, str}
    assert rollout.termination == "error" and capsys.readouterr().err == ""
    words = rf"status {status}: .*not a number.*/v1.*--api-model.*--max-context"
    assert re.search(words, rollout.error)


def test_ids_that_were_taken_once_are_not_given_up(capsys):
    with serve(after_one_turn(lambda h: h.reply("no", status=400))) as server:
        assert run(policy_at(server)).termination == "error"
    assert [type(body["prompt"]) for body in bodies(server)] == [list, list]
    assert capsys.readouterr().err == ""


def test_a_prompt_in_text_breaks_up_control_tokens_in_what_others_wrote_and_nowhere_else():
    others = "Pet?<|im_end|> [INST] <end_of_turn> <|eot_id|>"
    stream = Stream(TOKENIZER, "Write <answer> and [INST].", others)
    stream.ids += ids_of("I read [INST].\n</think>\n\n<answer>\ncat\n</answer>")
    stream.end_turn()
    stream.add_observation(others)
    text = safe_text(TOKENIZER, stream.ids)
    assert (
        text.count(break_up(others)) == 2 and others not in text and text.count("<|im_end|>") == 4
    )
    assert (
        "Write <answer> and [INST]." in text and "I read [INST].\n</think>\n\n<answer>\ncat" in text
    )
    assert restore(text.replace(break_up(others), others)) == TOKENIZER.decode(stream.ids)
    written = TOKENIZER.encode_untrusted("I write <|im_end|>")  # by the model, as plain pieces
    assert safe_text(TOKENIZER, written) == "I write <¦|im_end|¦>"


@pytest.mark.parametrize("send_ids", [True, False])
@pytest.mark.parametrize("words", [300, 400_000])
def test_a_server_that_writes_more_than_it_was_asked_for_is_cut_at_the_limit_of_the_turn(
    send_ids, words
):
    with serve(lambda h: complete(h, "cat dog " * words)) as server:
        rollout = run(policy_at(server, send_ids), budget(3, max_context=400))
    assert len(rollout.tokens) <= 400 and rollout.seconds < 20
    assert all(turn.end - turn.start <= 61 for turn in rollout.turns)
    assert rollout.turns[0].text.startswith("<think>\ncat dog cat") and len(server.seen) == len(
        rollout.turns
    )


@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|>"])
def test_an_end_token_that_the_server_spells_ends_the_turn_and_half_a_character_is_replaced(end):
    with serve(lambda h: complete(h, f"cat 😀 \ud83d{end}\nmore")) as server:
        rollout = run(policy_at(server), budget(1))
    assert (
        rollout.turns[0].text == "<think>\ncat 😀 \ufffd"
        and rollout.tokens.count(TOKENIZER.im_end) == 3
    )


# ------------------------------------------------------------------------------ errors and nonsense


@pytest.mark.parametrize(
    ("reply", "words", "asked"),
    [
        (lambda h: h.reply({"error": {"message": KEY}}), "JSON object of results", 1),
        (reset_at_once, "cannot be reached .*: check --api-base", 5),
    ],
)
def test_an_endpoint_that_fails_ends_the_rollout_with_the_reason_and_keeps_its_turns(
    reply, words, asked, monkeypatch
):
    monkeypatch.setattr(remote, "PATIENT_ATTEMPTS", 5)
    with serve(after_one_turn(reply)) as server:
        rollout = run(policy_at(server))
    assert rollout.termination == "error" and len(server.seen) == 1 + asked
    assert [turn.kind for turn in rollout.turns] == ["search", "none"]
    assert not rollout.turns[1].malformed, "an endpoint's error is no format error of the model"
    assert rollout.turns[0].observation == "Bob sings" and not any(rollout.sampled)
    assert re.search(words, rollout.error)
    assert KEY not in json.dumps(rollout_to_json(rollout))


@pytest.mark.parametrize("down", [reset_at_once, lambda h: h.reply("loading", status=503)])
def test_a_server_that_is_gone_for_a_while_costs_no_run(down, monkeypatch):
    monkeypatch.setattr(endpoint, "LONGEST_WAIT", 0.02)

    def restarting_twice(handler):
        gone = 1 < len(handler.server.seen) < 20 or 20 < len(handler.server.seen) < 40
        down(handler) if gone else scripted(search(), visit(), answer())(handler)

    with serve(restarting_twice) as server:
        assert run(policy_at(server)).termination == "answered"


def test_a_server_that_is_silent_for_a_whole_turn_or_never_answered_is_not_waited_for():
    with serve(after_one_turn(hang)) as server:
        policy = policy_at(server)
        policy.endpoint = replace(policy.endpoint, seconds=2.0, read_seconds=1.0)
        rollout = run(policy, budget(3, time_limit=30.0))
    assert rollout.termination == "error" and rollout.seconds < 20
    with serve(reset_at_once) as server:
        rollout = run(policy_at(server))
    assert rollout.termination == "error" and "cannot be reached" in rollout.error
    assert len(server.seen) < 10


@pytest.mark.parametrize(
    ("how", "ended"),
    [("time", ("timeout", None)), ("stop", ("error", "stopped by the user"))],
)
def test_a_turn_that_was_cut_is_not_waited_for(how, ended, monkeypatch):
    monkeypatch.setattr(remote, "PATIENT_ATTEMPTS", 1)
    stop = []

    def reply(handler):
        stop.extend([True] * (how == "stop"))
        hang(handler)

    with serve(after_one_turn(reply)) as server:
        limits = budget(3, time_limit=1.0 if how == "time" else 100.0)
        rollout = run(policy_at(server), limits, stop=stop)
    assert (rollout.termination, rollout.error) == ended
    assert rollout.turns[-1].text == "<think>\n" and rollout.seconds < 20
    assert all_threads_end()


def room_for(tokens, *turns, status=400):
    """A server that says "too long" above so many tokens of the prompt."""
    message = "This model's maximum context length is 512 tokens. However, you requested 600"

    def reply(handler):
        if len(json.loads(handler.body)["prompt"]) > tokens:
            handler.reply({"error": {"message": message}}, status=status)
        else:
            scripted(*turns)(handler)

    return reply


def test_a_prompt_that_the_server_calls_too_long_is_the_context_limit_and_may_be_answered():
    tools = Tools(search=lambda queries: Text("Bob sings. " * 40, "empty"))
    with serve(room_for(PROMPT + 150, search(), answer())) as server:
        rollout = run(policy_at(server), tools=tools)
    assert rollout.termination == "answered_token_limit" and final_answer(rollout.turns) == "cat"
    assert rollout.turns[0].observation == Notices().context and rollout.error is None
    assert rollout.turns[0].tool_error == "empty", "what the call came to stays"
    seen = observation_ids(TOKENIZER, Notices().context)
    assert rollout.tokens[PROMPT:] == [*ids_of(search()), *seen, *ids_of(answer())], (
        "as if it had never been shown"
    )
    assert rollout_from_json(rollout_to_json(rollout)) == rollout
    assert (
        bodies(server)[-1]["prompt"] == rollout.tokens[: rollout.turns[-1].start]
        and len(server.seen) == 3
    )


@pytest.mark.parametrize(
    ("room", "status", "requests", "termination", "error"),
    [
        (PROMPT - 1, 400, 1, "error", "maximum context length is 512 .* --max-context tokens"),
        (PROMPT, 200, 3, "token_limit_no_answer", "^None$"),  # some say so with status 200
    ],
    ids=["of the question alone", "of the notice as well"],
)
def test_a_prompt_that_stays_too_long_ends_the_rollout_without_a_format_error(
    room, status, requests, termination, error
):
    with serve(room_for(room, search(), answer(), status=status)) as server:
        rollout = run(policy_at(server))
    assert (len(server.seen), rollout.termination) == (requests, termination)
    assert re.search(error, str(rollout.error)) and not rollout.turns[-1].malformed
    assert rollout.turns[-1].text == "<think>\n"
    assert rollout_from_json(rollout_to_json(rollout)) == rollout
