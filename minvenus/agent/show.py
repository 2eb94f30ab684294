"""A rollout as text for people: on a terminal while it is written, elsewhere turn by turn.

Web pages and models may write anything, so control characters never reach the terminal. Colours only on a terminal, and never
where NO_COLOR is set.
"""

import json
import os
import re

from minvenus.agent.protocol import parse_turn, whole_characters
from minvenus.types import Rollout, Turn

LINES, WIDTH = 6, 160              # of an observation that are shown
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
COLOURS = {"dim": "2", "bold": "1", "red": "31", "green": "32", "cyan": "36"}


class Show:
    """`watch` is what the loop calls. One rollout at a time. Without `out` nothing is shown."""

    def __init__(self, out=None):
        self.out = out
        self.live = out is not None and out.isatty()
        self.colours = self.live and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.turns = 0
        self.open_line = False          # pieces of a turn are being written

    def watch(self, number: int, what: str, value) -> None:
        if what == "text":
            if self.live:
                self.piece(value)
        elif what == "discarded":
            self.close_line()
            self.row("", f"(attempt thrown away: {value})", "red")
        elif what == "turn":
            self.turn(value)
        elif what == "observation":
            self.observation(value)
        elif what == "end":
            self.end(value)

    def row(self, name: str, text: str, colour: str | None = None) -> None:
        """A name and a text of one line or several, aligned."""
        lines = clean(text).splitlines() or [""]
        for i, line in enumerate(lines):
            self.write(f"{name if i == 0 else '':<11}" + self.paint(line, colour) + "\n")

    def piece(self, text: str) -> None:
        if not self.open_line:
            self.row(f"turn {self.turns + 1}", "")
            self.open_line = True
        self.write(self.paint(clean(text), "dim"))

    def turn(self, turn: Turn) -> None:
        self.turns += 1
        parsed = parse_turn(turn.text)
        cost = f"{turn.seconds:.2f} s, {turn.end - turn.start} tokens"
        if self.open_line:
            self.close_line()
            self.row("", f"({cost})", "dim")
        else:
            self.row(f"turn {self.turns}", cost, "dim")
            self.row("  thought", parsed.thought or "(none)")
        if turn.tool is not None:
            self.row(f"  {turn.tool['name']}", shown_arguments(turn.tool), "cyan")
        if turn.kind == "none":
            self.row("  no call", parsed.error or "The call came too late to be run.", "red")
            if not self.live:
                self.row("", cut(json.dumps(turn.text, ensure_ascii=False)), "dim")

    def observation(self, turn: Turn) -> None:
        if turn.tool is not None:
            seconds = f"{turn.tool_seconds:.2f} s" + (f", error: {turn.tool_error}" if turn.tool_error else "")
            self.row("  result", f"({seconds})", "red" if turn.tool_error else "dim")
            self.row("", cut(turn.observation or ""))

    def end(self, rollout: Rollout) -> None:
        answer = parse_turn(rollout.turns[-1].text).answer
        if answer is not None:
            self.row("answer", answer, "bold")
        colour = "green" if rollout.termination.startswith("answered") else "red"
        self.row("ended", f"{rollout.termination}{': ' + rollout.error if rollout.error else ''} "
                          f"({len(rollout.turns)} turns, {len(rollout.tokens):,} tokens, {rollout.seconds:.2f} s)", colour)

    def close_line(self) -> None:
        if self.open_line:
            self.write("\n")
        self.open_line = False

    def paint(self, text: str, colour: str | None) -> str:
        return f"\033[{COLOURS[colour]}m{text}\033[0m" if colour and self.colours and text else text

    def write(self, text: str) -> None:
        if self.out is not None:
            known = self.out.encoding or "utf-8"
            self.out.write(text.encode(known, "replace").decode(known))       # a terminal may know fewer characters than the web
            self.out.flush()


def clean(text: str) -> str:
    return CONTROL.sub("", whole_characters(text)).replace("\t", "    ")


def cut(text: str) -> str:
    """A few lines of a text, and how much is missing."""
    lines = text.splitlines()
    shown = [line if len(line) <= WIDTH else line[:WIDTH] + " ..." for line in lines[:LINES]]
    return "\n".join(shown + ([f"... {len(lines) - LINES} more lines"] if len(lines) > LINES else []))


def shown_arguments(tool: dict) -> str:
    arguments = tool["arguments"]
    listed = ", ".join(json.dumps(item, ensure_ascii=False) for item in arguments.get("query") or arguments.get("url") or [])
    return listed + (f"  for: {arguments['goal']}" if "goal" in arguments else "")
