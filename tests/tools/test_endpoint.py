"""The endpoint client against servers on 127.0.0.1: retries, deadlines, broken replies, the key."""

import gzip
import json
import logging
import re
import socket
import time
import traceback
from pathlib import Path
from urllib.parse import quote

import pytest

from minvenus.config import ConfigError
from minvenus.tools import endpoint as module
from minvenus.tools.base import Call, ToolError
from minvenus.tools.endpoint import Endpoint, is_too_long
from tests.tools.servers import chat, dripping, serve

ROOT = Path(__file__).resolve().parents[2]
KEY = "planted-endpoint-5b1e"
LONG = 20.0  # seconds that no test may need
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def key(monkeypatch, names):
    monkeypatch.setenv("TEST_API_KEY", KEY)


def endpoint(server, **limits):
    return Endpoint(
        "test endpoint",
        server.url + "/v1/",
        "TEST_API_KEY",
        "venus",
        url_source="TEST_BASE_URL",
        **limits,
    )


def failure(server, **limits) -> ToolError:
    client = endpoint(server, **limits)
    with pytest.raises(ToolError) as caught:
        Call("test endpoint", 1.1 * client.seconds, client.post, "/path", {}).result()
    assert KEY not in "".join(traceback.format_exception(caught.value))
    return caught.value


def test_a_chat_and_a_completion_send_model_settings_and_key_and_return_the_first_choice():
    with serve(lambda h: h.reply(chat("hi"))) as server:
        assert endpoint(server).chat(MESSAGES, temperature=0.5) == "hi"
    method, path, headers, body = server.seen[0]
    assert (method, path) == ("POST", "/v1/chat/completions")
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert json.loads(body) == {"model": "venus", "messages": MESSAGES, "temperature": 0.5}
    reply = {"choices": [{"text": "cat"}], "error": None}
    with serve(lambda h: h.reply(reply, status=201)) as server:
        for prompt in ([1, 2, 3], "From Bob"):
            assert endpoint(server).complete(prompt, max_tokens=7) == "cat"
            _, path, _, body = server.seen[-1]
            sent = {"model": "venus", "prompt": prompt, "max_tokens": 7}
            assert path == "/v1/completions" and json.loads(body) == sent


CUT_OFF = {"choices": [{"message": {"content": "correct: y"}, "finish_reason": "length"}]}


EMPTY = [
    {},
    {"choices": []},
    {"choices": "x"},
    {"choices": [{"message": {}}]},
    chat(None),
    chat([1]),
]
NO_JSON = ["[1]", "<html>blocked</html>", "", "[" * 50_000, '{"choices": [', {"error": "why"}]


@pytest.mark.parametrize(
    ("replies", "words"),
    [(EMPTY, "sent no 'content'"), (NO_JSON, "JSON object"), ([CUT_OFF], "cut its reply off")],
)
def test_a_reply_that_cannot_be_used_is_an_error_and_not_asked_for_again(replies, words):
    for reply in replies:
        with serve(lambda h, reply=reply: h.reply(reply, "application/json")) as server:
            with pytest.raises(ToolError, match=words):
                endpoint(server).chat(MESSAGES)
            assert len(server.seen) == 1
            if reply is not CUT_OFF:
                with pytest.raises(ToolError, match=words.replace("content", "text")):
                    endpoint(server).complete("x")


@pytest.mark.parametrize(("status", "requests"), [(302, 1), (400, 1), (401, 1), (429, 5), (500, 5)])
def test_only_429_and_5xx_are_tried_again_a_redirect_is_not_followed_and_the_error_says_why(
    status, requests
):
    def answer(handler):
        handler.reply("too\nlong, " + "why " * 1000, status=status, Location=thief.url)

    with serve(lambda h: h.reply({})) as thief, serve(answer) as server:
        error = failure(server)
    assert len(server.seen) == requests and thief.seen == []
    assert (error.kind, error.status) == ("http", status) and f"status {status}" in str(error)
    assert ": too long, why" in str(error) and len(str(error)) < 300
    assert (status == 401) == ("check TEST_API_KEY" in str(error))
    assert (status < 400) == ("(a redirect: check TEST_BASE_URL)" in str(error))


TOO_LONG = [
    "This model's maximum context length is 4096 tokens. However, you requested 5000",  # vLLM
    "the request exceeds the available context size, try increasing it",  # llama.cpp
    "The input (900 tokens) is longer than the model's context length (512)",  # SGLang
    "`inputs` tokens + `max_new_tokens` must be <= 2048.",
    "prompt is too long",
    "context_length_exceeded",
]


@pytest.mark.parametrize(
    ("words", "statuses", "too_long"),
    [
        *[(words, (200, 400, 413, 422), True) for words in TOO_LONG],
        ("temperature must be 1", (200, 400), False),
        ("too long", (401, 404, 500, None), False),
    ],
)
def test_a_prompt_that_does_not_fit_the_context_is_recognised_by_the_words_of_many_servers(
    words, statuses, too_long
):
    for status in statuses:
        assert is_too_long(ToolError("http", words, status)) == too_long


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("", ""),
        ("<html>blocked</html>", ""),
        ("\x1b[2J\x1b]0;mine\x07 no\n\x9bso", ": [2J ]0;mine no so"),
    ],
)
def test_an_error_reply_is_shown_without_web_pages_and_control_codes(body, shown):
    with serve(lambda h: h.reply(body, status=404)) as server:
        assert str(failure(server)) == "the test endpoint answered with HTTP status 404" + shown


def reset(handler):
    linger = b"\1\0\0\0\0\0\0\0"  # close sends a reset
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.connection.close()


def half_a_reply(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")


def silent(handler):
    handler.server.stop.wait(LONG)


@pytest.mark.parametrize(
    ("broken", "kind", "message"),
    [
        (reset, "http", "check TEST_BASE_URL"),
        (half_a_reply, "http", "check TEST_BASE_URL"),
        (lambda h: h.wfile.write(b"nonsense\r\n\r\n"), "http", "check TEST_BASE_URL"),
        (silent, "timeout", "in time"),
    ],
    ids=["reset", "half a reply", "nonsense", "silence"],
)
def test_a_connection_that_breaks_is_tried_again(broken, kind, message):
    def once_broken(handler):
        broken(handler) if len(handler.server.seen) == 1 else handler.reply(chat("hi"))

    with serve(once_broken) as server:
        assert endpoint(server, read_seconds=1.0).chat(MESSAGES) == "hi"
    with serve(broken) as server:
        error = failure(server, read_seconds=1.0)
    assert (len(server.seen), error.kind) == (5, kind)
    assert message in str(error) and str(server.server_port) not in str(error)


def bomb(status):
    data = gzip.compress(b" " * 50_000_000)
    return lambda h: h.reply(data, status=status, Location="/", Content_Encoding="gzip")


def endless(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not handler.server.stop.is_set():
        handler.wfile.write(b"x" * 65536)


@pytest.mark.parametrize("answer", [bomb(200), bomb(302), endless])
def test_a_reply_is_neither_read_nor_unpacked_beyond_the_limit(answer):
    with serve(answer) as server:
        assert "more than 4,000,000 bytes" in str(failure(server, seconds=LONG))
        assert len(server.seen) == 1


HOSTILE = {
    "silent": silent,
    "drips headers": dripping(b"HTTP/1.1 200 OK\r\nX-Header: "),
    "drips its body": dripping(b"HTTP/1.1 200 OK\r\n\r\n"),
    "slow look-up of the name": None,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_deadline_holds_against_a_server_that_never_ends(monkeypatch, name):
    with serve(HOSTILE[name]) as server:
        if "look-up" in name:
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: server.stop.wait(LONG))
        start = time.monotonic()
        assert failure(server, seconds=1.0).kind == "timeout"
        assert 0.9 <= time.monotonic() - start < LONG / 2
        assert len(server.seen) <= 1


@pytest.mark.parametrize(
    ("asked", "requests"), [("1", 2), ("90", 1), ("9" * 400, 1), ("soon", 2), ("²", 2)]
)
def test_a_retry_after_is_waited_for_if_the_deadline_allows_it(asked, requests):
    def busy_once(handler):
        status = 429 if len(handler.server.seen) == 1 else 200
        handler.reply(chat("hi"), status=status, Retry_After=asked)

    with serve(busy_once) as server:
        start = time.monotonic()
        if requests == 1:
            assert failure(server, seconds=60.0).status == 429
        else:
            assert endpoint(server, seconds=60.0).chat(MESSAGES) == "hi"
        assert asked != "1" or time.monotonic() - start >= 1.0
    assert len(server.seen) == requests


def test_after_the_deadline_no_request_is_made_and_the_earlier_of_the_two_limits_counts():
    with serve(silent) as server:
        for seconds, deadline, took in ((120.0, -1.0, 0.0), (1.0, 1e9, 0.9), (1e6, 1.0, 0.9)):
            start = time.monotonic()
            with pytest.raises(ToolError, match="in time"):
                endpoint(server, seconds=seconds).post("/path", {}, start + deadline)
            assert took <= time.monotonic() - start < LONG / 2
        assert len(server.seen) <= 2, "none after the deadline"


def test_waits_double_up_to_a_limit_and_are_jittered(monkeypatch):
    waits = []
    with serve(lambda h: h.reply({}, status=500)) as server:
        monkeypatch.setattr(module, "BACKOFF", 1.0)
        monkeypatch.setattr(time, "sleep", waits.append)
        for _ in range(20):
            failure(server, seconds=1e6, attempts=6)
    for attempt, mean in enumerate((1, 2, 4, 8, 8)):
        drawn = waits[attempt::5]
        assert 0.5 * mean <= min(drawn) < mean < max(drawn) <= 1.5 * mean


@pytest.mark.parametrize("status", [200, 302, 401, 500])
def test_a_key_that_the_server_echoes_appears_nowhere(status, caplog, capsys):
    caplog.set_level(logging.DEBUG)

    def echo(handler):
        text = "x" * 195 + KEY + json.dumps(handler.server.seen[-1][2])
        handler.reply(text, "application/json", status=status)

    with serve(echo) as server:
        failure(server)
        client = endpoint(server)
    assert KEY in str(server.seen) and KEY not in repr(client) + repr(vars(client))
    with serve(lambda h: h.reply(chat(f"my header was {KEY}"))) as server:
        assert endpoint(server).chat(MESSAGES) == "my header was [key]"
    assert caplog.text and KEY not in caplog.text + str(capsys.readouterr())


SPELLINGS = {
    "JSON": lambda key: "".join(f"\\u{ord(c):04X}" for c in key),
    "slashes": lambda key: key.replace("/", "\\/"),
    "URL": lambda key: quote(key, safe=""),
    "HTML": lambda key: "".join(f"&#{ord(c)};" for c in key),
    "other case": str.swapcase,
}


@pytest.mark.parametrize("key", [KEY, "sk-Ab/cd+ef_89==", "8letters", "?~>?~>?~>~"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_echo_of_the_key_is_found_in_other_spellings(monkeypatch, spelling, key):
    monkeypatch.setenv("TEST_API_KEY", key)
    echo = SPELLINGS[spelling](key)
    reply = f'{{"choices": [{{"message": {{"content": "it was {echo} !"}}}}]}}'
    with serve(lambda h: h.reply(reply)) as server:
        text = endpoint(server).chat(MESSAGES)
        data = endpoint(server).request("/", None).decode()
    assert text == "it was [key] !"
    assert key not in text + data and echo not in data


def test_the_key_is_read_for_each_request_no_key_is_no_header_and_a_placeholder_is_no_secret(
    monkeypatch, tmp_path
):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password netrc-password\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with serve(lambda h: h.reply(chat("an EMPTY 8letters room"))) as server:
        client = endpoint(server)
        for key in ("8letters", "EMPTY", ""):
            monkeypatch.setenv("TEST_API_KEY", key)
            secret = "[key]" if key == "8letters" else "8letters"
            assert client.chat(MESSAGES) == f"an EMPTY {secret} room"
    sent = [headers.get("Authorization") for _, _, headers, _ in server.seen]
    assert sent == ["Bearer 8letters", "Bearer EMPTY", None]


URLS = [
    "localhost:8000",
    "http:///v1",
    f"http://me:{KEY}@host/v1",
    f"http://[{KEY}",
    f"https://host/v1?api_key={KEY}",
    f"http://host\\@{KEY}",
]


GOOD_URLS = ["http://host", "https://a.example/v1/", "http://10.0.0.1:8/v1", "HTTP://[::1]:8/v1"]
KEYS = [f"{KEY}\nX-Evil: 1", f"{KEY}é", f"“{KEY}”"]


@pytest.mark.parametrize(
    ("url", "key", "message"),
    [
        *[(url, KEY, "^--api-base must begin with http.*key into TEST_API_KEY") for url in URLS],
        *[("http://host", key, "^TEST_API_KEY has characters") for key in KEYS],
    ],
)
def test_an_address_or_a_key_that_cannot_be_used_is_refused_without_showing_it(
    monkeypatch, url, key, message
):
    for good in GOOD_URLS:
        assert Endpoint("test endpoint", good, "TEST_API_KEY").base_url == good
    monkeypatch.setenv("TEST_API_KEY", key)
    with pytest.raises(ConfigError, match=message) as caught:
        Endpoint("test endpoint", url, "TEST_API_KEY", url_source="--api-base")
    assert KEY not in "".join(traceback.format_exception(caught.value))


def test_the_documentation_has_every_environment_variable_that_the_code_reads_and_no_other():
    files = [*ROOT.glob("*.py"), *(ROOT / "minvenus").rglob("*.py")]
    source = "\n".join(file.read_text() for file in files)
    read = set(re.findall(r'"([A-Z]+_(?:BASE_URL|MODEL|API_KEY|TEMPERATURE))"', source))
    read |= set(re.findall(r'(?<!from_)environ(?:ment\(|\.get\(|\[)"([A-Z_]+)"', source))
    for prefix in re.findall(r'from_environment\(\s*"([A-Z]+)"', source):
        read |= {f"{prefix}_BASE_URL", f"{prefix}_MODEL", f"{prefix}_API_KEY"}
    assert {"JUDGE_MODEL", "SERPER_API_KEY", "EXTRACT_BASE_URL", "POLICY_API_KEY"} <= read
    page = (ROOT / "docs" / "evaluation.md").read_text()
    table = page.split("## Environment variables")[1].split("\n## ")[0]
    first_cells = " ".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `"))
    assert set(re.findall("`([A-Z_]+)`", first_cells)) == read
