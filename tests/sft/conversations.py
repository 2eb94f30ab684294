"""Random conversations: good ones, raw ones, and every kind of damage that cleaning must name or
repair."""

import json

from hypothesis import strategies as st

WORDS = [
    "Rome",
    "the museum",
    "who's who",
    "東京 駅",
    "a [b] (c)",
    'say "hi"',
    "x < y",
    "two\nlines",
    "<summary>",
    "\ud83d",
]
words = st.sampled_from(WORDS)
queries = st.lists(st.sampled_from(["a", "b", "c", " a "]), min_size=1, max_size=2)


def think(thought):
    return f"<think>\n{thought}\n</think>\n"


def call(name, **arguments):
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def search_turn(*query, thought="I look."):
    return think(thought) + call("search", query=query)


def visit_turn(*url, goal="know", thought="I read."):
    return think(thought) + call("visit", url=url, goal=goal)


def answer_of(text="Rome", thought="Enough."):
    return think(thought) + f"<answer>\n{text}\n</answer>"


def observation(text="something"):
    return f"<tool_response>\n{text}\n</tool_response>"


def messages_of(contents):
    roles = ["user", "assistant"] * len(contents)
    pairs = zip(roles, contents, strict=False)
    return [{"role": role, "content": content} for role, content in pairs]


def conversation(*contents, system="Be good."):
    """A clean record from a question, turns and observations in order."""
    messages = [{"role": "system", "content": system}, *messages_of(contents)]
    return {"question": contents[0], "messages": messages, "gt": "Rome"}


def raw(*contents):
    meta = {"question": contents[0], "answer": "Rome"}
    return {"meta": meta, "messages": messages_of(contents)}


def of_turns(turns, name="Where?", answer="Rome"):
    """A clean record of so many turns, the answer included."""
    body = [text for i in range(turns - 1) for text in (search_turn(f"{name} {i}"), observation())]
    return conversation(name, *body, answer_of(answer))


def contents(record):
    return [message["content"] for message in record["messages"]]


readable_turns = (
    queries.map(lambda query: search_turn(*query))
    | st.builds(lambda url, goal: visit_turn(*url, goal=goal), queries, words)
    | st.just(think("compute") + call("PythonInterpreter"))
)


A = call("search", query=["a"])
IS_A = search_turn("a", thought="x")
INVALID = ["", A, think("x"), "<think>open", "<think>open" + A]
INVALID += [think("x") + A + "<answer>x</answer>"]
CALLS = [  # a turn before the last after its thought, and what cleaning makes of the turn
    (call(" Search ", query=["a"]), IS_A),
    (call("search", query=["a", "", " "]), IS_A),
    (call("search", queries=["wrong"], query=[" ", "a"]), IS_A),
    (call("search", queries="a", query=[]), IS_A),
    (
        call("visit", url="u", urls=["wrong"], goal=["g", "h"]),
        visit_turn("u", goal="g", thought="x"),
    ),
    (call("visit", links=["u"], goal="g"), visit_turn("u", goal="g", thought="x")),
    (A + call("search", query=["b"]), IS_A),
    (think("y") + A, IS_A),
    (call("search", query=[" "]), None),
    (call("visit", url=["u"]), None),
    (call("visit", url=["u"], goal=" "), None),
    (call("search", query=["<answer>"]), None),
    ("<tool_call>{</tool_call>", None),
    ('<tool_call>{"name": "search", "arguments": "a"}</tool_call>', None),
]
TURNS = [  # whole turns
    *((think("x") + text, result) for text, result in CALLS),
    ("Hm. " + search_turn("a 東京") + " Done.", search_turn("a 東京")),
    (A + think("x"), IS_A),
    (think("x <tool_response> y") + A, search_turn("a", thought="x  y")),
    ("<THINK>x</Think><Tool_Call>{name: 'search', arguments: {query: 'a',}}</TOOL_CALL>", IS_A),
    (think(" ") + A, None),
]
ANSWERS = [  # the last turn after its thought, and answer and thought that cleaning makes of it
    ("<answer>a</answer> or <answer>b</answer>", ("b", "t")),
    ("<answer>a</answer> or <answer>b", ("a", "t")),
    ("<answer>x <answer>a</answer></answer>", ("a", "t")),
    ("<summary>s</summary><answer>a</answer>", ("a", "t\n\ns")),
    ("<answer>s</answer><summary>s</summary>", ("s", "t\n\ns")),
    ("<answer><summary>s</summary></answer>", ("s", "t")),
]
FINALS = [
    *((think("t") + text, answer_of(*result)) for text, result in ANSWERS),
    (answer_of("Rome"), answer_of("Rome")),
    (
        think("t <summary>s</summary>") + "<summary>s</summary><answer>a</answer>",
        answer_of("a", "t s"),
    ),
    (think("so <answer>a</answer>"), answer_of("a", "so a")),
    ("<answer>a</answer>" + think("t"), answer_of("a", "t")),
    (answer_of("a") + call("search", query=["b"]), answer_of("a")),
    ("<THINK>t</Think><Answer>a</ANSWER>", answer_of("a", "t")),
    (think("t"), None),
    ("<answer>a</answer>", None),
    (think("t") + "<answer> </answer>", None),
    (think("") + "<answer>a</answer>", None),
    (
        think("Enough.") + "<answer>\n<summary>\nAll fits.\n</summary>\n<answer>\nRome\n</answer>",
        answer_of("Rome", "Enough.\n\nAll fits."),
    ),
]
ODD_TURNS = INVALID + [turn for turn, _ in TURNS]
observations = st.sampled_from(
    [
        observation(),
        observation() + "\n",
        "bare text",
        "<tool_response></tool_response>",
        observation("</tool_response>"),
        observation(""),
        "<tool_response>\n</tool_response>",
    ]
)


@st.composite
def records(draw):
    """Raw or clean; most are nearly good, so that the late stages see work."""
    good = draw(st.booleans())
    turns, results, question = readable_turns, st.just(observation()), "Where?"
    if not good:
        turns |= st.sampled_from(ODD_TURNS)
        results = observations
        question = draw(st.sampled_from(["Where?", "Which city?", " ", "<tool_response>"]))
    contents = [question]
    for _ in range(draw(st.integers(0, 6))):
        contents += [draw(turns), draw(results)]
    contents.append(draw(st.just(answer_of()) | st.sampled_from([turn for turn, _ in FINALS])))

    record = draw(st.sampled_from([conversation, raw]))(*contents)
    damage = 4 if good else draw(st.integers(0, 9))
    position = draw(st.integers(0, len(record["messages"]) - 1))
    if damage == 0:
        odd = [None, "text", {}, {"role": "tool", "content": "x"}, {"role": "user"}]
        record["messages"][position] = draw(st.sampled_from(odd))
    elif damage == 1:
        record["messages"].pop(position)
    elif damage == 2:
        record.pop(draw(st.sampled_from(sorted(record))))
    elif damage == 3:
        record["messages"] = draw(st.none() | st.text() | st.just([]))
    return record
