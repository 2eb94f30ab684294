"""Tagged blocks in raw text, `<tag> body </tag>`, whatever the case of the tag's letters. Linear time on any text; a non-greedy
regex would take quadratic time on many openings without a close. Knows no roles and no tools."""

import re
from dataclasses import dataclass

NAMES = ("think", "answer", "summary", "tool_call", "tool_response")
OPEN = {name: re.compile(f"<{name}>", re.IGNORECASE) for name in NAMES}
CLOSE = {name: re.compile(f"</{name}>", re.IGNORECASE) for name in NAMES}
ANY = re.compile(f"</?(?:{'|'.join(NAMES)})>", re.IGNORECASE)


@dataclass(frozen=True)
class Block:
    start: int      # of the opening tag
    end: int        # behind the closing tag
    body: str


def first_block(text: str, name: str, start: int = 0) -> Block | None:
    """From the first opening at or after `start` to the first close behind it."""
    opening = OPEN[name].search(text, start)
    closing = CLOSE[name].search(text, opening.end()) if opening else None
    return Block(opening.start(), closing.end(), text[opening.end():closing.start()]) if opening and closing else None


def all_blocks(text: str, name: str) -> list[Block]:
    found, block = [], first_block(text, name)
    while block:
        found.append(block)
        block = first_block(text, name, block.end)
    return found


def innermost_last(text: str, name: str) -> str | None:
    """The body behind the last opening that is closed at all: of `<answer> a <answer> b </answer>` it is b."""
    closes = [match.start() for match in CLOSE[name].finditer(text)]
    opens = [match.end() for match in OPEN[name].finditer(text, 0, closes[-1])] if closes else []
    if not opens:
        return None
    return text[opens[-1]:min(close for close in closes if close >= opens[-1])]


def without_blocks(text: str, name: str) -> str:
    """The text with every complete block of this name cut out."""
    kept, end = [], 0
    for block in all_blocks(text, name):
        kept.append(text[end:block.start])
        end = block.end
    return "".join([*kept, text[end:]])


def without_tags(text: str) -> str:
    """The text without any of the five tags; what they enclosed stays."""
    return ANY.sub("", text)
