"""How much of long texts a page holds: all of an ordinary rollout; of what is longer the beginning and the end.

A page of one rollout stays under 2 MB, so that it opens at once and can be sent to somebody. Bytes are counted as they stand in
the page's data: a text full of `<` takes six times its length there.
"""

from minvenus.report.page import embedded_size

TEXT, TEXT_OF_ALL = 1_000_000, 6_000_000          # bytes of the texts of one rollout, and of all rollouts of a page
TOKENS, TOKENS_OF_ALL = 500_000, 3_000_000        # bytes of their tokens
FIELDS = ("observation", "thought", "call", "answer", "raw", "unread")


def share(one: int, of_all: int, rollouts: int) -> int:
    return min(one, of_all // max(1, rollouts))


def cut_texts(turns: list[dict], room: int) -> int:
    """Shorten the longest texts of a rollout's turns, in place, until all fit into `room` bytes. How many had to be."""
    places = [(turn, name, embedded_size(turn[name])) for turn in turns for name in FIELDS if turn[name]]
    limit = level([size for _, _, size in places], room)
    long = [(turn, name) for turn, name, size in places if size > limit]
    for turn, name in long:
        turn[name] = shortened(turn[name], limit)
    return len(long)


def level(sizes: list[int], room: int) -> int:
    """The size to which the largest have to come down so that all together take `room`."""
    left = room
    for i, size in enumerate(sorted(sizes)):
        if size * (len(sizes) - i) > left:
            return left // (len(sizes) - i)
        left -= size
    return max(sizes, default=0)


def shortened(text: str, limit: int) -> str:
    """Its first and last characters, and how many are missing between them; no more than `limit` bytes in a page, or almost."""
    keep = len(text) * limit // embedded_size(text)
    while True:
        head, tail = text[:keep * 3 // 4], text[len(text) - keep // 4:]
        result = f"{head}\n[... {len(text) - len(head) - len(tail):,} characters are left out here ...]\n{tail}"
        if keep < 8 or embedded_size(result) <= limit:
            return result
        keep = keep * 7 // 8
