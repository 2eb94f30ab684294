"""Results as text: the formats of search and visit, and the cap on tokens."""

import base64
import json
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.agent.observation import cap_text, filled, result_text
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.base import Extract, Failure, SearchHit, Text, ToolResult

HIT = SearchHit("Rome", "https://a.example/rome", 'A "city"\nin Italy — 羅馬', "2020", "Atlas")
TOKENIZER = Tokenizer.tiny()
SLOW, NONE = Failure("timeout", "too slow"), Failure("empty", "no results; try other words")


def tokens(text: str) -> int:
    return len(TOKENIZER.encode_untrusted(text))


def test_a_search_is_one_line_of_json_and_an_error_only_if_every_query_failed():
    result = ToolResult("search", entries=[("slow", SLOW), ("羅馬", [HIT]), ("none", NONE)])
    text = result_text(result)
    hit = {"title": HIT.title, "url": HIT.url, "snippet": HIT.snippet}
    assert json.loads(text) == [
        {"query": "slow", "web_page_info_list": [], "error": "too slow"},
        {"query": "羅馬", "web_page_info_list": [hit]},
        {"query": "none", "web_page_info_list": [], "error": NONE.reason},
    ]
    assert result.error is None and "\n" not in text and "羅馬" in text  # no \u escapes
    failed = ToolResult("search", entries=[("none", NONE), ("slow", SLOW)])
    assert failed.error == "timeout"  # a fault in any place
    assert result_text(failed) == (
        "ERROR: search for 'none': no results; try other words\nsearch for 'slow': too slow"
    )


def test_a_visit_of_three_pages_of_which_one_fails_is_a_result_that_names_the_failure():
    def frame(url):
        return (
            f"The useful information in {url} for user goal the date as follows: \n\n"
            f"Evidence in page: \nIt was 1900.\n\nSummary: \nsummary {url}"
        )

    pages = [(url, Extract("It was 1900.", f"summary {url}")) for url in "ac"]
    failure = ("b", Failure("http", "status 500"))
    result = ToolResult("visit", "the date", [pages[0], failure, pages[1]])
    shown = f"{frame('a')}\n\n\n=======\nERROR: b: status 500\n=======\n{frame('c')}"
    assert (result_text(result), result.error) == (shown, None)
    failed = ToolResult("visit", "the date", [failure, failure])
    assert result_text(failed) == "ERROR: b: status 500\n=======\nERROR: b: status 500"
    assert failed.error == "http"


def test_a_frame_is_filled_with_values_that_stay_as_they_are():
    assert filled("{a}, {b}", a="{a} {b}") == "{a} {b}, {b}"


def test_a_failed_call_a_plain_text_and_half_a_surrogate_pair():
    failed = ToolResult("search", failure=Failure("refused", "no\ud800"))
    assert (result_text(failed), failed.error) == ("ERROR: no\ufffd", "refused")
    texts = [("a", Text("a\ud800b 😀")), ("b", Text("none", "empty")), ("c", SLOW)]
    result = ToolResult("search", entries=texts)
    assert (result_text(result), result.error) == ("a\ufffdb 😀\nnone\nERROR: too slow", None)


HUGE = {
    "Chinese": lambda n: "".join(random.Random(0).choices("中国人民日报北京大学的是不了", k=n)),
    "base64": lambda n: base64.b64encode(random.Random(0).randbytes(n * 3 // 4)).decode(),
}


@pytest.mark.parametrize("name", HUGE)
def test_four_megabytes_never_stall_the_loop_and_are_cut_near_the_limit(name):
    text = HUGE[name](4_000_000)
    start = time.process_time()
    capped = cap_text(text, TOKENIZER, 8192)
    assert time.process_time() - start < 10  # at most 3 s
    shown = capped.rsplit("\n[cut: ", 1)[0]
    assert text.startswith(shown)
    assert 8192 - 16 <= tokens(capped) <= 8192 or len(shown) == 16 * 8192


CHARACTERS = st.one_of(st.sampled_from("ab .\n"), st.characters(exclude_categories=["Cs"]))


@given(text=st.text(CHARACTERS, max_size=400), limit=st.integers(40, 80))
def test_a_capped_text_never_exceeds_the_limit_and_keeps_a_prefix_of_whole_characters(text, limit):
    capped = cap_text(text, TOKENIZER, limit)
    assert tokens(capped) <= limit
    if tokens(text) <= limit:
        assert capped == text
    else:
        shown, mark = capped.rsplit("\n[cut: ", 1)
        assert text.startswith(shown)
        assert mark == f"{len(shown):,} of {len(text):,} characters shown]"
        assert tokens(capped) >= limit - 16


class HundredCharactersPerToken:
    def untrusted_offsets(self, text):
        return [(0, start, start + 100) for start in range(0, len(text), 100)]

    def encode_untrusted(self, text):
        return [0] * len(self.untrusted_offsets(text))


def test_a_long_text_of_few_tokens_is_cut_all_the_same():
    capped = cap_text("=" * 1000, HundredCharactersPerToken(), 10)
    assert capped == "=" * 160 + "\n[cut: 160 of 1,000 characters shown]"
    assert cap_text("=" * 160, HundredCharactersPerToken(), 10) == "=" * 160
