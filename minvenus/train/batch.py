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

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

import torch
from torch import Tensor

from minvenus.evaluation.answers import browse_ratio, executed_calls
from minvenus.igpo.credit import Credit
from minvenus.igpo.loss import LossConfig, k3, log_ratios, policy_losses
from minvenus.types import Rollout, Sample

Labels = list[list[list[str]]]
Numbers = dict[str, float | None]
Stats = dict[str, float]
SIGNAL = 1e-9             # smaller advantages are rounding: nothing is trained with them
LossInputs = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]     # of igpo_loss, [M] each

# of the numbers of an update: means over tokens; extremes; engine against trainer, which have the
# same weights before the first optimiser step only. The others are sums.
PER_TOKEN = ("clip_fraction", "dual_clip_fraction", "approx_kl", "entropy", "logprob_gap_mean")
EXTREMES = {"ratio_min": min, "ratio_max": max, "logprob_gap": max}
GAPS = ("logprob_gap", "logprob_gap_mean")


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


# ------------------------------------------------------------------------ the numbers of a batch


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
    no_advantage = lost + sum(size < SIGNAL for size in sizes.values())

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


# ---------------------------------------------------------------------- the numbers of an update


@torch.no_grad()
def pack_stats(loss: Tensor, entropies: Tensor, inputs: LossInputs, config: LossConfig) -> Stats:
    """The numbers of a pack: sums over its tokens, or extremes.

    policy_loss and kl are the two sums of the loss. Tokens count as clipped, or dual-clipped, if
    that leaves them no policy gradient; approx_kl is the sum of log pi_old - log pi.
    """
    logprobs, old_logprobs, ref_logprobs, advantages, weights = inputs
    gaps = (logprobs - old_logprobs).abs()
    log_ratio = log_ratios(logprobs, old_logprobs)
    ratios = log_ratio.exp()
    unclipped = -advantages * ratios
    losses = policy_losses(logprobs, old_logprobs, advantages, config)

    stats = {
        "loss": loss,
        "entropy": entropies.sum(),
        "logprob_gap_mean": gaps.sum(),
        "logprob_gap": gaps.max(),
        "policy_loss": (weights * losses).sum(),
    }
    if config.kl_coef and ref_logprobs is not None:
        stats["kl"] = (weights * k3(logprobs, ref_logprobs)).sum()
    stats |= {
        "approx_kl": -log_ratio.sum(),
        "ratio_min": ratios.min(),
        "ratio_max": ratios.max(),
        "clip_fraction": (losses > unclipped).sum(),
        "dual_clip_fraction": (losses < unclipped).sum(),
    }
    numbers = torch.stack([x.double() for x in stats.values()])
    return dict(zip(stats, numbers.tolist(), strict=True))     # the one wait for the device


def minibatch_stats(packs: list[Stats], tokens: int) -> Stats:
    """The numbers of an optimiser step from those of its packs, which have so many tokens."""
    stats = merged(packs)
    return stats | {name: stats[name] / tokens for name in PER_TOKEN}


def step_stats(updates: list[Stats]) -> Stats:
    """The numbers of all optimiser steps: means, but all tokens, extremes, and the first gaps."""
    if not updates:
        return {"updates": 0, "tokens": 0}
    stats = merged(updates)
    for name in stats.keys() - {"tokens", *EXTREMES}:
        stats[name] /= len(updates)
    first_gaps = {name: updates[0][name] for name in GAPS}
    return stats | first_gaps | {"updates": len(updates)}


def merged(parts: list[Stats]) -> Stats:
    """The sums of the numbers of several parts, or their extremes."""
    return {name: EXTREMES.get(name, sum)([part[name] for part in parts]) for name in parts[0]}
