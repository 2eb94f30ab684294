"""A folder as a web: found by words, visited by path, never left; and the plain extract that it shares with the live web."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.tools.base import run_tool
from minvenus.tools.extract import EVIDENCE, SNIPPET, SUMMARY, passages, plain_extract, snippet
from minvenus.tools.folder import FolderTools

RIVER = "# The river museum\n\nThe museum shows boats.\nIt was founded in 1907 by Ada Stone.\nTickets are cheap.\n"


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "web"
    (root / "cities").mkdir(parents=True)
    (root / "museum.md").write_text(RIVER)
    (root / "cities" / "rome.html").write_text("<title>Rome</title><p>Rome lies on a river.<script>museum museum</script>"
                                               "<p>See the <a href='../museum.md'>museum</a>.")
    (root / "plain.txt").write_bytes(b"\xff broken bytes about a caf\xc3\xa9")
    (root / "empty.txt").write_text("")
    (root / "image.png").write_bytes(b"museum")
    (root / ".hidden.txt").write_text("museum")
    (tmp_path / "secret.txt").write_text("museum secret")
    os.symlink(tmp_path / "secret.txt", root / "link.txt")
    os.symlink(tmp_path, root / "up")
    os.mkfifo(root / "pipe.txt")                      # reading it would wait for ever
    return root


def found(tools, query):
    result = run_tool(tools, "search", {"query": [query]})
    return [page["url"] for page in json.loads(result.text)[0]["web_page_info_list"]] if result.error is None else result.error


def test_files_are_found_by_their_words_and_only_those_files_that_count(folder):
    tools = FolderTools(folder)
    assert sorted(tools.documents) == ["cities/rome.html", "empty.txt", "museum.md", "plain.txt"]
    assert found(tools, "founded museum") == ["museum.md", "cities/rome.html"]
    assert found(tools, "Café") == ["plain.txt"]
    assert found(tools, "secret") == "empty"
    page = json.loads(tools.search(["who founded"]).text)[0]["web_page_info_list"][0]
    assert page == {"title": "The river museum", "url": "museum.md", "snippet": "It was founded in 1907 by Ada Stone."}


def test_a_page_is_visited_by_its_path_and_its_links_lead_on(folder):
    tools = FolderTools(folder)
    text = tools.visit(["./cities/rome.html"], "museum").text
    assert "[museum](museum.md)" in text
    text = tools.visit(["museum.md"], "when was it founded").text
    assert text.startswith("The useful information in museum.md for user goal when was it founded as follows: \n\nEvidence")
    assert text.endswith("Summary: \nIt was founded in 1907 by Ada Stone.")


@pytest.mark.parametrize(("url", "kind"), [
    ("../secret.txt", "refused"), ("cities/../../secret.txt", "refused"), ("cities/../museum.md", "refused"), ("/etc/passwd",
    "refused"),
    ("link.txt", "refused"), ("./link.txt", "refused"), ("up/secret.txt", "refused"), ("up", "refused"),
    ("file:///etc/passwd", "refused"),
    ("http://127.0.0.1/", "refused"), ("..\\secret.txt", "refused"), (".hidden.txt", "empty"), ("image.png", "empty"),
    ("cities", "empty"),
    ("no.md", "empty"), ("empty.txt", "empty"), ("museum.md\0", "empty"), ("pipe.txt", "empty"), (".", "empty"),
])
def test_nothing_outside_the_documents_can_be_visited(folder, url, kind):
    result = run_tool(FolderTools(folder), "visit", {"url": [url], "goal": "museum"})
    assert result.error == kind
    assert "secret" not in result.text.replace("secret.txt", "")


def test_a_folder_that_changes_later_does_not_change_the_web(folder):
    tools = FolderTools(folder)
    (folder / "museum.md").unlink()
    os.symlink("/etc/passwd", folder / "museum.md")
    assert "1907" in tools.visit(["museum.md"], "founded").text


def test_a_folder_without_documents_and_a_missing_one_are_clear_errors(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no file with one of the endings \.txt \.md"):
        FolderTools(tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        FolderTools(tmp_path / "nowhere")


# -------------------------------------------------------------------------------------------------------------- extract


def test_evidence_keeps_the_order_of_the_page_and_marks_gaps():
    evidence, summary = plain_extract("alpha one\nbeta\ngamma two\nalpha alpha three", "alpha two")
    assert evidence == "alpha one\n[...]\ngamma two\nalpha alpha three"
    assert summary.splitlines()[0] == "gamma two"                # the rarer word counts more


def test_without_a_common_word_the_beginning_is_shown_and_the_summary_says_so():
    evidence, summary = plain_extract("first\nsecond", "nothing")
    assert evidence == "first\nsecond"
    assert "No passage shares a word" in summary


def test_a_long_line_is_divided_at_sentences():
    assert passages("One two. Three four! 五六。七八", size=12) == ["One two.", "Three four!", "五六。 七八"]
    assert passages("x" * 25, size=10) == ["x" * 10, "x" * 10, "x" * 5]


@given(st.text(st.sampled_from("ab c.\n。"), max_size=3000), st.text(st.sampled_from("ab c"), max_size=10))
def test_an_extract_is_bounded_and_quotes_the_page(text, goal):
    evidence, summary = plain_extract(text, goal)
    assert len(evidence) <= EVIDENCE + 400 * len("[...]\n") and len(summary) <= SUMMARY
    assert len(snippet(text, goal)) <= SNIPPET + 100
    squeezed = "".join(text.split())
    for line in evidence.splitlines():
        assert line == "[...]" or "".join(line.split()) in squeezed
