"""JSON as language models write it: what strict JSON refuses of it, read as a little of JSON5.

Beyond JSON these are read: 'single quotes', keys without quotes, a comma after the last item,
// and /* comments */. A backslash before a character that needs none is dropped, as in 'it\\'s'.
Like JSON5 it refuses a line end inside a string and a missing comma. The text is cut into tokens
once, from left to right, so hostile text costs linear time.
"""

import json
import re

TOKEN = re.compile(r"""
      (?P<space>   [\s\ufeff]+ | //[^\n\r\u2028\u2029]* | /\*.*?\*/ )
    | (?P<string>  "(?:[^"\\\n\r]|\\.)*" | '(?:[^'\\\n\r]|\\.)*' )
    | (?P<open>    ["'/].* )                 # a string or a comment that is not closed
    | (?P<other>   [\w$.+-]+ | . )           # a number, a name, a sign
    """, re.VERBOSE | re.DOTALL)
# What a string must spell otherwise: a double quote, and escapes that mean the character itself.
ESCAPE = re.compile(r'(?P<quote>")|\\(?P<itself>[^"\\/bfnrtuvx0-9\n\r])|\\.', re.DOTALL)


def loads(text: str):
    """The value of `text`; a ValueError if it cannot be repaired."""
    try:
        return json.loads(as_strict_json(text), strict=False)         # strings may have tabs
    except RecursionError as error:
        raise ValueError(str(error)) from None


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
