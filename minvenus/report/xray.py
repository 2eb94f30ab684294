"""The reward X-ray: rollouts turn by turn, and how every number of their rewards came about, as one HTML file.

    write_page("runs/igpo/rollouts/step-00000020.jsonl", "xray.html")       a training batch, all of its groups
    write_page(..., group=3)                                                one group of it
    write_page("trajectory.json", "xray.html", scorer=s, answer="Rome")     somebody else's, scored by a model

source.py reads the file, explain.py gives the numbers, xray.html has the static words, and xray.js draws
the data of `page_data`:

    groups        a question and its rollouts
    rollouts      the turns, log P(answer) before each, and the credit of every turn under each recipe
    steps         [explanation, value, inputs, parts] of every number; credit names them by their place
    explanations  name, formula and words of a number

Numbers are not rounded, but for the log-probs of sampled tokens (three digits).
"""

import json
from dataclasses import replace
from pathlib import Path

from minvenus.config import ConfigError, Recipe
from minvenus.files import write_text
from minvenus.igpo.credit import Measured
from minvenus.igpo.gain import value
from minvenus.report import page
from minvenus.report.curves import ticks, value_range
from minvenus.report.explain import NOT_SCORED, Arithmetic, Compared, settings, steps, under_recipes
from minvenus.report.source import (
    Case,
    Scorer,
    Source,
    answer_logprobs,
    find_tokenizer,
    plural,
    read_source,
    turn_tokens,
)
from minvenus.text.tokenizer import Tokenizer

LARGEST = 24_000_000                             # bytes of a page; browsers become slow beyond
TEXT, TEXT_OF_ALL = 1_000_000, 6_000_000         # bytes of the texts of one rollout, and of a page
TOKENS, TOKENS_OF_ALL = 500_000, 3_000_000       # bytes of their tokens
TEXTS, LEAST_TEXT = ("observation", "thought", "call", "answer", "raw"), 100     # letters that always stay
TITLE = 160                                      # letters
POLICIES = {"current": "the policy itself, before the update", "reference": "the start checkpoint"}


def write_page(source_path, out_path, group: int | str | None = None, scorer: Scorer | None = None,
               answer: str | None = None, recipe: Recipe | None = None) -> Path:
    """Write the page and return its path.

    group    show only this one of a file with several (a training file: its number; eval.py's: the question's id)
    scorer   gives log P(answer) before every turn of a rollout that has none
    answer   the true one, where the file does not know it
    recipe   how the model is asked for it (lead_in), if not as the paper does
    """
    source = chosen(read_source(source_path), group)
    if source.batch and (scorer or answer is not None):
        raise ConfigError(f"{source.name} is a training batch with its own numbers: leave out the model and the answer")
    if answer is not None:
        if scorer is None:
            raise ConfigError("an answer can only be scored by a model: give both, or neither")
        if not answer.strip():
            raise ConfigError("the answer is blank")
        source = replace(source, cases=[replace(case, answers=[answer]) for case in source.cases])
    measured = measure(source, scorer, recipe or Recipe.paper())
    rollouts = [case.rollout for case in source.cases if case.rollout is not None]
    tokenizer = scorer.tokenizer if scorer else find_tokenizer(rollouts, Path(source_path))
    document = xray(source, measured, tokenizer, scorer.name if scorer else None)
    if len(document) > LARGEST:
        raise ConfigError(f"{source.name} has {len(source.cases)} rollouts, too many for one page: choose one group of "
                          f"{group_names(source)}")
    return write_text(out_path, document)


def chosen(source: Source, group: int | str | None) -> Source:
    """The source with one of its groups. The batch stays whole: its statistics are over all groups."""
    cases = [case for case in source.cases if group is None or str(case.group) == str(group)]
    if not cases:
        raise ConfigError(f"{source.name} has no group {group}; it has {group_names(source)}")
    return replace(source, cases=cases)


def group_names(source: Source) -> str:
    names = list(dict.fromkeys(str(case.group) for case in source.cases))
    return ", ".join(names[:20]) + ", ..." * (len(names) > 20)


def measure(source: Source, scorer: Scorer | None, recipe: Recipe) -> list[Measured] | None:
    """What the numbers are made of: of all rollouts of a training batch, or of the cases that a model scores here."""
    if source.batch:
        return source.batch.measured
    if scorer is None:
        return None
    if not all(case.answers for case in source.cases):
        raise ConfigError(f"{source.name} does not say what the true answer is: give the answer that is to be scored")
    return [Measured(case.kinds, case.malformed, answer_logprobs(case, scorer, recipe), outcome=0.0, group=0)
            for case in source.cases]                  # neither outcome nor group will be used


def xray(source: Source, measured: list[Measured] | None, tokenizer: Tokenizer | None, scored_by: str | None) -> str:
    """The page of a source. `measured` has an entry per rollout of the batch, or per case that was scored here."""
    batch, cases = source.batch, source.cases
    compared = under_recipes(measured, batch.recipe if batch else None) if measured else []
    if batch and any(row is not None for m in batch.measured for row in m.logprobs):
        scored_by = POLICIES[batch.gain_policy]
    shortened = sum(shorten_texts(case.turns, min(TEXT, TEXT_OF_ALL // len(cases))) for case in cases)
    if tokenizer:
        add_tokens(cases, tokenizer, min(TOKENS, TOKENS_OF_ALL // len(cases)))
    data = page_data(source, measured, compared)
    conditions = {
        "trained": batch, "lone": scored_by and not batch, "recipes": compared, "several": len(cases) > 1,
        "scored": scored_by, "unscored": not scored_by, "unscored-run": batch and not scored_by,
        "shortened": shortened, "text-only": cases[0].rollout is None}
    data["conditions"] = [name for name, holds in conditions.items() if holds]
    facts = [("file", source.name)]
    facts += [("training step", f"{batch.step:,}")] if batch else []
    facts += [("trained by", one.described) for one in compared if one.trained]
    facts += [("log P(answer) according to", scored_by)] if scored_by else []
    title = f"{len(cases)} rollouts of {len(data['groups'])} questions"
    if len(data["groups"]) == 1:
        question = cases[0].question
        title = question if len(question) <= TITLE else question[:TITLE].rsplit(" ", 1)[0] + " ..."
    return page.page(title, [page.asset("xray.html")], lede(source, scored_by), facts, "reward X-ray", data)


def lede(source: Source, scored_by: str | None) -> str:
    if source.batch:
        return ("What the agent did, how each of its turns was paid, and what training makes of it. "
                "Every number opens: it shows its formula and the numbers that it was made of.")
    if scored_by:
        return "What the agent did, and how probable each turn made the true answer."
    return ("What the agent did, and whether each turn keeps to the format. No model has scored it, so there are no "
            "gains.")


# ---------------------------------------------------------------------------------------------------- data


class Distinct:
    """A list of different values. What occurs many times on a page is written once and named by its place."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def place(self, item) -> int:
        return self.places.setdefault(json.dumps(item, ensure_ascii=False), len(self.places))

    def items(self) -> list:
        return [json.loads(item) for item in self.places]


def page_data(source: Source, measured: list[Measured] | None, compared: list[Compared]) -> dict:
    explanations, numbers = Distinct(), Distinct()
    groups: dict[int | str, list[int]] = {}
    rollouts = []
    for i, case in enumerate(source.cases):
        groups.setdefault(case.group, []).append(i)
        row = case.row if source.batch else i
        logprobs = measured[row].logprobs if measured else [None] * len(case.turns)
        outcome = outcome_text(case, measured[row].outcome if measured and source.batch else None)
        rollouts.append({
            "name": case.name or f"rollout {len(groups[case.group])}", "prediction": case.turns[-1]["answer"],
            "outcome": outcome, "facts": rollout_facts(case, outcome), "turns": case.turns,
            "error": case.rollout.error if case.rollout else None,
            "measured": [None if answer is None else value(answer, "log_prob") for answer in logprobs],
            "credit": {one.name: credit_data(one.rollouts[row], explanations, numbers)
                       for one in compared if one.rollouts}})
    recipes = [{"name": one.name, "label": one.label, "words": one.words, "trained": one.trained,
                "missing": None if one.rollouts else NOT_SCORED, "settings": settings(one.recipe)} for one in compared]
    return {"recipes": recipes, "groups": [group_data(source, places, rollouts) for places in groups.values()],
            "rollouts": rollouts, "explanations": explanations.items(), "steps": numbers.items()}


def group_data(source: Source, places: list[int], rollouts: list[dict]) -> dict:
    """A group; `largest` is the number with the strongest colour, `range` and `ticks` are of log P(answer)."""
    cases = [source.cases[i] for i in places]
    credits = [credit for i in places for credit in rollouts[i]["credit"].values()]
    sizes = [abs(x) for credit in credits for x in credit["advantages"] or credit["rewards"] if x is not None]
    remark = None
    if source.batch:
        remark = same_outcome([source.batch.credit.rewards[case.row].outcome for case in cases])
    low, high = value_range([x for i in places for x in rollouts[i]["measured"] if x is not None])
    air = 0.12 * (high - low)
    return {"name": str(cases[0].group), "question": cases[0].question, "rollouts": places, "remark": remark,
            "largest": max(sizes, default=0.0), "range": [low - air, high + air],
            "ticks": ticks(low - air, high + air, about=5)}


def same_outcome(outcomes: list[float]) -> str | None:
    if len(outcomes) < 2 or len(set(outcomes)) > 1:
        return None
    return (f"All {len(outcomes)} rollouts have the same outcome, {outcomes[0]:g}: their final answers say nothing "
            "about what was better. GRPO learns nothing here; IGPO still does where gains differ.")


def credit_data(a: Arithmetic, explanations: Distinct, numbers: Distinct) -> dict:
    """Per turn its advantage, reward and gain (None where it has none) and the steps that explain them."""
    listed: list[list[int]] = []
    for t in range(len(a.measured.kinds)):
        listed.append([])
        for step in steps(a, t):
            about = {"id": step.id, "name": step.name, "formula": step.formula, "words": step.words}
            listed[-1].append(numbers.place([explanations.place(about), step.value, step.inputs, step.parts]))
    advantages = a.numbers.get("advantages")
    return {"advantages": advantages, "rewards": [*a.numbers["turn_rewards"], a.numbers.get("outcome")],
            "gains": a.numbers["gains"], "steps": listed, "teaches": teaches(advantages) if advantages else None}


def teaches(advantages: list[float]) -> str:
    """What an update would change in this rollout, in words."""
    up, down = sum(a > 1e-9 for a in advantages), sum(a < -1e-9 for a in advantages)
    if not up and not down:
        return "Teaches nothing here: every turn has advantage 0."
    if max(advantages) - min(advantages) < 1e-9:
        return f"{'More' if up else 'Less'} of everything that it did: {advantages[0]:+.3f} on all turns."
    parts = []
    if up:
        parts.append(f"{plural(up, 'turn')} up, most of all turn {advantages.index(max(advantages)) + 1}")
    if down:
        parts.append(f"{plural(down, 'turn')} down, most of all turn {advantages.index(min(advantages)) + 1}")
    return f"Pushes {'; '.join(parts)}."


def outcome_text(case: Case, outcome: float | None) -> str:
    if outcome is not None:
        return f"{outcome:.3g}"
    return {True: "right", False: "wrong", None: "unknown"}[case.verdict]


def rollout_facts(case: Case, outcome: str) -> list[tuple[str, str]]:
    ran = [turn["kind"] for turn in case.turns if turn["observation"] is not None]
    searches, visits = ran.count("search"), ran.count("visit")
    facts = [("true answer", " / ".join(case.answers) or "not known"),
             ("answer given", case.turns[-1]["answer"] or "none"), ("outcome", outcome)]
    if case.rollout:
        facts.append(("ended as", case.rollout.termination))
    facts += [
        ("turns", f"{len(case.turns)}"), ("searches, visits", f"{searches}, {visits}"),
        ("browse ratio", f"{visits / (searches + visits):.0%}" if searches + visits else "no calls"),
        ("malformed turns", f"{sum(case.malformed)}"),
        ("repeated calls", f"{sum(turn['repeats'] is not None for turn in case.turns)}")]
    if case.rollout:
        facts.append(("tokens", f"{len(case.rollout.tokens):,}, {sum(case.rollout.sampled):,} sampled"))
    return facts


# ---------------------------------------------------------------------------------------- size of the page


def shorten_texts(turns: list[dict], room: int) -> int:
    """Shorten the longest texts of a rollout, in place, until all take `room` bytes in the page's data.
    Return how many were shortened."""
    texts = [(turn, name) for turn in turns for name in TEXTS if turn[name]]
    whole = [turn[name] for turn, name in texts]
    limit = max(map(len, whole), default=0)
    while limit > LEAST_TEXT and sum(page.embedded_size(shortened(text, limit)) for text in whole) > room:
        limit = limit * 4 // 5
    for (turn, name), text in zip(texts, whole, strict=True):
        turn[name] = shortened(text, limit)
    return sum(len(text) > limit for text in whole)


def shortened(text: str, limit: int) -> str:
    """The first and last characters of a text that is longer than `limit`, and how many are missing between them."""
    if len(text) <= limit:
        return text
    head, tail = text[:limit * 3 // 4], text[len(text) - limit // 4:]
    missing = len(text) - len(head) - len(tail)
    return f"{head}\n[... {missing:,} characters are left out here ...]\n{tail}"


def add_tokens(cases: list[Case], tokenizer: Tokenizer, room: int) -> None:
    """Give the turns of each rollout their tokens, from the first turn on and as far as `room` bytes go."""
    for case in cases:
        if case.rollout is None:
            continue
        left = room
        for turn in case.turns:
            start, end = turn["span"]
            tokens = turn_tokens(case.rollout, start, end, tokenizer)
            left -= page.embedded_size(tokens)
            if left < 0:
                break
            turn["tokens"] = tokens
