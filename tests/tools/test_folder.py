"""A folder as a web: found by words, visited by path, never left; BM25, passages."""

import math
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from minvenus.config import ConfigError
from minvenus.tools.base import Extract, SearchHit, run_tool
from minvenus.tools.folder import Document, FolderTools, bm25, words

RIVER = (
    "# The river museum\n\nIt shows boats.\nIt was founded in 1907 by Ada Stone.\nIt is cheap.\n"
)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "web"
    (root / "cities").mkdir(parents=True)
    (root / "museum.md").write_text(RIVER, encoding="utf-8-sig")
    (root / "cities" / "ROME.MD").write_text("Rome\nRome lies on a river.\nSee the museum.")
    (root / "page.html").write_text("museum museum")
    (root / "plain.txt").write_bytes(b"\xff broken bytes about a caf\xc3\xa9")
    (root / "empty.txt").write_text("")
    (root / ".hidden.txt").write_text("museum")
    (root / ".git").mkdir()
    (root / ".git" / "log.txt").write_text("museum")
    (tmp_path / "secret.txt").write_text("museum secret")
    os.symlink(tmp_path / "secret.txt", root / "link.txt")
    os.symlink(tmp_path, root / "up")
    os.mkfifo(root / "pipe.txt")  # reading it would wait for ever
    return root


def found(tools, query):
    result = run_tool(tools, "search", {"query": [query]})
    if result.error is not None:
        return result.error
    [(_, hits)] = result.entries
    return [hit.url for hit in hits]


def test_files_are_found_by_their_words_and_visited_by_path_as_they_were_when_the_folder_was_read(
    folder,
):
    tools = FolderTools(folder)
    assert sorted(tools.documents) == ["cities/ROME.MD", "museum.md", "plain.txt"]
    assert found(tools, "founded museum") == ["museum.md", "cities/ROME.MD"]
    assert found(tools, "Café") == ["plain.txt"] and found(tools, "secret") == "empty"
    founded = "It was founded in 1907 by Ada Stone."
    assert tools.search("who founded")[0] == SearchHit("The river museum", "museum.md", founded)
    (folder / "museum.md").unlink()
    os.symlink("/etc/passwd", folder / "museum.md")
    assert tools.visit("./museum.md", "when was it founded").summary == founded


def test_names_that_begin_or_end_with_blanks_are_visited_as_they_are_shown(tmp_path):
    for name in (" boat.md", "boat.md", "deep / boat.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"The boat of {name!r} is old.")
    tools = FolderTools(tmp_path)
    for url in found(tools, "boat"):
        assert tools.visit(url, "boat").summary == f"The boat of {url!r} is old."
    assert tools.visit("  deep / boat.md\n", "boat").summary.startswith("The boat of 'deep")


def test_pages_of_equal_score_are_ordered_by_path_whatever_the_file_system_says(
    tmp_path, monkeypatch
):
    for name in ("b.txt", "a.txt", "c/a.txt", "B.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("same words")
    expected, listed = ["B.txt", "a.txt", "b.txt", "c/a.txt"], Path.rglob
    for order in (lambda files: files, reversed):
        monkeypatch.setattr(
            Path, "rglob", lambda self, pattern, order=order: order(sorted(listed(self, pattern)))
        )
        assert found(FolderTools(tmp_path), "words") == expected


def test_a_word_of_the_title_counts_more_and_at_most_ten_pages_are_shown(tmp_path):
    (tmp_path / "a.txt").write_text("boats\nriver river")
    (tmp_path / "b.txt").write_text(" # River\t" + "-" * 150 + "\nboats boats")
    assert found(FolderTools(tmp_path), "river") == ["b.txt", "a.txt"]
    title = FolderTools(tmp_path).search("river")[0].title
    assert title == "River\t" + "-" * 114, "120 characters"
    for i in range(12):
        (tmp_path / f"{i}.txt").write_text("same")
    assert len(found(FolderTools(tmp_path), "same")) == 10


@pytest.mark.parametrize(
    "url",
    [
        "../secret.txt",
        "cities/../../secret.txt",
        "/etc/passwd",
        "link.txt",
        "up/secret.txt",
        "file:///etc/passwd",
        ".hidden.txt",
        "page.html",
        "cities",
        "empty.txt",
        "museum.md\0",
        "pipe.txt",
        ".",
    ],
)
def test_nothing_but_the_documents_can_be_visited(folder, url):
    result = run_tool(FolderTools(folder), "visit", {"url": [url], "goal": "museum"})
    [(_, content)] = result.entries
    assert result.error == "empty" and "secret" not in content.reason


def test_a_folder_without_documents_and_a_missing_one_are_clear_errors(tmp_path):
    for path, message in (
        (tmp_path, r"one of the endings \.txt \.md \.markdown, which are read"),
        (tmp_path / "nowhere", "is not a folder"),
    ):
        with pytest.raises(ConfigError, match=message):
            FolderTools(path)


def test_a_file_of_one_line_of_20_megabytes_is_searched_in_time_linear_in_its_length(tmp_path):
    words_and_sentences = "the river museum's boats of 1907 " * 300_000 + "x y. " * 1_200_000
    (tmp_path / "long.txt").write_text("word" * 1_000_000 + " needle " + words_and_sentences)
    start = time.process_time()
    tools = FolderTools(tmp_path)
    assert found(tools, "needle the x") == ["long.txt"]
    assert "needle" in tools.visit("long.txt", "needle").evidence
    assert time.process_time() - start < 30  # about 4 s; in quadratic time minutes


def test_two_texts_worked_by_hand():
    texts = [Counter(["red", "fish", "red"]), Counter(["blue"])]
    # N = 2, mean length 2; "red" is in one text: idf = ln(1 + 1.5/1.5) = ln 2;
    # f = 2, |d| = 3: norm = 1.5 (0.25 + 0.75 * 1.5)
    red, fish = 2 * 2.5 / (2 + 1.5 * 1.375), 2.5 / (1 + 1.5 * 1.375)
    assert bm25(texts, "red") == {0: pytest.approx(math.log(2) * red)}
    assert bm25(texts, "fish red") == {0: pytest.approx(math.log(2) * (red + fish))}
    assert bm25(texts, "green") == {} and bm25(texts, "red red") == bm25(texts, "red")


def test_words_ignore_case_width_and_punctuation_and_chinese_has_one_per_character():
    split = words("The ＲＩＶＥＲ-museum's 2nd_floor, Straße 北京")
    assert split == ["the", "river", "museum", "s", "2nd", "floor", "strasse", "北", "京"]


def test_evidence_has_whole_passages_in_the_order_of_the_page_or_the_summary_says_why_not():
    page = Document("alpha one\nbeta\ngamma two\nalpha alpha three")
    evidence = "alpha one\ngamma two\nalpha alpha three"
    assert page.extract("alpha two") == Extract(evidence, "gamma two")  # the rarer word
    other = page.extract("nothing")
    assert other.evidence == page.text and other.summary.startswith("No passage shares a word")
    passages = [
        f"goal {i:03} " + "x" * 291 for i in range(20)
    ]  # 300 characters and a line end each
    assert Document("\n".join(passages)).extract("goal").evidence.splitlines() == passages[:9]
    shorter = [passage[:-1] for passage in passages]  # ten of them fill the room
    assert Document("\n".join(shorter)).extract("goal").evidence.splitlines() == shorter[:10]


def test_a_long_line_is_divided_at_sentences_and_a_long_sentence_anywhere():
    one, two, three = "a" * 200 + ".", "b" * 150 + "!", "七" * 140 + "。"
    page = Document(f"short one. too\n{one} {two} {three}四\n{three}{three}{three}\n" + "x" * 605)
    assert page.passages == [
        "short one. too",
        one,
        f"{two} {three}四",
        three * 2,
        three,
        "x" * 300,
        "x" * 300,
        "x" * 5,
    ]
