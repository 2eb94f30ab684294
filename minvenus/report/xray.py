"""The reward X-ray: a page of rollouts, turn by turn, with the origin of every reward number.

    write_page("runs/igpo/rollouts/step-00000020.jsonl", "xray.html")     a training batch
    write_page(..., group="3")                                            one group of it
    write_page("runs/infer/trajectory.json", "xray.html", scorer=s)       scored by a model

saved.py reads the file, explain.py gives the numbers. The page is one HTML file without scripts.
Groups open to show their rollouts, and rollouts to show their turns, with texts and numbers under
several recipes side by side.
"""

from collections.abc import Callable
from math import ceil
from pathlib import Path

from minvenus.agent.protocol import final_answer, format_error
from minvenus.config import ConfigError
from minvenus.files import write_text
from minvenus.igpo.gain import belief
from minvenus.report import explain
from minvenus.report.curves import Series, line_plot
from minvenus.report.page import Content, Html, details, el, figure, page, pairs, table
from minvenus.report.saved import Case, Facts, Groups, Scorer, read_source
from minvenus.tools.toyweb_words import with_words
from minvenus.types import Rollout

DEEPEST = 2.0                          # an advantage of this size or more has the deepest colour
LARGEST = 24_000_000                   # characters of a page; browsers become slow beyond
LEDE = ("What the agent did, how each of its turns was paid, and what training makes of it. Every "
        "number is there with its formula and the numbers that it was made of.")
GLANCE = ("The model's own log-probability of the true answer, had it been asked right after that "
          "turn (0: before the first one). A step up is a gain.")
LETTERS = ("Below, each rollout is a row of turns: S search, V visit, A answer, N no action; "
           "framed ones are malformed.")
TAUGHT = ("A turn's colour is its advantage: its own pay and a share of what follows, compared "
          "with other rollouts. Training makes blue turns more probable and orange ones less, the "
          "deeper the colour the more; grey ones stay as they are. The first row is the recipe of "
          "the run, the others are for comparison.")
HOW = (
    "The agent answers a question in turns: it thinks, then searches, visits a page, or answers. "
    "IGPO asks after a visit: how probable would the true answer be if the model had to give it "
    "now? The rise of this log P is the turn's gain, and the turn is paid for it. GRPO pays only "
    "for the final answer.",
    "Rewards r are compared within the group of rollouts of the same question (mean μ, standard "
    "deviation σ, z), gains are scaled to the size of outcomes (IG-Scale s), and each turn also "
    "gets a discounted share of what follows. The sum is its advantage A: positive (blue) makes "
    "the tokens that the model sampled in it more probable, negative (orange) less. Prompts and "
    "observations are read but never trained.",
    "In equations P is the DR-Venus paper (arXiv 2604.19859), I v1 the first version of the IGPO "
    "paper (arXiv 2510.14967). Their numbers come from public study notes that agree with each "
    "other, not from the papers.",
)


def write_page(source_path, out_path, group: str | None = None,
               scorer: Scorer | None = None) -> Path:
    """Write the page and return its path.

    group    show only this one: of a training file its number, of eval.py's the question's id
    scorer   gives log P(answer) before every turn of a rollout that has none
    """
    path = Path(source_path)
    groups, facts = read_source(path, group, scorer)
    return write_groups(path.name, groups, facts, out_path)


def write_groups(name: str, groups: Groups, facts: Facts, out_path) -> Path:
    """Write the page of groups of rollouts; `name` says where they are from."""
    boxes: list[Html] = []
    for group, cases in groups.items():
        boxes.append(group_box(group, cases, is_open=not boxes))
        first = cases[0]
    parts: list[Content] = [introduction(first), boxes]

    document = page(f"Rollouts of {name}", parts, LEDE, facts, "reward X-ray")
    if len(document) > LARGEST:
        raise ConfigError(f"{name} has too many rollouts for one page: choose one --group of "
                          f"{', '.join(groups)}")
    return write_text(out_path, document)


def default_page(source_path) -> Path:
    """runs/xray/NAME.html, after the path of the file."""
    path = Path(source_path).with_suffix("")
    names = [part for part in path.parts if part not in (path.anchor, "runs", "rollouts")]
    return Path("runs/xray", "-".join(names[-3:]) + ".html")


def introduction(case: Case) -> list[Html]:
    """How to read the page, what the recipes are, and what is missing."""
    items = [el("li", words) for words in HOW]
    glossary = pairs(explain.STEPS.values(), "glossary")
    parts = [details("How to read this page", el("ul", items), glossary, class_="how")]

    recipes = {name: credited.recipe for name, credited in case.under.items()}
    missing = ""
    if not any(recipe.use_gain for recipe in recipes.values()):
        missing = "No log P(answer) was measured here: no recipe that pays gains can be shown."
    elif not case.trained():
        missing = "These rollouts were not trained on: the arithmetic ends at gains."
    words = [(name, explain.recipe_words(name, recipe)) for name, recipe in recipes.items()]
    return [*parts, el("p", missing, class_="remark"), pairs(words, "glossary")]


# ------------------------------------------------------------------------------ groups and rollouts


def group_box(name: str, group: list[Case], is_open: bool) -> Html:
    """A group: a plot of log P(answer) along the turns, what rewards are normalised with, rollouts.
    """
    question = group[0].rollout.question
    parts: list[Content] = [pairs([("true answer", with_words(" / ".join(question.answers)))])]
    trained = group[0].trained()
    outcomes = {credited.numbers.outcome for case in group for credited in case.trained().values()}
    if len(outcomes) == 1:
        words = (f"All {len(group)} rollouts have the same outcome, {outcomes.pop():g}: GRPO "
                 "learns nothing here, IGPO still does where gains differ.")
        parts.append(el("p", words, class_="remark"))

    plot = belief_plot(group)
    sentences = [
        GLANCE if plot else None,
        LETTERS,
        TAUGHT if trained else None,
    ]
    parts.append(figure(plot, [el("p", sentence) for sentence in sentences]))
    under = {recipe: [case.under[recipe] for case in group] for recipe in trained}
    parts.append(arithmetic("what its rewards are compared with", explain.group_steps, under))
    for number, case in enumerate(group, start=1):
        parts.append(rollout_box(case, f"rollout {number}"))
    heading = f"{name}: {with_words(question.text)}"
    return details(heading, parts, class_="group", is_open=is_open)


def belief_plot(group: list[Case]) -> Html | None:
    lines = []
    for number, case in enumerate(group, start=1):
        beliefs = {}
        for t, logprobs in enumerate(case.sample.truth_logprobs):
            if logprobs is not None:
                beliefs[t] = belief(logprobs, "log_prob")
        if beliefs:
            lines.append(Series(f"rollout {number}", list(beliefs), list(beliefs.values())))
    if not lines:
        return None
    return line_plot(lines, "log P(answer)", "after turn", "mean log-prob per token")


def rollout_box(case: Case, name: str) -> Html:
    """A line with the turns as letters, once for each recipe; opened, it shows a card per turn."""
    rollout = case.rollout
    outcome = case.sample.outcome
    strips = [strip(case, recipe) for recipe in case.trained() or [""]]
    head = [
        el("b", name),
        el("span", "outcome ", "unknown" if outcome is None else f"{outcome:.3g}"),
        el("span", rollout.error or rollout.termination),
        el("span", final_answer(rollout.turns)),
        el("div", strips),
    ]
    beliefs = arithmetic("log P(answer)", explain.belief_steps, case.under)
    cards = [turn_card(case, t) for t in range(len(rollout.turns))]
    return details(head, beliefs, cards, class_="rollout")


def strip(case: Case, recipe: str) -> Html:
    """A letter for each turn, coloured by its advantage under the recipe, which shows when the
    mouse is on it; without colour if ""."""
    letters = [el("small", recipe)]
    for t, turn in enumerate(case.rollout.turns):
        colour = "none"
        number = None
        if recipe:
            advantage = case.under[recipe].numbers.advantages[t]
            colour = shade(advantage)
            number = f"{advantage:.3g}"
        if turn.malformed:
            colour += " malformed"
        letters.append(el("i", turn.kind[0].upper(), class_=colour, title=number))
    return el("span", letters, class_="strip")


def shade(advantage: float) -> str:
    """Classes of a colour: blue for more, orange for less, in five strengths."""
    if abs(advantage) < 1e-9:
        return "none"
    strength = min(5, ceil(5 * abs(advantage) / DEEPEST))
    return f"{'plus' if advantage > 0 else 'minus'} a{strength}"


# -------------------------------------------------------------------------------------------- turns


def turn_card(case: Case, t: int) -> Html:
    turn = case.rollout.turns[t]
    observation = None
    if turn.observation is not None:
        summary = f"what came back ({len(turn.observation):,} characters)"
        observation = details(summary, verbatim(with_words(turn.observation)), class_="observation")
    return el(
        "article",
        el("header",
           el("h3", f"Turn {t + 1}"),
           el("span", turn.kind, class_=f"badge {turn.kind}")),
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
