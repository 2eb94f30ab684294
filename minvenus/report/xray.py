"""The reward X-ray: rollouts turn by turn, and how every number of their rewards came about.

    write_page("runs/igpo/rollouts/step-00000020.jsonl", "xray.html")     a training batch
    write_page(..., group="3")                                            one group of it
    write_page("runs/infer/trajectory.json", "xray.html", scorer=s)       scored by a model

source.py reads the file, explain.py gives the numbers, turn_card.py shows a turn. The page is one
HTML file, a tree that opens and folds: groups, their rollouts, and in a turn its texts and numbers,
under several recipes side by side. No script is needed.
"""

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from minvenus.agent.protocol import final_answer
from minvenus.config import ConfigError
from minvenus.files import latest_checkpoint, write_text
from minvenus.igpo.gain import belief
from minvenus.report import explain
from minvenus.report.curves import Series, line_plot
from minvenus.report.page import Html, details, el, figure, note, page, pairs
from minvenus.report.source import Case, Scorer, read_source, scored, spells
from minvenus.report.turn_card import KINDS, View, arithmetic, turn_card
from minvenus.text.tokenizer import Tokenizer
from minvenus.types import UNKNOWN

LARGEST = 24_000_000                   # characters of a page; browsers become slow beyond
POLICIES = {                           # gain_policy of a batch -> who says log P(answer)
    "current": "the policy itself, before the update",
    "reference": "the start checkpoint",
    "given": "what was given",         # to experiments/calculator.py
}
LEDE = ("What the agent did, how each of its turns was paid, and what training makes of it. Every "
        "number is there with its formula and the numbers that it was made of.")
GLANCE = ("The model's own log-probability of the true answer, had it been asked right after that "
          "turn (0: before the first one). A step up is a gain.")
LETTERS = ("Below, each rollout is a row of turns: S search, V visit, A answer, N no action; "
           "framed ones are malformed.")
PAID = ("The number is what the turn is paid, in brackets where it is the gain of the visit that a "
        "search led to.")
TAUGHT = ("A turn's colour is its advantage: its own pay and a share of what follows, compared "
          "with other rollouts. Training makes blue turns more probable and orange ones less, the "
          "deeper the colour the more; grey ones stay as they are. The first row is the recipe of "
          "the run, the others are for comparison; the largest advantage of each recipe has its "
          "deepest colour.")
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
    cases, batch = read_source(path, scorer)
    names = list(dict.fromkeys(case.group for case in cases))
    if group not in (None, *names):
        raise ConfigError(f"{path.name} has no group {group}; it has {', '.join(names)}")
    if batch is None:                   # of a batch, the statistics are over all groups
        cases = [case for case in cases if group in (None, case.group)]
    if scorer:
        cases = [scored(case, scorer) for case in cases]
    compared = {}
    if batch or scorer:
        samples = [case.sample for case in cases]
        compared = explain.under_recipes(samples, batch.recipe if batch else None)

    groups: dict[str, list[Case]] = {}
    for i, case in enumerate(cases):
        if group in (None, case.group):
            under = {recipe: credited[i] for recipe, credited in compared.items()}
            groups.setdefault(case.group, []).append(replace(case, under=under))
    tokenizer = run_tokenizer(path, cases) if batch else None
    parts = introduction(compared, trained=batch is not None)
    for i, members in enumerate(groups.values()):
        parts.append(group_box(members, tokenizer, is_open=i == 0))

    count = sum(map(len, groups.values()))
    facts = [
        ("rollouts", f"{count}"),
        ("questions", f"{len(groups)}"),
    ]
    if batch and batch.step:
        facts.append(("training step", f"{batch.step:,}"))
    if batch:
        facts.append(("recipe", next(iter(compared))))
        facts.append(("log P(answer) according to", POLICIES[batch.gain_policy]))
    if scorer:
        facts.append(("log P(answer) according to", scorer.name))
    document = page(f"Rollouts of {path.name}", parts, LEDE, facts, "reward X-ray")
    if len(document) > LARGEST:
        raise ConfigError(f"{path} has {count} rollouts, too many for one page: choose one --group "
                          f"of {', '.join(names)}")
    return write_text(out_path, document)


def default_page(source_path, group: str | None) -> Path:
    """runs/xray/NAME.html, after the path of the file and the group."""
    parts = []
    for part in Path(source_path).with_suffix("").parts:
        if part not in ("runs", "rollouts"):
            parts.append(part)
    name = "-".join(parts[-3:])
    if group:
        name += f"-{group}"
    name = re.sub(r"[^\w.-]+", "-", name).strip(".-")
    name = name.encode()[-150:].decode(errors="ignore")        # file names have at most 255 bytes
    return Path("runs/xray", name + ".html")


def run_tokenizer(path: Path, cases: list[Case]) -> Tokenizer | None:
    """The tokenizer of the run that a training file lies in, if it spells the rollouts."""
    checkpoint = None
    with suppress(ConfigError):                                # a copy without checkpoints
        checkpoint = latest_checkpoint(path.resolve().parent.parent)
    if checkpoint is None:
        return None
    tokenizer = Tokenizer.from_file(checkpoint / "model")
    if not all(spells(tokenizer, case.rollout) for case in cases):
        return None
    return tokenizer


def introduction(compared: dict[str, list[explain.Credited]], trained: bool) -> list[Html]:
    """How to read the page, what the recipes are, and what is missing."""
    items = [el("li", words) for words in HOW]
    glossary = pairs(explain.STEPS.values(), "glossary")
    parts = [details("How to read this page", el("ul", items), glossary, class_="how")]

    recipes = {name: credited[0].recipe for name, credited in compared.items()}
    if not any(recipe.use_gain for recipe in recipes.values()):
        parts.append(note("No log P(answer) was measured here: no recipe that pays gains can "
                               "be shown.", "remark"))
    elif not trained:
        parts.append(note("These rollouts were not trained on: the arithmetic ends at "
                               "rewards.", "remark"))
    words = []
    for name, recipe in recipes.items():
        words.append((name, explain.recipe_words(name, recipe)))
    return [*parts, pairs(words, "glossary")]


# ------------------------------------------------------------------------------ groups and rollouts


def group_box(group: list[Case], tokenizer: Tokenizer | None, is_open: bool) -> Html:
    """What a group's rewards are normalised with, log P(answer) along its turns, its rollouts."""
    question = group[0].rollout.question
    truth = " / ".join(question.answers)
    if question.answers == [UNKNOWN]:
        truth = "not known"
    parts = [pairs([("true answer", truth)])]
    trained = bool(group[0].advantages())
    outcomes = {c.numbers.outcome for case in group for c in case.under.values()}
    if trained and len(group) > 1 and len(outcomes) == 1:
        parts.append(note(
            f"All {len(group)} rollouts have the same outcome, {outcomes.pop():g}: GRPO learns "
            "nothing here, IGPO still does where gains differ.", "remark"))

    plot = belief_plot(group)
    if plot:
        words = [GLANCE, LETTERS, PAID]
        if trained:
            words.append(TAUGHT)
        parts.append(figure(plot, [el("p", sentence) for sentence in words]))
    else:
        parts.append(el("p", LETTERS, class_="intro"))

    under = {}
    largest = {}
    for recipe in group[0].advantages():
        under[recipe] = [case.under[recipe] for case in group]
        largest[recipe] = max(abs(x) for case in group for x in case.advantages()[recipe])
    parts.append(arithmetic("what its rewards are compared with", explain.group_steps, under))
    view = View(tokenizer, largest)
    for number, case in enumerate(group, start=1):
        parts.append(rollout_box(case, f"rollout {number}", view, is_open=len(group) == 1))
    title = f"{group[0].group}: {question.text}"
    return details(title, parts, class_="group", is_open=is_open)


def belief_plot(group: list[Case]) -> Html | None:
    rollouts: dict[tuple, list[str]] = {}            # points -> the rollouts that share them
    for number, case in enumerate(group, start=1):
        points = []
        for t, logprobs in enumerate(case.sample.truth_logprobs):
            if logprobs is not None:
                points.append((t, belief(logprobs, "log_prob")))
        if points:
            rollouts.setdefault(tuple(points), []).append(f"{number}")
    if not rollouts:
        return None

    lines = []
    for line, numbers in rollouts.items():
        lines.append(Series(f"rollout {', '.join(numbers)}", *zip(*line, strict=True)))
    return line_plot(lines, "log P(answer)", "after turn", "mean log-prob per token")


def rollout_box(case: Case, name: str, view: View, is_open: bool) -> Html:
    """A line with a strip of letters for each recipe; when it is opened, a card for each turn."""
    rollout = case.rollout
    payments = payments_of(case)
    strips = []
    for recipe, advantages in case.advantages().items():
        strips.append(strip(case, view, recipe, advantages, payments))
        payments = []                                # of the first recipe: others pay otherwise
    if not strips:
        strips.append(strip(case, view, "", [0.0] * len(rollout.turns), payments))
    head = [
        el("b", name),
        el("span", "outcome ", case.outcome),
        el("span", final_answer(rollout.turns) or "no answer"),
        el("div", strips),
    ]

    ran = [turn.kind for turn in rollout.turns if turn.observation is not None]
    facts = [
        ("searches, visits", f"{ran.count('search')}, {ran.count('visit')}"),
        ("malformed turns", f"{sum(rollout.malformed)} of {len(rollout.turns)}"),
        ("ended as", rollout.termination),
        ("tokens sampled", f"{sum(rollout.sampled):,}"),
    ]
    parts = [pairs(facts)]
    if rollout.error:
        parts.append(note(rollout.error, "warning"))
    parts.append(arithmetic("log P(answer)", explain.belief_steps, case.under))
    parts += [turn_card(case, t, view) for t in range(len(rollout.turns))]
    return details(head, parts, class_="rollout", is_open=is_open)


def strip(case: Case, view: View, recipe: str, advantages: list[float],
          payments: list[str]) -> Html:
    """A letter for each turn, coloured by advantage; "" stands for no recipe."""
    letters = [el("small", recipe)] if recipe else []
    for t, turn in enumerate(case.rollout.turns):
        broken = " malformed" if turn.malformed else ""
        title = f"turn {t + 1}, {KINDS[turn.kind]}{broken}"
        if recipe:
            title += f", advantage {advantages[t]:.3g}"
        letter = KINDS[turn.kind][0].upper()
        paid = el("small", payments[t]) if payments else None
        colour = view.colour(recipe, advantages[t]) + broken
        letters.append(el("i", letter, paid, class_=colour, title=title))
    return el("span", letters, class_="strip")


def payments_of(case: Case) -> list[str]:
    """The reward of every turn under the first recipe, in brackets if it is copied."""
    if not case.under:
        return []
    credited = next(iter(case.under.values()))
    numbers = credited.numbers
    payments = []
    for t, reward in enumerate(numbers.turn_rewards):
        paid = ""
        if reward is not None:
            paid = f"{reward:+.2f}".replace("-0.00", "+0.00")
            if numbers.gains[t] is None and not case.rollout.malformed[t]:
                paid = f"({paid})"
        payments.append(paid)
    outcome = f"{numbers.outcome:+.2g}" if credited.grouped else ""
    return [*payments, outcome]
