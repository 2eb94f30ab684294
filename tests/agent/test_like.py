"""--like dr-venus: the released loop's limits, notices and frames, against the text of PROTOCOL.md and, where they are
at hand, against real trajectories. And what infer.py and eval.py say at the start."""

import json
import re

import pytest

from minvenus.agent.policy import load_loop
from minvenus.agent.prompt import DR_VENUS, MINVENUS
from minvenus.model.weights import TINY_BASE
from minvenus.settings import AgentConfig
from minvenus.text.chat import CLOSE, OPEN
from minvenus.tools.base import ToolError, ToolResult, run_tool, search_each, search_text, visit_each
from minvenus.tools.web import PAGE_BYTES, LiveTools
from tests.agent import scripted
from tests.agent.scripted import BROKEN, TOKENIZER, Tools, answer, budget, check_stream, run, search, visit
from tests.text.conftest import SHARED, real_messages
from tests.tools.servers import serve

PROMPT, size = scripted.PROMPT, scripted.size
NOTICES, RESULTS = DR_VENUS.notices, DR_VENUS.notices.results


@pytest.fixture(scope="module")
def protocol():
    path = SHARED / "PROTOCOL.md"
    if not path.exists():
        pytest.skip(f"the protocol is not at {path}")
    return " ".join(path.read_text(encoding="utf-8").split())


# --------------------------------------------------------------------------------------------------------- the numbers


def test_the_numbers_are_those_of_the_protocol(protocol):
    t = DR_VENUS
    for words in (
            f"temperature {t.temperature}, top_p {t.top_p}, top_k {t.top_k}, ",
            f"**presence_penalty {t.presence_penalty}**, max {t.max_new_tokens:,} tokens per turn",
            f"{t.max_turns - 1} steps; server context {t.max_context:,}; solver context {t.answer_from:,} (CLI",
            f"wall clock {t.time_limit:,.0f} s (CLI)", f"{t.retries + 1} attempts per turn",
            f"A {t.max_turns}st generation can happen", f"truncate to {PAGE_BYTES // 4:,} tokens"):
        assert words in protocol, words


# --------------------------------------------------------------------------------------- the answer behind the budget


def test_the_notice_takes_the_place_of_the_result_of_the_last_turn_of_the_budget():
    tools = Tools()
    rollout = run([search(), visit(), answer()], budget(3), tools, notices=NOTICES)         # two turns, one behind them
    assert rollout.termination == "answered_max_steps" and len(tools.seen) == 2
    assert [turn.observation for turn in rollout.turns] == ["Bob sings", NOTICES.last_turn, None]
    check_stream(rollout)


def test_the_context_from_which_an_answer_is_asked_for_is_exact_to_the_token():
    used = PROMPT + len(scripted.ids_of(search())) + size("Bob sings")

    def at(limit):
        return run([search(), answer()], budget(8, answer_from=limit), notices=NOTICES)

    assert at(used).termination == "answered" and at(used).turns[0].observation == "Bob sings"
    assert at(used - 1).termination == "answered_token_limit"
    assert at(used - 1).turns[0].observation == NOTICES.context
    check_stream(at(used - 1))


@pytest.mark.parametrize("left", [20, 45, 60])
def test_the_last_turn_writes_what_is_left_and_never_beyond_the_context(left):
    """At least last_turn_tokens, at most what any turn may: so the answer comes behind the budget, within the model."""
    long = [TOKENIZER.encode("a")[0]] * 60
    context = PROMPT + 61 + size(NOTICES.context) + left + 1
    rollout = run([long, long], budget(8, context, answer_from=PROMPT, last_turn_tokens=20), notices=NOTICES)
    assert rollout.termination == "token_limit_no_answer" and len(rollout.tokens) == context
    assert sum(rollout.sampled) == 60 + left
    check_stream(rollout)


# -------------------------------------------------------------------------------------------------------- the frames


def fail(*_):
    raise ToolError("http", "the service is down")


def test_failed_and_empty_searches_are_left_out_as_the_release_does_and_stay_typed_errors(protocol):
    assert "the model sees `[]` (if all queries fail)" in protocol
    for one, kind in ((fail, "http"), (lambda query: [], "empty")):
        tools = Tools(search=lambda queries, one=one: search_each(queries, one))
        assert run_tool(tools, "search", {"query": ["a", "b"]}, RESULTS) == ToolResult("[]", kind)
        assert run_tool(tools, "search", {"query": ["a"]}).text.startswith("ERROR: search for 'a': ")
    mixed = search_each(["a", "b"], lambda q: fail() if q == "a" else [{"title": "t", "url": "u", "snippet": "s"}])
    shown = run_tool(Tools(search=lambda queries: mixed), "search", {"query": ["a", "b"]}, RESULTS)
    assert [entry["query"] for entry in json.loads(shown.text)] == ["b"] and shown.error is None


def test_a_snippet_begins_with_its_date_and_source_where_the_search_knows_them(protocol, monkeypatch):
    assert "`Date published:` and `Source:` lines + snippet" in protocol
    items = [{"title": "T", "link": "u", "snippet": "Text.", "date": "2 May 2023", "source": "S"},
             {"title": "T", "link": "u", "date": "2 May 2023"}, {"title": "T", "link": "u", "snippet": "Text."}]
    with serve(lambda handler: handler.reply({"organic": items})) as server:
        monkeypatch.setenv("SERPER_BASE_URL", server.url)
        texts = [run_tool(LiveTools(), "search", {"query": ["q"]}, shown).text
                 for shown in (RESULTS, MINVENUS.notices.results)]
    dated, plain = ([page["snippet"] for page in json.loads(text)[0]["web_page_info_list"]] for text in texts)
    assert dated == ["Date published: 2 May 2023\nSource: S\nText.", "Date published: 2 May 2023", "Text."]
    assert plain == ["Text.", "", "Text."]
    assert all(set(page) == {"title", "url", "snippet"} for page in json.loads(texts[0])[0]["web_page_info_list"])


UNREAD = (r"The useful information in (.*) for user goal (.*) as follows: \n\nEvidence in page: \n"
          r"([^\n]*could not be accessed[^\n]*)\n\nSummary: \n([^\n]*could not be processed[^\n]*)\s*")


def test_a_page_that_cannot_be_read_is_a_page_that_says_so(protocol):
    assert 'same frame with fixed "could not be accessed" / "could not be processed" sentences' in protocol
    tools = Tools(visit=lambda urls, goal: visit_each(urls, goal, fail))
    hostile = {"url": ["https://a.example/{goal}"], "goal": "{url} {error}"}
    shown = run_tool(tools, "visit", hostile, RESULTS)
    assert shown.error == "http" and "down" not in shown.text
    assert re.fullmatch(UNREAD, shown.text).groups()[:2] == (hostile["url"][0], hostile["goal"])
    assert run_tool(tools, "visit", hostile).text == f"ERROR: {hostile['url'][0]}: the service is down"
    real = [m["content"] for m in real_messages("rl_0000") if "could not be processed" in m["content"]]
    assert real and all(re.fullmatch(OPEN + UNREAD + CLOSE, content) for content in real), "the same frame"


def test_a_call_that_fails_as_a_whole_an_empty_result_and_a_malformed_turn(protocol):
    for words in ("`ERROR: tool execution failed: …`", "empty → `ERROR: empty tool result`",
                  "an ERROR line plus a reminder of the format"):
        assert words in protocol
    shown = run_tool(Tools(search=lambda queries: 1 / 0), "search", {"query": ["a"]}, RESULTS)
    assert shown == ToolResult("ERROR: tool execution failed: search failed (ZeroDivisionError)", "http")
    assert run_tool(Tools(search=lambda queries: " \n"), "search", {"query": ["a"]}, RESULTS) == ToolResult(
        "ERROR: empty tool result", "empty")
    first, second = run([BROKEN, answer()], notices=NOTICES).turns[0].observation.splitlines()
    assert first.startswith("ERROR: The tool call is not JSON")
    assert all(tag in second for tag in ("<think>", "<tool_call>", "<answer>"))


@pytest.mark.parametrize("name", ["sft_0000", "sft_0001", "sft_0007"])
def test_search_results_of_the_release_are_written_as_ours_are(name):
    found = [m["content"] for m in real_messages(name) if m["content"].startswith(OPEN + '[{"query"')]
    for content in found:
        entries = json.loads(content.removeprefix(OPEN).removesuffix(CLOSE))
        listed = [(entry["query"], entry["web_page_info_list"]) for entry in entries]
        assert OPEN + search_text(listed, RESULTS) + CLOSE == content
    assert len(found) >= 12


# -------------------------------------------------------------------------------------------------- what is said first


def test_the_start_says_which_prompt_tools_and_limits_are_used_and_no_address_or_key(tmp_path, monkeypatch):
    settings = {"model": str(TINY_BASE), "max_new_tokens": 100, "max_context": 2000}
    (tmp_path / "long.txt").write_text("x" * 91 + "\nsecond")

    def said(**more):
        return load_loop(AgentConfig(**settings, **more))[1].splitlines()[-2:]

    for service in ("SERPER", "JINA", "EXTRACT"):
        monkeypatch.delenv(f"{service}_BASE_URL", raising=False)
    monkeypatch.delenv("EXTRACT_MODEL", raising=False)
    limits = "2,000 tokens, 100 in a turn, 8,192 in a result"
    assert said() == ["prompt: Tools.", f"the toy web; turns as needed, {limits}"]
    assert said(tools="folder:docs", max_turns=7, time_limit=9000.0)[1] == (f"folder docs; 7 turns, {limits}, "
                                                                            "9,000 seconds")
    assert said(tools="live", system_prompt=str(tmp_path / "long.txt")) == [
        f"prompt: {'x' * 90} ...", "search by Serper, reader https://r.jina.ai, no extractor but passages that share "
                                   f"words with the goal; 200 turns, {limits}"]
    for name, value in (("SERPER_BASE_URL", "http://secret"), ("JINA_BASE_URL", "http://secret"),
                        ("EXTRACT_MODEL", "qwen"), ("SERPER_API_KEY", "secret")):
        monkeypatch.setenv(name, value)
    assert said(tools="record:tape")[1] == ("search by SERPER_BASE_URL, reader JINA_BASE_URL, extractor qwen, recorded "
                                            f"in tape; 200 turns, {limits}")
