"""The reward X-ray: rollouts turn by turn, and how every number of their rewards came about, as one HTML file.

    write_page("runs/igpo/rollouts/step-00000020.jsonl", "xray.html")       a training batch, all of its groups
    write_page(..., group=3)                                                one group of it
    write_page("trajectory.json", "xray.html", scorer=s, answer="Rome")     somebody else's, scored by a model

source.py reads the file, explain.py gives the numbers, turns.py shows the turns of a rollout. The page is a
tree that opens and folds: groups, their rollouts, and in a turn its texts and numbers. Everything stands on
it under every recipe, and page.css shows the recipe whose button is pressed: no script is needed.
"""

from pathlib import Path

from minvenus.agent.protocol import final_answer
from minvenus.config import ConfigError, Recipe
from minvenus.files import latest_checkpoint, write_text
from minvenus.igpo.gain import value
from minvenus.report import page
from minvenus.report.curves import Series, line_plot
from minvenus.report.explain import Compared, group_steps, under_recipes
from minvenus.report.page import Html, el
from minvenus.report.saved import SavedBatch
from minvenus.report.source import UNKNOWN, Case, Scorer, read_source, scored, spells
from minvenus.report.turns import KINDS, Shown, arithmetic, cards, number, shade
from minvenus.text.tokenizer import Tokenizer

LARGEST = 24_000_000                             # characters of a page; browsers become slow beyond
POLICIES = {"current": "the policy itself, before the update", "reference": "the start checkpoint"}
LEDE = ("What the agent did, how each of its turns was paid, and what training makes of it. "
        "Every number opens: it shows its formula and the numbers that it was made of.")
GLANCE = ("The model's own log-probability of the true answer, had it been asked right after that turn (0: before the "
          "first one). A step up is a gain.")
HOW = (
    "The agent answers a question in turns: it thinks, then searches, visits a page, or answers.",
    "IGPO asks after a visit: how probable would the true answer be if the model had to give it now? The rise of this "
    "log P is the turn's gain, and the turn is paid for it. GRPO pays only for the final answer.",
    "Rewards r are compared within the group of rollouts of the same question (mean μ, standard deviation σ, z), gains "
    "are scaled to the size of outcomes (IG-Scale s), and each turn also gets a discounted share of what follows. The "
    "sum is its advantage A: positive (blue) makes its tokens more probable, negative (orange) less.",
    "Training touches only the tokens that the model itself sampled, each with its turn's advantage. Prompts and "
    "observations are read but never trained.",
    "In equations P is the DR-Venus paper (arXiv 2604.19859), I the IGPO paper (arXiv 2510.14967 v2). Their numbers "
    "come from public study notes that agree with each other, not from the papers themselves.",
)


def write_page(source_path, out_path, group: int | str | None = None, scorer: Scorer | None = None,
               answer: str | None = None, recipe: Recipe | None = None) -> Path:
    """Write the page and return its path.

    group    show only this one of a file with several (a training file: its number; eval.py's: the question's id)
    scorer   gives log P(answer) before every turn of a rollout that has none
    answer   the true one, where the file does not know it
    recipe   how the model is asked for it (lead_in), if not as the paper does
    """
    path = Path(source_path)
    cases, batch = read_source(path, scorer)
    places = [i for i, case in enumerate(cases) if group is None or str(case.group) == str(group)]
    names = ", ".join(dict.fromkeys(str(case.group) for case in cases))
    if not places:
        raise ConfigError(f"{path.name} has no group {group}; it has {names}")
    if batch is None:                   # the statistics of a batch are over all of its groups, whichever are shown
        cases = [cases[i] for i in places]
        places = list(range(len(cases)))
    if scorer:
        cases = [scored(case, scorer, answer, recipe or Recipe.paper()) for case in cases]
    measured = [case.measured for case in cases if case.measured]
    compared = under_recipes(measured, batch.recipe if batch else None) if measured else []
    groups: dict[int | str, list[Shown]] = {}
    for i in places:
        members = groups.setdefault(cases[i].group, [])
        run = cases[i].run
        name = f"rollout {len(members) + 1}" if run is None else f"run {run}"
        under = {f"r{k}": one.rollouts[i] for k, one in enumerate(compared) if one.rollouts}
        members.append(Shown(name, cases[i], under))
    scored_by = scorer.name if scorer else None
    if batch and any(row is not None for m in measured for row in m.logprobs):
        scored_by = POLICIES[batch.gain_policy]
    about = [("file", path.name), *([("training step", f"{batch.step:,}")] if batch else []),
             *([("log P(answer) according to", scored_by)] if scored_by else [])]
    title = cases[places[0]].rollout.question.text
    if len(groups) > 1:
        title = f"{len(places)} rollouts of {len(groups)} questions"
    parts = body(list(groups.values()), compared, run_tokenizer(path, batch))
    document = page.page(title, parts, LEDE, about, "reward X-ray")
    if len(document) > LARGEST:
        raise ConfigError(f"{path} has {len(places)} rollouts, too many for one page: choose one --group of {names}")
    return write_text(out_path, document)


def run_tokenizer(path: Path, batch: SavedBatch | None) -> Tokenizer | None:
    """The tokenizer of the run that a training file lies in, if it spells the rollouts."""
    checkpoint = latest_checkpoint(path.resolve().parent.parent)
    if batch is None or checkpoint is None:
        return None
    tokenizer = Tokenizer.from_file(checkpoint / "model")
    return tokenizer if all(spells(tokenizer, rollout) for rollout in batch.rollouts) else None


# ---------------------------------------------------------------------------------------------------- parts


def body(groups: list[list[Shown]], compared: list[Compared], tokenizer: Tokenizer | None) -> list[Html]:
    parts = [el("details", el("summary", "How to read this page"), el("ul", [el("li", words) for words in HOW]),
                class_="how")]
    if not any(one.rollouts and one.recipe.use_gain for one in compared):
        parts.append(el("p", "No log P(answer) was measured in this file, so no recipe that pays gains can be shown.",
                        class_="remark"))
    if not any(one.trained for one in compared):
        parts.append(el("p", "These rollouts were not trained on: the arithmetic ends at rewards.", class_="remark"))
    parts.append(switch(compared))
    parts += [el("p", one.name, ": ", one.words, class_=f"intro under r{k}") for k, one in enumerate(compared)]
    return [*parts, *(group_box(group, tokenizer, first=group is groups[0]) for group in groups)]


def switch(compared: list[Compared]) -> Html:
    """A radio button for each recipe; that of the training is checked."""
    chosen = next((k for k, one in enumerate(compared) if one.trained), 0)
    labels = []
    for k, one in enumerate(compared):
        state = ' disabled="disabled"' if one.rollouts is None else ' checked="checked"' if k == chosen else ""
        radio = Html(f'<input type="radio" name="recipe" id="recipe-{k}"{state}/>')
        labels.append(el("label", radio, el("span", one.name, " (trained)" if one.trained else None), title=one.words))
    return el("fieldset", el("legend", "paid by"), labels, class_="switch")


def group_box(group: list[Shown], tokenizer: Tokenizer | None, first: bool) -> Html:
    """What the rewards of a group are normalised with, log P(answer) along its turns, and its rollouts."""
    parts: list[Html | None] = []
    outcomes = {credited.numbers["outcome"] for shown in group for credited in shown.under.values()}
    if group[0].advantages() and len(group) > 1 and len(outcomes) == 1:
        alike = f"All {len(group)} rollouts have the same outcome, {outcomes.pop():g}"
        parts.append(el("p", alike, ": GRPO learns nothing here, IGPO still does where gains differ.", class_="remark"))
    for recipe in group[0].advantages():
        parts.append(arithmetic(group_steps([shown.under[recipe] for shown in group]), recipe))
    lines = []
    for shown in group:
        measured = enumerate(shown.case.measured.logprobs if shown.case.measured else [])
        points = [(t, value(row, "log_prob")) for t, row in measured if row is not None]
        lines.append(Series(shown.name, [t for t, _ in points], [y for _, y in points]))
    if any(line.x for line in lines):
        parts.append(page.figure(line_plot(lines, "log P(answer)", "after turn", "mean log-prob per token"), GLANCE))
    every = [abs(x) for shown in group for listed in shown.advantages().values() for x in listed]
    largest = max(every, default=0.0)                # has the strongest colour, under any recipe
    for shown in group:
        rollout = shown.case.rollout
        head = el("summary", el("b", shown.name), el("span", "outcome ", shown.case.outcome), strips(shown, largest),
                  el("span", final_answer(rollout.turns) or "no answer"))
        error = page.warning(rollout.error) if rollout.error else None
        parts.append(el("details", head, facts(shown.case), error, cards(shown, largest, tokenizer), class_="rollout",
                        open="open" if len(group) == 1 else None))
    case = group[0].case
    return el("details", el("summary", f"{case.group}: {case.rollout.question.text}"), parts, class_="group",
              open="open" if first else None)


def strips(shown: Shown, largest: float) -> list[Html]:
    """The turns of a rollout as letters, under each recipe coloured by advantage."""
    made = []
    for recipe, advantages in shown.advantages().items():
        letters = []
        for t, (turn, x) in enumerate(zip(shown.case.rollout.turns, advantages, strict=True), 1):
            about = f"turn {t}, {KINDS[turn.kind]}{', malformed' if turn.malformed else ''}: advantage {number(x)}"
            broken = " broken" if turn.malformed else ""
            letters.append(el("i", KINDS[turn.kind][0].upper(), title=about, class_=shade(x, largest) + broken))
        made.append(el("span", letters, class_=f"strip under {recipe}"))
    return made


def facts(case: Case) -> Html:
    rollout = case.rollout
    ran = [turn.kind for turn in rollout.turns if turn.observation is not None]
    searches, visits = ran.count("search"), ran.count("visit")
    answers = rollout.question.answers
    listed = [
        ("true answer", "not known" if answers == [UNKNOWN] else " / ".join(answers)),
        ("answer given", final_answer(rollout.turns) or "none"), ("outcome", case.outcome),
        ("turns", f"{len(rollout.turns)}"), ("searches, visits", f"{searches}, {visits}"),
        ("browse ratio", f"{visits / (searches + visits):.0%}" if searches + visits else "no calls"),
        ("malformed turns", f"{sum(turn.malformed for turn in rollout.turns)}"), ("ended as", rollout.termination)]
    if rollout.trainable:
        listed.append(("tokens", f"{len(rollout.tokens):,}, {sum(rollout.sampled):,} sampled"))
    return page.pairs(listed)
