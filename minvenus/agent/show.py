"""Prints a rollout for people, turn by turn as it happens.

Web pages and models may write anything, so control characters never reach the terminal. Colours only on a terminal, and
not where NO_COLOR is set.
"""

import json
import os
import re

from minvenus.agent.episode import Episode
from minvenus.agent.protocol import parse_turn, whole_characters
from minvenus.types import Rollout, Turn

LINES, WIDTH = 6, 160              # of an observation that are shown
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
COLOURS = {"dim": "2", "bold": "1", "red": "31", "green": "32", "cyan": "36"}


class Show:
    """`watch` is what the loop calls, of one rollout. Without `out` nothing is printed."""

    def __init__(self, out=None):
        self.out = out
        terminal = out is not None and out.isatty()
        self.colours = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def watch(self, event: str, episode: Episode) -> None:
        if event == "discarded":
            self.row("", f"(attempt thrown away: {episode.discarded[-1]})", "red")
        elif event == "turn":
            self.turn(len(episode.turns), episode.turns[-1])
        elif event == "observation":
            self.observation(episode.turns[-1])
        elif episode.rollout:
            self.end(episode.rollout)

    def row(self, name: str, text: str, colour: str | None = None) -> None:
        """A name and a text of one line or several, aligned."""
        if self.out is None:
            return
        for i, line in enumerate(printable(text).splitlines() or [""]):
            if colour and self.colours and line:
                line = f"\033[{COLOURS[colour]}m{line}\033[0m"
            known = self.out.encoding or "utf-8"                   # a terminal may know fewer characters than the web
            self.out.write(f"{name if i == 0 else '':<11}{line}\n".encode(known, "replace").decode(known))
        self.out.flush()

    def turn(self, number: int, turn: Turn) -> None:
        parsed = parse_turn(turn.text)
        self.row(f"turn {number}", f"{turn.seconds:.2f} s, {turn.end - turn.start} tokens", "dim")
        self.row("  thought", parsed.thought or "(none)")
        if turn.tool is not None:
            self.row(f"  {turn.tool['name']}", shown_arguments(turn.tool), "cyan")
        if turn.kind == "none":
            self.row("  no call", parsed.error or "The call came too late to be run.", "red")
            self.row("", shortened(json.dumps(turn.text, ensure_ascii=False)), "dim")

    def observation(self, turn: Turn) -> None:
        if turn.tool is not None:
            error = f", error: {turn.tool_error}" if turn.tool_error else ""
            self.row("  result", f"({turn.tool_seconds:.2f} s{error})", "red" if error else "dim")
            self.row("", shortened(turn.observation or ""))

    def end(self, rollout: Rollout) -> None:
        answer = parse_turn(rollout.turns[-1].text).answer
        if answer is not None:
            self.row("answer", answer, "bold")
        reason = rollout.termination + (f": {rollout.error}" if rollout.error else "")
        size = f"{len(rollout.turns)} turns, {len(rollout.tokens):,} tokens, {rollout.seconds:.2f} s"
        self.row("ended", f"{reason} ({size})", "green" if rollout.termination.startswith("answered") else "red")


def printable(text: str) -> str:
    return CONTROL.sub("", whole_characters(text)).replace("\t", "    ")


def shortened(text: str) -> str:
    """The first lines of a text, and how many are missing."""
    lines = text.splitlines()
    shown = [line if len(line) <= WIDTH else line[:WIDTH] + " ..." for line in lines[:LINES]]
    if len(lines) > LINES:
        shown.append(f"... {len(lines) - LINES} more lines")
    return "\n".join(shown)


def shown_arguments(tool: dict) -> str:
    arguments = tool["arguments"]
    listed = ", ".join(json.dumps(item, ensure_ascii=False) for item in arguments.get("query") or arguments["url"])
    return listed + (f"  for: {arguments['goal']}" if "goal" in arguments else "")
