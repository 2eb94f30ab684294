"""Which visits of a rollout opened a right page of its question, where these pages are known."""

from minvenus.types import Rollout, Turn

Label = tuple[str, int]              # kind and hop


def visit_labels(rollout: Rollout, right_pages: list[str]) -> list[list[Label]]:
    """Per turn, (kind, hop) of each page that it visited; kinds are right, wrong, repeated, failed,
    and hop 1 is the first of the right pages. A right page counts at its own hop, every other visit
    at the first hop whose page has not been read yet."""
    read: set[str] = set()
    labels: list[list[Label]] = []
    for turn in rollout.turns:
        turn_labels = []
        for url, shown in visited_pages(turn):
            unread = [page for page in right_pages if page not in read]
            hop_page = unread[0] if unread else right_pages[-1]
            if not shown:
                kind = "failed"
            elif url in read:
                kind = "repeated"
            elif url in right_pages:
                kind = "right"
                hop_page = url
            else:
                kind = "wrong"
            turn_labels.append((kind, right_pages.index(hop_page) + 1))
            if shown:
                read.add(url)
        labels.append(turn_labels)
    return labels


def visited_pages(turn: Turn) -> list[tuple[str, bool]]:
    """(address, whether it was shown) of each page that a turn asked for. A page that is shown
    begins with its address, then a blank, a full stop or the end of the line; a page that could not
    be opened, or for which there was no room, does not appear."""
    urls = turn.tool["arguments"].get("url", []) if turn.tool else []
    starts = [f"{line} " for line in (turn.observation or "").splitlines()]
    pages = []
    for url in map(str.strip, urls):
        shown = any(start.startswith((f"{url} ", f"{url}.")) for start in starts)
        pages.append((url, shown))
    return pages
