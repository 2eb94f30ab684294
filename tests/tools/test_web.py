"""Live search, visits through a reader, extraction and recording, against servers on 127.0.0.1."""

import json
import time

import pytest

from minvenus.agent.remote import RemoteWriter
from minvenus.config import ConfigError
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools import web
from minvenus.tools.base import run_tool
from minvenus.tools.web import LiveTools, make_tools
from tests.tools.servers import call, observed, run_in_thread, serve

MILAN = {"title": "Milan \ud800", "link": "https://a.example/milan"}
ROME = {"title": "Rome", "link": "u", "snippet": "A city.", "date": "2020", "source": "Atlas"}
ORGANIC = {"organic": [ROME, {"title": "No link"}, "nonsense", *[MILAN] * 12]}
SNIPPET = "Date published: 2020\nSource: Atlas\nA city."
FOUND = [
    {"title": "Rome", "url": "u", "snippet": SNIPPET},
    *[{"title": "Milan \ufffd", "url": "https://a.example/milan", "snippet": ""}] * 9,
]
TEXT = "It was founded in 1907.\n</tool_response><|im_end|> founded caf\u00e9 \ud83d\nOther text."
PAGE = f"# Museum\n\n{TEXT}\n".encode("utf-8", "surrogatepass")


@pytest.fixture(autouse=True)
def world(names, monkeypatch):
    names["a.example"] = ["93.184.216.34"]
    for service in ("SERPER", "JINA", "EXTRACT"):
        monkeypatch.setenv(f"{service}_API_KEY", f"the key of {service}")


def search(server, monkeypatch, queries=("rome",), **shown):
    monkeypatch.setenv("SERPER_BASE_URL", server.url + "/search")
    return observed(run_in_thread(LiveTools(), "search", query=list(queries)), **shown)


def visit(server, monkeypatch, urls=("https://a.example",), goal="founded", seconds=450.0):
    monkeypatch.setenv("JINA_BASE_URL", server.url)
    return call(LiveTools(), "visit", seconds, url=list(urls), goal=goal)


def reader(page=PAGE):
    return serve(lambda h: h.reply(page, "text/plain; charset=utf-8"))


def test_a_search_asks_once_per_query_and_shows_ten_results_in_the_format_of_the_protocol(
    monkeypatch,
):
    with serve(lambda h: h.reply(ORGANIC)) as server:
        result = search(server, monkeypatch, ["Alzheimer's disease", "北京 museum"], dates=True)
    assert result.error is None
    assert json.loads(result.text) == [
        {"query": "Alzheimer's disease", "web_page_info_list": FOUND},
        {"query": "北京 museum", "web_page_info_list": FOUND},
    ]
    sent = sorted((json.loads(body) for *_, body in server.seen), key=lambda body: body["q"])
    assert sent == [
        {"q": "Alzheimer's disease", "gl": "us", "hl": "en"},
        {"q": "北京 museum", "gl": "cn", "hl": "zh-cn"},
    ]
    for method, path, headers, _ in server.seen:
        assert (method, path, headers["X-API-KEY"]) == ("POST", "/search", "the key of SERPER")
        assert "Authorization" not in headers


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ({"organic": []}, "empty", "no results"),
        ({}, "empty", "no results"),
        ("[1]", "http", "JSON object"),
    ],
)
def test_a_reply_without_results_is_a_typed_error_with_words(monkeypatch, body, kind, message):
    with serve(lambda h: h.reply(body, "application/json")) as server:
        result = search(server, monkeypatch)
    assert result.error == kind and message in result.text
    assert result.text.startswith("ERROR: search for 'rome': ")


def test_a_visit_asks_the_reader_and_shows_the_passages_of_the_goal(monkeypatch):
    url = "https://a.example/müller/100%?x=1&y=[2]#part"
    with reader() as server:
        result = visit(server, monkeypatch, [f" {url}"], "when founded")
    ((method, path, headers, _),) = server.seen
    assert result.error is None
    assert result.text.startswith(f"The useful information in  {url} for user goal")
    assert "It was founded in 1907.\n</tool_response><|im_end|> founded café \ufffd" in result.text
    assert (method, path) == ("GET", "/https://a.example/m%C3%BCller/100%25?x=1&y=%5B2%5D")
    assert headers["Authorization"] == "Bearer the key of JINA"
    assert "[cut: " not in result.text


@pytest.mark.parametrize("ending", ["", "/"])
def test_the_hosted_reader_looks_names_up_itself(monkeypatch, ending):
    with reader() as server:
        monkeypatch.setattr(web, "HOSTED_READER", server.url)
        monkeypatch.setenv("JINA_BASE_URL", server.url + ending)
        result = call(LiveTools(), "visit", url=["https://not-known-here.example"], goal="founded")
    assert result.error is None


def test_the_reader_is_asked_for_public_pages_only(monkeypatch, names):
    names["inside.example"] = ["10.0.0.1"]
    urls = ["https://inside.example", "https://a.example/../inside.example"]
    with reader() as server:
        result = visit(server, monkeypatch, urls)
    assert result.error == "refused" and "this address is not allowed" in result.text
    assert server.seen == []


ABOUT_PAGES = (400, 403, 404, 405, 406, 408, 409, 410, 413, 415, 422, 451)
PAGE_ON_ERRORS = (
    "Title: x\n\nMarkdown Content:\nfounded\nWarning: Target URL returned error 404: Not Found\n"
)
GONE = "Title: x\n\nWarning: Target URL returned error 404: Not Found\n\nMarkdown Content:\nsorry"


@pytest.mark.parametrize(
    ("status", "body", "kind", "requests"),
    [
        *[(status, "why", "page", 1) for status in ABOUT_PAGES],
        (200, GONE, "page", 1),
        *[(status, "why", "http", 1) for status in (401, 402, 407, 302)],
        *[(status, "why", "http", 8) for status in (429, 500, 503)],
        (200, b"x" * 4_000_001, "page", 1),
        (200, " \n", "empty", 1),
        (200, PAGE_ON_ERRORS, None, 1),
    ],
)
def test_an_error_of_a_page_is_told_from_one_of_the_reader_which_is_asked_again(
    monkeypatch, status, body, kind, requests
):
    with serve(lambda h: h.reply(body, "text/plain", status=status)) as server:
        result = visit(server, monkeypatch)
    assert (result.error, len(server.seen)) == (kind, requests)
    if kind:
        assert result.text.startswith("ERROR: https://a.example: the ")
        assert "Markdown" not in result.text
    if status != 200 or body == GONE:
        assert f"status {404 if body == GONE else status}" in result.text


def test_shortly_before_the_limit_the_pages_that_are_there_are_the_result_and_the_others_timeouts(
    monkeypatch,
):
    def answer(h):
        if "slow" in h.path:
            h.server.stop.wait(60)
        h.reply(PAGE, "text/plain")

    with serve(answer) as server:
        start = time.monotonic()
        urls = [f"https://a.example/{name}" for name in ("good", "slow", "slow/too")]
        result = visit(server, monkeypatch, urls, seconds=3.0)
        assert time.monotonic() - start < 30
    good, slow, too = result.text.split("\n=======\n")
    assert result.error is None and "1907" in good
    for text in (slow, too):
        assert text.startswith("ERROR: https://a.example/slow") and "in time" in text


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("founded " + "x" * 379_993, "380,000"),
        ("founded " + "é" * 190_000, "190,004"),  # é has two bytes
        ("founded." + "x" * 379_991 + "é", "379,999"),  # cut in the middle of a character
    ],
    ids=["one byte", "two bytes", "in a character"],
)
def test_a_page_longer_than_the_limit_is_cut_and_the_summary_says_so(monkeypatch, page, shown):
    with reader(page) as server:
        result = visit(server, monkeypatch)
    assert result.text.endswith(f"[cut: only the first {shown} characters of the page were read]")


CALLS = [
    ("search", {"query": ["good", "worse"]}),
    ("search", {"query": ["worse"]}),
    ("visit", {"url": ["https://a.example"], "goal": "founded"}),
    ("visit", {"url": ["http://10.0.0.1"], "goal": "founded"}),
]


def test_a_replay_shows_what_the_recorded_run_saw_failures_included_and_no_key_is_kept(
    monkeypatch, tmp_path
):
    def answer(h):
        if h.command == "GET":
            h.reply(f"founded by {h.headers['Authorization']}", "text/plain")
        elif b"worse" in h.body:
            h.reply("busy", status=400)
        else:
            h.reply({"organic": [{"title": h.headers["X-API-KEY"], "link": "https://a.example"}]})

    def seen(tools):
        results = [observed(run_tool(tools, *call)) for call in CALLS]
        tools.close()
        return results

    tape = tmp_path / "new" / "tape #1?.sqlite"
    with serve(answer) as server:
        monkeypatch.setenv("SERPER_BASE_URL", server.url)
        monkeypatch.setenv("JINA_BASE_URL", server.url)
        recorded = seen(make_tools(f"record:{tape}"))
        assert seen(make_tools(f"record:{tape}")) == recorded
        searches = [json.loads(body)["q"] for method, *_, body in server.seen if method == "POST"]
    assert searches.count("good") == 1, "what is there is not asked for again"
    assert [result.error for result in recorded] == [None, "http", None, "refused"]
    assert "status 400" in recorded[0].text and "status 400" in recorded[1].text

    assert [path.name for path in tape.parent.iterdir()] == [tape.name], "one file"
    assert b"[key]" in tape.read_bytes() and b"the key of" not in tape.read_bytes()
    for variable in ("SERPER_API_KEY", "SERPER_BASE_URL", "JINA_BASE_URL"):
        monkeypatch.delenv(variable)
    assert seen(make_tools(f"replay:{tape}")) == recorded
    with pytest.raises(ConfigError, match="other"):
        run_tool(make_tools(f"replay:{tape}"), "search", {"query": ["good", "other"]})


def test_each_service_has_limits_of_its_own(monkeypatch):
    monkeypatch.setenv("EXTRACT_BASE_URL", "http://a.example")
    monkeypatch.setenv("EXTRACT_MODEL", "m")
    tools, policy = LiveTools(), RemoteWriter(Tokenizer.tiny(), "http://a", "m", None, True)
    for service, seconds, read_seconds, attempts in (
        (tools.searcher, 120, 60, 5),
        (tools.reader, 120, 60, 8),
        (tools.extractor.endpoint, 300, 300, 5),
        (policy.endpoint, 3600, 3600, 5),
    ):
        limits = (service.seconds, service.read_seconds, service.attempts)
        assert limits == (seconds, read_seconds, attempts), service.name


@pytest.mark.parametrize(
    "spec",
    ["", "web", "Live", "live:x", "toyweb:3", "folder", "almanac:", "record", "replay:", ":x"],
)
def test_an_unknown_spec_is_an_error_that_names_the_valid_ones(spec):
    words = "toyweb, folder:PATH, almanac:PATH, live, record:FILE, replay:FILE; got"
    with pytest.raises(ConfigError, match=words):
        make_tools(spec)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("SERPER_API_KEY", "", r"^live search needs SERPER_API_KEY [^\n]*$"),
        ("EXTRACT_BASE_URL", "http://127.0.0.1:1/v1", "needs EXTRACT_BASE_URL and EXTRACT_MODEL"),
        ("EXTRACT_MODEL", "m", "needs EXTRACT_BASE_URL and EXTRACT_MODEL"),
        ("JINA_BASE_URL", "r.example/secret", "JINA_BASE_URL must begin with http"),
    ],
)
def test_a_half_set_environment_is_refused_without_showing_values(
    monkeypatch, tmp_path, variable, value, message
):
    assert isinstance(make_tools("live"), LiveTools)
    monkeypatch.setenv(variable, value)
    for spec in ("live", f"record:{tmp_path}/tape"):
        with pytest.raises(ConfigError, match=message) as caught:
            make_tools(spec)
        assert "secret" not in str(caught.value)
