"""Which rollouts of a step count, and what the step's numbers say about them.

    failed           the policy failed, or its last turn is blank because nothing was written          no outcome, never a reward
    judge_unknown    the judge gave no verdict                                                         unknown is not wrong
    alone            the only one of its question that is left: there is nothing to compare it with

Those three are dropped before anything is normalised, and counted: they are in no mean, no standard deviation and no update. How
an answer is graded, and which pages of a web are right, is not known here: both come in.

labels[i][t]      what each page that turn t of rollout i asked for was: "right", "wrong", "repeated" or "failed"
right_pages[i]    how many right pages its question has; None where nobody knows, as on the real web
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from minvenus.evaluation.aggregate import browse_ratio, executed_calls
from minvenus.igpo.credit import Credit, Measured
from minvenus.types import Rollout

DROPPED = ("failed", "judge_unknown", "alone")


@dataclass(frozen=True)
class Batch:
    """The rollouts of a step that count, and how many do not. Lists have one entry per rollout."""

    rollouts: list[Rollout]
    measured: list[Measured]
    groups: int                        # questions of the step, those without any rollout left included
    dropped: Counter[str]


def failed(rollout: Rollout) -> bool:
    last = rollout.turns[-1]
    return rollout.termination == "error" or not any(rollout.sampled[last.start:last.end])


def make_batch(rollouts: list[Rollout], logprobs: list[list[list[float] | None]], group_size: int,
               grade: Callable[[list[Rollout]], list[float | None]]) -> Batch:
    """`logprobs` of the answer, as igpo/gain.py has them. `grade` gives the outcome of each rollout, None where it is unknown;
    it is not asked about those that failed."""
    sound = [i for i, rollout in enumerate(rollouts) if not failed(rollout)]
    outcomes = dict(zip(sound, grade([rollouts[i] for i in sound]), strict=True))
    known = {i: outcome for i, outcome in outcomes.items() if outcome is not None}
    sizes = Counter(i // group_size for i in known)
    kept = [i for i in known if sizes[i // group_size] > 1]
    dropped = Counter(failed=len(rollouts) - len(sound), judge_unknown=len(sound) - len(known), alone=len(known) - len(kept))
    return Batch([rollouts[i] for i in kept], [Measured.of(rollouts[i], logprobs[i], known[i], i // group_size) for i in kept],
                 len(rollouts) // group_size, dropped)


# ------------------------------------------------------------------------------------------------------------- the numbers


def health(batch: Batch, credited: Credit, labels: list[list[list[str]]], right_pages: list[int | None]) -> dict[str, float]:
    """What a step should be watched by. A mean of nothing is absent, never 0."""
    gains = [gain for row in credited.gains for gain in row if gain is not None]
    calls: dict[bool, list[tuple[int, int]]] = {True: [], False: []}        # searches and visits, of right and of wrong rollouts
    for rollout, m in zip(batch.rollouts, batch.measured, strict=True):
        right = m.outcome == 1.0 and rollout.termination.startswith("answered")
        calls[right].append(executed_calls(rollout.turns))
    by_label: dict[str, list[float]] = {"right": [], "wrong": []}
    for row, own in zip(credited.gains, labels, strict=True):
        for gain, found in zip(row, own, strict=True):
            label = "right" if "right" in found else found[0] if set(found) == {"wrong"} else None
            if gain is not None and label:
                by_label[label].append(gain)
    numbers = {
        "outcome": mean([m.outcome for m in batch.measured]), "gain_mean": mean(gains),
        "gain_positive": mean([float(gain > 0) for gain in gains]), "gain_right": mean(by_label["right"]),
        "gain_wrong": mean(by_label["wrong"]), "scale": credited.record.scale,
        **behaviour(batch.rollouts, labels, right_pages),
        "browse_correct": browse_ratio(calls[True]).macro, "browse_wrong": browse_ratio(calls[False]).macro,
        **signal_shares(batch, credited), **{name: batch.dropped[name] for name in DROPPED},
    }
    return {name: number for name, number in numbers.items() if number is not None}


def behaviour(rollouts: list[Rollout], labels: list[list[list[str]]], right_pages: list[int | None]) -> dict[str, float | None]:
    """Turns of a rollout, share of malformed turns, share of the question's right pages that were found."""
    found = [sum(page == "right" for pages in own for page in pages) / n for own, n in zip(labels, right_pages, strict=True)
             if n is not None]
    return {"turns": mean([float(len(rollout.turns)) for rollout in rollouts]),
            "malformed": mean([float(turn.malformed) for rollout in rollouts for turn in rollout.turns]),
            "right_pages": mean(found)}


def signal_shares(batch: Batch, credited: Credit) -> dict[str, float]:
    """The shares of advantage.py, over all groups of the step: one that lost its rollouts teaches nothing either."""
    shares = dict(credited.health)
    left = len(credited.record.groups)
    for name in ("groups_without_outcome_signal", "groups_without_any_signal"):
        shares[name] = (shares[name] * left + batch.groups - left) / batch.groups
    return shares


def mean(values: list[float]) -> float | None:
    return fmean(values) if values else None
