"""The two updates: supervised fine-tuning on trajectories, IGPO on rollouts with advantages.

    SFT    L = sum_k w_k * -log p(x_k)                                trained tokens k   [P eq.1]
    IGPO   L = igpo_loss(log pi, log pi_old, log pi_ref, A, w)        igpo/loss.py       [P eq.10]

Both run packs (pack.py) through `model.logprobs`, at most `pack_tokens` tokens in one forward. The
weights w (igpo/loss.py) count the whole optimiser step, so the losses of its packs add up, and
gradients of several processes are summed, not averaged.

N tokens of a pack, M trained ones among them; m trained ones of a sequence.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from minvenus.evaluation.questions import permutation
from minvenus.igpo.advantage import token_advantages
from minvenus.igpo.credit import Credit
from minvenus.igpo.loss import igpo_loss, loss_stats, token_weights
from minvenus.model.lora import switched_off
from minvenus.model.precision import precision_of
from minvenus.model.qwen3 import Qwen3
from minvenus.sft.dataset import Example
from minvenus.train.batch import Batch
from minvenus.train.optim import Diverged, optimizer_step
from minvenus.train.pack import Pack, rank_packs
from minvenus.train.parallel import gather
from minvenus.train.settings import IGPOConfig, SFTConfig
from minvenus.types import Rollout

PER_TOKEN = ("clip_fraction", "dual_clip_fraction", "approx_kl", "entropy", "logprob_gap_mean")
EXTREMES = {"ratio_min": min, "ratio_max": max, "logprob_gap": max}
Stats = dict[str, float]
LossInputs = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]
GAPS = ("logprob_gap", "logprob_gap_mean")    # of engine and trainer: before the first update


def pack_logprobs(model: Qwen3, pack: Pack, temperature: float = 1.0, entropy: bool = False):
    """Log-probs [M] of the trained tokens of a pack; with `entropy`, (log-probs, entropies)."""
    tokens = pack.tokens.to(model.head_weight.device, non_blocking=True)
    dtype = precision_of(model).compute
    return model.logprobs(tokens, pack.cu_seqlens, pack.sources, temperature, entropy, dtype)


# --------------------------------------------------------------------- supervised fine-tuning


def sft_losses(model: Qwen3, examples: list[Example], config: SFTConfig) -> Iterator[Tensor]:
    """The loss of every pack of this rank; together they are the loss of the step."""
    aggregate = "token-mean" if config.reduction == "token-mean" else "seq-mean-token-mean"
    tokens = sum(example.trained for example in examples)
    for pack in rank_packs(examples, config.pack_tokens):
        weights = token_weights(pack.segments, aggregate, len(examples), tokens)
        logprobs = pack_logprobs(model, pack)
        yield -(weights.to(logprobs, non_blocking=True) * logprobs).sum()


def sft_step(model: Qwen3, optimizer, examples: list[Example], rate: float,
             config: SFTConfig) -> Stats:
    """One optimiser step on trajectories; returns its statistics."""
    losses = []
    for loss in sft_losses(model, examples, config):
        loss.backward()
        losses.append(loss.item())
    norm = optimizer_step(model, optimizer, rate, config.clip)
    return {
        "loss": sum(gather(losses)),
        "grad_norm": norm,
        "learning_rate": rate,
        "tokens": sum(len(example) for example in examples),
        "trained_tokens": sum(example.trained for example in examples),
    }


@torch.no_grad()
def validation_loss(model: Qwen3, examples: list[Example], config: SFTConfig) -> float:
    """The same loss on trajectories that are never trained on."""
    return sum(gather([loss.item() for loss in sft_losses(model, examples, config)]))


# ---------------------------------------------------------------------------------------- IGPO


@dataclass(frozen=True)
class Row:
    """A rollout as the loss needs it. The columns have one entry per sampled token."""

    example: Example
    old_logprobs: Tensor                  # [m] float32, stored while sampling: the old policy
    advantages: Tensor                    # [m] float32, of each token's turn
    ref_logprobs: Tensor | None = None    # [m] float32, of the start checkpoint; for a KL term

    @property
    def has_signal(self) -> bool:
        """Whether the policy loss has a gradient here; train/batch.py has the same bound."""
        return bool((self.advantages.abs() >= 1e-9).any())


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
    return summary(updates)


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

    pack_stats = []
    for pack in rank_packs([row.example for row in rows], config.pack_tokens):
        logprobs, entropies = pack_logprobs(model, pack, config.temperature, entropy=True)
        if not pack.rows:
            logprobs.sum().backward()    # an empty pack: all ranks run equally many
            continue
        weights = token_weights(pack.segments, config.loss.aggregate, len(minibatch), tokens)
        inputs = loss_inputs([rows[i] for i in pack.rows], logprobs, weights)
        loss = igpo_loss(*inputs, config.loss)
        loss.backward()
        pack_stats.append(statistics(loss, entropies, inputs, config))

    trained = sum(row.example.trained for row in rows)
    stats = combined(gather(pack_stats), PER_TOKEN, trained)
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


# ---------------------------------------------------------------------------------- statistics


@torch.no_grad()
def statistics(loss: Tensor, entropies: Tensor, inputs: LossInputs, config: IGPOConfig) -> Stats:
    """The numbers of a pack: sums over its tokens, or extremes."""
    logprobs, old_logprobs, *_ = inputs
    gaps = (logprobs - old_logprobs).abs()
    stats = {
        "loss": loss,
        "entropy": entropies.sum(),
        "logprob_gap_mean": gaps.sum(),
        "logprob_gap": gaps.max(),
        **loss_stats(*inputs, config.loss),
    }
    stats["clip_fraction"] = stats.pop("clipped")
    stats["dual_clip_fraction"] = stats.pop("dual_clipped")
    if not config.loss.kl_coef:
        del stats["kl"]
    numbers = torch.stack([x.double() for x in stats.values()])
    return dict(zip(stats, numbers.tolist(), strict=True))     # the one wait for the device


def combined(parts: list[Stats], means: Collection[str], count: int) -> Stats:
    """The sums of the numbers of several parts, or their extremes; `means` are sums / count."""
    stats = {}
    for name in parts[0]:
        combine = EXTREMES.get(name, sum)
        stats[name] = combine([part[name] for part in parts])
        if name in means:
            stats[name] /= count
    return stats


def summary(updates: list[Stats]) -> Stats:
    """The numbers of all optimiser steps: means, but all tokens, extremes, and the first gaps."""
    if not updates:
        return {"updates": 0, "tokens": 0}
    means = updates[0].keys() - {"tokens", *EXTREMES}
    first_gaps = {name: updates[0][name] for name in GAPS}
    return combined(updates, means, len(updates)) | first_gaps | {"updates": len(updates)}


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
