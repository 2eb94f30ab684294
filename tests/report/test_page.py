"""The shell of all pages: one file, nothing from outside, and whatever is text stays text."""

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.report import page
from tests.report.examples import HOSTILE

numbers = st.integers(-2**53, 2**53) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(st.none() | st.booleans() | numbers | st.text() | st.sampled_from(HOSTILE),
                           lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
                           max_leaves=12)


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
    pieces = [page.table([words], [[words, words]], words), page.tiles([(words, words, words)]), page.warning(words),
              page.figures([page.figure("<svg></svg>", words)]), page.links([(words, words)])]
    parts = [page.section(words, pieces, words)]
    return Elements(page.page(words, parts, words, [(words, words)], words, data={words: words}))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_makes_no_element_and_no_attribute_wherever_it_stands(hostile):
    plain, attacked = built("plain"), built(hostile)
    shape = [(tag, sorted(attributes)) for tag, attributes in plain.found]
    assert [(tag, sorted(attributes)) for tag, attributes in attacked.found] == shape
    assert plain.words.count("plain") == attacked.words.count(hostile) == 18


def test_what_is_no_text_is_replaced_so_that_every_page_can_be_written():
    document = page.page("a\x00b\ud800c", [page.warning("\x1b[0m")], "")
    assert "<h1>a\ufffdb\ufffdc</h1>" in document and "\x1b" not in document and document.encode("utf-8")


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_embedded_data_reads_back_as_it_was_and_cannot_leave_its_element(data):
    text = page.embed(data)
    assert json.loads(text) == data
    assert not set("<>&\u2028\u2029") & set(text)
    assert text.encode("utf-8").decode("utf-8") == text                  # lone surrogates, too, can be written


def test_a_page_names_nothing_outside_itself():
    document = page.page("t", [page.figure("<svg></svg>")], "", data={})
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|url\(", document)
    for _, attributes in Elements(document).found:
        assert "src" not in attributes and attributes.get("href", "#").startswith(("#", "data:"))


def test_the_policy_allows_this_script_and_this_style_and_nothing_else():
    document = page.page("t", [], "", data={})
    [policy] = [a["content"] for tag, a in Elements(document).found if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; img-src data:; ") and "unsafe" not in policy and "*" not in policy
    assert "base-uri 'none'" in policy and "form-action 'none'" in policy
    style, script = (re.search(f"<{tag}>(.*?)</{tag}>", document, re.S)[1] for tag in ("style", "script"))
    assert f"style-src '{page.digest(style)}'" in policy and f"script-src '{page.digest(script)}'" in policy


def test_the_script_never_parses_text_as_html_or_code():
    found = re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|fetch\(|"
                      r"XMLHttp|import\(|WebSocket|createContextualFragment|srcdoc", page.asset("xray.js"))
    assert not found, found[0]
