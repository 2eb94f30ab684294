"""What a rollout looks like on a terminal and elsewhere."""

import io

import pytest

from minvenus.agent.show import Show, printable, shortened
from tests.agent.scripted import BROKEN, Tools, answer, budget, policy_for, run, search, visit


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_every_turn_with_its_call_and_result_discarded_attempts_and_the_end_are_shown():
    def script(name, turn, attempt):
        return [search(), BROKEN if attempt == 0 else visit(), "Hm", answer()][turn]
    out = Terminal()
    run(policy_for(script), budget(retries=1), Tools(search=lambda q: ""), watch=Show(out).watch)
    shown = out.getvalue()
    places = [shown.index(words) for words in (
        "turn 1", "  thought  Start.\n", '  search   \033[36m"Bob"', "\033[31m(", "error: empty)",
        "\033[31m(attempt thrown away: malformed)",
        "turn 2", '"Bob"  for: pet', "Bob\n           cat.", "turn 3", "  no call  \033[31mThe thought is not closed.",
        r'"<think>\nHm"', "turn 4", "answer     \033[1mcat\033[0m", "ended      \033[32manswered (4 turns")]
    assert places == sorted(places)


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_only_on_a_terminal_that_wants_them(variable, value, monkeypatch):
    coloured, piped, plain = Terminal(), io.StringIO(), Terminal()
    for out in (coloured, piped):
        Show(out).row("answer", "cat", "bold")
    monkeypatch.setenv(variable, value)
    Show(plain).row("answer", "cat", "bold")
    assert coloured.getvalue() == "answer     \033[1mcat\033[0m\n"
    assert piped.getvalue() == plain.getvalue() == "answer     cat\n"


def test_control_characters_of_a_page_never_reach_the_terminal():
    assert printable("a\033[2Jb\x9b31m\rc\x07\n\td\ud83d") == "a[2Jb31mc\n    d\ufffd"


def test_a_long_observation_is_cut_to_a_few_lines_and_says_so():
    shown = shortened("x" * 200 + "\n" + "\n".join("abcdefghi"))
    assert shown.splitlines() == ["x" * 160 + " ...", *"abcde", "... 4 more lines"]


def test_characters_that_the_output_does_not_know_are_replaced():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Show(out).row("answer", "Zürich")
    assert out.buffer.getvalue() == b"answer     Z?rich\n"
