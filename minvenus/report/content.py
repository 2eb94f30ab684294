"""What an X-ray page is made of, as plain JSON values. Every number is that of igpo/credit.py or of the file, unrounded (but for
the sampled tokens' log-probs, three digits each).

    recipes     name, words, fields, whether it was trained with, what is missing, size of the batch
    groups      a question, its answers, and which rollouts belong to it
    rollouts    the turns (texts, kind, verdict on the format, tokens), log P(answer) before each, and per recipe the arithmetic
"""

from dataclasses import dataclass

from minvenus.evaluation.aggregate import Run, browse_ratio
from minvenus.igpo.gain import value
from minvenus.report import budget
from minvenus.report.credits import Credited, credited, gains_only
from minvenus.report.page import embed
from minvenus.report.source import Case, ShownTurn, Source
from minvenus.report.tokens import turn_tokens
from minvenus.text.tokenizer import Tokenizer

FORMAT = "minvenus xray 1"
POLICIES = {"current": "the policy itself, before the update", "reference": "the start checkpoint"}


@dataclass(frozen=True)
class Numbers:
    """What is known of a case beyond its text."""

    logprobs: list[list[float] | None]           # of the answer's tokens, before each turn
    outcome: float | None
    arithmetic: dict[str, dict]                  # by recipe


def page_data(source: Source, scores: list[list[list[float]] | None], tokenizer: Tokenizer | None = None,
              scored_by: str | None = None) -> dict:
    """`scores`: answer log-probs that were measured for this page, per case, or None."""
    recipes, numbers = batch_numbers(source) if source.batch else own_numbers(source, scores)
    rollouts = [rollout_data(case, n) for case, n in zip(source.cases, numbers, strict=True)]
    cut = sum(budget.cut_texts(r["turns"], budget.share(budget.TEXT, budget.TEXT_OF_ALL, len(rollouts))) for r in rollouts)
    without_tokens = add_tokens(rollouts, source.cases, tokenizer) if tokenizer else 0
    batch = source.batch
    scored = any(row is not None for n in numbers for row in n.logprobs)
    if batch and scored:
        scored_by = POLICIES.get(batch.gain_policy, batch.gain_policy)
    size = (len(batch.rollouts), len(set(batch.groups))) if batch else (0, 0)
    return {"format": FORMAT, "source": source.name, "step": batch.step if batch else None, "trained": batch is not None,
            "scored_by": scored_by, "recipes": [c.described(*size) for c in recipes], "groups": group_list(source),
            "rollouts": rollouts, "cut": cut, "turns_without_tokens": without_tokens}


def batch_numbers(source: Source) -> tuple[list[Credited], list[Numbers]]:
    batch = source.batch
    assert batch is not None
    recipes = credited(batch.measured, batch.recipe)
    numbers = [Numbers(batch.measured[case.row].logprobs, batch.measured[case.row].outcome,
                       {c.name: c.rollouts[case.row] for c in recipes if c.rollouts is not None}) for case in source.cases]
    return recipes, numbers


def own_numbers(source: Source, scores: list[list[list[float]] | None]) -> tuple[list[Credited], list[Numbers]]:
    recipes: list[Credited] = []
    numbers = []
    for case, score in zip(source.cases, scores, strict=True):
        own = gains_only([t.kind for t in case.turns], [t.malformed for t in case.turns], score) if score else []
        recipes = recipes or own
        logprobs: list[list[float] | None] = list(score) if score else [None] * len(case.turns)
        numbers.append(Numbers(logprobs, None, {c.name: c.rollouts[0] for c in own if c.rollouts}))
    return recipes, numbers


def group_list(source: Source) -> list[dict]:
    groups: dict[int | str, dict] = {}
    for i, case in enumerate(source.cases):
        answers = case.question.answers if case.question else []
        groups.setdefault(case.group, {"name": str(case.group), "question": case.prompt, "answers": answers, "rollouts": []})
        groups[case.group]["rollouts"].append(i)
    return list(groups.values())


def rollout_data(case: Case, numbers: Numbers) -> dict:
    rollout, kinds = case.rollout, [t.kind for t in case.turns if t.observation is not None]
    calls = Run("", 0, None, "answered", kinds.count("search"), kinds.count("visit"))
    return {
        "row": case.row, "label": case.label, "outcome": numbers.outcome, "verdict": case.verdict,
        "prediction": case.turns[-1].parsed.answer, "termination": rollout.termination if rollout else None,
        "error": rollout.error if rollout else None, "tokens": len(rollout.tokens) if rollout else None,
        "sampled": sum(rollout.sampled) if rollout else None, "seconds": rollout.seconds if rollout else None,
        "searches": calls.searches, "visits": calls.visits, "browse_ratio": browse_ratio([calls]).pooled,
        "turns": [turn_data(turn) for turn in case.turns], "logprobs": numbers.logprobs,
        "measured": [None if row is None else value(row, "log_prob") for row in numbers.logprobs],
        "arithmetic": numbers.arithmetic,
    }


def turn_data(shown: ShownTurn) -> dict:
    parsed, turn = shown.parsed, shown.turn
    unclear = parsed.error is not None or shown.malformed        # then a reader should see what the model really wrote
    return {
        "kind": shown.kind, "thought": parsed.thought, "tool": parsed.tool, "call": call_text(shown), "answer": parsed.answer,
        "unread": parsed.error, "raw": shown.text if unclear else None, "malformed": shown.malformed, "rule": shown.rule,
        "observation": shown.observation, "repeats": shown.repeats, "tool_error": turn.tool_error if turn else None,
        "discarded": turn.discarded if turn else [], "span": [turn.start, turn.end] if turn else None,
        "seconds": turn.seconds if turn else None, "tool_seconds": turn.tool_seconds if turn else None, "tokens": None,
    }


def call_text(shown: ShownTurn) -> str | None:
    """The arguments of a call, one to a line."""
    arguments = shown.parsed.arguments
    if arguments is None:
        return None
    return "\n".join([*(arguments.get("query") or arguments.get("url") or []), *([f"goal: {arguments['goal']}"]
                      if "goal" in arguments else [])])


def add_tokens(rollouts: list[dict], cases: list[Case], tokenizer: Tokenizer) -> int:
    """Give the turns their tokens, from the first on and as far as there is room; how many turns have none."""
    room, without = budget.share(budget.TOKENS, budget.TOKENS_OF_ALL, len(rollouts)), 0
    for data, case in zip(rollouts, cases, strict=True):
        left = room if case.rollout is not None else 0
        for shown in data["turns"]:
            if left > 0 and case.rollout is not None:
                start, end = shown["span"]
                shown["tokens"] = turn_tokens(case.rollout, start, end, tokenizer)
                left -= len(embed(shown["tokens"]).encode())
            if left <= 0:
                shown["tokens"] = None
                without += 1
    return without
