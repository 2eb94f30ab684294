"""What a step trains on: which examples of the data it takes, and which of its rollouts count.

The order of the data is a function of seed and step, so a resumed run needs no saved position. Rollouts are dropped
before anything is normalised, and counted: they are in no mean, no standard deviation and no update.

    failed           the policy failed, or its last turn has no sampled token      no outcome, never a reward
    judge_unknown    the judge gave no verdict                                     unknown is not wrong
    alone            the only rollout of its question that is left                 nothing to compare it with

labels[i][t]      what each page that turn t of rollout i visited was: "right", "wrong", "repeated" or "failed"
right_pages[i]    how many right pages its question has; None where that is not known, as on the real web
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from minvenus.config import ConfigError
from minvenus.evaluation.aggregate import browse_ratio, executed_calls
from minvenus.evaluation.questions import batch_indices as batch_indices
from minvenus.igpo.credit import Credit
from minvenus.sft.dataset import Example
from minvenus.types import Rollout, Sample

# ----------------------------------------------------------------------------------------------- which examples, when


def hold_out(examples: Sequence[Example], count: int) -> tuple[list[Example], list[Example]]:
    """(training, held out): the last `count` different trajectories are held out, all others are for training.
    Resampling repeats long trajectories: a copy of one that is held out is not trained on either."""
    different = {digest(example): example for example in reversed(examples)}          # the last ones first
    if count >= len(different):
        raise ConfigError(f"{len(different)} different trajectories are not enough to hold {count} out for validation "
                          "and train on others: give more, or lower --validation")
    chosen = [*different][:count]
    training = [example for example in examples if digest(example) not in chosen]
    return training, [different[key] for key in reversed(chosen)]


def fingerprint(examples: Sequence[Example]) -> str:
    """Tells whether a resumed run has the data it began with, in the same order."""
    return hashlib.sha256(b"".join(map(digest, examples))).hexdigest()


def digest(example: Example) -> bytes:
    return hashlib.sha256(example.tokens.numpy().tobytes() + example.sampled.numpy().tobytes()).digest()


# ----------------------------------------------------------------------------------------------- which rollouts count


@dataclass(frozen=True)
class RolloutBatch:
    """The rollouts of a step that count, and how many were dropped. Lists have one entry per rollout."""

    rollouts: list[Rollout]
    samples: list[Sample]
    groups: int                        # questions of the step, those without any rollout left included
    dropped: Counter[str]


def make_batch(scored: list[tuple[Rollout, list[list[float] | None]]], group_size: int,
               grade: Callable[[list[Rollout]], list[float | None]]) -> RolloutBatch:
    """From rollouts and the log-probs of their true answers (igpo/gain.py), group after group. `grade` gives the
    outcome of each rollout, None where it is unknown; it is not asked about rollouts that failed."""
    rollouts, logprobs = [rollout for rollout, _ in scored], [own for _, own in scored]
    sound = [i for i, rollout in enumerate(rollouts) if not failed(rollout)]
    outcomes = dict(zip(sound, grade([rollouts[i] for i in sound]), strict=True))
    known = {i: outcome for i, outcome in outcomes.items() if outcome is not None}
    group_sizes = Counter(i // group_size for i in known)
    kept = [i for i in known if group_sizes[i // group_size] > 1]
    samples = [Sample(rollouts[i], logprobs[i], known[i], i // group_size) for i in kept]
    dropped = Counter(failed=len(rollouts) - len(sound), judge_unknown=len(sound) - len(known),
                      alone=len(known) - len(kept))
    return RolloutBatch([rollouts[i] for i in kept], samples, len(rollouts) // group_size, dropped)


def failed(rollout: Rollout) -> bool:
    last = rollout.turns[-1]
    return rollout.termination == "error" or not any(rollout.sampled[last.start:last.end])


# -------------------------------------------------------------------------------------------------------- the numbers


def health(batch: RolloutBatch, credited: Credit, labels: list[list[list[str]]],
           right_pages: list[int | None]) -> dict[str, float]:
    """The numbers to watch a step by, the most telling first. A mean of nothing is absent, never 0."""
    gains = [gain for row in credited.gains for gain in row if gain is not None]
    calls: dict[bool, list[tuple[int, int]]] = {True: [], False: []}    # (searches, visits) by right or wrong
    for sample in batch.samples:
        rollout = sample.rollout
        right = sample.outcome == 1.0 and rollout.termination.startswith("answered")
        calls[right].append(executed_calls(rollout.turns))
    numbers = {
        "outcome": mean([sample.outcome for sample in batch.samples if sample.outcome is not None]),
        "gain_mean": mean(gains),
        **behaviour(batch.rollouts, labels, right_pages),
        **signal_shares(batch, credited),
        "gain_positive": mean([float(gain > 0) for gain in gains]),
        **gains_by_page(credited, labels),
        "scale": credited.record.scale if any(z is not None for row in credited.record.turn_z for z in row) else None,
        "browse_correct": browse_ratio(calls[True]),
        "browse_wrong": browse_ratio(calls[False]),
        **batch.dropped,
    }
    return {name: number for name, number in numbers.items() if number is not None}


def behaviour(rollouts: list[Rollout], labels: list[list[list[str]]],
              right_pages: list[int | None]) -> dict[str, float | None]:
    """Share of the question's right pages that were found, turns of a rollout, share of malformed turns."""
    found = [sum(pages.count("right") for pages in labels_of_turns) / total
             for labels_of_turns, total in zip(labels, right_pages, strict=True) if total is not None]
    return {"right_pages": mean(found), "turns": mean([float(len(rollout.turns)) for rollout in rollouts]),
            "malformed": mean([float(turn.malformed) for rollout in rollouts for turn in rollout.turns])}


def gains_by_page(credited: Credit, labels: list[list[list[str]]]) -> dict[str, float | None]:
    """The mean gain of turns that opened a right page, and of those that opened nothing but wrong ones."""
    right, wrong = [], []
    for gains, labels_of_turns in zip(credited.gains, labels, strict=True):
        for gain, pages in zip(gains, labels_of_turns, strict=True):
            if gain is not None and "right" in pages:
                right.append(gain)
            elif gain is not None and set(pages) == {"wrong"}:
                wrong.append(gain)
    return {"gain_right": mean(right), "gain_wrong": mean(wrong)}


def signal_shares(batch: RolloutBatch, credited: Credit) -> dict[str, float | None]:
    """Shares of groups and turns that tell whether the batch can teach anything. From a group with equal outcomes GRPO
    learns nothing; one that lost its rollouts teaches nothing either. Turn shares are over all turns but the last, the
    only ones that can have a gain."""
    equal_outcomes = no_advantage = batch.groups - len(credited.record.groups)
    for group in credited.record.groups:
        rows = [i for i, sample in enumerate(batch.samples) if sample.group == group]
        equal_outcomes += len({credited.rewards[i].outcome for i in rows}) == 1
        no_advantage += all(abs(a) < 1e-9 for i in rows for a in credited.advantages[i])
    rewarded = [reward is not None for r in credited.rewards for reward in r.turns]
    penalties = [penalty for r in credited.rewards for penalty in r.is_penalty()]
    return {"groups_without_outcome_signal": equal_outcomes / batch.groups,
            "groups_without_any_signal": no_advantage / batch.groups,
            "turns_with_gain": mean([float(has) - penalty for has, penalty in zip(rewarded, penalties, strict=True)]),
            "turns_penalised": mean([float(penalty) for penalty in penalties])}


def mean(values: list[float]) -> float | None:
    return fmean(values) if values else None
