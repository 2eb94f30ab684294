"""The shell of every page, and the pieces that pages are made of: text and numbers in, HTML out.

    page(title, parts, lede="", facts=[(name, value), ...])      a whole document; `parts` are what the functions below give
    section(title, parts, intro="")                              a heading, a sentence in plain words, and what belongs to it
    table(head, rows, caption="")                                the first column is text, the others are right-aligned
    figure(svg, caption="")                                      a plot of curves.py and what to see in it
    figures([figure, ...])                                       side by side where there is room
    tiles([(value, label, note), ...])                           the few numbers to see first
    note(text, warn=False)                                       a remark, or a warning that stands out
    links([(href, text), ...])

What is called `parts`, `svg` or `figure` is HTML that these functions or curves.py made. Everything else is text: models and web
pages wrote some of it, and it is escaped here. A page is one file: its style and script stand in it, and its content security
policy allows these two by their hash and nothing else, so that even a mistake in the escaping could neither run nor load
anything.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
# In a script element only these could end it or start a comment; U+2028 and U+2029 ended lines in old JavaScript; half of a
# surrogate pair has no UTF-8. All of them may stand in JSON as \uXXXX.
UNSAFE_IN_SCRIPT, HALVES = "<>&\u2028\u2029", re.compile("[\ud800-\udfff]")
UNSAFE_IN_HTML = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")        # no text: control characters, lone surrogates


def page(title: str, parts: Iterable[str], lede: str = "", facts: Sequence[tuple[str, str]] = (), kind: str = "minvenus",
         styles: Sequence[str] = (), scripts: Sequence[str] = (), data: dict | None = None) -> str:
    """A document. `styles` and `scripts` name files beside this one; `data` is what the scripts find in the element #data."""
    style = "".join(asset(name) for name in ("page.css", *styles))
    script = wrapped_script(scripts)
    policy = f"default-src 'none'; img-src data:; style-src '{digest(style)}'; base-uri 'none'; form-action 'none'"
    policy += f"; script-src '{digest(script)}'" if script else ""
    listed = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts)
    embedded = f'<script type="application/json" id="data">{embed(data)}</script>\n' if data is not None else ""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">\n'
        f'<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">\n'
        f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#content">Skip to the content</a>\n<header class="top">\n<p class="kind">{text(kind)}</p>\n'
        f"<h1>{text(title)}</h1>\n" + (f'<p class="lede">{text(lede)}</p>\n' if lede else "")
        + (f'<dl class="facts">{listed}</dl>\n' if listed else "") + '</header>\n<main id="content">\n' + "\n".join(parts)
        + f"\n</main>\n{embedded}" + (f"<script>{script}</script>\n" if script else "") + "</body>\n</html>\n")


def section(title: str, parts: Iterable[str], intro: str = "", name: str = "") -> str:
    about = f'<p class="intro">{text(intro)}</p>\n' if intro else ""
    anchor = f' id="{text(name)}"' if name else ""
    return f"<section{anchor}>\n<h2>{text(title)}</h2>\n{about}" + "\n".join(parts) + "\n</section>"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """Cells are text, or numbers, which are shown with four significant digits; None is an empty cell."""
    top = "".join(f'<th scope="col">{text(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<{'td' if i else 'th scope=row'}>{text(shown(cell))}</{'td' if i else 'th'}>"
                                    for i, cell in enumerate(row)) + "</tr>\n" for row in rows)
    named = f"<caption>{text(caption)}</caption>" if caption else ""
    return f'<div class="scroll" tabindex="0"><table>{named}<thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def figure(svg: str, caption: str = "") -> str:
    return f"<figure>{svg}" + (f"<figcaption>{text(caption)}</figcaption>" if caption else "") + "</figure>"


def figures(several: Iterable[str]) -> str:
    return '<div class="figures">' + "\n".join(several) + "</div>"


def tiles(values: Iterable[tuple[object, str, str]]) -> str:
    return '<div class="tiles">' + "".join(
        f'<div class="tile"><p class="value">{text(shown(value))}</p><p class="label">{text(label)}</p>'
        f'<p class="note">{text(more)}</p></div>' for value, label, more in values) + "</div>"


def note(words: str, warn: bool = False) -> str:
    return f'<p class="{"warning" if warn else "remark"}"{" role=alert" if warn else ""}>{text(words)}</p>'


def links(targets: Iterable[tuple[str, str]]) -> str:
    listed = "".join(f'<li><a href="{text(href)}">{text(words)}</a></li>' for href, words in targets)
    return f'<ul class="links">{listed}</ul>'


# ------------------------------------------------------------------------------------------------------------- the details


def text(value: str) -> str:
    """Anybody's text, for an element or a quoted attribute."""
    return escape(UNSAFE_IN_HTML.sub("\ufffd", value))


def shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def embed(data: dict) -> str:
    """JSON that can stand in a script element and reads back as the same values."""
    plain = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in UNSAFE_IN_SCRIPT:
        plain = plain.replace(character, f"\\u{ord(character):04x}")
    return HALVES.sub(lambda found: f"\\u{ord(found[0]):04x}", plain)


def embedded_size(value: str) -> int:
    """Bytes that a text takes in a page's data."""
    return len(embed({"": value}).encode()) - len('{"":""}')


def asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def wrapped_script(names: Sequence[str]) -> str:
    """The files as one function, so that they share their names with each other and with nothing else."""
    return '(function () {\n"use strict";\n' + "".join(asset(name) for name in names) + "})();\n" if names else ""


def digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def write(path, document: str) -> Path:
    """Write the file whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(document, encoding="utf-8")
    beside.replace(path)
    return path
