"""The lenient JSON reader: JSON as the json module reads it, JSON5's freedoms, linear time."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.text.json_repair import loads

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars,
    lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(), v, max_size=4),
    max_leaves=20,
)


@given(values, st.booleans(), st.sampled_from([None, 0, 2, "\t"]))
def test_all_json_is_read_like_the_json_module_reads_it(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert loads(text) == value
    assert json.dumps(loads(text)) == json.dumps(value), "1 stays an int, 1.0 a float"


@pytest.mark.parametrize(
    "text",
    ['"\\ude00\\ud83d"', '"\\u00e9\\/\\b\\f\\n\\r\\t"', "-0.5e+3", "2E-3", "[Infinity, -Infinity]"],
)
def test_the_corners_of_json_agree_with_the_json_module(text):
    assert loads(text) == json.loads(text)


@pytest.mark.parametrize(
    "text, value",
    [
        ("{'name': 'search'}", {"name": "search"}),
        ("'say \"hi\"'", 'say "hi"'),
        ("'it\\'s \\$5, a \\\\\" b'", "it's $5, a \\\" b"),
        ("{name: 1, $b_2: 2, été: 3, 名: 4}", {"name": 1, "$b_2": 2, "été": 3, "名": 4}),
        ("{true: 1, null: 2, NaN: 3}", {"true": 1, "null": 2, "NaN": 3}),
        ("[1, 2,]", [1, 2]),
        ("{a: [1,], }", {"a": [1]}),
        ("// before\n{a: 1 /* inside */, // behind\n b: 2} // at the end", {"a": 1, "b": 2}),
        ("/**/[/* * / */]/***/", []),
        ("{url: 'http://x.org/*not a comment*/'}", {"url": "http://x.org/*not a comment*/"}),
        ("'a\tb'", "a\tb"),
        ("\ufeff\u00a0{}\u2028", {}),
        ("{\"a\": 1, a: 2, 'a': 3}", {"a": 3}),  # of equal keys the last one
    ],
)
def test_json5_freedoms(text, value):
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    assert loads(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "// only a comment",
        "[,]",
        "[1,,]",
        "{,}",
        "{a: 1,,}",
        "{-a: 1}",
        "{1a: 1}",
        "{a 1}",
        "{'a' 1}",
        "{a:}",
        "[a: 1]",
        "[1 2]",
        "{a: 1 b: 2}",
        "[1}",
        "[1,}",
        "{a: [1, 2",
        "{} {}",
        "{},",
        ",}",
        "01",
        "0x10",
        ".5",
        "+1",
        "- 1",
        "5.",
        "True",
        "search Rome",
        "'open",
        "['two\nlines']",
        "'mixed\"",
        "'\\u12g4'",
        "'\\x41'",
        "'\\v'",
        "'\\1'",
        "'\\",
        "'one \\\nline'",
        "[1 /* open",
        "[1] / 2",
        "9" * 5000,
    ],
)
def test_everything_else_is_refused(text):
    with pytest.raises(ValueError):
        loads(text)


# -------------------------------------------------------------------------------- widened by chance


PIECES = [*"{}[]:,'\"\\/* \n-+.019aeEu$", "//", "/*", "*/", "\\u", "\\x", "true", "null"]


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text())
def test_any_text_gives_a_value_or_a_value_error(text):
    try:
        value = loads(text)
    except ValueError:
        return
    assert value is None or isinstance(value, (bool, int, float, str, list, dict))


@pytest.mark.parametrize(
    "piece", ["[", "{a:", "{'a':[", "/*", "//\n", "'\\", "\\u12", '"', "1,", " ", "9", "a", "\\\n"]
)
@pytest.mark.parametrize("start", ["", "[", "'", "/*"])
def test_a_hundred_kilobytes_of_soup_take_linear_time_and_end_in_a_value_error(start, piece):
    begin = time.process_time()
    with pytest.raises(ValueError):
        loads(start + piece * (100_000 // len(piece)))
    assert time.process_time() - begin < 2.0  # linear: about 0.2 s at worst; quadratic: minutes


