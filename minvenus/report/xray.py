"""The reward X-ray: rollouts turn by turn, and how every number of their rewards came about, as one HTML file.

    write_page("runs/igpo/rollouts/step-00000020.jsonl", "xray.html")       a training batch, all of its groups
    write_page(..., group=3)                                                one group of it
    write_page("trajectory.json", "xray.html", scorer=s, answer="Rome")     somebody else's, scored by a model

source.py reads the file, explain.py gives the numbers, xray.html has the static words, and xray.js draws
the data of `page_data`:

    groups        a question and its rollouts
    rollouts      the turns, log P(answer) before each, and the credit of every turn under each recipe
    steps         [explanation, value, inputs] of every number; credit names them by their place
    explanations  name, formula and words of a number

Numbers are not rounded, but for the log-probs of sampled tokens (three digits).
"""

import json
from dataclasses import asdict, replace
from pathlib import Path

from minvenus.config import ConfigError, Recipe
from minvenus.files import write_text
from minvenus.igpo.credit import Measured
from minvenus.igpo.gain import value
from minvenus.report import page
from minvenus.report.curves import ticks, value_range
from minvenus.report.explain import Arithmetic, Compared, steps, under_recipes
from minvenus.report.source import Case, Scorer, Source, answer_logprobs, read_source, run_tokenizer, shown_tokens
from minvenus.text.tokenizer import Tokenizer

LARGEST = 24_000_000                             # characters of a page; browsers become slow beyond
POLICIES = {"current": "the policy itself, before the update", "reference": "the start checkpoint"}
LEDE = ("What the agent did, how each of its turns was paid, and what training makes of it. "
        "Every number opens: it shows its formula and the numbers that it was made of.")


def write_page(source_path, out_path, group: int | str | None = None, scorer: Scorer | None = None,
               answer: str | None = None, recipe: Recipe | None = None) -> Path:
    """Write the page and return its path.

    group    show only this one of a file with several (a training file: its number; eval.py's: the question's id)
    scorer   gives log P(answer) before every turn of a rollout that has none
    answer   the true one, where the file does not know it
    recipe   how the model is asked for it (lead_in), if not as the paper does
    """
    source = chosen(read_source(source_path), group)
    if source.batch and scorer:
        raise ConfigError(f"{source.path.name} is a training batch with its own numbers: leave out the model and the "
                          "answer")
    if answer is not None:
        source = replace(source, cases=[replace(case, answers=[answer]) for case in source.cases])
    measured = measure(source, scorer, recipe or Recipe.paper())
    document = xray(source, measured, scorer.name if scorer else None)
    if len(document) > LARGEST:
        raise ConfigError(f"{source.path} has {len(source.cases)} rollouts, too many for one page: choose one --group "
                          f"of {group_names(source)}")
    return write_text(out_path, document)


def chosen(source: Source, group: int | str | None) -> Source:
    """The source with one of its groups. The batch stays whole: its statistics are over all groups."""
    cases = [case for case in source.cases if group is None or str(case.group) == str(group)]
    if not cases:
        raise ConfigError(f"{source.path.name} has no group {group}; it has {group_names(source)}")
    return replace(source, cases=cases)


def group_names(source: Source) -> str:
    return ", ".join(dict.fromkeys(str(case.group) for case in source.cases))


def measure(source: Source, scorer: Scorer | None, recipe: Recipe) -> list[Measured] | None:
    """What the numbers are made of: of all rollouts of a training batch, or of the cases that a model scores here."""
    if source.batch:
        return source.batch.measured
    if scorer is None:
        return None
    if not all(case.answers and case.answers[0].strip() for case in source.cases):
        raise ConfigError(f"{source.path.name} does not say what the true answer is: give the answer that is to be "
                          "scored")
    return [Measured(case.kinds, case.malformed, answer_logprobs(case, scorer, recipe), outcome=0.0, group=0)
            for case in source.cases]                  # neither outcome nor group will be used


def xray(source: Source, measured: list[Measured] | None, scored_by: str | None) -> str:
    """The page of a source. `measured` has an entry per rollout of the batch, or per case that was scored here."""
    batch, cases = source.batch, source.cases
    compared = under_recipes(measured, batch.recipe if batch else None) if measured else []
    if batch and any(row is not None for m in batch.measured for row in m.logprobs):
        scored_by = POLICIES[batch.gain_policy]
    tokenizer = run_tokenizer(source)
    data = page_data(source, measured, compared, tokenizer)
    conditions = {
        "trained": batch, "lone": scored_by and not batch, "recipes": compared, "several": len(cases) > 1,
        "scored": scored_by, "unscored": not scored_by, "tokens": tokenizer}
    data["conditions"] = [name for name, holds in conditions.items() if holds]
    facts = [("file", source.path.name)]
    facts += [("training step", f"{batch.step:,}")] if batch else []
    facts += [("trained by", one.described) for one in compared if one.trained]
    facts += [("log P(answer) according to", scored_by)] if scored_by else []
    title = f"{len(cases)} rollouts of {len(data['groups'])} questions"
    if len(data["groups"]) == 1:
        title = cases[0].question
    return page.page(title, [page.asset("xray.html")], LEDE, facts, "reward X-ray", data)


# ---------------------------------------------------------------------------------------------------- data


class Distinct:
    """A list of different values. What occurs many times on a page is written once and named by its place."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def place(self, item) -> int:
        return self.places.setdefault(json.dumps(item, ensure_ascii=False), len(self.places))

    def items(self) -> list:
        return [json.loads(item) for item in self.places]


def page_data(source: Source, measured: list[Measured] | None, compared: list[Compared],
              tokenizer: Tokenizer | None) -> dict:
    explanations, numbers = Distinct(), Distinct()
    groups: dict[int | str, list[int]] = {}
    rollouts = []
    for i, case in enumerate(source.cases):
        groups.setdefault(case.group, []).append(i)
        row = case.row if source.batch else i
        logprobs = measured[row].logprobs if measured else [None] * len(case.turns)
        outcome = {True: "right", False: "wrong", None: "unknown"}[case.verdict]
        if source.batch:
            outcome = f"{source.batch.measured[row].outcome:.3g}"
        turns = case.turns
        if case.rollout and tokenizer:
            turns = [shown | {"tokens": shown_tokens(case.rollout, turn, tokenizer)}
                     for shown, turn in zip(case.turns, case.rollout.turns, strict=True)]
        rollouts.append({
            "name": case.name or f"rollout {len(groups[case.group])}", "prediction": turns[-1]["answer"],
            "outcome": outcome, "facts": rollout_facts(case, outcome), "turns": turns,
            "error": case.rollout.error if case.rollout else None,
            "measured": [None if answer is None else value(answer, "log_prob") for answer in logprobs],
            "credit": {one.name: credit_data(one.rollouts[row], explanations, numbers)
                       for one in compared if one.rollouts}})
    recipes = [{"name": one.name, "words": one.words, "trained": one.trained,
                "missing": one.rollouts is None} for one in compared]
    return {"recipes": recipes, "groups": [group_data(source, places, rollouts) for places in groups.values()],
            "rollouts": rollouts, "explanations": explanations.items(), "steps": numbers.items()}


def group_data(source: Source, places: list[int], rollouts: list[dict]) -> dict:
    """A group; `largest` is the advantage with the strongest colour, `range` and `ticks` are of log P(answer)."""
    cases = [source.cases[i] for i in places]
    credits = [credit for i in places for credit in rollouts[i]["credit"].values()]
    sizes = [abs(x) for credit in credits for x in credit["advantages"] or ()]
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
    """Per turn its advantage and gain (None where it has none) and the steps that explain them."""
    listed: list[list[int]] = []
    for t in range(len(a.measured.kinds)):
        listed.append([])
        for step in steps(a, t):
            about = asdict(step)
            number, inputs = about.pop("value"), about.pop("inputs")
            listed[-1].append(numbers.place([explanations.place(about), number, inputs]))
    return {"advantages": a.numbers.get("advantages"), "gains": a.numbers["gains"], "steps": listed}


def rollout_facts(case: Case, outcome: str) -> list[tuple[str, str]]:
    ran = [turn["kind"] for turn in case.turns if turn["observation"] is not None]
    searches, visits = ran.count("search"), ran.count("visit")
    facts = [
        ("true answer", " / ".join(case.answers) or "not known"),
        ("answer given", case.turns[-1]["answer"] or "none"), ("outcome", outcome), ("turns", f"{len(case.turns)}"),
        ("searches, visits", f"{searches}, {visits}"),
        ("browse ratio", f"{visits / (searches + visits):.0%}" if searches + visits else "no calls"),
        ("malformed turns", f"{sum(case.malformed)}")]
    if case.rollout:
        facts.append(("ended as", case.rollout.termination))
        facts.append(("tokens", f"{len(case.rollout.tokens):,}, {sum(case.rollout.sampled):,} sampled"))
    return facts
