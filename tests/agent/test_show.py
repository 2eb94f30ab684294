"""What a rollout looks like for people."""

from minvenus.agent.show import row, shortened, show
from minvenus.tools.base import ToolResult
from tests.agent.scripted import BROKEN, Tools, answer, budget, policy_for, run, search, visit


def test_every_turn_with_its_call_and_result_discarded_attempts_and_the_end_are_shown(capsys):
    def script(name, turn, attempt):
        return [search(), BROKEN if attempt == 0 else visit(), "Hm", answer()][turn]
    run(policy_for(script), budget(retries=1), Tools(search=lambda q: ToolResult("ERROR: none", "empty")), watch=show)
    shown = capsys.readouterr().out
    places = [shown.index(words) for words in (
        "turn 1", "  thought  Start.\n", '  search   {"query": ["Bob"]}\n', "error: empty)",
        "(attempt thrown away: malformed)", "turn 2", '  visit    {"url": ["Bob"], "goal": "pet"}\n',
        "Bob\n           cat.", "turn 3", "  no call  The turn has no complete", "<think>\n           Hm\n",
        "turn 4", "answer     cat\n", "ended      answered (4 turns")]
    assert places == sorted(places)


def test_control_characters_of_a_page_never_reach_the_terminal(capsys):
    row("page", "a\033[2Jb\x9b31m\rc\x07\n\td")
    assert capsys.readouterr().out == "page       a[2Jb31mc\n               d\n"


def test_a_long_observation_is_cut_to_a_few_lines_and_says_so():
    shown = shortened("x" * 200 + "\n" + "\n".join("abcdefghi"))
    assert shown.splitlines() == ["x" * 160 + " ...", *"abcde", "... 4 more lines"]
