"""Live search, retries and keys, against fake endpoints on 127.0.0.1; planted keys never come out anywhere."""

import io
import json
import os
import sqlite3
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate

import pytest

from minvenus.tools.base import ToolFailure, run_tool
from minvenus.tools.cassette import Recorder
from minvenus.tools.retry import Again, Limits, retrying, wait_asked
from minvenus.tools.web import LiveTools
from tests.tools.keys import KEYS, leaked
from tests.tools.servers import serve

pytestmark = pytest.mark.usefixtures("planted")
LIMITS = Limits(seconds=20.0, read_seconds=10.0, tries=3, backoff=0.02, response_bytes=100_000)
SHORT = Limits(seconds=2.0, read_seconds=0.2, tries=3, backoff=0.02)            # for servers that never end
ORGANIC = {"organic": [{"title": "Rome", "link": "https://a.example/rome", "snippet": "A city.", "date": "2020", "position": 1},
                       {"title": "No link"}, "nonsense", {"title": "Milan", "link": "https://a.example/milan"}]}
FOUND = [{"title": "Rome", "url": "https://a.example/rome", "snippet": "A city."},
         {"title": "Milan", "url": "https://a.example/milan", "snippet": ""}]


def search(server, monkeypatch, queries=("rome",), limits=LIMITS):
    monkeypatch.setenv("SERPER_BASE_URL", server.url + "/search")
    return run_tool(LiveTools(limits), "search", {"query": list(queries)})


# --------------------------------------------------------------------------------------------------------------- search


def test_a_search_asks_the_endpoint_once_per_query_and_answers_in_the_format_of_the_protocol(monkeypatch):
    with serve(lambda h: h.reply(ORGANIC)) as server:
        result = search(server, monkeypatch, ["Alzheimer's disease", "北京 museum"])
        requests = server.seen
    assert result.error is None
    assert json.loads(result.text) == [{"query": "Alzheimer's disease", "web_page_info_list": FOUND},
                                       {"query": "北京 museum", "web_page_info_list": FOUND}]
    assert [(method, path) for method, path, _, _ in requests] == [("POST", "/search")] * 2
    assert [json.loads(body) for *_, body in requests] == [{"q": "Alzheimer's disease", "gl": "us", "hl": "en"},
                                                           {"q": "北京 museum", "gl": "cn", "hl": "zh-cn"}]
    assert all(headers["X-API-KEY"] == KEYS["SERPER_API_KEY"] and "Authorization" not in headers for _, _, headers, _ in requests)


@pytest.mark.parametrize(("body", "kind", "message"), [
    ({"organic": []}, "empty", "no results"),
    ({}, "empty", "no results"),
    ({"organic": {"a": 1}}, "http", "not a list"),
    ("[1]", "http", "JSON object"),
    ("<html>blocked</html>", "http", "JSON object"),
    ("[" * 50_000, "http", "JSON object"),
    ("x" * 200_000, "http", "more than 100,000 bytes"),
])
def test_a_reply_without_results_is_a_typed_error_with_words(monkeypatch, body, kind, message):
    with serve(lambda h: h.reply(body, "application/json")) as server:
        result = search(server, monkeypatch)
    assert result.error == kind
    assert result.text.startswith("ERROR: search for 'rome': ") and message in result.text


def test_half_a_surrogate_pair_in_a_reply_becomes_valid_text(monkeypatch):
    body = '{"organic": [{"title": "a\\ud800", "link": "https://a.example", "snippet": ""}]}'
    with serve(lambda h: h.reply(body, "application/json")) as server:
        assert "a\ufffd" in search(server, monkeypatch).text


def test_of_two_queries_one_may_fail(monkeypatch):
    def answer(h):
        h.reply(ORGANIC, status=400 if b"bad" in h.server.seen[-1][3] else 200)
    with serve(answer) as server:
        result = search(server, monkeypatch, ["bad", "good"])
    assert result.error is None
    bad, good = json.loads(result.text)
    assert "status 400" in bad["error"] and good["web_page_info_list"] == FOUND


# -------------------------------------------------------------------------------------------------------------- retries


@pytest.mark.parametrize(("status", "requests"), [(302, 1), (400, 1), (401, 1), (403, 1), (404, 1), (429, 3), (500, 3), (503, 3)])
def test_only_429_and_5xx_are_tried_again(monkeypatch, status, requests):
    with serve(lambda h: h.reply({}, status=status, Location="/elsewhere")) as server:
        result = search(server, monkeypatch)
        assert len(server.seen) == requests
    assert result.error == "http" and str(status) in result.text
    assert (status in (401, 403)) == ("check SERPER_API_KEY" in result.text)


def test_silence_is_tried_again_and_is_a_timeout(monkeypatch):
    with serve(lambda h: h.server.stop.wait(3)) as server:
        result = search(server, monkeypatch, limits=SHORT)
        assert len(server.seen) == 3
    assert result.error == "timeout"


def test_a_body_that_drips_ends_at_the_deadline(monkeypatch):
    def answer(h):
        h.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        while not h.server.stop.wait(0.05):
            h.wfile.write(b" ")
    with serve(answer) as server:
        start = time.monotonic()
        assert search(server, monkeypatch, limits=Limits(seconds=0.5, read_seconds=0.4)).error == "timeout"
        assert time.monotonic() - start < 5.0


def test_a_closed_port_is_an_http_error_that_names_the_variable_and_not_the_address(monkeypatch):
    with serve(lambda h: None) as server:
        pass
    result = search(server, monkeypatch)
    assert result.error == "http" and "check SERPER_BASE_URL" in result.text and str(server.server_port) not in result.text


def test_retry_after_is_waited_for(monkeypatch):
    with serve(lambda h: h.reply(ORGANIC, status=429 if len(h.server.seen) == 1 else 200, Retry_After="1")) as server:
        start = time.monotonic()
        assert search(server, monkeypatch).error is None
        assert time.monotonic() - start >= 1.0


@pytest.mark.parametrize(("after", "limits"), [("3600", LIMITS), ("3", Limits(longest_wait=2)), ("3", SHORT)])
def test_a_retry_after_beyond_the_cap_or_the_deadline_is_not_asked_again(monkeypatch, after, limits):
    with serve(lambda h: h.reply({}, status=503, Retry_After=after)) as server:
        assert search(server, monkeypatch, limits=limits).error == "http"
        assert len(server.seen) == 1


def test_retry_after_may_be_a_number_or_a_date():
    assert wait_asked("7") == 7.0
    assert 28 <= wait_asked(formatdate(time.time() + 30, usegmt=True)) <= 30
    assert [wait_asked(text) for text in (None, "", "soon", "-5", "²", formatdate(0, usegmt=True))] == [0.0] * 6
    assert wait_asked("9" * 400) < float("inf")


def test_waits_double_and_are_jittered(monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)

    def attempt():
        raise Again("http", "busy")
    for _ in range(50):
        with pytest.raises(ToolFailure):
            retrying(attempt, Limits(tries=3, backoff=1.0), time.monotonic() + 100)
    first, second = waits[::2], waits[1::2]
    assert all(0.5 <= wait <= 1.5 for wait in first) and all(1.0 <= wait <= 3.0 for wait in second)
    assert len({round(wait, 3) for wait in first}) > 10


def test_a_redirect_does_not_carry_the_key_to_another_host(monkeypatch):
    with serve(lambda h: h.reply(ORGANIC)) as thief, \
            serve(lambda h: h.reply("", status=307, Location=thief.url)) as server:
        assert search(server, monkeypatch).error == "http"
        assert thief.seen == []


def test_a_netrc_file_does_not_replace_the_key(monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password netrc-password\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("SERPER_API_KEY", "")
    with serve(lambda h: h.reply(ORGANIC)) as server:
        assert search(server, monkeypatch).error is None
        assert "Authorization" not in server.seen[0][2] and "X-API-KEY" not in server.seen[0][2]


def test_several_threads_share_one_object(monkeypatch):
    with serve(lambda h: h.reply(ORGANIC)) as server:
        monkeypatch.setenv("SERPER_BASE_URL", server.url)
        tools = LiveTools(LIMITS)
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda i: tools.search([f"q{i}"]), range(24)))
    assert [json.loads(result.text)[0]["query"] for result in results] == [f"q{i}" for i in range(24)]


# ----------------------------------------------------------------------------------------------------------------- keys


def test_planted_keys_never_appear_in_results_reprs_recordings_or_exceptions(monkeypatch, tmp_path):
    """Servers that fail in every way we know, with the keys in hand; a proxy URL and a base URL with passwords too."""
    def echo(h):                                          # a hostile endpoint sends back what it got, as an error
        h.reply(json.dumps(h.server.seen[-1][2]), "application/json", status=int(h.path.split("/")[1]))
    outputs = []
    with serve(echo) as server:
        broken = ["http://127.0.0.1:1", server.url.replace("http://", "http://me:planted-serper-7f3a@") + "/400",
                  "http://[planted-serper-7f3a",
                  *(f"{server.url}/{status}" for status in (200, 302, 400, 401, 429, 500))]
        for url in broken:
            for variable in ("SERPER_BASE_URL", "JINA_BASE_URL"):
                monkeypatch.setenv(variable, url)
            tools = Recorder(LiveTools(LIMITS), tmp_path / "tape")
            for call in (("search", {"query": ["q"]}), ("visit", {"url": ["https://a.example"], "goal": "g"})):
                result = run_tool(tools, *call)
                outputs.append(repr(result))
                assert result.error is not None
            outputs += [repr(tools), repr(tools.tools), repr(vars(tools.tools)), str(tools.tools.limits)]
            tools.close()
    monkeypatch.setenv("SERPER_BASE_URL", "http://127.0.0.1:1")
    for key in ("planted-serper-7f3a\x00\n x", "planted-serper-7f3aé", "planted-serper-7f3a\r\nX: y"):
        monkeypatch.setattr(os, "environ", {**os.environ, "SERPER_API_KEY": key})        # the real one cannot hold a zero byte
        try:
            outputs.append(repr(run_tool(LiveTools(LIMITS), "search", {"query": ["q"]})))
        except Exception:
            stack = io.StringIO()
            traceback.print_exc(file=stack)
            outputs.append(stack.getvalue())
    db = sqlite3.connect(tmp_path / "tape")
    outputs += db.iterdump()
    db.close()
    assert len(outputs) > 50
    assert not leaked("\n".join(outputs))
