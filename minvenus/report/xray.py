"""The reward X-ray: rollouts turn by turn, and how every number of their rewards came about, as one HTML file.

    write_page("runs/igpo/rollouts/step-00000020.jsonl", "xray.html")       a training batch, all of its groups
    write_page(..., group=3)                                                one group of it
    write_page("trajectory.json", "xray.html", scorer=s)                    somebody else's, scored by a model

source.py reads the file, explain.py gives the numbers. The page is a tree that opens and folds: groups,
their rollouts, and in a turn its texts and numbers, under several recipes side by side. No script is needed.
"""

import re
from contextlib import suppress
from dataclasses import replace
from math import ceil
from pathlib import Path

from minvenus.agent.protocol import final_answer, format_error, parse_turn
from minvenus.config import ConfigError
from minvenus.files import latest_checkpoint, write_text
from minvenus.igpo.gain import belief
from minvenus.report import explain, page
from minvenus.report.curves import Series, line_plot
from minvenus.report.page import Html, el
from minvenus.report.source import Case, Scorer, read_source, scored, spells
from minvenus.text.tokenizer import Tokenizer
from minvenus.types import UNKNOWN, Rollout, Turn

LARGEST = 24_000_000                             # characters of a page; browsers become slow beyond
KINDS = {"search": "search", "visit": "visit", "answer": "answer", "none": "no action"}
POLICIES = {"current": "the policy itself, before the update", "reference": "the start checkpoint",
            "given": "what was given"}   # to experiments/calculator.py
LEDE = ("What the agent did, how each of its turns was paid, and what training makes of it. "
        "Every number is there with its formula and the numbers that it was made of.")
GLANCE = ("The model's own log-probability of the true answer, had it been asked right after that turn (0: before the "
          "first one). A step up is a gain.")
LETTERS = "Below, each rollout is a row of turns: S search, V visit, A answer, N no action; framed ones are malformed."
PAID = "The number is what the turn is paid, in brackets where it is the gain of the visit that a search led to."
TAUGHT = ("A turn's colour is its advantage: its own pay and a share of what follows, compared with other rollouts. "
          "Training makes blue turns more probable and orange ones less, the deeper the colour the more; grey ones "
          "stay as they are. The first row is the recipe of the run, the others are for comparison.")
HOW = (
    "The agent answers a question in turns: it thinks, then searches, visits a page, or answers. IGPO asks after a "
    "visit: how probable would the true answer be if the model had to give it now? The rise of this log P is the "
    "turn's gain, and the turn is paid for it. GRPO pays only for the final answer.",
    "Rewards r are compared within the group of rollouts of the same question (mean μ, standard deviation σ, z), gains "
    "are scaled to the size of outcomes (IG-Scale s), and each turn also gets a discounted share of what follows. The "
    "sum is its advantage A: positive (blue) makes the tokens that the model sampled in it more probable, negative "
    "(orange) less. Prompts and observations are read but never trained.",
    "In equations P is the DR-Venus paper (arXiv 2604.19859), I v1 the first version of the IGPO paper (arXiv "
    "2510.14967). Their numbers come from public study notes that agree with each other, not from the papers.",
)


def write_page(source_path, out_path, group: str | None = None, scorer: Scorer | None = None) -> Path:
    """Write the page and return its path.

    group    show only this one of a file with several (a training file: its number; eval.py's: the question's id)
    scorer   gives log P(answer) before every turn of a rollout that has none
    """
    path = Path(source_path)
    cases, batch = read_source(path, scorer)
    names = list(dict.fromkeys(case.group for case in cases))
    if group not in (None, *names):
        raise ConfigError(f"{path.name} has no group {group}; it has {', '.join(names)}")
    if batch is None:                   # the statistics of a batch are over all of its groups, whichever are shown
        cases = [case for case in cases if group in (None, case.group)]
    if scorer:
        cases = [scored(case, scorer) for case in cases]
    measured = [case.sample for case in cases if case.sample]
    given = batch is not None and batch.gain_policy == "given"
    compared = explain.under_recipes(measured, batch.recipe if batch else None) if measured else {}
    groups: dict[str, list[Case]] = {}
    for i, case in enumerate(cases):
        if group in (None, case.group):
            under = {recipe: credited[i] for recipe, credited in compared.items()}
            groups.setdefault(case.group, []).append(replace(case, under=under))
    count = sum(map(len, groups.values()))
    facts = [("rollouts", f"{count}"), ("questions", f"{len(groups)}")]
    if batch:
        step = [("training step", f"{batch.step:,}")] if batch.step else []          # 0: numbers that were given
        facts += [*step, ("recipe" if given else "trained with", next(iter(compared))),
                  ("log P(answer) according to", POLICIES[batch.gain_policy])]
    if scorer:
        facts.append(("log P(answer) according to", scorer.name))
    tokenizer = run_tokenizer(path, [case.rollout for case in cases]) if batch else None
    boxes = [group_box(members, tokenizer, first=not i) for i, members in enumerate(groups.values())]
    parts = [*introduction(compared, batch is not None), *boxes]
    document = page.page(f"Rollouts of {path.name}", parts, LEDE, facts, "reward X-ray")
    if len(document) > LARGEST:
        raise ConfigError(f"{path} has {count} rollouts, too many for one page: choose one --group of "
                          f"{', '.join(names)}")
    return write_text(out_path, document)


def default_page(source_path, group: str | None) -> Path:
    """runs/xray/NAME.html, after the file's path and the group. Not beside the file, which may be somebody else's."""
    parts = [part for part in Path(source_path).with_suffix("").parts if part not in ("runs", "rollouts")][-3:]
    name = re.sub(r"[^\w.-]+", "-", "-".join([*parts, group] if group else parts)).strip(".-")
    end = name.encode()[-150:].decode(errors="ignore")                 # file names have at most 255 bytes
    return Path("runs/xray", end + ".html")


def run_tokenizer(path: Path, rollouts: list[Rollout]) -> Tokenizer | None:
    """The tokenizer of the run that a training file lies in, if it spells the rollouts."""
    checkpoint = None
    with suppress(ConfigError):                                        # a copy of a run without its checkpoints
        checkpoint = latest_checkpoint(path.resolve().parent.parent)
    tokenizer = Tokenizer.from_file(checkpoint / "model") if checkpoint else None
    return tokenizer if tokenizer and all(spells(tokenizer, rollout) for rollout in rollouts) else None


def introduction(compared: dict[str, list[explain.Credited]], trained: bool) -> list[Html]:
    """How to read the page, what the recipes are, and what is missing."""
    parts = [el("details", el("summary", "How to read this page"), el("ul", [el("li", words) for words in HOW]),
                page.pairs(explain.STEPS.values(), "glossary"))]
    if not any(credited[0].recipe.use_gain for credited in compared.values()):
        parts.append(page.note("No log P(answer) was measured here: no recipe that pays gains can be shown.", "remark"))
    elif not trained:
        parts.append(page.note("These rollouts were not trained on: the arithmetic ends at rewards.", "remark"))
    recipes = [(name, explain.recipe_words(name, credited[0].recipe)) for name, credited in compared.items()]
    return [*parts, page.pairs(recipes, "glossary")]


# -------------------------------------------------------------------------------------- groups and rollouts


def group_box(group: list[Case], tokenizer: Tokenizer | None, first: bool) -> Html:
    """What the rewards of a group are normalised with, log P(answer) along its turns, and its rollouts."""
    answers = group[0].rollout.question.answers
    answer = "not known" if answers == [UNKNOWN] else " / ".join(answers)
    parts: list[Html | None] = [page.pairs([("true answer", answer)])]
    outcomes = {credited.numbers["outcome"] for case in group for credited in case.under.values()}
    if group[0].advantages() and len(group) > 1 and len(outcomes) == 1:
        alike = f"All {len(group)} rollouts have the same outcome, {outcomes.pop():g}"
        parts.append(page.note(f"{alike}: GRPO learns nothing here, IGPO still does where gains differ.", "remark"))
    lines: dict[tuple, list[str]] = {}               # points -> the numbers of the rollouts that share them
    for number, case in enumerate(group, start=1):
        measured = enumerate(case.sample.truth_logprobs if case.sample else [])
        points = tuple((t, belief(row, "log_prob")) for t, row in measured if row is not None)
        if points:
            lines.setdefault(points, []).append(f"{number}")
    if lines:
        series = [Series(f"rollout {', '.join(numbers)}", *zip(*points, strict=True))
                  for points, numbers in lines.items()]
        plot = line_plot(series, "log P(answer)", "after turn", "mean log-prob per token")
        words = [GLANCE, LETTERS, PAID, *([TAUGHT] if group[0].advantages() else [])]
        parts.append(page.figure(plot, [el("p", sentence) for sentence in words]))
    else:
        parts.append(el("p", LETTERS, class_="intro"))
    if group[0].advantages():
        steps = {recipe: explain.group_steps([case.under[recipe] for case in group]) for recipe in group[0].under}
        parts.append(arithmetic("what its rewards are compared with", steps))
    every = [abs(x) for case in group for listed in case.advantages().values() for x in listed]
    largest = max(every, default=0.0)                # has the strongest colour, under any recipe
    for number, case in enumerate(group, start=1):
        parts.append(rollout_box(case, f"rollout {number}", largest, tokenizer, only=len(group) == 1))
    return el("details", el("summary", f"{group[0].group}: {group[0].rollout.question.text}"), parts, class_="group",
              open="open" if first else None)


def rollout_box(case: Case, name: str, largest: float, tokenizer: Tokenizer | None, only: bool) -> Html:
    """A line with the letters of the turns, coloured by advantage; and when it is opened, the turns."""
    rollout = case.rollout
    strips = []
    payments = payments_of(case)
    for recipe, advantages in (case.advantages() or {"": [0.0] * len(rollout.turns)}).items():
        letters = []
        for t, (turn, x) in enumerate(zip(rollout.turns, advantages, strict=True)):
            taught = f", advantage {x:.3g}" if recipe else ""
            broken = " malformed" if turn.malformed else ""
            paid = el("small", payments[t]) if payments else None
            letters.append(el("i", KINDS[turn.kind][0].upper(), paid, class_=shade(x, largest) + broken,
                              title=f"turn {t + 1}, {KINDS[turn.kind]}{broken}{taught}"))
        payments = []                                # of the first recipe only: others pay otherwise
        strips.append(el("span", el("small", recipe) if recipe else None, letters, class_="strip"))
    head = el("summary", el("b", name), el("span", "outcome ", case.outcome),
              el("span", final_answer(rollout.turns) or "no answer"), el("div", strips))
    ran = [turn.kind for turn in rollout.turns if turn.observation is not None]
    facts = [("searches, visits", f"{ran.count('search')}, {ran.count('visit')}"),
             ("malformed turns", f"{sum(turn.malformed for turn in rollout.turns)} of {len(rollout.turns)}"),
             ("ended as", rollout.termination)]
    if any(rollout.sampled):                         # else it is not known which were
        facts.append(("tokens sampled", f"{sum(rollout.sampled):,}"))
    error = page.note(rollout.error, "warning") if rollout.error else None
    steps = {recipe: explain.value_steps(credited) for recipe, credited in case.under.items()}
    values = arithmetic("log P(answer)", steps)
    return el("details", head, page.pairs(facts), error, values, cards(case, largest, tokenizer), class_="rollout",
              open="open" if only else None)


def payments_of(case: Case) -> list[str]:
    """The reward of every turn under the run's own recipe, in brackets if it is copied; nothing if none is known."""
    credited = next(iter(case.under.values()), None)
    if credited is None:
        return []
    numbers, malformed = credited.numbers, credited.sample.rollout.malformed
    found = []
    for reward, gain, broken in zip(numbers["turn_rewards"], numbers["gains"], malformed, strict=False):
        shown = "" if reward is None else f"{reward:+.2f}".replace("-0.00", "+0.00")
        found.append(f"({shown})" if shown and gain is None and not broken else shown)
    return [*found, f"{numbers['outcome']:+.2g}" if credited.grouped else ""]


# --------------------------------------------------------------------------------------------------- turns


def cards(case: Case, largest: float, tokenizer: Tokenizer | None) -> list[Html]:
    """A card for each turn: what it wrote, what came back, its tokens, and how it is paid."""
    turns = case.rollout.turns
    first: dict[str, int] = {}                       # a call -> the first turn that made it
    made = []
    for t, turn in enumerate(turns):
        parsed = parse_turn(turn.text)
        call = ""
        for name, given in (parsed.arguments or {}).items():
            call += f"{name}: {given if isinstance(given, str) else ', '.join(given)}\n"
        notices = []
        if turn.malformed:
            rule = format_error(turn.text, t == len(turns) - 1) or "recorded as malformed when it was sampled"
            notices.append(f"✗ malformed: {rule}")
        if call and first.setdefault(call, t) < t:
            notices.append(f"the very same call as in turn {first[call] + 1}")
        if turn.tool_error:
            notices.append(f"the tool reported an error: {turn.tool_error}")
        if turn.discarded:
            notices.append(f"attempts thrown away: {', '.join(turn.discarded)}")
        advantages = {recipe: listed[t] for recipe, listed in case.advantages().items()}
        chips = [el("small", "advantage")] if advantages else []
        for recipe, x in advantages.items():
            chips.append(el("span", f"{recipe} {x:.3g}", class_=f"chip {shade(x, largest)}"))
        parts: list[Html | None] = [
            el("header", el("h3", f"Turn {t + 1}"), el("span", KINDS[turn.kind], class_=f"badge {turn.kind}"),
               chips), *(el("p", notice, class_="notice") for notice in notices)]
        for name, words in (("thought", parsed.thought), (parsed.tool, call), ("answer", parsed.answer)):
            if words:
                parts.append(el("div", el("p", name), el("p", words), class_=f"part {name}"))
        if parsed.error or turn.malformed:           # the parts are not all of it
            parts.append(folded("raw", "what it wrote, letter by letter", turn.text))
        if turn.observation is not None:
            parts.append(folded("observation", f"what came back ({len(turn.observation):,} characters)",
                                turn.observation))
        if tokenizer:
            parts.append(tokens_of(case.rollout, turn, tokenizer))
        steps = {recipe: explain.turn_steps(credited, t) for recipe, credited in case.under.items()}
        parts.append(arithmetic("how it is paid", steps))
        trained = next(iter(advantages.values()), 0.0)
        made.append(el("article", parts, class_=f"turn {hue(trained)}"))
    return made


def folded(name: str, summary: str, content: str | list[Html]) -> Html:
    return el("details", el("summary", summary), el("div", content, class_="verbatim"), class_=name)


def tokens_of(rollout: Rollout, turn: Turn, tokenizer: Tokenizer) -> Html:
    """The tokens of a turn as they were sampled, with their log-probs. Nothing is encoded again."""
    made = []
    for i in range(turn.start, turn.end):
        text, logprob = tokenizer.decode([rollout.tokens[i]]).replace("\n", "↵\n"), rollout.logprobs[i]
        made.append(el("s", text, title="not sampled, never trained") if logprob is None
                    else el("b", text, title=f"log-prob {logprob:.3f}"))
    trained = sum(rollout.sampled[turn.start:turn.end])
    return folded("tokens", f"its tokens ({trained} sampled and trained, {len(made) - trained} not)", made)


def arithmetic(summary: str, under: dict[str, list[explain.Step]]) -> Html | None:
    """A table of numbers and how each came about. Where recipes agree, they share a line."""
    recipes: dict[explain.Step, list[str]] = {}
    for recipe, steps in under.items():
        for step in steps:
            recipes.setdefault(step, []).append(recipe)
    rows = []
    ids, names = list(explain.STEPS), [step.name for step in recipes]
    for step in sorted(recipes, key=lambda step: (ids.index(step.id), names.index(step.name))):
        inputs = "; ".join(f"{name} = {x:.6g}" for name, x in step.inputs)
        value = "none" if step.value is None else f"{step.value:.6g}"
        rows.append([step.name, value, ", ".join(recipes[step]), step.formula, inputs])
    head = ["number", "value", "recipe", "formula", "made of"]
    return el("details", el("summary", summary), page.table(head, rows), class_="arithmetic") if rows else None


def hue(x: float) -> str:
    return "none" if abs(x) < 1e-9 else "plus" if x > 0 else "minus"


def shade(x: float, largest: float) -> str:
    """Classes of a colour: blue for more, orange for less, in five strengths."""
    return f"{hue(x)} a{min(5, ceil(5 * abs(x) / largest)) if largest else 0}"         # 5 x / x may be above 5
