"""A turn of an X-ray: what it wrote, what came back, its tokens, and how it is paid."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from minvenus.agent.protocol import format_error, parse_turn
from minvenus.report import explain
from minvenus.report.page import Content, Html, details, el, table
from minvenus.report.source import Case
from minvenus.text.tokenizer import Tokenizer
from minvenus.types import Rollout, Turn

KINDS = {
    "search": "search",
    "visit": "visit",
    "answer": "answer",
    "none": "no action",
}


@dataclass(frozen=True)
class View:
    """What the cards of a group share."""

    tokenizer: Tokenizer | None        # None: tokens are not shown
    largest: dict[str, float]          # recipe -> its largest advantage: it has the deepest colour

    def colour(self, recipe: str, advantage: float) -> str:
        return shade(advantage, self.largest.get(recipe, 0.0))


def turn_card(case: Case, t: int, view: View) -> Html:
    turn = case.rollout.turns[t]
    advantages = {recipe: row[t] for recipe, row in case.advantages().items()}
    trained = next(iter(advantages.values()), 0.0)
    chips = []
    for recipe, advantage in advantages.items():
        colour = view.colour(recipe, advantage)
        chips.append(el("span", f"{recipe} {advantage:.3g}", class_=f"chip {colour}"))
    return el(
        "article",
        el("header",
           el("h3", f"Turn {t + 1}"),
           el("span", KINDS[turn.kind], class_=f"badge {turn.kind}"),
           el("small", "advantage") if chips else None,
           chips),
        [el("p", notice, class_="notice") for notice in notices_of(case.rollout, t)],
        texts_of(turn),
        tokens_of(case.rollout, turn, view.tokenizer) if view.tokenizer else None,
        arithmetic("how it is paid", lambda credited: explain.turn_steps(credited, t), case.under),
        class_=f"turn {hue(trained)}",
    )


def notices_of(rollout: Rollout, t: int) -> list[str]:
    """What went wrong in a turn."""
    turn = rollout.turns[t]
    notices = []
    if turn.malformed:
        rule = format_error(turn.text, t == len(rollout.turns) - 1)
        notices.append(f"✗ malformed: {rule or 'recorded as malformed when it was sampled'}")
    calls = [call_words(earlier) for earlier in rollout.turns[:t + 1]]
    first = calls.index(calls[t])
    if calls[t] and first < t:
        notices.append(f"the very same call as in turn {first + 1}")
    if turn.tool_error:
        notices.append(f"the tool reported an error: {turn.tool_error}")
    if turn.discarded:
        notices.append(f"attempts thrown away: {', '.join(turn.discarded)}")
    return notices


def call_words(turn: Turn) -> str:
    """The arguments of a call, one on a line; empty if there is none."""
    words = ""
    for name, value in (parse_turn(turn.text).arguments or {}).items():
        listed = value if isinstance(value, str) else ", ".join(value)
        words += f"{name}: {listed}\n"
    return words


def texts_of(turn: Turn) -> list[Html]:
    parsed = parse_turn(turn.text)
    texts = {
        "thought": parsed.thought,
        parsed.tool: call_words(turn),
        "answer": parsed.answer,
    }
    parts = []
    for name, words in texts.items():
        if words:
            parts.append(el("div", el("p", name), el("p", words), class_=f"part {name}"))
    if parsed.error or turn.malformed:               # the parts are not all of it
        parts.append(folded("raw", "what it wrote, letter by letter", turn.text))
    if turn.observation is not None:
        summary = f"what came back ({len(turn.observation):,} characters)"
        parts.append(folded("observation", summary, turn.observation))
    return parts


def tokens_of(rollout: Rollout, turn: Turn, tokenizer: Tokenizer) -> Html:
    """The tokens of a turn as they were sampled, with their log-probs. Nothing is encoded again."""
    tokens = []
    for i in range(turn.start, turn.end):
        words = tokenizer.decode([rollout.tokens[i]]).replace("\n", "↵\n")
        logprob = rollout.logprobs[i]
        if logprob is None:
            tokens.append(el("s", words, title="not sampled, never trained"))
        else:
            tokens.append(el("b", words, title=f"log-prob {logprob:.3f}"))
    trained = sum(rollout.sampled[turn.start:turn.end])
    summary = f"its tokens ({trained} sampled and trained, {len(tokens) - trained} not)"
    return folded("tokens", summary, tokens)


def folded(name: str, summary: str, content: Content) -> Html:
    return details(summary, el("div", content, class_="verbatim"), class_=name)


def arithmetic(summary: str, steps_of: Callable, under: dict) -> Html:
    """A table of numbers and how each came about. Where recipes agree, they share a line.

    `under` has an entry for each recipe, and `steps_of` gives the numbers of an entry.
    """
    recipes: dict[explain.Step, list[str]] = {}
    for recipe, credited in under.items():
        for step in steps_of(credited):
            recipes.setdefault(step, []).append(recipe)
    if not recipes:
        return Html()

    ids = list(explain.STEPS)
    names = [step.name for step in recipes]
    rows = []
    for step in sorted(recipes, key=lambda step: (ids.index(step.id), names.index(step.name))):
        value = "none" if step.value is None else f"{step.value:.6g}"
        inputs = "; ".join(f"{name} = {number:.6g}" for name, number in step.inputs)
        agreeing = ", ".join(recipes[step])
        rows.append([step.name, value, agreeing, step.formula, inputs])
    head = ["number", "value", "recipe", "formula", "made of"]
    return details(summary, table(head, rows), class_="arithmetic")


def hue(x: float) -> str:
    if abs(x) < 1e-9:
        return "none"
    return "plus" if x > 0 else "minus"


def shade(x: float, largest: float) -> str:
    """Classes of a colour: blue for more, orange for less, in five strengths."""
    strength = min(5, ceil(5 * abs(x) / (largest or 1)))       # 5 x / x may be above 5
    return f"{hue(x)} a{strength}"
