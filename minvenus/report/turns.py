"""The turns of one rollout on an X-ray: a card for each, with what it wrote, what came back, and how it is paid."""

from dataclasses import dataclass
from math import ceil

from minvenus.agent.protocol import ParsedTurn, format_error, parse_turn
from minvenus.report.explain import Credited, Step, turn_steps
from minvenus.report.page import Html, el, pairs
from minvenus.report.source import Case
from minvenus.text.tokenizer import Tokenizer
from minvenus.types import Rollout, Turn

KINDS = {"search": "search", "visit": "visit", "answer": "answer", "none": "no action"}
LONGEST = 30_000                       # characters of a text on a page; longer ones lose their middle


@dataclass(frozen=True)
class Shown:
    """A rollout on the page."""

    name: str
    case: Case
    under: dict[str, Credited]         # a recipe's class ("r0") -> the numbers under it

    def advantages(self) -> dict[str, list[float]]:
        """Under each recipe; none of a trajectory without a group."""
        return {recipe: c.numbers["advantages"] for recipe, c in self.under.items() if c.grouped}


def cards(shown: Shown, largest: float, tokenizer: Tokenizer | None) -> list[Html]:
    """`largest` is the advantage with the strongest colour. With a tokenizer the cards show tokens."""
    turns = shown.case.rollout.turns
    first: dict[str, int] = {}                       # a call -> the first turn that made it
    made = []
    for t, turn in enumerate(turns):
        parsed = parse_turn(turn.text)
        call = call_text(parsed)
        remarks = []
        if call is not None and first.setdefault(call, t) < t:
            remarks.append(f"the very same call as in turn {first[call] + 1}")
        if turn.tool_error:
            remarks.append(f"the tool reported an error: {turn.tool_error}")
        if turn.discarded:
            remarks.append(f"attempts thrown away: {', '.join(turn.discarded)}")
        parts = [el("p", remark, class_="notice") for remark in remarks]
        parts += [part("thought", parsed.thought), part(parsed.tool, call), part("answer", parsed.answer)]
        if parsed.error or turn.malformed:           # the parts are not all of it
            parts.append(folded("raw", "what it wrote, letter by letter", shortened(turn.text)))
        if turn.observation is not None:
            summary = f"what came back ({len(turn.observation):,} characters)"
            parts.append(folded("observation", summary, shortened(turn.observation)))
        if tokenizer:
            parts.append(tokens_of(shown.case.rollout, turn, tokenizer))
        parts += [arithmetic(turn_steps(credited, t), recipe) for recipe, credited in shown.under.items()]
        advantages = {recipe: listed[t] for recipe, listed in shown.advantages().items()}
        hues = [f"{recipe}-{hue(x)}" for recipe, x in advantages.items()]
        chips = [el("span", "A ", number(x), class_=f"chip under {recipe} {shade(x, largest)}")
                 for recipe, x in advantages.items()]
        made.append(el("article", header(turn, t, len(turns), chips), parts, class_=" ".join(["turn", *hues])))
    return made


def header(turn: Turn, t: int, count: int, chips: list[Html]) -> Html:
    verdict = el("span", "✓ well formed", class_="verdict")
    if turn.malformed:
        rule = format_error(turn.text, t == count - 1) or "recorded as malformed when it was sampled"
        verdict = el("span", "✗ malformed: ", rule, class_="notice")
    kind = el("span", KINDS[turn.kind], class_=f"badge {turn.kind}")
    return el("header", el("h3", f"Turn {t + 1}"), kind, verdict, chips)


def part(name: str | None, words: str | None) -> Html | None:
    if not words:
        return None
    return el("div", el("p", name, class_="name"), el("p", shortened(words), class_="said"), class_=f"part {name}")


def folded(name: str, summary: str, content: str | list[Html]) -> Html:
    return el("details", el("summary", summary), el("div", content, class_="verbatim"), class_=name)


def call_text(parsed: ParsedTurn) -> str | None:
    """The arguments of a call, one to a line."""
    if parsed.arguments is None:
        return None
    lines = parsed.arguments.get("query") or parsed.arguments["url"]
    goal = [f"goal: {parsed.arguments['goal']}"] if "goal" in parsed.arguments else []
    return "\n".join([*lines, *goal])


def shortened(text: str) -> str:
    """The first and last characters of a text that is too long, and how many are missing between them."""
    half = LONGEST // 2
    if len(text) <= 2 * half:
        return text
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters are left out here ...]\n{text[-half:]}"


def tokens_of(rollout: Rollout, turn: Turn, tokenizer: Tokenizer) -> Html:
    """The tokens of a turn as they were sampled, with their log-probs. Nothing is encoded again."""
    made = []
    for i in range(turn.start, turn.end):
        text, logprob = tokenizer.decode([rollout.tokens[i]]).replace("\n", "↵\n"), rollout.logprobs[i]
        made.append(el("s", text, title="not sampled, never trained") if logprob is None
                    else el("b", text, title=f"log-prob {logprob:.3f}"))
    trained = sum(rollout.sampled[turn.start:turn.end])
    return folded("tokens", f"its tokens ({trained} sampled and trained, {len(made) - trained} not)", made)


# ------------------------------------------------------------------------------------------------- numbers


def arithmetic(steps: list[Step], recipe: str) -> Html | None:
    """A row of numbers. Each opens and shows how it came about."""
    made = []
    for step in steps:
        signed = step.id not in ("before", "after", "std", "scale")
        head = el("summary", el("small", step.name), " ", el("b", number(step.value, signed)), title=step.formula)
        inputs = pairs([(name, repr(x)) for name, x in step.inputs], "inputs")
        exact = None if step.value is None else el("p", "Exactly: ", el("b", repr(step.value)))
        panel = el("div", el("p", step.formula, class_="formula"), el("p", step.words), inputs, exact, class_="panel")
        made.append(el("details", head, panel, class_=f"step {step.id}"))
    return el("div", made, class_=f"arithmetic under {recipe}") if made else None


def number(x: float | None, signed: bool = True) -> str:
    """Three digits after the point; powers of ten where that would show nothing, or too much."""
    if x is None:
        return "none"
    digits = f"{abs(x):.1e}" if x and not 0.0005 <= abs(x) < 1e5 else f"{abs(x):.3f}"
    return ("−" if x < 0 else "+" if signed and x > 0 else "") + digits


def hue(x: float) -> str:
    return "none" if abs(x) < 1e-9 else "plus" if x > 0 else "minus"


def shade(x: float, largest: float) -> str:
    """Classes of a colour: blue for more, orange for less, in five strengths."""
    return f"{hue(x)} a{ceil(5 * abs(x) / largest) if largest else 0}"
