"""Typed results, dispatch, formats, the token cap and the guard against failures."""

import base64
import functools
import json
import random
import sys
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools import base
from minvenus.tools.base import (
    FailureGuard,
    ToolError,
    ToolResult,
    cap_text,
    run_tool,
    search_each,
    visit_each,
)

PAGE = {"title": "Rome", "url": "https://a.example/rome", "snippet": 'A "city"\nin Italy — 羅馬'}
TOKENIZER = Tokenizer.tiny()


def tokens(text: str) -> int:
    return len(TOKENIZER.encode_untrusted(text))


def raising(error):
    def answer(*_):
        raise error

    return SimpleNamespace(search=answer, visit=answer)


def test_arguments_and_results_pass_as_they_are_and_half_a_surrogate_pair_as_a_replacement():
    def echo(*arguments):
        return ToolResult(json.dumps(arguments, ensure_ascii=False))

    tools = SimpleNamespace(search=echo, visit=echo)
    assert run_tool(tools, "search", {"query": ["a", "b"]}) == ToolResult('[["a", "b"]]')
    assert run_tool(tools, "visit", {"url": ["a\ud800b 😀"], "goal": "g"}) == ToolResult(
        '[["a\ufffdb 😀"], "g"]'
    )


@pytest.mark.parametrize(
    "call", [("search", {"query": ["a"] * 11}), ("visit", {"url": ["a"] * 11, "goal": "g"})]
)
def test_a_call_with_too_many_entries_is_a_typed_error_and_never_runs(call):
    assert run_tool(raising(KeyboardInterrupt()), *call).error == "bad_arguments"


@pytest.mark.parametrize(
    ("error", "text", "kind"),
    [
        (ToolError("refused", "no\ud800"), "ERROR: no\ufffd", "refused"),
        (TimeoutError("sk-secret"), "ERROR: search failed (TimeoutError)", "http"),
        (KeyboardInterrupt(), None, None),
        (ConfigError("no key"), None, None),
    ],
)
def test_an_exception_becomes_a_typed_error_without_its_own_text_but_a_wrong_set_up_and_ctrl_c_stop_the_run(
    error, text, kind
):
    if text:
        assert run_tool(raising(error), "search", {"query": ["a"] * 10}) == ToolResult(text, kind)
    else:
        with pytest.raises(type(error)):
            run_tool(raising(error), "search", {"query": ["a"]})


def search_one(query):
    if query == "slow":
        raise ToolError("timeout", "too slow")
    return [] if query == "none" else [PAGE]


def test_a_search_is_an_error_only_if_every_query_failed():
    result = search_each(["slow", "羅馬", "none"], search_one)
    slow, good, none = json.loads(result.text)
    assert result.error is None and good == {"query": "羅馬", "web_page_info_list": [PAGE]}
    assert slow == {"query": "slow", "web_page_info_list": [], "error": "too slow"}
    assert none["error"].startswith("no results")
    assert "\n" not in result.text and "羅馬" in result.text  # one line, no \u escapes
    text = "ERROR: search for 'none': no results; try other words\nsearch for 'slow': too slow"
    assert search_each(["none", "slow"], search_one) == ToolResult(
        text, "timeout"
    )  # a fault in any place


def test_a_visit_of_three_pages_of_which_one_fails_is_a_result_that_names_the_failure():
    def visit_one(url):
        if url == "b":
            raise ToolError("http", "status 500")
        return ["It was 1900.", f"summary {url}"]

    def frame(url):
        return (
            f"The useful information in {url} for user goal the date as follows: \n\n"
            f"Evidence in page: \nIt was 1900.\n\nSummary: \nsummary {url}"
        )

    failure = "ERROR: b: status 500"
    shown = f"{frame('a')}\n\n\n=======\n{failure}\n=======\n{frame('c')}"
    assert visit_each(["a", "b", "c"], "the date", visit_one) == ToolResult(shown)
    assert visit_each(["b", "b"], "the date", visit_one) == ToolResult(
        f"{failure}\n=======\n{failure}", "http"
    )


QWEN3 = Path(__file__).resolve().parents[3] / "shared/data/tokenizers/qwen3/tokenizer.json"
WORDS = [
    str(i % 7) * (i % 3) + "the river Museum's boats, 1907. (see) 羅馬 naïve\n".split()[i % 7]
    for i in range(50)
]


def words(characters: int, seed: int = 0) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=characters // 4))[:characters]


HUGE = {
    "words": words,
    "one letter": lambda n: "a" * n,
    "blanks": lambda n: " " * n,
    "a rule": lambda n: "=" * n,
    "accents": lambda n: "e\u0301" * (n // 2),
    "Chinese": lambda n: "".join(
        random.Random(0).choices("中国人民日报北京大学的是不了在有和", k=n)
    ),
    "base64": lambda n: base64.b64encode(random.Random(0).randbytes(n * 3 // 4)).decode(),
}


@functools.cache
def tokenizers() -> dict[str, Tokenizer]:
    return {"tiny": TOKENIZER} | ({"Qwen3": Tokenizer.from_file(QWEN3)} if QWEN3.exists() else {})


@pytest.mark.parametrize("name", HUGE)
def test_four_megabytes_never_stall_the_loop_and_are_cut_near_the_limit(name):
    text = HUGE[name](4_000_000)
    for tokenizer, limit in product(tokenizers().values(), (8192, 60_000)):
        start = time.process_time()
        capped = cap_text(text, tokenizer, limit)
        assert time.process_time() - start < 4  # at most 0.5 s
        shown = capped.rsplit("\n[cut: ", 1)[0]
        assert text.startswith(shown)
        assert (
            limit - 16 <= len(tokenizer.encode_untrusted(capped)) <= limit
            or len(shown) == 16 * limit
        )


CHARACTERS = st.one_of(st.sampled_from("ab .\n"), st.characters(exclude_categories=["Cs"]))


@given(text=st.text(CHARACTERS, max_size=400), limit=st.integers(40, 80))
def test_a_capped_text_never_exceeds_the_limit_and_keeps_a_prefix_of_whole_characters(text, limit):
    capped = cap_text(text, TOKENIZER, limit)
    assert tokens(capped) <= limit
    if tokens(text) <= limit:
        assert capped == text
    else:
        shown, mark = capped.rsplit("\n[cut: ", 1)
        assert (
            text.startswith(shown) and mark == f"{len(shown):,} of {len(text):,} characters shown]"
        )
        assert tokens(capped) >= limit - 16


def test_a_text_whose_first_piece_has_exactly_as_many_tokens_as_are_allowed_is_cut():
    text = "ab " * base.PIECE
    assert "\n[cut: " in cap_text(text, TOKENIZER, tokens(text[: base.PIECE]))


def test_whatever_ends_a_thread_comes_to_who_waits_for_it():
    with pytest.raises(SystemExit):
        base.in_thread("tool", sys.exit).result(5)


def test_the_run_stops_when_more_than_the_allowed_share_of_the_last_calls_failed():
    guard = FailureGuard(window=4)
    for failure in ("visit timeout", None, "visit timeout", None, "search http"):
        guard.add(failure)  # 2 of the last 4: not more than half
    words = r"3 of the last 4 tool calls failed.* 2 times: search http; 1 times: visit timeout"
    with pytest.raises(base.TooManyFailures, match=words):
        guard.add("search http")
    with pytest.raises(
        base.TooManyFailures, match=r"1 of the last 1 verdicts failed, more than the share 0 of 50"
    ):
        FailureGuard("verdicts", window=50, limit=0.0).add("down")  # before the window is full
