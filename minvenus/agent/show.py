"""Prints a rollout for people, turn by turn as it happens.

Web pages and models may write anything, so control characters never reach the terminal.
"""

import json
import re

from minvenus.agent.protocol import parse_turn
from minvenus.agent.rollout import Episode

LINES, WIDTH = 6, 160              # of an observation that are shown
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def show(event: str, episode: Episode) -> None:
    """For RolloutLoop(watch=show), with one rollout."""
    if event == "discarded":
        row("", f"(attempt thrown away: {episode.discarded[-1]})")
        return
    turn = episode.turns[-1]
    parsed = parse_turn(turn.text)
    if event == "turn":
        row(f"turn {len(episode.turns)}", f"{turn.seconds:.2f} s, {turn.end - turn.start} tokens")
        row("  thought", parsed.thought or "(none)")
        if turn.tool is not None:
            row(f"  {turn.tool['name']}", json.dumps(turn.tool["arguments"], ensure_ascii=False))
        elif turn.text == "<think>\n":                         # of the prompt
            row("  no call", "Nothing was written.")
        elif turn.kind == "none":
            row("  no call", parsed.error or "The call came too late to be run.")
            row("", shortened(turn.text))
    elif event == "observation" and turn.tool is not None:
        row("  result", f"({turn.tool_seconds:.2f} s{', error: ' + turn.tool_error if turn.tool_error else ''})")
        row("", shortened(turn.observation or ""))
    elif episode.rollout is not None:
        rollout = episode.rollout
        if parsed.answer is not None:
            row("answer", parsed.answer)
        reason = rollout.termination + (f": {rollout.error}" if rollout.error else "")
        row("ended", f"{reason} ({len(rollout.turns)} turns, {len(rollout.tokens):,} tokens, {rollout.seconds:.2f} s)")


def row(name: str, text: str) -> None:
    """A name and a text of one line or several, aligned."""
    for line in CONTROL.sub("", text).expandtabs(4).splitlines() or [""]:
        print(f"{name:<11}{line}", flush=True)
        name = ""


def shortened(text: str) -> str:
    """The first lines of a text, and how many are missing."""
    lines = text.splitlines()
    shown = [line if len(line) <= WIDTH else line[:WIDTH] + " ..." for line in lines[:LINES]]
    if len(lines) > LINES:
        shown.append(f"... {len(lines) - LINES} more lines")
    return "\n".join(shown)
