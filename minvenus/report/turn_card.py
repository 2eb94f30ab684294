"""A turn of an X-ray: its text, the observation, and how it is paid."""

from collections.abc import Callable
from math import ceil

from minvenus.agent.protocol import format_error
from minvenus.report import explain
from minvenus.report.page import Html, details, el, table
from minvenus.report.source import Case
from minvenus.tools.toyweb_words import with_words
from minvenus.types import Rollout


def turn_card(case: Case, t: int) -> Html:
    turn = case.rollout.turns[t]
    chips = []
    for recipe, credited in case.trained().items():
        advantage = credited.numbers.advantages[t]
        colour = shade(advantage, credited.largest)
        chips.append(el("span", f"{recipe} {advantage:.3g}", class_=f"chip {colour}"))
    observation = None
    if turn.observation is not None:
        summary = f"what came back ({len(turn.observation):,} characters)"
        observation = details(summary, verbatim(with_words(turn.observation)), class_="observation")
    return el(
        "article",
        el("header",
           el("h3", f"Turn {t + 1}"),
           el("span", turn.kind, class_=f"badge {turn.kind}"),
           chips),
        [el("p", notice, class_="notice") for notice in notices_of(case.rollout, t)],
        verbatim(turn.text),
        observation,
        arithmetic("how it is paid", lambda credited: explain.turn_steps(credited, t), case.under),
        class_="turn",
    )


def verbatim(words: str) -> Html:
    return el("div", words, class_="verbatim")


def notices_of(rollout: Rollout, t: int) -> list[str]:
    """What went wrong in a turn."""
    turn = rollout.turns[t]
    notices = []
    if turn.malformed:
        rule = format_error(turn.text, t == len(rollout.turns) - 1)
        notices.append(f"✗ malformed: {rule or 'recorded as malformed when it was sampled'}")
    first = [earlier.tool for earlier in rollout.turns].index(turn.tool)
    if turn.tool and first < t:
        notices.append(f"the very same call as in turn {first + 1}")
    if turn.tool_error:
        notices.append(f"the tool reported an error: {turn.tool_error}")
    if turn.discarded:
        notices.append(f"attempts thrown away: {', '.join(turn.discarded)}")
    return notices


def arithmetic(summary: str, steps_of: Callable, under: dict) -> Html | None:
    """A table of numbers and how each came about. Where recipes agree, they share a line.

    `under` has an entry for each recipe, and `steps_of` gives the numbers of an entry.
    """
    recipes: dict[explain.Step, list[str]] = {}
    for recipe, credited in under.items():
        for step in steps_of(credited):
            recipes.setdefault(step, []).append(recipe)
    if not recipes:
        return None

    order = list(explain.STEPS)
    rows = []
    for step in sorted(recipes, key=lambda step: order.index(step.id)):
        value = "none" if step.value is None else f"{step.value:.6g}"
        inputs = "; ".join(f"{name} = {number:.6g}" for name, number in step.inputs)
        rows.append([step.name, value, ", ".join(recipes[step]), step.formula, inputs])
    head = ["number", "value", "recipe", "formula", "made of"]
    return details(summary, table(head, rows), class_="arithmetic")


def shade(x: float, largest: float) -> str:
    """Classes of a colour: blue for more, orange for less, in five strengths."""
    if abs(x) < 1e-9:
        return "none a0"
    strength = min(5, ceil(5 * abs(x) / largest))              # 5 x / x may be above 5
    return f"{'plus' if x > 0 else 'minus'} a{strength}"
