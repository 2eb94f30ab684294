"""JSON as language models write it: strict JSON first, then a small subset of JSON5, rewritten as strict JSON.

Beyond JSON the subset has
    strings in 'single quotes', with JSON5's escapes (\\' \\v \\0 \\xHH, a backslash before a line end)
    keys without quotes: letters, digits, _ and $, not starting with a digit
    one comma after the last item of a list or an object
    // comments to the end of the line and /* comments */
Like JSON5 it refuses a line end inside a string and a missing comma. Hexadecimal numbers, `+1`, `.5` and `5.` are left
out: no tool takes a number. The text is cut into tokens once, from left to right, so hostile text costs linear time.
"""

import json
import re
from bisect import bisect_right

TOKEN = re.compile(r"""
      (?P<space>   [\s\ufeff]+ | //[^\n\r\u2028\u2029]* | /\*.*?\*/ )
    | (?P<string>  "[^"\\\n\r]*(?:\\(?:\r\n|.)[^"\\\n\r]*)*" | '[^'\\\n\r]*(?:\\(?:\r\n|.)[^'\\\n\r]*)*' )
    | (?P<number>  -?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)? )
    | (?P<word>    -?[^\W\d][\w$]* | \$[\w$]* )
    | (?P<sign>    [][{}:,] )
    """, re.VERBOSE | re.DOTALL)
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(\r\n|.))", re.DOTALL)
ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0",
           "\n": "", "\r": "", "\r\n": "", "\u2028": "", "\u2029": ""}
LITERALS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")


class LenientJSONError(ValueError):
    """Not JSON, even leniently read; the message says what is wrong and at which character."""


def loads(text: str):
    """The value of `text`. Strict JSON gives what the json module gives; other text is repaired or refused."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):                     # not strict JSON
        pass
    pieces, places = strict_pieces(split_tokens(text))
    try:
        return json.loads("".join(pieces))
    except json.JSONDecodeError as error:
        ends = [0]
        for piece in pieces:
            ends.append(ends[-1] + len(piece))
        place = [*places, len(text)][bisect_right(ends, error.pos) - 1]
        raise LenientJSONError(f"{error.msg} at character {place + 1}") from None
    except RecursionError:
        raise LenientJSONError("nested too deeply") from None
    except ValueError as error:                              # a whole number with thousands of digits
        raise LenientJSONError(str(error)) from None


def split_tokens(text: str) -> list[tuple[str, str, int]]:
    """(kind, text, position) of every token; white space and comments are left out."""
    tokens, position = [], 0
    while position < len(text):
        token = TOKEN.match(text, position)
        if token is None and text[position] in "\"'":
            raise LenientJSONError(f"the string that starts at character {position + 1} is not closed on its line; "
                                   f"close it with {text[position]} and write a line end as \\n")
        if token is None:
            raise LenientJSONError(f"cannot read {text[position:position + 10]!r} at character {position + 1}")
        if token.lastgroup != "space":
            tokens.append((token.lastgroup or "", token[0], position))
        position = token.end()
    return tokens


def strict_pieces(tokens: list[tuple[str, str, int]]) -> tuple[list[str], list[int]]:
    """The tokens as strict JSON, each with a space after it, and where each one stood in the text."""
    pieces, places = [], []
    for i, (kind, token, position) in enumerate(tokens):
        before = tokens[i - 1][1] if i else ""
        after = tokens[i + 1][1] if i + 1 < len(tokens) else ""
        if token == "," and after in ("]", "}") and before not in ("", "[", "{", ","):
            continue                                         # a comma after the last item
        if kind == "string":
            token = json.dumps(ESCAPE.sub(unescape, token[1:-1]))
        elif kind == "word" and after == ":" and not token.startswith("-"):
            token = json.dumps(token)
        elif kind == "word" and token not in LITERALS:
            raise LenientJSONError(f"{token[:40]!r} at character {position + 1} is neither a value nor a key; "
                                   "write strings in quotes")
        pieces.append(token + " ")
        places.append(position)
    return pieces, places


def unescape(escape: re.Match) -> str:
    code, char = escape[1] or escape[2], escape[3]
    if code:
        return chr(int(code, 16))                            # two halves of a character are joined by json.loads
    if char in "uxX123456789":
        raise LenientJSONError(f"the escape \\{char} is incomplete or unknown")
    return ESCAPES.get(char, char)
