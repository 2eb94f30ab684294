"""The lenient JSON reader: equal to the json module on JSON, JSON5's freedoms one by one, and cheap on hostile text."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.text.json_repair import LenientJSONError, loads

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(), v, max_size=4), max_leaves=20
)


# ---------------------------------------------------------------------------------------------------------- strict JSON

REPAIR = " // a comment, so that the text is no strict JSON"


@given(values, st.booleans(), st.sampled_from([None, 0, 2, "\t"]))
def test_all_json_is_read_like_the_json_module_reads_it_with_and_without_repair(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert loads(text + REPAIR) == loads(text) == json.loads(text) == value


@given(st.integers() | st.floats(allow_nan=False))
def test_numbers_keep_their_type(number):
    parsed = loads(json.dumps(number) + REPAIR)
    assert type(parsed) is type(number) and parsed == number


@pytest.mark.parametrize("text", ['"\\ud83d\\ude00"', '"\\ud83d"', '"\\ude00\\ud83d"', '"\\u00e9\\/\\b\\f\\n\\r\\t"',
                                  '"it\'s"', "-0.5e+3", "1e5", "2E-3", "-0", " [ ] ", "{}", "[Infinity, -Infinity]"])
def test_the_corners_of_json_agree_with_the_json_module(text):
    assert loads(text + REPAIR) == json.loads(text)


def test_of_two_equal_keys_the_last_one_wins():
    assert loads('{"a": 1, a: 2, \'a\': 3}') == {"a": 3}
    assert loads('{"a": 1, "a": 2}') == json.loads('{"a": 1, "a": 2}') == {"a": 2}


# ---------------------------------------------------------------------------------------------------- JSON5's freedoms


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
    assert loads(text) == value


@pytest.mark.parametrize("text, message", [
    ("", "Expecting value at character 1"),
    ("// only a comment", "Expecting value at character 18"),
    ("[,]", "Expecting value at character 2"),
    ("[1,,]", "Expecting value at character 4"),
    ("{,}", "Expecting property name enclosed in double quotes at character 2"),
    ("{a: 1,,}", "Expecting property name enclosed in double quotes at character 7"),
    ("{-a: 1}", "'-a' at character 2 is neither a value nor a key"),
    ("{1a: 1}", "Expecting property name enclosed in double quotes at character 2"),
    ("{a 1}", "'a' at character 2 is neither a value nor a key"),
    ("{'a' 1}", "Expecting ':' delimiter at character 6"),
    ("{a:}", "Expecting value at character 4"),
    ("[a: 1]", "Expecting ',' delimiter at character 3"),
    ("[1 2]", "Expecting ',' delimiter at character 4"),
    ("{a: 1 b: 2}", "Expecting ',' delimiter at character 7"),
    ("[1}", "Expecting ',' delimiter at character 3"),
    ("[1,}", "Expecting ',' delimiter at character 4"),
    ("{a: [1, 2", "Expecting ',' delimiter at character 10"),
    ("{} {}", "Extra data at character 4"),
    ("{},", "Extra data at character 3"),
    (",}", "Expecting value at character 1"),
    ("01", "Extra data at character 2"),
    ("0x10", "'x10' at character 2 is neither a value nor a key"),
    (".5", "cannot read '.5' at character 1"),
    ("+1", "cannot read '+1' at character 1"),
    ("- 1", "cannot read '- 1' at character 1"),
    ("5.", "cannot read '.' at character 2"),
    ("True", "'True' at character 1 is neither a value nor a key; write strings in quotes"),
    ("'open", "the string that starts at character 1 is not closed on its line"),
    ("['two\nlines']", "the string that starts at character 2 is not closed on its line"),
    ("'mixed\"", "the string that starts at character 1 is not closed on its line; close it with '"),
    ("'\\u12g4'", "the escape \\u is incomplete"),
    ("'\\x4'", "the escape \\x is incomplete"),
    ("'\\1'", "the escape \\1 is incomplete or unknown"),
    ("'\\", "the string that starts at character 1 is not closed"),
    ("[1 /* open", "cannot read '/* open' at character 4"),
    ("[1] / 2", "cannot read '/ 2' at character 5"),
    ("9" * 5000, "5000 digits"),
])
def test_errors_say_what_is_wrong_and_where(text, message):
    with pytest.raises(LenientJSONError) as caught:
        loads(text)
    assert message in str(caught.value)


# --------------------------------------------------------------------------------------------------- widened by chance


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


# -------------------------------------------------------------------------------------------------------- hostile text


@pytest.mark.parametrize("depth, works", [(100, True), (100_000, False)])
def test_deep_nesting_is_a_value_or_an_error_and_never_a_crash(depth, works):
    text = "[" * depth + "'x'" + "]" * depth
    if not works:
        with pytest.raises(LenientJSONError, match="nested too deeply"):
            loads(text)
        return
    value = loads(text)
    for _ in range(depth):
        (value,) = value
    assert value == "x"


@pytest.mark.parametrize("piece", ["[", "{a:", "{'a':[", "/*", "/**/", "//\n", "'\\", "\\u12",
                                   '"', "'a',", "1,", " ", "9", "a", "-", "\\\n"])
@pytest.mark.parametrize("start", ["", "[", "'", "/*"])
def test_a_hundred_kilobytes_of_soup_take_linear_time(start, piece):
    begin = time.process_time()
    with pytest.raises(LenientJSONError):
        loads(start + piece * (100_000 // len(piece)))
    assert time.process_time() - begin < 2.0    # linear: about 0.2 s at worst; quadratic: minutes
