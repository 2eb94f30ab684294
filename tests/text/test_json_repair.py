"""The lenient JSON reader: equal to the json module on JSON, JSON5's freedoms one by one, and cheap on hostile text."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.text.json_repair import MAX_DEPTH, LenientJSONError, loads, parse

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(), v, max_size=4), max_leaves=20)


# ---------------------------------------------------------------------------------------------------------- strict JSON


@given(values, st.booleans(), st.sampled_from([None, 0, 2, "\t"]))
def test_the_hand_written_parser_reads_all_json_like_the_json_module(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert parse(text) == json.loads(text) == value
    assert loads(text) == value


@given(st.integers() | st.floats(allow_nan=False))
def test_numbers_keep_their_type(number):
    parsed = parse(json.dumps(number))
    assert type(parsed) is type(number) and parsed == number


@pytest.mark.parametrize("text", ['"\\ud83d\\ude00"', '"\\ud83d"', '"\\ude00\\ud83d"', '"\\u00e9\\/\\b\\f\\n\\r\\t"', '"it\'s"',
                                  "-0.5e+3", "1e5", "2E-3", "-0", " [ ] ", "{}", "[Infinity, -Infinity]"])
def test_the_corners_of_json_agree_with_the_json_module(text):
    assert parse(text) == json.loads(text)


def test_of_two_equal_keys_the_last_one_wins():
    assert parse('{"a": 1, a: 2, \'a\': 3}') == {"a": 3}
    assert loads('{"a": 1, "a": 2}') == json.loads('{"a": 1, "a": 2}') == {"a": 2}


# ------------------------------------------------------------------------------------------------------- JSON5's freedoms


@pytest.mark.parametrize("text, value", [
    ("{'name': 'search'}", {"name": "search"}),
    ("'say \"hi\"'", 'say "hi"'),
    ("'it\\'s'", "it's"),
    ("{name: 1, $b_2: 2, été: 3, 名: 4}", {"name": 1, "$b_2": 2, "été": 3, "名": 4}),
    ("{true: 1, null: 2, NaN: 3}", {"true": 1, "null": 2, "NaN": 3}),
    ("[1, 2,]", [1, 2]),
    ("{a: [1,], }", {"a": [1]}),
    ("// before\n{a: 1 /* inside */, // behind\n b: 2} // at the end", {"a": 1, "b": 2}),
    ("/**/[/* * / */]/***/", []),
    ("{url: 'http://x.org/*not a comment*/'}", {"url": "http://x.org/*not a comment*/"}),
    ("'\\x41\\v\\0\\q'", "A\v\0q"),
    ("'one \\\nline \\\r\nonly'", "one line only"),
    ("'a\tb'", "a\tb"),
    ("\ufeff\u00a0{}\u2028", {}),
])
def test_json5_freedoms(text, value):
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    assert parse(text) == loads(text) == value


@pytest.mark.parametrize("text, message", [
    ("", "expected a value at character 1, found the end"),
    ("// only a comment", "expected a value at character 18, found the end"),
    ("[,]", "expected a value at character 2, found ','"),
    ("[1,,]", "expected a value at character 4, found ','"),
    ("{,}", "expected a key or '}' at character 2, found ','"),
    ("{a: 1,,}", "expected a key or '}' at character 7, found ','"),
    ("{-a: 1}", "expected a key or '}' at character 2, found '-'"),
    ("{1a: 1}", "expected a key or '}' at character 2, found '1'"),
    ("{a 1}", "expected ':' after the key 'a' at character 4, found '1'"),
    ("{a:}", "expected a value at character 4, found '}'"),
    ("[1 2]", "expected ',' or ']' at character 4, found '2'"),
    ("{a: 1 b: 2}", "expected ',' or '}' at character 7, found 'b'"),
    ("[1}", "expected ',' or ']' at character 3, found '}'"),
    ("{a: [1, 2", "expected ',' or ']' at character 10, found the end"),
    ("{} {}", "expected the end at character 4, found '{'"),
    ("01", "expected the end at character 2, found '1'"),
    ("0x10", "expected the end at character 2, found 'x'"),
    (".5", "expected a value at character 1, found '.'"),
    ("True", "expected a value at character 1, found 'T'"),
    ("'open", "the string that starts at character 1 is not closed on its line"),
    ("['two\nlines']", "the string that starts at character 2 is not closed on its line"),
    ("'mixed\"", "the string that starts at character 1 is not closed on its line"),
    ("'\\u12g4'", "expected 4 hexadecimal digits after \\u at character 4, found '1'"),
    ("'\\x4'", "expected 2 hexadecimal digits after \\x at character 4, found '4'"),
    ("'\\1'", "expected an escape at character 3, found '1'"),
    ("'\\", "expected an escape at character 3, found the end"),
    ("[1 /* open", "the comment that starts at character 4 is never closed"),
    ("[1] / 2", "expected the end at character 5, found '/'"),
    ("9" * 5000, "a number of 5000 digits at character 1 is too long"),
])
def test_errors_say_what_was_expected_and_where(text, message):
    with pytest.raises(LenientJSONError) as caught:
        loads(text)
    assert message in str(caught.value)


# ------------------------------------------------------------------------------------------------------ widened by chance


def write_json5(value, draw) -> str:
    """Spell a value with the freedoms drawn at random."""
    gap = draw(st.sampled_from(["", " ", "\n", "/* , } */", "// ] '\n"]))
    if isinstance(value, dict):
        items = [write_key(k, draw) + gap + ":" + write_json5(v, draw) for k, v in value.items()]
        return gap + "{" + ",".join(items) + draw(st.sampled_from(["", ","] if items else [""])) + gap + "}"
    if isinstance(value, list):
        items = [write_json5(v, draw) for v in value]
        return gap + "[" + ",".join(items) + draw(st.sampled_from(["", ","] if items else [""])) + gap + "]"
    return gap + (write_string(value, draw) if isinstance(value, str) else json.dumps(value)) + gap


def write_key(key, draw) -> str:
    bare = key.isascii() and key.isidentifier()
    return key if bare and draw(st.booleans()) else write_string(key, draw)


def write_string(string, draw) -> str:
    if draw(st.booleans()):
        return json.dumps(string)
    return "'" + json.dumps(string)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"


@given(values, st.data())
def test_every_mixture_of_freedoms_spells_the_same_value(value, data):
    assert loads(write_json5(value, data.draw)) == value


PIECES = [*"{}[]:,'\"\\/* \n-+.019aeEu$", "//", "/*", "*/", "\\u", "\\x", "true", "null"]
soup = st.lists(st.sampled_from(PIECES), max_size=40)


@given(soup.map("".join) | st.text())
def test_any_text_gives_a_value_or_a_lenient_json_error(text):
    try:
        value = loads(text)
    except LenientJSONError:
        return
    assert value is None or isinstance(value, (bool, int, float, str, list, dict))


# ---------------------------------------------------------------------------------------------------------- hostile text


def test_nesting_is_read_to_the_limit_and_refused_beyond_it():
    nested = "[" * MAX_DEPTH + "'x'" + "]" * MAX_DEPTH
    value = parse(nested)
    for _ in range(MAX_DEPTH):
        (value,) = value
    assert value == "x"
    with pytest.raises(LenientJSONError, match=f"nested deeper than {MAX_DEPTH} levels at character {MAX_DEPTH + 2}"):
        parse("[" + nested + "]")


@pytest.mark.parametrize("piece", ["[", "{a:", "{'a':[", "/*", "/**/", "//\n", "'\\", "\\u12",
                                   '"', "'a',", "1,", " ", "9", "a", "-", "\\\n"])
@pytest.mark.parametrize("start", ["", "[", "'", "/*"])
def test_a_hundred_kilobytes_of_soup_take_linear_time(start, piece):
    begin = time.process_time()
    with pytest.raises(LenientJSONError):
        loads(start + piece * (100_000 // len(piece)))
    assert time.process_time() - begin < 2.0    # linear: about 0.2 s at worst; quadratic: minutes
