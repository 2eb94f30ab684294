"""What xray.js draws, as plain JSON values, and how much of long texts and tokens a page holds.

    groups        a question and its rollouts
    rollouts      the turns, log P(answer) before each, and per recipe the credit of each turn
    steps         [explanation, value, inputs, parts] of every number; a turn's credit names them by their place
    explanations  label, formula and words of a number
"""

import json

from minvenus.igpo.credit import Measured
from minvenus.igpo.gain import value
from minvenus.report.explain import steps
from minvenus.report.page import embed, embedded_size
from minvenus.report.recipes import NOT_SCORED, Arithmetic, Compared, settings
from minvenus.report.source import Case, Source, plural, turn_tokens
from minvenus.text.tokenizer import Tokenizer

TEXT, TEXT_OF_ALL = 1_000_000, 6_000_000         # bytes of the texts of one rollout, and of a page
TOKENS, TOKENS_OF_ALL = 500_000, 3_000_000       # bytes of their tokens
TEXTS = ("observation", "thought", "call", "answer", "raw")


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
        outcome = outcome_text(case, source.batch and source.batch.measured[row].outcome)
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
    cases = [source.cases[i] for i in places]
    credits = [credit for i in places for credit in rollouts[i]["credit"].values()]
    sizes = [abs(x) for credit in credits for x in credit["advantages"] or credit["rewards"] if x is not None]
    remark = None
    if source.batch:
        remark = same_outcome([source.batch.credit.rewards[case.row].outcome for case in cases])
    return {"name": str(cases[0].group), "question": cases[0].question, "rollouts": places, "remark": remark,
            "largest": max(sizes, default=0.0)}


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
            about = {"id": step.id, "name": step.label, "formula": step.formula, "words": step.words}
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
    """Shorten the longest texts of a rollout, in place, until they take `room` bytes in the page's data.
    How many were shortened."""
    texts = [(turn, name) for turn in turns for name in TEXTS if turn[name]]
    whole = [turn[name] for turn, name in texts]
    limit = max(map(len, whole), default=0)
    while sum(embedded_size(shortened(text, limit)) for text in whole) > room:
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
        left = room
        for turn in case.turns if case.rollout else []:
            tokens = turn_tokens(case.rollout, *turn["span"], tokenizer)
            left -= len(embed(tokens).encode())
            if left < 0:
                break
            turn["tokens"] = tokens
