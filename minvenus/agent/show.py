"""Prints a rollout for people, turn by turn as it happens.

Web pages and models may write anything, so control characters never reach the terminal.
"""

import json
import re

from minvenus.agent.episode import Episode
from minvenus.agent.protocol import parse_turn
from minvenus.tools.toyweb_words import with_words
from minvenus.types import Rollout, Turn

LINES, WIDTH = 6, 160              # of an observation that are shown
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def show(event: str, episode: Episode) -> None:
    """The `watch` of a RolloutLoop with one rollout."""
    if event == "discarded":
        row("", f"(attempt thrown away: {episode.discarded[-1]})")
    elif event == "turn":
        show_turn(len(episode.turns), episode.turns[-1])
    elif event == "observation":
        show_observation(episode.turns[-1])
    elif episode.rollout is not None:
        show_end(episode.rollout)


def show_turn(number: int, turn: Turn) -> None:
    parsed = parse_turn(turn.text)
    row(f"turn {number}", f"{turn.seconds:.2f} s, {turn.end - turn.start} tokens")
    row("  thought", parsed.thought or "(none)")
    if turn.tool is not None:
        row(f"  {turn.tool['name']}", json.dumps(turn.tool["arguments"], ensure_ascii=False))
    elif turn.kind == "none":
        row("  no call", parsed.error or "The call came too late to be run.")
        row("", shortened(turn.text))


def show_observation(turn: Turn) -> None:
    if turn.tool is None:
        return
    error = f", error: {turn.tool_error}" if turn.tool_error else ""
    row("  result", f"({turn.tool_seconds:.2f} s{error})")
    row("", shortened(with_words(turn.observation or "")))


def show_end(rollout: Rollout) -> None:
    answer = parse_turn(rollout.turns[-1].text).answer
    if answer is not None:
        row("answer", with_words(answer))
    reason = rollout.termination
    if rollout.error:
        reason += f": {rollout.error}"
    row("ended", f"{reason} ({len(rollout.turns)} turns, {len(rollout.tokens):,} tokens, "
                 f"{rollout.seconds:.2f} s)")


def row(name: str, text: str) -> None:
    """A name and a text of one line or several, aligned."""
    for line in CONTROL.sub("", text).expandtabs(4).splitlines() or [""]:
        print(f"{name:<11}{line}", flush=True)
        name = ""


def shortened(text: str) -> str:
    """The first lines of a text, and how many are missing."""
    lines = text.splitlines()
    shown = []
    for line in lines[:LINES]:
        shown.append(line if len(line) <= WIDTH else line[:WIDTH] + " ...")
    if len(lines) > LINES:
        shown.append(f"... {len(lines) - LINES} more lines")
    return "\n".join(shown)
