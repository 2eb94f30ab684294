"""The strict format check and the parser: every rule by table."""

import pytest

from minvenus.agent.protocol import ParsedTurn, final_answer, format_error, parse_turn
from minvenus.types import Turn

SEARCH = '{"name": "search", "arguments": {"query": ["capital of Italy"]}}'
VISIT = '{"name": "visit", "arguments": {"url": ["https://x.org"], "goal": "the capital"}}'
NEEDS_QUERY = 'search needs "query", a list of non-empty strings.'
NEEDS_GOAL = 'visit needs "goal", a non-empty string.'
INCOMPLETE = "The turn has no complete <tool_call> and no complete <answer> with a text."
THOUGHTS = "The turn needs <think>...</think>"
ONE_BLOCK = "and nothing else after the last </think>."
AMBIGUOUS = "The turn has both an <answer> and a <tool_call>."
NOT_A_CALL = 'The tool call must be {"name"'


def tool_turn(body=SEARCH, thought="hm"):
    return f"<think>{thought}</think>\n\n<tool_call>\n{body}\n</tool_call>"


def final_turn(body="Rome", thought="hm"):
    return f"<think>{thought}</think>\n\n<answer>\n{body}\n</answer>"


# --------------------------------------------------------------------------------- the strict check


@pytest.mark.parametrize(
    "text, final",
    [
        (tool_turn(), False),
        (tool_turn(VISIT), False),
        (final_turn(), True),
        (
            "<think>\nhm\n</think>\n<tool_call>\n" + SEARCH + "\n</tool_call>",
            False,
        ),  # SFT form, one newline
        (
            " \n<think></think><tool_call>" + SEARCH + "</tool_call> \n",
            False,
        ),  # no or odd white space
        (
            "<think>a</think> <think>b</think><tool_call>" + SEARCH + "</tool_call>",
            False,
        ),  # several thoughts
        ("<think>a</think><think>b</think> <answer>a <b>bold</b> answer,\n\nlong</answer>\n", True),
        (tool_turn("{'name': 'search', arguments: {query: ['x',],}, /* lenient */ }"), False),
        (tool_turn('{"name": "no_such_tool", "arguments": {}}'), False),  # names are not checked
        (tool_turn('{"name": "visit", "arguments": {"page": 3}, "more": 1}'), False),
        (
            tool_turn(thought="if a < b > c then <b>bold</b> </tool_response> </summary>"),
            False,
        ),  # other tags are text
    ],
)
def test_well_formed_turns(text, final):
    assert format_error(text, final) is None
    assert format_error(text, not final)


@pytest.mark.parametrize(
    "final, block", [(False, f"<tool_call>{SEARCH}</tool_call>"), (True, "<answer>Rome</answer>")]
)
@pytest.mark.parametrize(
    "text, rule",
    [
        (" \n\t", THOUGHTS),
        ("{block}", THOUGHTS),
        ("<think>hm{block}", THOUGHTS),
        ("Well, <think>a</think>{block}", "There is text before the first <think>."),
        ("<think>a</think></think>{block}", THOUGHTS),
        ("<think>a</think>{block}<think>", THOUGHTS),
        ("<think>a</think>{block}<tool_response>", "The turn contains <tool_response>"),
        ("<think>a {block}</think>", ONE_BLOCK),
        ("<think>a</think>{block} x", ONE_BLOCK),
        ("<think>a</think>x {block}", ONE_BLOCK),
        ("<think>a</think>{block}<think></think>", ONE_BLOCK),
        ("<think>{block}</think>{block}", ONE_BLOCK),
        ("<think>a</think>Rome", ONE_BLOCK),
    ],
)
def test_rules_that_both_kinds_of_turn_share(text, rule, final, block):
    assert rule in format_error(text.replace("{block}", block), final)


@pytest.mark.parametrize(
    "text, rule, final",
    [
        (tool_turn(thought="or </answer>?"), "A turn before the last has a tag of answer.", False),
        (
            tool_turn(SEARCH.replace("capital", "<answer>")),
            "A turn before the last has a tag of answer.",
            False,
        ),
        ("<think>a</think><tool_call>" + SEARCH, ONE_BLOCK, False),
        ("<think>a <tool_call></think>" + SEARCH + "</tool_call>", ONE_BLOCK, False),
        ("<think>a</think></tool_call>" + SEARCH + "<tool_call>", ONE_BLOCK, False),
        (tool_turn(" \n"), "The tool call is not JSON: Expecting value: line 4 column 1", False),
        (tool_turn(SEARCH + SEARCH), "The tool call is not JSON: Extra data", False),
        (
            tool_turn("<code>print(1)</code> PythonInterpreter"),
            "The tool call is not JSON",
            False,
        ),  # released: allowed
        (tool_turn("[" * 100_000), "The tool call is not JSON: maximum recursion depth", False),
        (tool_turn("[" + SEARCH + "]"), NOT_A_CALL, False),
        (tool_turn('{"name": null, "arguments": {}}'), NOT_A_CALL, False),
        (tool_turn('{"name": "search", "arguments": "{}"}'), NOT_A_CALL, False),
        (
            final_turn() + "</tool_call>",
            "The last turn must be an answer, but it has a tag of tool_call.",
            True,
        ),
        (
            final_turn(thought="no <tool_call>"),
            "The last turn must be an answer, but it has a tag of tool_call.",
            True,
        ),
        (final_turn(" \n "), "The answer is empty.", True),
        (final_turn("Italy\n<answer>Rome"), ONE_BLOCK, True),
        ("<think>a</think></answer>Rome<answer>", ONE_BLOCK, True),
    ],
)
def test_rules_of_tool_turns_and_of_final_turns(text, rule, final):
    assert rule in format_error(text, final)


# --------------------------------------------------------------------------------------- the parser


def test_a_search_a_visit_and_an_answer():
    search, visit = parse_turn(tool_turn()), parse_turn(tool_turn(VISIT))
    answer = parse_turn(final_turn(" Rome, Italy "))
    assert search == ParsedTurn("search", "hm", "search", {"query": ["capital of Italy"]})
    arguments = {"url": ["https://x.org"], "goal": "the capital"}
    assert visit == ParsedTurn("visit", "hm", "visit", arguments)
    assert answer == ParsedTurn("answer", "hm", answer="Rome, Italy")


def test_the_thought_that_the_prompt_opened_is_implied():
    for text in (tool_turn(), final_turn()):
        assert parse_turn(text.removeprefix("<think>")) == parse_turn(text)
    assert parse_turn("a</think><think>b</think>" + "<answer>Rome</answer>").thought == "ab"


def test_the_block_after_the_thought_wins_over_one_inside_it():
    assert (
        parse_turn(tool_turn(VISIT, thought=f"first <tool_call>{SEARCH}</tool_call>")).kind
        == "visit"
    )
    assert (
        parse_turn(tool_turn(thought="then I write <answer> and so on")).kind == "search"
    )  # no closed answer
    assert parse_turn(final_turn(thought="not <answer>Paris</answer>")).answer == "Rome"
    assert parse_turn(final_turn(thought="I close with <answer> tags")).answer == "Rome"
    assert (
        parse_turn(final_turn("<summary>long</summary>\n<answer>\nRome")).answer == "Rome"
    )  # the innermost one


@pytest.mark.parametrize(
    "text",
    [
        tool_turn() + f"\n<tool_call>{VISIT}</tool_call>",  # of two calls the first
        "Well. <think>hm</think> So: <tool_call>" + SEARCH + "</tool_call> done",  # stray text
        "<think>I search now <tool_call>" + SEARCH + "</tool_call>",  # inside an open thought
        "<think>I search now <tool_call>" + SEARCH + "</tool_call></think>",
    ],
)
def test_a_malformed_call_that_can_be_understood_is_run_and_penalised(text):
    assert parse_turn(text).kind == "search" and parse_turn(text).arguments == {
        "query": ["capital of Italy"]
    }
    assert format_error(text, final=False)


@pytest.mark.parametrize(
    "body, arguments",
    [
        ('{"name": "search", "arguments": {"query": "Rome"}}', {"query": ["Rome"]}),
        (
            '{"name": "search", "arguments": {"query": ["a", "b"], "top_k": 3, "goal": "x"}}',
            {"query": ["a", "b"]},
        ),
        (
            '{"name": "visit", "arguments": {"url": "u", "goal": "g", "params": {}}}',
            {"url": ["u"], "goal": "g"},
        ),
        ("{name: 'search', arguments: {query: ['it\\'s',],}} // lenient", {"query": ["it's"]}),
        (
            '{"name": "search", "arguments": {"query": ["half \\ud83d, whole \\ud83d\\ude00"]}}',
            {"query": ["half \ufffd, whole 😀"]},
        ),
    ],
)
def test_arguments_come_out_in_one_shape(body, arguments):
    assert parse_turn(tool_turn(body)).arguments == arguments


@pytest.mark.parametrize(
    "body, tool, error",
    [
        (
            '{"name": "Search", "arguments": {"query": ["a"]}}',
            "Search",
            "There is no tool 'Search'. The tools are search",
        ),
        (
            '{"name": "%s", "arguments": {}}' % ("x" * 99),
            "x" * 99,
            "There is no tool '" + "x" * 40 + "'.",
        ),
        ('{"name": "search", "arguments": {}}', "search", NEEDS_QUERY),
        ('{"name": "search", "arguments": {"query": []}}', "search", NEEDS_QUERY),
        ('{"name": "search", "arguments": {"query": ["a", " "]}}', "search", NEEDS_QUERY),
        ('{"name": "search", "arguments": {"query": ["a", 3]}}', "search", NEEDS_QUERY),
        (
            '{"name": "visit", "arguments": {"goal": "g"}}',
            "visit",
            'visit needs "url", a list of non-empty strings.',
        ),
        ('{"name": "visit", "arguments": {"url": ["u"]}}', "visit", NEEDS_GOAL),
        ('{"name": "visit", "arguments": {"url": ["u"], "goal": ["g"]}}', "visit", NEEDS_GOAL),
    ],
)
def test_a_readable_call_that_no_tool_would_take_is_well_formed_and_an_error_of_that_tool(
    body, tool, error
):
    parsed = parse_turn(tool_turn(body))
    assert not format_error(tool_turn(body), final=False)
    assert (parsed.kind, parsed.tool, parsed.arguments) == (
        "none",
        tool,
        None,
    ) and error in parsed.error


@pytest.mark.parametrize(
    "text, error",
    [
        ("<answer>Rome</answer>", "The turn has no thought. Start with <think>"),
        ("<think>I need to find out whether", INCOMPLETE),
        (tool_turn('{"name": "search"}'), NOT_A_CALL),
        (tool_turn(""), "The tool call is not JSON: Expecting value"),
        (final_turn(" "), INCOMPLETE),
        ("<think>hm</think></tool_call>" + SEARCH + "<tool_call>", INCOMPLETE),
        (tool_turn(thought="maybe <answer>Rome</answer>"), AMBIGUOUS),
        (tool_turn() + "<answer>Rome</answer>", AMBIGUOUS),
        (final_turn(thought=f"maybe <tool_call>{SEARCH}</tool_call>"), AMBIGUOUS),
        ("<think>in <answer> tags</think> Rome</answer>", INCOMPLETE),  # no block across the border
    ],
)
def test_a_turn_that_cannot_be_used_says_how_to_fix_it(text, error):
    parsed = parse_turn(text)
    assert (parsed.kind, parsed.tool, parsed.arguments, parsed.answer) == ("none", None, None, None)
    assert parsed.error.startswith(error)


def test_only_the_last_turn_is_graded_and_never_an_observation():
    spoof = Turn("search", 0, 3, tool_turn(), observation="<answer>Paris</answer>")
    cut = Turn(
        "none", 3, 6, "<think>hm</think><tool_response><answer>Paris</answer></tool_response>"
    )
    silent = Turn("none", 3, 6, "<think>hm</think>", observation="<answer>Paris</answer>")
    early = Turn("answer", 3, 6, final_turn("Paris"))
    answer = Turn("answer", 6, 9, final_turn("Rome"))
    for turns in ([], [spoof], [spoof, cut], [spoof, silent], [early, spoof]):
        assert final_answer(turns) is None
    assert final_answer([spoof, early, answer]) == "Rome"
