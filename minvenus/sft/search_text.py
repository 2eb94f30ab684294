r"""The printed answer of a search engine, as the JSON that the agent reads.

    A Google search for 'who's who' found 2 results:        [{"query": "who's who",
                                                              "web_page_info_list": [
    ## Web Results
    1. [A [nested] title](https://a.org/x_(y))         ->      {"title": "A [nested] title",
    Date published: 2020-01-01                                  "url": "https://a.org/x_(y)",
    Source: a.org                                               "snippet": "Source: a.org\nsome text"},
    some text                                                  ...]}]

One element per header line. Brackets and parentheses are counted, because both occur inside titles and addresses.
"""

import re

# Greedy, because a query may itself say "found 3 results".
HEADER = re.compile(r"\s*A Google search for (.*) found (?:about )?[\d,]+ results?\b.*", re.IGNORECASE)
RESULTS = re.compile(r"[\W\d]*Web Results[\W\d]*", re.IGNORECASE)      # "## Web Results", "**Web results (10)**:"
NUMBERED = re.compile(r"\s*\d+\.\s*(?=\[)")
DATE = re.compile(r"\s*Date (?:published|updated)\s*:", re.IGNORECASE)
BETWEEN_QUERIES = "======="                                  # the line that separates the answers to several queries
BRACKETS, PARENTHESES = re.compile(r"[\[\]]"), re.compile(r"[()]")
QUOTES = {"'": "'", '"': '"', "‘": "’", "“": "”", "`": "`"}


def parse_search_text(text: str) -> list[dict] | None:
    """The results of each query; None if the text has neither a header line nor a result, so that nothing would be
    left."""
    sections: list[tuple[str, list[str]]] = [("", [])]       # (query, lines), the first before any header line
    for line in text.split("\n"):
        header = HEADER.fullmatch(line)
        if header:
            sections.append((unquoted(header[1].strip()), []))
        else:
            sections[-1][1].append(line)
    found = [{"query": query, "web_page_info_list": results(lines)} for query, lines in sections]
    return found[1:] or (found if found[0]["web_page_info_list"] else None)


def unquoted(query: str) -> str:
    """One pair of quotes goes, not more: 'the dogs'' asks for the dogs'."""
    return query[1:-1].strip() if len(query) >= 2 and QUOTES.get(query[0]) == query[-1] else query


def results(lines: list[str]) -> list[dict]:
    """The numbered results after the line `## Web Results`, or all if there is none. Those without a title or an
    address are left out."""
    begin = next((i + 1 for i, line in enumerate(lines) if RESULTS.fullmatch(line)), 0)
    entries: list[tuple[str, str, list[str]]] = []
    for line in lines[begin:]:
        link = read_link(line)
        if link:
            title, url, rest = link
            entries.append((title, url, [rest]))
        elif entries:
            entries[-1][2].append(line)
    return [{"title": title, "url": url, "snippet": snippet(body)} for title, url, body in entries if title and url]


def snippet(body: list[str]) -> str:
    kept = [line.strip() for line in body if line.strip() and line.strip() != BETWEEN_QUERIES]
    while kept and DATE.match(kept[0]):
        kept.pop(0)
    return "\n".join(kept)


def read_link(line: str) -> tuple[str, str, str] | None:
    """(title, url, the rest) of a line `N. [title](url) rest`, or None."""
    number = NUMBERED.match(line) if "](" in line else None
    if not number:
        return None
    opened = number.end()
    middle = closing(line, opened, BRACKETS)
    if not line.startswith("(", middle + 1):                 # a bracket of the title never closes, or too early
        middle = line.find("](", opened)
    end = closing(line, middle + 1, PARENTHESES)
    if end < 0:
        return None
    return line[opened + 1:middle].strip(), line[middle + 2:end].strip(), line[end + 1:]


def closing(line: str, start: int, pair: re.Pattern) -> int:
    """Where the bracket that opens at `start` closes, inner pairs skipped; -1 if it never does."""
    depth = 0
    for match in pair.finditer(line, start):
        depth += 1 if match[0] in "([" else -1
        if depth == 0:
            return match.start()
    return -1
