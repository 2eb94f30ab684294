"""The shell of all pages: one file, nothing from outside, and whatever is text stays text."""

import re
from html.parser import HTMLParser

import pytest

from minvenus.report import page
from tests.report.examples import HOSTILE


class Elements(HTMLParser):
    """Every element with its attributes, and the text that a reader sees."""

    def __init__(self, document: str):
        super().__init__()
        self.found, self.words = [], []
        self.feed(document)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, words):
        self.words.append(words)


def built(words: str) -> Elements:
    """A page with every piece, and the words wherever text can stand."""
    pieces = [page.table([words], [[words, words]], words), page.note(words, words), page.pairs([(words, words)]),
              page.figures([page.figure(page.el("svg"), words)]), page.el("a", words, href=words)]
    parts = [page.section(words, pieces, words)]
    return Elements(page.page(words, parts, words, [(words, words)], words))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_makes_no_element_and_no_attribute_wherever_it_stands(hostile):
    plain, attacked = built("plain"), built(hostile)
    shape = [(tag, sorted(attributes)) for tag, attributes in plain.found]
    assert [(tag, sorted(attributes)) for tag, attributes in attacked.found] == shape
    assert plain.words.count("plain") == attacked.words.count(hostile) == 17


def test_what_is_no_text_is_replaced_so_that_every_page_can_be_written():
    document = page.page("a\x00b\ud800c", [page.note("\x1b[0m", "warning")], "")
    assert "<h1>a\ufffdb\ufffdc</h1>" in document and "\x1b" not in document and document.encode("utf-8")


def test_a_page_has_no_script_and_its_policy_allows_its_style_alone():
    document = page.page("t", [page.figure(page.el("svg"))], "")
    assert "<script" not in document and not re.search(r"https?://|@import|url\(", document)
    elements = Elements(document).found
    assert not any("src" in attributes or "href" in attributes for _, attributes in elements)
    [policy] = [a["content"] for _, a in elements if a.get("http-equiv") == "Content-Security-Policy"]
    style = re.search("<style>(.*?)</style>", document, re.S)[1]
    assert policy == (f"default-src 'none'; style-src '{page.digest(style)}'; base-uri 'none'; form-action 'none'")
