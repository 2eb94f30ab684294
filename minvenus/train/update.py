"""The update of IGPO on a batch of rollouts with advantages.

    L = igpo_loss(log pi, log pi_old, log pi_ref, A, w)               igpo/loss.py       [P eq.10]

The batch is cut into mini-batches, one optimiser step each, and a mini-batch into packs (pack.py),
one forward pass of at most `pack_tokens` tokens each. The weights w (igpo/loss.py) count the whole
mini-batch, so the losses of its packs add up, and gradients of several processes are summed, not
averaged. SFT has the same optimiser step.

M sampled tokens of a pack, m of a rollout.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from minvenus.evaluation.questions import permutation
from minvenus.igpo.advantage import token_advantages
from minvenus.igpo.credit import Credit
from minvenus.igpo.loss import igpo_loss, token_weights
from minvenus.model.lora import switched_off
from minvenus.model.precision import precision_of
from minvenus.model.qwen3 import Qwen3
from minvenus.sft.dataset import Example
from minvenus.train.batch import (
    SIGNAL,
    Batch,
    LossInputs,
    Stats,
    minibatch_stats,
    pack_stats,
    step_stats,
)
from minvenus.train.optim import Diverged, optimizer_step
from minvenus.train.pack import pack_logprobs, rank_packs
from minvenus.train.parallel import gather
from minvenus.train.settings import IGPOConfig
from minvenus.types import Rollout


@dataclass(frozen=True)
class Row:
    """A rollout as the loss needs it. The columns have one entry per sampled token."""

    example: Example
    old_logprobs: Tensor                  # [m] float32, stored while sampling: the old policy
    advantages: Tensor                    # [m] float32, of each token's turn
    ref_logprobs: Tensor | None = None    # [m] float32, of the start checkpoint; for a KL term

    @property
    def has_signal(self) -> bool:
        """Whether the policy loss has a gradient here."""
        return bool((self.advantages.abs() >= SIGNAL).any())


def make_row(rollout: Rollout, advantages: list[float]) -> Row:
    """Each turn's advantage on its sampled tokens; prompts and observations are not trained."""
    tokens = torch.tensor(rollout.tokens, dtype=torch.int32)
    sampled = torch.tensor(rollout.sampled)
    old_logprobs = [logprob for logprob in rollout.logprobs if logprob is not None]
    spans = [(turn.start, turn.end) for turn in rollout.turns]
    per_token = torch.tensor(token_advantages(advantages, spans, len(tokens)))
    return Row(Example(tokens, sampled), torch.tensor(old_logprobs), per_token[sampled])


def igpo_update(model: Qwen3, optimizer, batch: Batch, credit: Credit,
                reference: Qwen3 | None, config: IGPOConfig, step: int) -> Stats:
    """Train on the batch; returns the statistics of all optimiser steps."""
    rows = [*map(make_row, batch.rollouts, credit.advantages)]
    if reference and config.loss.kl_coef:
        rows = with_reference(rows, reference, config)
    return train_on(rows, model, optimizer, config, step)


def train_on(rows: list[Row], model: Qwen3, optimizer, config: IGPOConfig, step: int) -> Stats:
    """One optimiser step for each mini-batch.

    A mini-batch without any signal costs no optimiser step, unless there is a KL term, which is
    the default.
    """
    updates: list[Stats] = []
    for minibatch in minibatches(rows, config, step):
        trained = trained_rows(minibatch, config)
        if not trained:
            continue
        stats = backward(model, minibatch, config)
        if not updates:
            check_gap(model, trained, stats["logprob_gap_mean"])
        stats["grad_norm"] = optimizer_step(model, optimizer, config.learning_rate, config.clip)
        updates.append(stats)
    return step_stats(updates)


def minibatches(rows: list[Row], config: IGPOConfig, step: int) -> Iterator[list[Row]]:
    """`epochs` passes over the rows, each in another order and in `minibatches` parts."""
    for epoch in range(config.epochs):
        order = permutation(len(rows), seed=(config.seed, step, epoch))
        bounds = [len(rows) * i // config.minibatches for i in range(config.minibatches + 1)]
        for start, end in pairwise(bounds):
            yield [rows[i] for i in order[start:end]]


def trained_rows(minibatch: list[Row], config: IGPOConfig) -> list[Row]:
    """Those that run: without a KL term a row without a signal changes nothing."""
    return [row for row in minibatch if row.has_signal or config.loss.kl_coef]


def backward(model: Qwen3, minibatch: list[Row], config: IGPOConfig) -> Stats:
    """Add the gradient of a mini-batch to the model; returns its statistics.

    Rows without a signal do not run where there is no KL term. They still count in the weights;
    the statistics are over the tokens that ran.
    """
    tokens = sum(row.example.trained for row in minibatch)
    rows = trained_rows(minibatch, config)

    packs = []
    for pack in rank_packs([row.example for row in rows], config.pack_tokens):
        logprobs, entropies = pack_logprobs(model, pack, config.temperature, entropy=True)
        if not pack.rows:
            logprobs.sum().backward()    # an empty pack: all ranks run equally many
            continue
        weights = token_weights(pack.segments, config.loss.aggregate, len(minibatch), tokens)
        inputs = loss_inputs([rows[i] for i in pack.rows], logprobs, weights)
        loss = igpo_loss(*inputs, config.loss)
        loss.backward()
        packs.append(pack_stats(loss, entropies, inputs, config.loss))

    trained = sum(row.example.trained for row in rows)
    stats = minibatch_stats(gather(packs), trained)
    if not math.isfinite(stats["loss"]):
        raise Diverged(f"the loss is {stats['loss']}: look at the last lines of metrics.jsonl for "
                       "a ratio, a KL or a gradient norm that grew, and lower the learning rate")
    return stats | {"tokens": sum(len(row.example) for row in rows)}


def loss_inputs(rows: list[Row], logprobs: Tensor, weights: Tensor) -> LossInputs:
    """The tensors of igpo_loss, [M] each, of the rows of a pack. The host waits for no copy."""

    def column(parts: list[Tensor]) -> Tensor:
        return torch.cat(parts).to(logprobs.device, non_blocking=True)

    references = [row.ref_logprobs for row in rows if row.ref_logprobs is not None]
    return (
        logprobs,
        column([row.old_logprobs for row in rows]),
        column(references) if references else None,
        column([row.advantages for row in rows]),
        column([weights]),
    )


@torch.no_grad()
def with_reference(rows: list[Row], reference: Qwen3, config: IGPOConfig) -> list[Row]:
    """The rows with the log-probs of the reference policy."""
    results: list[tuple[int, Tensor]] = []          # (row, its log-probs)
    with switched_off(reference):
        for pack in rank_packs([row.example for row in rows], config.pack_tokens):
            logprobs = pack_logprobs(reference, pack, config.temperature)
            counts = [rows[i].example.trained for i in pack.rows]
            results += zip(pack.rows, logprobs.cpu().split(counts), strict=True)

    ref_logprobs = dict(gather(results))
    return [replace(row, ref_logprobs=ref_logprobs[i]) for i, row in enumerate(rows)]


def check_gap(model: Qwen3, rows: list[Row], gap: float) -> None:
    """Before the first update engine and trainer have the same weights: so log-probs must agree.

    The mean of few tokens spreads: by 0.013 / sqrt(n) for n tokens of the tiny model, in bfloat16
    on a CPU and with CUDA's autocast. The bound has eight times as much room.
    """
    tokens = sum(row.example.trained for row in rows)
    precision = precision_of(model)
    bound = precision.mean_gap + precision.spread / math.sqrt(tokens)
    if gap > bound:
        raise Diverged(f"new and stored log-probs differ by {gap:.2g} in the mean of {tokens} "
                       f"tokens before the first update, more than {bound:.3g}: engine and trainer "
                       "do not run the same model, or not in the same precision")
