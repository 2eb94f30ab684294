"""JSON as language models write it: strict JSON first, then a small subset of JSON5.

Beyond JSON the subset has
    strings in 'single quotes', with JSON5's escapes (\\' \\v \\0 \\xHH, a backslash before a line end)
    keys without quotes: letters, digits, _ and $, not starting with a digit
    one comma after the last item of a list or an object
    // comments to the end of the line and /* comments */
Like JSON5 it refuses a line end inside a string and a missing comma. Hexadecimal numbers, `+1`, `.5` and `5.` are left out: no
tool takes a number. Of two equal keys the last one wins, as in the json module.

The parser never looks at a character more than a constant number of times, and nesting is limited, so a hostile text costs
linear time and a bounded stack. This file knows nothing of tools or tags.
"""

import json
import re
from typing import NoReturn

MAX_DEPTH = 64    # a tool call needs 3; the limit keeps recursion far from Python's own

SPACE = re.compile(r"[\s\ufeff]*")
LINE = re.compile(r"[^\n\r\u2028\u2029]*")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
WORD = re.compile(r"-?[^\W\d][\w$]*|\$[\w$]*")
PLAIN = {'"': re.compile(r'[^"\\\n\r]*'), "'": re.compile(r"[^'\\\n\r]*")}
HEX = {"u": re.compile(r"[0-9a-fA-F]{4}"), "x": re.compile(r"[0-9a-fA-F]{2}")}
ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0",
           "\n": "", "\r": "", "\u2028": "", "\u2029": ""}
LITERALS = {"true": True, "false": False, "null": None,
            "NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class LenientJSONError(ValueError):
    """Not JSON, even leniently read; the message says what was expected and at which character."""


def loads(text: str):
    """The value of `text`. Strict JSON gives exactly what the json module gives; anything else is read leniently or refused."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):    # also an integer of thousands of digits, which is no JSONDecodeError
        return parse(text)


def parse(text: str):
    """The value of `text` by the lenient rules alone."""
    value, i = parse_value(text, skip(text, 0), depth=0)
    i = skip(text, i)
    if i < len(text):
        fail("the end", text, i)
    return value


def fail(expected: str, text: str, i: int) -> NoReturn:
    found = repr(text[i]) if i < len(text) else "the end"
    raise LenientJSONError(f"expected {expected} at character {i + 1}, found {found}")


def end_of(pattern: re.Pattern, text: str, i: int) -> int:
    """Where the longest run of a pattern ends; the pattern may match nothing, so there always is one."""
    match = pattern.match(text, i)
    assert match
    return match.end()


def skip(text: str, i: int) -> int:
    """The first position at or after `i` that is neither white space nor inside a comment."""
    while True:
        i = end_of(SPACE, text, i)
        if text.startswith("//", i):
            i = end_of(LINE, text, i)
        elif text.startswith("/*", i):
            end = text.find("*/", i + 2)
            if end < 0:
                raise LenientJSONError(f"the comment that starts at character {i + 1} is never closed with */")
            i = end + 2
        else:
            return i


# Every function below takes the position where its piece starts and returns (value, position after the piece).


def parse_value(text: str, i: int, depth: int):
    if depth > MAX_DEPTH:
        raise LenientJSONError(f"nested deeper than {MAX_DEPTH} levels at character {i + 1}")
    start = text[i:i + 1]
    if start == "{":
        return parse_object(text, i, depth)
    if start == "[":
        return parse_list(text, i, depth)
    if start and start in PLAIN:
        return parse_string(text, i)
    number = NUMBER.match(text, i)
    if number:
        return to_number(number), number.end()
    word = WORD.match(text, i)
    if word and word[0] in LITERALS:
        return LITERALS[word[0]], word.end()
    fail("a value", text, i)


def parse_object(text: str, i: int, depth: int):
    items = {}
    i = skip(text, i + 1)
    while not text.startswith("}", i):
        key, i = parse_key(text, i)
        i = skip(text, i)
        if not text.startswith(":", i):
            fail(f"':' after the key {key[:40]!r}", text, i)
        items[key], i = parse_value(text, skip(text, i + 1), depth + 1)
        i = after_item(text, i, "}")
    return items, i + 1


def parse_list(text: str, i: int, depth: int):
    items = []
    i = skip(text, i + 1)
    while not text.startswith("]", i):
        value, i = parse_value(text, i, depth + 1)
        items.append(value)
        i = after_item(text, i, "]")
    return items, i + 1


def after_item(text: str, i: int, close: str) -> int:
    """Step over the comma behind an item, or stay at the closing bracket."""
    i = skip(text, i)
    if text.startswith(",", i):
        return skip(text, i + 1)
    if not text.startswith(close, i):
        fail(f"',' or '{close}'", text, i)
    return i


def parse_key(text: str, i: int):
    if text[i:i + 1] in ('"', "'"):
        return parse_string(text, i)
    word = WORD.match(text, i)
    if not word or word[0].startswith("-"):
        fail("a key or '}'", text, i)
    return word[0], word.end()


def parse_string(text: str, i: int):
    quote, pieces, opened = text[i], [], i
    i += 1
    while True:
        end = end_of(PLAIN[quote], text, i)
        pieces.append(text[i:end])
        i = end
        if text.startswith(quote, i):
            return join_surrogates("".join(pieces)), i + 1
        if not text.startswith("\\", i):
            raise LenientJSONError(f"the string that starts at character {opened + 1} is not closed on its line; "
                                   f"close it with {quote} and write a line end as \\n")
        piece, i = parse_escape(text, i + 1)
        pieces.append(piece)


def parse_escape(text: str, i: int):
    """What a backslash stands for; `i` is the position after it."""
    char = text[i:i + 1]
    if char in HEX:
        digits = HEX[char].match(text, i + 1)
        if not digits:
            fail(f"{4 if char == 'u' else 2} hexadecimal digits after \\{char}", text, i + 1)
        return chr(int(digits[0], 16)), digits.end()
    if text.startswith("\r\n", i):
        return "", i + 2
    if not char or char in "123456789":
        fail("an escape", text, i)
    return ESCAPES.get(char, char), i + 1


def join_surrogates(string: str) -> str:
    """Two halves of a character written as \\uD83D\\uDE00 become the character; a lone half stays, as in the json module."""
    if not any("\ud800" <= char <= "\udfff" for char in string):
        return string
    return string.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def to_number(number: re.Match) -> int | float:
    if number[1] or number[2]:
        return float(number[0])
    try:
        return int(number[0])
    except ValueError:    # Python refuses to read thousands of digits, because that takes quadratic time
        raise LenientJSONError(f"a number of {len(number[0])} digits at character {number.start() + 1} is too long") from None
