"""The shell of all pages: one file, nothing from outside, and whatever is text stays text."""

import re
import xml.etree.ElementTree as ET

import pytest

from minvenus.report import page
from tests.report.examples import HOSTILE


def built(words: str) -> ET.Element:
    """A page with every piece, and the words wherever text can stand."""
    pieces = [
        page.table([words], [[words, words]], words),
        page.el("p", words, class_=words),
        page.pairs([(words, words)]),
        page.figures([page.figure(page.el("svg"), words)]),
        page.el("a", words, href=words),
    ]
    parts = [page.section(words, pieces, words)]
    return ET.fromstring(page.page(words, parts, words, [(words, words)], words))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_makes_no_element_and_no_attribute_wherever_it_stands(hostile):
    for plain, attacked in zip(built("plain").iter(), built(hostile).iter(), strict=True):
        words = {"plain": hostile}
        assert (attacked.tag, attacked.text) == (plain.tag, words.get(plain.text, plain.text))
        assert attacked.attrib == {name: words.get(value, value) for name, value in plain.items()}


def test_a_table_in_markup():
    head = '<thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead>'
    body = '<tbody><tr><th scope="row">x</th><td>1</td></tr></tbody>'
    table = f"<table><caption>c</caption>{head}{body}</table>"
    shown = page.table(["a", "b"], [["x", "1"]], "c")
    assert shown == f'<div class="scroll" tabindex="0">{table}</div>'


def test_what_is_no_text_is_replaced_so_that_every_page_can_be_written():
    assert page.text("a\r\nb\rc") == "a\nb\ufffdc"
    assert page.el("p", "a\x00b\ud800c\x1b[0m") == "<p>a\ufffdb\ufffdc\ufffd[0m</p>"


def test_a_page_has_no_script_and_its_policy_allows_its_style_alone():
    document = page.page("t", [page.figure(page.el("svg"))], "", [], "k")
    assert "<script" not in document and not re.search(r"https?://|@import|url\(", document)
    elements = list(ET.fromstring(document).iter())
    assert not any({"src", "href"} & set(element.attrib) for element in elements)
    style = re.search("<style>(.*?)</style>", document, re.S)[1]
    policy = (
        f"default-src 'none'; style-src '{page.digest(style)}'; base-uri 'none'; form-action 'none'"
    )
    assert policy in [element.get("content") for element in elements]
