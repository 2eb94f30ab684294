"""--like dr-venus: the released loop's limits, notices and frames, the latter against real
trajectories where they are at hand. And what infer.py and eval.py say at the start."""

import json
import re

import pytest

from minvenus.agent.load import load_loop
from minvenus.agent.observation import result_text
from minvenus.agent.prompt import DR_VENUS, MINVENUS
from minvenus.model.weights import TINY_BASE
from minvenus.settings import AgentConfig
from minvenus.text.messages import CLOSE, OPEN
from minvenus.tools.base import SearchHit, ToolError, ToolResult, run_tool
from tests.agent import scripted
from tests.agent.scripted import BROKEN, TOKENIZER, Tools, answer, budget, run, search, visit
from tests.text.conftest import real_messages

PROMPT, size = scripted.PROMPT, scripted.size
NOTICES, RESULTS = DR_VENUS.notices, DR_VENUS.notices.results


# --------------------------------------------------------------------- the answer behind the budget


def test_the_notice_takes_the_place_of_the_result_of_the_last_turn_of_the_budget():
    tools = Tools()
    rollout = run(
        [search(), visit(), answer()], budget(3), tools, notices=NOTICES
    )  # two turns, one behind them
    assert rollout.termination == "answered_max_steps" and len(tools.seen) == 2
    assert [turn.observation for turn in rollout.turns] == ["Bob sings", NOTICES.last_turn, None]


def test_the_context_from_which_an_answer_is_asked_for_is_exact_to_the_token():
    used = PROMPT + len(scripted.ids_of(search())) + size("Bob sings")
    for limit, termination, shown in (
        (used, "answered", "Bob sings"),
        (used - 1, "answered_token_limit", NOTICES.context),
    ):
        rollout = run([search(), answer()], budget(8, answer_from=limit), notices=NOTICES)
        assert (rollout.termination, rollout.turns[0].observation) == (termination, shown)


@pytest.mark.parametrize(("left", "kept"), [(20, 20), (45, 20), (60, 20), (60, 9999)])
def test_the_last_turn_writes_what_is_left_and_never_beyond_the_context(left, kept):
    """At least last_turn_tokens, at most what any turn may: so the answer comes behind the budget,
    within the model."""
    long = [TOKENIZER.encode("a")[0]] * 60
    context = PROMPT + 61 + size(NOTICES.context) + left + 1
    rollout = run(
        [long, long], budget(8, context, answer_from=PROMPT, last_turn_tokens=kept), notices=NOTICES
    )
    assert rollout.termination == "token_limit_no_answer" and len(rollout.tokens) == context
    assert sum(rollout.sampled) == 60 + left


# --------------------------------------------------------------------------------------- the frames


def fail(*_):
    raise ToolError("http", "the service is down")


def fail_for_a(query):
    return fail() if query == "a" else [SearchHit("t", "u", "s")]


FOUND = '[{"query": "b", "web_page_info_list": [{"title": "t", "url": "u", "snippet": "s"}]}]'


def none(query):
    raise ToolError("empty", "no results")


@pytest.mark.parametrize(
    ("tool", "shown"),
    [
        (fail, ("[]", "http")),
        (none, ("[]", "empty")),
        (fail_for_a, (FOUND, None)),
        (
            lambda query: 1 / 0,
            ("ERROR: tool execution failed: search failed (ZeroDivisionError)", "http"),
        ),
    ],
)
def test_failed_and_empty_searches_and_calls_are_shown_as_the_release_does_and_stay_typed_errors(
    tool, shown
):
    result = run_tool(Tools(search=tool), "search", {"query": ["a", "b"]})
    assert (result_text(result, RESULTS), result.error) == shown


def test_a_malformed_turn_is_answered_with_the_error_and_a_reminder_of_the_format():
    first, second = run([BROKEN, answer()], notices=NOTICES).turns[0].observation.splitlines()
    assert first.startswith("ERROR: The tool call is not JSON")
    assert all(tag in second for tag in ("<think>", "<tool_call>", "<answer>"))


@pytest.mark.parametrize(
    ("known", "dated", "plain"),
    [
        (
            {"snippet": "Text.", "date": "2 May", "source": "S"},
            "Date published: 2 May\nSource: S\nText.",
            "Text.",
        ),
        ({"snippet": "", "date": "2 May"}, "Date published: 2 May", ""),
    ],
)
def test_a_snippet_begins_with_its_date_and_source_where_the_search_knows_them(known, dated, plain):
    result = ToolResult("search", entries=[("q", [SearchHit("T", "u", **known)])])
    for shown, snippet in ((RESULTS, dated), (MINVENUS.notices.results, plain)):
        [entry] = json.loads(result_text(result, shown))
        assert entry["web_page_info_list"] == [{"title": "T", "url": "u", "snippet": snippet}]


UNREAD = (
    r"The useful information in (.*) for user goal (.*) as follows: \n\nEvidence in page: \n"
    r"([^\n]*could not be accessed[^\n]*)\n\nSummary: \n([^\n]*could not be processed[^\n]*)\s*"
)


def test_a_page_that_cannot_be_read_is_a_page_that_says_so():
    hostile = {"url": ["https://a.example/{goal}"], "goal": "{url} {error}"}
    result = run_tool(Tools(visit=fail), "visit", hostile)
    text = result_text(result, RESULTS)
    assert result.error == "http" and "down" not in text
    assert re.fullmatch(UNREAD, text).groups()[:2] == (hostile["url"][0], hostile["goal"])
    real = [
        m["content"] for m in real_messages("rl_0000") if "could not be processed" in m["content"]
    ]
    assert real and all(re.fullmatch(OPEN + UNREAD + CLOSE, content) for content in real), (
        "the same frame"
    )


@pytest.mark.parametrize("name", ["sft_0000", "sft_0001", "sft_0007"])
def test_search_results_of_the_release_are_written_as_ours_are(name):
    found = [
        m["content"] for m in real_messages(name) if m["content"].startswith(OPEN + '[{"query"')
    ]
    for content in found:
        entries = json.loads(content.removeprefix(OPEN).removesuffix(CLOSE))
        listed = [
            (entry["query"], [SearchHit(**hit) for hit in entry["web_page_info_list"]])
            for entry in entries
        ]
        result = ToolResult("search", entries=listed)
        assert OPEN + result_text(result, RESULTS) + CLOSE == content
    assert len(found) >= 12


# ------------------------------------------------------------------------------- what is said first


def test_the_start_says_which_prompt_tools_and_limits_are_used_and_no_address_or_key(
    tmp_path, monkeypatch
):
    (tmp_path / "long.txt").write_text("x" * 91 + "\nsecond")

    def said(**more):
        config = AgentConfig(model=str(TINY_BASE), max_new_tokens=100, max_context=2000, **more)
        return load_loop(config)[1].splitlines()[-2:]

    limits = "2,000 tokens, 100 in a turn, 8,192 in a result"
    assert said() == ["prompt: Tools.", f"the toy web; {limits}"]
    lines = said(tools="folder:docs", system_prompt=str(tmp_path / "long.txt"))
    assert lines == [f"prompt: {'x' * 90}", f"folder docs; {limits}"]
    monkeypatch.setenv("SERPER_BASE_URL", "http://secret")
    monkeypatch.delenv("EXTRACT_MODEL", raising=False)
    passages = "passages that share words with the goal"
    assert said(tools="live")[1] == f"the live web, extracts by {passages}; {limits}"
    monkeypatch.setenv("EXTRACT_MODEL", "qwen")
    words = "the live web, extracts by qwen, recorded in tape"
    assert said(tools="record:tape")[1] == f"{words}; {limits}"
