"""What a step trains on, and the numbers to watch it by.

Rollouts are dropped before anything is normalised, and counted: they are in no mean, no standard
deviation and no update.

    failed           the policy failed, or the last turn has no sampled token   never a reward
    judge_unknown    the judge gave no verdict                                  unknown is not wrong
    alone            no other rollout of its question is left                   nothing to compare

labels[i][t]      what each page was that turn t of rollout i visited: "right", "wrong", "repeated"
                  or "failed"
right_pages[i]    how many right pages its question has; None where that is not known
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

from minvenus.config import ConfigError
from minvenus.evaluation.aggregate import browse_ratio, executed_calls
from minvenus.igpo.credit import Credit
from minvenus.sft.dataset import Example
from minvenus.types import Rollout, Sample

Labels = list[list[list[str]]]
Numbers = dict[str, float | None]

# -------------------------------------------------------------------------------- trajectories


def hold_out(examples: Sequence[Example], count: int) -> tuple[list[Example], list[Example]]:
    """(training, held out): the last `count` different trajectories are held out.

    Resampling repeats long trajectories: a copy of one that is held out is not trained on either.
    """
    different = {example_digest(example): example for example in reversed(examples)}
    if count >= len(different):
        raise ConfigError(f"{len(different)} different trajectories are not enough to hold {count} "
                          "out for validation and train on others: give more, or lower "
                          "--validation")
    held_out = [*different][:count]
    training = [example for example in examples if example_digest(example) not in held_out]
    return training, [different[key] for key in reversed(held_out)]


def fingerprint(examples: Sequence[Example]) -> str:
    """Tells whether a resumed run has the data it began with, in the same order."""
    return hashlib.sha256(b"".join(map(example_digest, examples))).hexdigest()


def example_digest(example: Example) -> bytes:
    content = example.tokens.numpy().tobytes() + example.sampled.numpy().tobytes()
    return hashlib.sha256(content).digest()


# ------------------------------------------------------------------------------------ rollouts


@dataclass(frozen=True)
class Batch:
    """The rollouts of a step that count, and how many were dropped."""

    samples: list[Sample]
    groups: int                        # questions of the step, those without a sample included
    dropped: Counter[str]

    @property
    def rollouts(self) -> list[Rollout]:
        return [sample.rollout for sample in self.samples]


def make_batch(samples: list[Sample], graded: list[Sample]) -> Batch:
    """The batch of a step. `graded` are those of the samples that have not failed."""
    known = [sample for sample in graded if sample.outcome is not None]
    group_sizes = Counter(sample.group for sample in known)
    compared = [sample for sample in known if group_sizes[sample.group] > 1]
    dropped = Counter(
        failed=len(samples) - len(graded),
        judge_unknown=len(graded) - len(known),
        alone=len(known) - len(compared),
    )
    return Batch(compared, len({sample.group for sample in samples}), dropped)


def failed(rollout: Rollout) -> bool:
    last = rollout.turns[-1]
    return rollout.termination == "error" or not any(rollout.sampled[last.start:last.end])


# --------------------------------------------------------------------------------- the numbers


def health(batch: Batch, credit: Credit, labels: Labels,
           right_pages: list[int | None]) -> Numbers:
    """The numbers to watch a step by, the most telling first. A mean of nothing is absent."""
    gains = [gain for gain in chain(*credit.gains) if gain is not None]
    right_calls: list = []                             # (searches, visits) of each rollout
    wrong_calls: list = []
    for sample in batch.samples:
        answered = sample.rollout.termination.startswith("answered")
        calls = right_calls if sample.outcome == 1.0 and answered else wrong_calls
        calls.append(executed_calls(sample.rollout.turns))
    scaled = any(z is not None for z in chain(*credit.record.turn_z))

    numbers = {
        "outcome": mean([sample.outcome for sample in batch.samples]),
        "gain_mean": mean(gains),
        **behaviour(batch.rollouts, labels, right_pages),
        **signal_shares(batch, credit),
        "gain_positive": mean([gain > 0 for gain in gains]),
        **gains_by_page(credit, labels),
        "scale": credit.record.scale if scaled else None,
        "browse_correct": browse_ratio(right_calls),
        "browse_wrong": browse_ratio(wrong_calls),
        **batch.dropped,
    }
    return {name: number for name, number in numbers.items() if number is not None}


def behaviour(rollouts: list[Rollout], labels: Labels,
              right_pages: list[int | None]) -> Numbers:
    """Share of the question's right pages that were visited, turns, share of malformed turns."""
    shares = []
    for turns, total in zip(labels, right_pages, strict=True):
        if total is not None:
            shares.append([*chain(*turns)].count("right") / total)
    return {
        "right_pages": mean(shares),
        "turns": mean([len(rollout.turns) for rollout in rollouts]),
        "malformed": mean([*chain(*(rollout.malformed for rollout in rollouts))]),
    }


def gains_by_page(credit: Credit, labels: Labels) -> Numbers:
    """The mean gain of turns that opened a right page, and of those that opened only wrong ones."""
    right, wrong = [], []
    for gain, pages in zip(chain(*credit.gains), chain(*labels), strict=True):
        if gain is None:
            continue
        if "right" in pages:
            right.append(gain)
        elif set(pages) == {"wrong"}:
            wrong.append(gain)
    return {"gain_right": mean(right), "gain_wrong": mean(wrong)}


def signal_shares(batch: Batch, credit: Credit) -> Numbers:
    """Shares of groups and turns that tell whether the batch can teach anything, and max |A|.

    From a group with equal outcomes GRPO learns nothing, and nobody from one that lost its
    rollouts. Turn shares are over all turns but the last: only these can have a gain.
    """
    outcomes = defaultdict(set)                        # by group
    sizes: dict[int, float] = defaultdict(float)       # of the largest advantage, by group
    for i, sample in enumerate(batch.samples):
        outcomes[sample.group].add(credit.rewards[i].outcome)
        sizes[sample.group] = max(sizes[sample.group], *map(abs, credit.advantages[i]))
    lost = batch.groups - len(outcomes)
    equal_outcomes = lost + sum(len(values) == 1 for values in outcomes.values())
    no_advantage = lost + sum(size < 1e-9 for size in sizes.values())

    gained, penalised = [], []
    for rewards in credit.rewards:
        for reward, penalty in zip(rewards.turns, rewards.is_penalty(), strict=True):
            gained.append(reward is not None and not penalty)
            penalised.append(penalty)
    return {
        "groups_without_outcome_signal": equal_outcomes / batch.groups,
        "groups_without_any_signal": no_advantage / batch.groups,
        "advantage_max": max(sizes.values(), default=None),
        "turns_with_gain": mean(gained),
        "turns_penalised": mean(penalised),
    }


def mean(values: Sequence) -> float | None:
    return fmean(values) if values else None
