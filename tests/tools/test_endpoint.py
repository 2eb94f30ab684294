"""The endpoint client against servers on 127.0.0.1: retries, deadlines, broken replies, and where the key goes."""

import gzip
import json
import socket
import threading
import time
import traceback

import pytest

from minvenus.config import ConfigError
from minvenus.tools import endpoint as module
from minvenus.tools.base import ToolError
from minvenus.tools.endpoint import Endpoint
from tests.tools.servers import serve

KEY = "planted-endpoint-5b1e"
LONG = 20.0           # seconds that no test may need
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def key(monkeypatch, names):
    monkeypatch.setenv("TEST_API_KEY", KEY)


def endpoint(server, **limits):
    return Endpoint("test endpoint", server.url + "/v1/", "TEST_API_KEY", "venus", url_source="TEST_BASE_URL", **limits)


def failure(server, **limits) -> ToolError:
    with pytest.raises(ToolError) as caught:
        endpoint(server, **limits).post("/path", {})
    assert KEY not in "".join(traceback.format_exception(caught.value))
    return caught.value


def chat(content):
    return {"choices": [{"message": {"role": "assistant", "content": content}}]}


# --------------------------------------------------------------------------------------- requests


def test_a_chat_sends_model_messages_and_settings_with_the_key_and_returns_the_text():
    with serve(lambda h: h.reply(chat("hi"))) as server:
        assert endpoint(server).chat(MESSAGES, temperature=0.5) == "hi"
    method, path, headers, body = server.seen[0]
    assert (method, path, headers["Authorization"]) == ("POST", "/v1/chat/completions", f"Bearer {KEY}")
    assert json.loads(body) == {"model": "venus", "messages": MESSAGES, "temperature": 0.5}


@pytest.mark.parametrize("reply", [{}, {"choices": []}, {"choices": "x"}, {"choices": [{"message": {}}]}, chat(None),
                                   chat([1])])
def test_a_reply_without_text_is_an_error(reply):
    with serve(lambda h: h.reply(reply)) as server:
        for ask in (endpoint(server).chat, endpoint(server).complete):
            with pytest.raises(ToolError, match="sent no '(content|text)'"):
                ask(MESSAGES)


def test_a_completion_takes_ids_or_text_and_returns_the_first_choice():
    with serve(lambda h: h.reply({"choices": [{"text": "cat", "finish_reason": "stop"}]})) as server:
        for prompt in ([1, 2, 3], "From Bob"):
            assert endpoint(server).complete(prompt, max_tokens=7) == "cat"
            assert json.loads(server.seen[-1][3]) == {"model": "venus", "prompt": prompt, "max_tokens": 7}
    assert server.seen[0][1] == "/v1/completions"


def test_a_text_that_is_not_utf_8_is_read_all_the_same():
    with serve(lambda h: h.reply(b"caf\xc3\xa9 \xff", "text/markdown")) as server:
        assert endpoint(server).request("/p?q", None) == b"caf\xc3\xa9 \xff"
    assert server.seen[0][:2] == ("GET", "/v1/p?q")


# --------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(("status", "requests"), [(302, 1), (307, 1), (400, 1), (401, 1), (403, 1), (404, 1), (413, 1),
                                                  (429, 3), (500, 3), (503, 3)])
def test_only_429_and_5xx_are_tried_again_a_redirect_is_not_followed_and_the_error_says_why(status, requests):
    def answer(handler):
        handler.reply("too\nlong, " + "why " * 1000, status=status, Location=thief.url)
    with serve(lambda h: h.reply({})) as thief, serve(answer) as server:
        error = failure(server)
    assert len(server.seen) == requests and (error.kind, error.status) == ("http", status)
    assert f"status {status}" in str(error)
    assert ": too long, why" in str(error) and 200 < len(str(error)) < 300
    assert (status in (401, 403)) == ("check TEST_API_KEY" in str(error))
    assert thief.seen == []


@pytest.mark.parametrize("body", ["", "<html>blocked</html>"])
def test_an_error_reply_without_words_adds_nothing_to_the_message(body):
    with serve(lambda h: h.reply(body, status=404)) as server:
        assert str(failure(server)) == "the test endpoint answered with HTTP status 404"


def reset(handler):
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")      # close sends a reset
    handler.connection.close()


def half_a_reply(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")


@pytest.mark.parametrize("broken", [reset, half_a_reply, lambda h: h.wfile.write(b"nonsense\r\n\r\n")])
def test_a_connection_that_breaks_is_tried_again(broken):
    def once_broken(handler):
        broken(handler) if len(handler.server.seen) == 1 else handler.reply(chat("hi"))
    with serve(once_broken) as server:
        assert endpoint(server).chat(MESSAGES) == "hi"
    with serve(broken) as server:
        error = failure(server)
    assert len(server.seen) == 3
    assert error.kind == "http" and "check TEST_BASE_URL" in str(error) and str(server.server_port) not in str(error)


@pytest.mark.parametrize(("body", "words"), [
    ("[1]", "JSON object"), ("<html>blocked</html>", "JSON object"), ("", "JSON object"), ("[" * 50_000, "JSON object"),
    ('{"choices": [', "JSON object"), ('{"error": "no such model"}', "JSON object of results: .*no such model"),
    ("x" * 4_100_000, "more than 4,000,000 bytes"),
], ids=range(7))
def test_a_reply_that_is_no_json_object_or_too_long_is_an_error(body, words):
    with serve(lambda h: h.reply(body, "application/json")) as server:
        with pytest.raises(ToolError, match=words):
            endpoint(server).post("/", {})
        assert len(server.seen) == 1


@pytest.mark.parametrize("status", [200, 302, 400])
def test_a_bomb_is_not_unpacked_beyond_the_limit(status):
    bomb = gzip.compress(b" " * 50_000_000)
    with serve(lambda h: h.reply(bomb, status=status, Location="/", Content_Encoding="gzip")) as server:
        assert "more than 4,000,000 bytes" in str(failure(server))


# ---------------------------------------------------------------------------- deadlines and waits


def silent(handler):
    handler.server.stop.wait(LONG)


def dripping(start: bytes):
    def answer(handler):
        handler.wfile.write(start)
        while not handler.server.stop.wait(0.05):
            handler.wfile.write(b"x")
    return answer


@pytest.mark.parametrize("answer", [
    silent, dripping(b"HTTP/1.1 200 OK\r\nX-Header: "), dripping(b"HTTP/1.1 200 OK\r\n\r\n")],
    ids=["silent", "drips headers", "drips its body"])
def test_the_deadline_holds_against_a_server_that_never_ends(answer):
    with serve(answer) as server:
        start = time.monotonic()
        assert failure(server, seconds=1.0).kind == "timeout"
        assert 0.9 <= time.monotonic() - start < LONG / 2
        assert len(server.seen) == 1


def test_the_deadline_holds_against_a_slow_look_up_of_the_name(monkeypatch):
    stop = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: stop.wait(LONG))
    start = time.monotonic()
    with serve(silent) as server:
        assert failure(server, seconds=1.0).kind == "timeout"
    stop.set()
    assert time.monotonic() - start < LONG / 2


def test_silence_is_tried_again_and_a_later_reply_counts():
    with serve(lambda h: silent(h) if len(h.server.seen) == 1 else h.reply(chat("hi"))) as server:
        assert endpoint(server, read_seconds=1.0).chat(MESSAGES) == "hi"


@pytest.mark.parametrize(("asked", "seconds", "requests"), [
    ("1", 60.0, 2), ("3", 2.0, 1), ("9" * 400, 60.0, 1), ("soon", 60.0, 2), ("²", 60.0, 2)])
def test_a_retry_after_is_waited_for_if_the_deadline_allows_it(asked, seconds, requests):
    def busy_once(handler):
        handler.reply(chat("hi"), status=429 if len(handler.server.seen) == 1 else 200, Retry_After=asked)
    with serve(busy_once) as server:
        start = time.monotonic()
        if requests == 1:
            assert failure(server, seconds=seconds).status == 429
        else:
            assert endpoint(server, seconds=seconds).chat(MESSAGES) == "hi"
        assert asked != "1" or time.monotonic() - start >= 1.0
    assert len(server.seen) == requests


def test_waits_double_and_are_jittered(monkeypatch):
    waits = []
    with serve(lambda h: h.reply({}, status=500)) as server:
        client = endpoint(server)
        monkeypatch.setattr(module, "BACKOFF", 1.0)
        monkeypatch.setattr(time, "sleep", waits.append)
        for _ in range(20):
            with pytest.raises(ToolError):
                client.post("/", {})
    waits = [wait for wait in waits if wait >= 0.5]
    first, second = waits[::2], waits[1::2]
    assert all(0.5 <= wait <= 1.5 for wait in first) and all(1.0 <= wait <= 3.0 for wait in second)
    assert min(first) < 1.0 < max(first)
    assert len(first) == len(second) == 20 and len({round(wait, 3) for wait in first}) > 10


# ------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize("status", [200, 302, 400, 401, 429, 500])
def test_a_key_that_the_server_echoes_appears_nowhere(status):
    def echo(handler):
        handler.reply("x" * 195 + KEY + json.dumps(handler.server.seen[-1][2]), "application/json", status=status)
    with serve(echo) as server:
        failure(server)
        client = endpoint(server)
    assert KEY in str(server.seen) and KEY not in repr(client) + repr(vars(client))
    with serve(lambda h: h.reply(chat(f"my header was {KEY}"))) as server:
        assert endpoint(server).chat(MESSAGES) == "my header was [key]"


def test_the_key_is_read_for_each_request_no_key_is_no_header_and_a_placeholder_is_no_secret(monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password netrc-password\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with serve(lambda h: h.reply(chat("an EMPTY 8letters room"))) as server:
        client = endpoint(server)
        for key, text in (("8letters", "an EMPTY [key] room"), ("EMPTY", "an EMPTY 8letters room"),
                          ("", "an EMPTY 8letters room")):
            monkeypatch.setenv("TEST_API_KEY", key)
            assert client.chat(MESSAGES) == text
    sent = [headers.get("Authorization") for _, _, headers, _ in server.seen]
    assert sent == ["Bearer 8letters", "Bearer EMPTY", None]


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host", "http://", "http:///v1", "https://secret@host",
                                 "http://me:secret@host/v1", "http://[secret", "http://me:80@host/v1"])
def test_an_address_that_cannot_be_used_is_refused_without_showing_it(url):
    with pytest.raises(ConfigError, match=r"^--api-base must begin with http.*put the key into TEST_API_KEY") as caught:
        Endpoint("test endpoint", url, "TEST_API_KEY", url_source="--api-base")
    assert "secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("bad", [f"{KEY}\nX-Evil: 1", f"{KEY}é", f"“{KEY}”"])
def test_a_key_with_characters_that_no_key_has_is_refused_without_showing_it(monkeypatch, bad):
    monkeypatch.setenv("TEST_API_KEY", bad)
    with pytest.raises(ConfigError, match="TEST_API_KEY has characters") as caught:
        Endpoint("test endpoint", "http://127.0.0.1:9", "TEST_API_KEY")
    assert KEY not in "".join(traceback.format_exception(caught.value))


def test_an_endpoint_of_the_environment_needs_an_address_and_a_model(monkeypatch):
    monkeypatch.setenv("TEST_MODEL", "m")
    with pytest.raises(ConfigError, match="TEST_BASE_URL must begin"):
        Endpoint.from_environment("TEST", "test endpoint")
    for url in ("http://host", "https://a.example/v1/", "http://10.0.0.1:8000/v1", "HTTP://[::1]:8000/v1"):
        monkeypatch.setenv("TEST_BASE_URL", url)
        assert Endpoint.from_environment("TEST", "test endpoint", seconds=5.0).base_url == url
    monkeypatch.setenv("TEST_MODEL", " ")
    with pytest.raises(ConfigError, match="TEST_MODEL must name the model"):
        Endpoint.from_environment("TEST", "test endpoint")
