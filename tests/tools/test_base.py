"""Typed results, dispatch, formats, the token cap and the error guard."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.base import (
    MAX_ITEMS,
    FailureGuard,
    ToolError,
    ToolGuard,
    ToolResult,
    TooManyFailures,
    cap_text,
    failed,
    run_tool,
    search_each,
    visit_each,
)

PAGE = {"title": "Rome", "url": "https://a.example/rome", "snippet": "A \"city\"\nin Italy — 羅馬"}
TOKENIZER = Tokenizer.tiny()


def tokens(text: str) -> int:
    return len(TOKENIZER.encode_untrusted(text))


class Tools:
    """Every call goes to one function."""

    def __init__(self, answer):
        self.answer = answer

    def search(self, queries):
        return self.answer(queries)

    def visit(self, urls, goal):
        return self.answer(urls, goal)


def raising(error):
    def answer(*_):
        raise error
    return Tools(answer)


# ---------------------------------------------------------------------------------------- results


def test_half_a_surrogate_pair_in_a_text_becomes_a_replacement_that_utf_8_can_hold():
    text = ToolResult("a\ud800b 😀").text
    assert text == "a\ufffdb 😀"
    assert tokens(text) > 0


# --------------------------------------------------------------------------------------- dispatch


def test_arguments_reach_the_tool_as_they_are():
    tools = Tools(lambda *arguments: ToolResult(json.dumps(arguments)))
    assert run_tool(tools, "search", {"query": ["a", "b"]}) == ToolResult('[["a", "b"]]')
    assert run_tool(tools, "visit", {"url": ["u"], "goal": "g"}) == ToolResult('[["u"], "g"]')


@pytest.mark.parametrize(("name", "arguments"), [("search", {"query": ["a"] * (MAX_ITEMS + 1)}),
                                                 ("visit", {"url": ["a"] * (MAX_ITEMS + 1), "goal": "g"})])
def test_a_call_with_too_many_entries_is_a_typed_error_and_never_runs(name, arguments):
    result = run_tool(raising(AssertionError("must not run")), name, arguments)
    assert result.error == "bad_arguments" and result.text.startswith("ERROR: ")


@pytest.mark.parametrize(("error", "kind"), [
    (ToolError("refused", "no"), "refused"), (TimeoutError("sk-secret"), "timeout"), (KeyError("sk-secret"), "http"),
    (RuntimeError("sk-secret"), "http"), (RecursionError("sk-secret"), "http"),
])
def test_an_exception_of_a_tool_becomes_a_typed_error_without_its_text(error, kind):
    result = run_tool(raising(error), "search", {"query": ["a"]})
    assert result.error == kind
    assert result.text.startswith("ERROR: ")
    assert "sk-secret" not in result.text


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ConfigError("no key")])
def test_ctrl_c_and_a_wrong_set_up_stop_the_run(error):
    with pytest.raises(type(error)):
        run_tool(raising(error), "search", {"query": ["a"]})


def test_a_blank_result_is_the_error_empty():
    assert run_tool(Tools(lambda *_: ToolResult(" \n")), "search", {"query": ["a"]}).error == "empty"


# ---------------------------------------------------------------------------------------- formats


def test_search_text_is_the_json_of_the_protocol_in_one_line():
    result = search_each(["Alzheimer's disease", "羅馬"], lambda query: [PAGE])
    assert result.error is None
    assert "\n" not in result.text
    assert "羅馬" in result.text                             # not \u escapes
    assert json.loads(result.text) == [{"query": "Alzheimer's disease", "web_page_info_list": [PAGE]},
                                       {"query": "羅馬", "web_page_info_list": [PAGE]}]


def search_ok_only_for_b(query):
    if query == "b":
        return [PAGE]
    if query == "none":
        return []
    raise ToolError("timeout", "too slow")


def test_a_search_is_an_error_only_if_every_query_failed():
    result = search_each(["a", "b", "none"], search_ok_only_for_b)
    assert result.error is None
    a, b, none = json.loads(result.text)
    assert a == {"query": "a", "web_page_info_list": [], "error": "too slow"}
    assert b == {"query": "b", "web_page_info_list": [PAGE]}
    assert none["error"].startswith("no results")
    failed_all = search_each(["none", "a"], search_ok_only_for_b)
    assert failed_all.error == "empty"                       # the first one's kind
    assert failed_all.text == "ERROR: search for 'none': no results; try other words\nsearch for 'a': too slow"


def test_visit_text_is_the_frame_of_the_protocol():
    result = visit_each(["https://a.example"], "the date", lambda url: ("It was 1900.", "1900"))
    assert result == ToolResult("The useful information in https://a.example for user goal the date as follows: \n\n"
                                "Evidence in page: \nIt was 1900.\n\nSummary: \n1900")


def test_a_visit_of_three_pages_of_which_one_fails_is_a_result_that_names_the_failure():
    def visit_one(url):
        if url == "b":
            raise ToolError("http", "status 500")
        return "evidence " + url, "summary " + url
    result = visit_each(["a", "b", "c"], "g", visit_one)
    assert result.error is None
    first, second, third = result.text.split("\n=======\n")
    assert "evidence a" in first and "summary c" in third
    assert second == "ERROR: b: status 500"
    expected = ToolResult("ERROR: b: status 500\n=======\nERROR: b: status 500", "http")
    assert visit_each(["b", "b"], "g", visit_one) == expected


# -------------------------------------------------------------------------------------------- cap


def test_a_cut_text_says_how_much_is_shown_worked_by_hand():
    assert cap_text("a b c d", lambda text: len(text.split()), 4) == "a b c d"
    long = "w " * 5678
    cut = cap_text(long, lambda text: len(text.split()), 1240)              # the mark has six words
    assert cut.endswith("w \n[cut: 2,468 of 11,356 characters shown]")
    assert len(cut.split()) == 1240


@pytest.mark.parametrize("length", [61, 62, 100, 119, 120, 121, 1000])
def test_the_prefix_is_the_longest_that_fits(length):
    def marked(shown):
        return "x" * shown + f"\n[cut: {shown:,} of {length:,} characters shown]"
    longest = max(shown for shown in range(length) if len(marked(shown)) <= 60)
    assert cap_text("x" * length, len, 60) == marked(longest)


def test_a_page_of_megabytes_costs_no_more_than_what_is_shown_of_it():
    text, seen = "word " * 800_000, []

    def count(part):
        seen.append(len(part))
        return len(part.split())
    assert cap_text(text, count, 1000).endswith("word \n[cut: 4,970 of 4,000,000 characters shown]")
    assert max(seen) < 20_000 and len(seen) < 40


CHARACTERS = st.one_of(st.sampled_from("ab .\n"), st.characters(exclude_categories=["Cs"]))


@given(text=st.text(CHARACTERS, max_size=400), limit=st.integers(40, 80))
def test_a_capped_text_never_exceeds_the_limit_and_keeps_a_prefix_of_whole_characters(text, limit):
    capped = cap_text(text, tokens, limit)
    assert tokens(capped) <= limit
    if tokens(text) <= limit:
        assert capped == text
    else:
        shown, mark = capped.rsplit("\n[cut: ", 1)
        assert text.startswith(shown)
        assert mark == f"{len(shown):,} of {len(text):,} characters shown]"


# ------------------------------------------------------------------------------------------ guard


def test_the_run_stops_when_more_than_the_allowed_share_of_the_last_calls_failed():
    guard = ToolGuard(window=4, limit=0.5)
    for _ in range(2):
        guard.add("visit", failed("timeout", "x"))
        guard.add("search", ToolResult("ok"))
    guard.add("search", failed("http", "x"))             # 2 of the last 4: not more than half
    words = r"3 of the last 4 tool calls failed.* 2 times: search http; 1 times: visit timeout"
    with pytest.raises(TooManyFailures, match=words):
        guard.add("search", failed("http", "x"))


@pytest.mark.parametrize("kind", ["refused", "empty", "bad_arguments", "unknown_tool"])
def test_what_the_model_itself_can_cause_never_stops_a_run(kind):
    guard = ToolGuard(window=2, limit=0.0)
    for i in range(10):
        guard.add(f"invented {i}", failed(kind, "x"))


def test_a_guard_does_not_wait_for_a_full_window_and_zero_allows_no_failure():
    guard = FailureGuard("verdicts", window=50, limit=0.1)
    for _ in range(5):
        guard.add("down")
        guard.add(None)
    with pytest.raises(TooManyFailures, match=r"6 of the last 11 verdicts failed, more than the share 0\.1 of 50"):
        guard.add("down")
    with pytest.raises(TooManyFailures):
        FailureGuard("verdicts", window=50, limit=0.0).add("down")
