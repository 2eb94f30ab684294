"""The frame of every page, and the elements that pages are made of: text and numbers in, HTML out.

Only `el` makes markup. Every other string is text that models and web pages may have written: it is
escaped where it enters an element or an attribute. A page is one file without scripts, and also
well-formed XML. Its content security policy allows its own style by hash and nothing else, so that
even a mistake in the escaping could neither run nor load anything.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

# characters that neither HTML nor XML can hold
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="{policy}"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{title}</title>
<style>{style}</style>
</head>
<body>
"""


class Html(str):
    """Markup, as opposed to text."""


Content = str | None | Iterable["Content"]      # markup, text, nothing, or several of them
Pairs = Iterable[tuple[str, str]]


def el(tag: str, *children: Content, **attributes) -> Html:
    """An element. `class_` stands for class and `_` for `-`; an attribute of None is left out."""
    named = ""
    for name, value in attributes.items():
        if value is not None:
            name = name.rstrip("_").replace("_", "-")
            named += f' {name}="{text(str(value))}"'
    return Html(f"<{tag}{named}>{html(children)}</{tag}>")


def html(content: Content) -> Html:
    if content is None:
        return Html()
    if isinstance(content, Html):
        return content
    if isinstance(content, str):
        return text(content)
    return Html("".join(map(html, content)))


def text(value: str) -> Html:
    """Untrusted text, escaped for an element or a quoted attribute."""
    safe = UNSAFE.sub("\ufffd", value.replace("\r\n", "\n"))
    return Html(escape(safe))


def page(title: str, parts: Content, lede: str, facts: Pairs, kind: str) -> str:
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    policy = f"default-src 'none'; style-src '{digest(style)}'; base-uri 'none'; form-action 'none'"
    head = HEAD.format(policy=policy, title=text(title), style=style)
    top = el(
        "header",
        el("p", kind, class_="kind"),
        el("h1", title),
        el("p", lede, class_="lede"),
        pairs(facts),
    )
    return f"{head}{top}\n{el('main', parts)}\n</body>\n</html>\n"


def digest(content: str) -> str:
    hashed = hashlib.sha256(content.encode()).digest()
    return "sha256-" + base64.b64encode(hashed).decode()


# ----------------------------------------------------------------------------------------- elements


def section(title: str, parts: Content, intro: str = "") -> Html:
    """A heading, a sentence of introduction, and the content."""
    return el("section", el("h2", title), el("p", intro, class_="intro"), parts)


def details(summary: Content, *content: Content, class_: str, is_open: bool = False) -> Html:
    """A summary line that shows and hides its content when it is clicked."""
    shown = "open" if is_open else None
    return el("details", el("summary", summary), content, class_=class_, open=shown)


def pairs(listed: Pairs, class_: str = "facts") -> Html:
    """A list of names and values."""
    rows = []
    for name, value in listed:
        rows.append(el("div", el("dt", name), el("dd", value)))
    return el("dl", rows, class_=class_)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> Html:
    """The first column is aligned to the left, the others to the right."""
    columns = [el("th", cell, scope="col") for cell in head]
    body = []
    for first, *others in rows:
        cells = [el("td", cell) for cell in others]
        body.append(el("tr", el("th", first, scope="row"), cells))
    content = el(
        "table",
        el("caption", caption),
        el("thead", el("tr", columns)),
        el("tbody", body),
    )
    return el("div", content, class_="scroll", tabindex="0")


def figure(svg: Content, caption: Content = None) -> Html:
    """A plot of curves.py with its caption."""
    return el("figure", svg, el("figcaption", caption))


def figures(several: Content) -> Html:
    """Side by side where there is room."""
    return el("div", several, class_="figures")
