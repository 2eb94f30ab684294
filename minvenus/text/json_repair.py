"""JSON as language models write it: strict JSON, or a little of JSON5 rewritten as strict JSON.

Beyond JSON these are read: 'single quotes', keys without quotes, a comma after the last item,
// and /* comments */. A backslash before a character that needs none is dropped, as in 'it\\'s'.
Like JSON5 it refuses a line end inside a string and a missing comma. The text is cut into tokens
once, from left to right, so hostile text costs linear time.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress

TOKEN = re.compile(r"""
      (?P<space>   [\s\ufeff]+ | //[^\n\r\u2028\u2029]* | /\*.*?\*/ )
    | (?P<string>  "(?:[^"\\\n\r]|\\.)*" | '(?:[^'\\\n\r]|\\.)*' )
    | (?P<open>    ["'/].* )                 # a string or a comment that is not closed
    | (?P<other>   [\w$.+-]+ | . )           # a number, a name, a sign
    """, re.VERBOSE | re.DOTALL)
# What a string must spell otherwise: a double quote, and escapes that mean the character itself.
ESCAPE = re.compile(r'(?P<quote>")|\\(?P<itself>[^"\\/bfnrtuvx0-9\n\r])|\\.', re.DOTALL)


def loads(text: str):
    """The value of `text`. Strict JSON gives what the json module gives. A ValueError says why
    strict JSON refuses a text that cannot be repaired."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error)
    try:
        return json.loads(as_strict_json(text), strict=False)         # strings may have tabs
    except (ValueError, RecursionError):
        raise ValueError(reason) from None


def as_strict_json(text: str) -> str:
    pieces: list[str] = []
    for match in TOKEN.finditer(text):
        token = match[0]
        if match["space"]:
            continue
        if match["open"]:
            raise ValueError("not closed")

        if match["string"]:
            token = strict_string(token[1:-1])
        elif token == ":" and pieces and pieces[-1].replace("$", "_").isidentifier():
            pieces[-1] = f'"{pieces[-1]}"'                            # a key without quotes
        elif token in "]}" and pieces[-1:] == [","]:
            item = pieces[-2:-1]
            if item not in ([], ["["], ["{"], [","]):
                pieces.pop()                                          # a comma after the last item
        pieces.append(token)
    return " ".join(pieces)


def strict_string(body: str) -> str:
    """A string with this body, its quotes and needless escapes written as JSON wants them."""
    def strict_escape(match: re.Match) -> str:
        if match["quote"]:
            return '\\"'
        return match["itself"] or match[0]

    return '"' + ESCAPE.sub(strict_escape, body) + '"'


def string_fields(text: str, names: Sequence[str]) -> dict[str, str]:
    """The string values of these keys in an object that `loads` refuses because a string has bare
    quotes or line ends. A value goes from the quote after its key to the last quote before the next
    of these keys. Of equal keys the last one counts."""
    _, *pieces = re.split(rf"""["']?\b({'|'.join(names)})["']?[ \t]*:\s*(?=")""", text)
    fields = {}
    for name, rest in zip(pieces[::2], pieces[1::2], strict=True):
        value = rest[1:].rpartition('"')[0]
        with suppress(ValueError):                            # an escape that JSON does not know
            value = json.loads(strict_string(value), strict=False)
        fields[name] = value
    return fields


def whole_characters(text: str) -> str:
    """Replace lone halves of surrogate pairs by U+FFFD: JSON can spell them, UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
