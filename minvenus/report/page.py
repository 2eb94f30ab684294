"""The shell of every page, and the pieces that pages are made of: text and numbers in, HTML out.

Parameters called `parts`, `svg` or `several` are HTML from these functions, curves.py or a file of this folder.
Everything else is text: models and web pages wrote some of it, and it is escaped here. A page is one
file: its style and script stand in it, and its content security policy allows these two by their hash
and nothing else, so that even a mistake in the escaping could neither run nor load anything.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

# In a script element only < > & could end it or start a comment; U+2028 and U+2029 ended lines in old
# JavaScript; half of a surrogate pair has no UTF-8. All of them may stand in JSON as \uXXXX.
UNSAFE_IN_SCRIPT = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
UNSAFE_IN_HTML = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")     # no HTML or XML holds them
HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header class="top">
<p class="kind">{kind}</p>
<h1>{title}</h1>
<p class="lede">{lede}</p>
<dl class="facts">{facts}</dl>
</header>
<main id="content">
"""


def page(title: str, parts: Iterable[str], lede: str, facts: Sequence[tuple[str, str]] = (),
         kind: str = "minvenus", data: dict | None = None) -> str:
    """A document. With `data` it holds xray.js, which finds them in the element #data."""
    style = asset("page.css")
    policy = f"default-src 'none'; img-src data:; style-src '{digest(style)}'; base-uri 'none'; form-action 'none'"
    scripts = ""
    if data is not None:
        script = asset("xray.js")
        policy += f"; script-src '{digest(script)}'"
        scripts = f'<script type="application/json" id="data">{embed(data)}</script>\n<script>{script}</script>\n'
    listed = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts)
    head = HEAD.format(policy=policy, title=text(title), style=style, kind=text(kind), lede=text(lede), facts=listed)
    content = "\n".join(parts)
    return f"{head}{content}\n</main>\n{scripts}</body>\n</html>\n"


def section(title: str, parts: Iterable[str], intro: str = "") -> str:
    """A heading, a sentence in plain words, and what belongs to it."""
    about = f'<p class="intro">{text(intro)}</p>\n' if intro else ""
    return f"<section>\n<h2>{text(title)}</h2>\n{about}" + "\n".join(parts) + "\n</section>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """The first column is aligned to the left, the others to the right."""
    top = "".join(f'<th scope="col">{text(cell)}</th>' for cell in head)
    body = ""
    for first, *others in rows:
        cells = "".join(f"<td>{text(cell)}</td>" for cell in others)
        body += f'<tr><th scope="row">{text(first)}</th>{cells}</tr>\n'
    named = f"<caption>{text(caption)}</caption>" if caption else ""
    return (f'<div class="scroll" tabindex="0"><table>{named}<thead><tr>{top}</tr></thead>\n'
            f"<tbody>{body}</tbody></table></div>")


def figure(svg: str, caption: str = "") -> str:
    """A plot of curves.py and what to see in it."""
    return f"<figure>{svg}" + (f"<figcaption>{text(caption)}</figcaption>" if caption else "") + "</figure>"


def figures(several: Iterable[str]) -> str:
    """Side by side where there is room."""
    return '<div class="figures">' + "\n".join(several) + "</div>"


def tiles(values: Iterable[tuple[str, str, str]]) -> str:
    """The few numbers to see first: (value, label, note)."""
    made = [f'<div class="tile"><p class="value">{text(value)}</p><p class="label">{text(label)}</p>'
            f'<p class="note">{text(note)}</p></div>' for value, label, note in values]
    return '<div class="tiles">' + "".join(made) + "</div>"


def warning(words: str) -> str:
    return f'<p class="warning" role="alert">{text(words)}</p>'


def links(targets: Iterable[tuple[str, str]]) -> str:
    listed = "".join(f'<li><a href="{text(href)}">{text(words)}</a></li>' for href, words in targets)
    return f"<ul>{listed}</ul>"


def text(value: str) -> str:
    """Anybody's text, for an element or a quoted attribute."""
    return escape(UNSAFE_IN_HTML.sub("\ufffd", value))


def embed(data) -> str:
    """JSON that can stand in a script element and reads back as the same values."""
    plain = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return UNSAFE_IN_SCRIPT.sub(lambda found: f"\\u{ord(found[0]):04x}", plain)


def asset(name: str) -> str:
    """A file of this folder."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
