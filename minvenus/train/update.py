"""The two updates: supervised fine-tuning on trajectories, IGPO on rollouts with advantages. Both go through
`model.logprobs`.

    SFT    L = sum over trained tokens of weight * -log p(token)           weights: sft/dataset.py      [P eq.1]
    IGPO   L = igpo_loss(log pi, log pi_old, log pi_ref, advantages)       see igpo/loss.py             [P eq.10]

Sequences are packed end to end without padding, at most `pack_tokens` in one forward. Both losses are sums over tokens
with weights that count the whole optimiser step: how it is packed changes memory and speed, not the result.

B rollouts of a mini-batch, N tokens of a pack, M sampled ones among them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from minvenus.igpo.advantage import token_advantages
from minvenus.igpo.loss import igpo_loss, loss_stats, token_weights
from minvenus.model.lora import switched_off
from minvenus.model.precision import precision_of
from minvenus.model.qwen3 import Qwen3
from minvenus.settings import IGPOConfig
from minvenus.sft.dataset import Example, Pack, Reduction, fill_packs, step_packs
from minvenus.train.batch import batch_indices
from minvenus.train.optim import Diverged, optimizer_step
from minvenus.train.parallel import gather, idle, share_packs
from minvenus.types import Rollout

EXTREMES = {"ratio_min": min, "ratio_max": max, "logprob_gap": max}
BEFORE = ("logprob_gap", "logprob_gap_mean")             # between engine and trainer: before the first optimiser step

# --------------------------------------------------------------------------------------------- supervised fine-tuning


def sft_loss(model: Qwen3, pack: Pack) -> Tensor:
    """The pack's share of the step's loss."""
    device = model.head_weight.device
    tokens, targets = pack.tokens.to(device), pack.targets.to(device)
    # every row of the last layer, as the shipped base was trained, to the last bit
    logp = model.logprobs(tokens, pack.cu_seqlens, pack.sources, targets, dtype=precision_of(model).compute,
                          every_row=True)
    return -(pack.weights.to(device) * logp).sum()


def sft_step(model: Qwen3, optimizer, examples: Sequence[Example], rate: float, clip: float, pack_tokens: int,
             reduction: Reduction) -> dict:
    """One optimiser step on trajectories; returns its numbers."""
    losses = []
    for pack in share_packs(step_packs(examples, pack_tokens, reduction), model.width):
        part = sft_loss(model, pack) if pack else idle(model)
        part.backward()
        losses.append(part.item())
    loss = sum(gather(losses, width=model.width))
    norm = optimizer_step(model, optimizer, rate, clip)
    return {"loss": loss, "grad_norm": norm, "learning_rate": rate, "tokens": sum(len(example) for example in examples),
            "trained_tokens": sum(example.trained for example in examples)}


@torch.no_grad()
def validation_loss(model: Qwen3, examples: Sequence[Example], pack_tokens: int, reduction: Reduction) -> float:
    """The same loss on trajectories that are never trained on."""
    packs = share_packs(step_packs(examples, pack_tokens, reduction), model.width)
    losses = [float(sft_loss(model, pack) if pack else idle(model)) for pack in packs]
    return sum(gather(losses, width=model.width))


# --------------------------------------------------------------------------------------------------------------- IGPO


@dataclass(frozen=True)
class Row:
    """A rollout as the loss needs it. All but `tokens` have one entry per sampled token."""

    tokens: Tensor                    # [L] int64
    sources: Tensor                   # [m] the position whose hidden state predicts the token
    old_logp: Tensor                  # [m] float32, stored while sampling: the old policy
    advantages: Tensor                # [m] float32
    ref_logp: Tensor | None = None    # [m] float32, of the reference policy; for a KL term

    @property
    def has_signal(self) -> bool:
        """Whether the policy loss has a gradient here. The bound is that of the shares in train/batch.py."""
        return bool((self.advantages.abs() >= 1e-9).any())


def row_of(rollout: Rollout, advantages: list[float]) -> Row:
    """Each turn's advantage on that turn's sampled tokens; prompts, observations and forced tokens are left out."""
    positions = torch.tensor(rollout.sampled).nonzero()[:, 0]
    old_logp = torch.tensor([logp for logp in rollout.logprobs if logp is not None])
    per_token = token_advantages(advantages, [(turn.start, turn.end) for turn in rollout.turns], len(rollout.tokens))
    return Row(torch.tensor(rollout.tokens), positions - 1, old_logp, torch.tensor(per_token)[positions])


def igpo_update(model: Qwen3, optimizer, rows: list[Row], reference: Qwen3 | None, config: IGPOConfig,
                step: int) -> dict:
    """`epochs` passes over the rows, each in `minibatches` optimiser steps; returns the numbers of them all. A
    mini-batch without any signal costs no optimiser step, unless there is a KL term to the reference."""
    if config.loss.kl_coef:
        assert reference is not None
        with switched_off(reference):
            rows = with_reference(rows, reference, config)
    done: list[dict] = []
    for epoch in range(config.epochs):
        # the random order of (seed, step, epoch); the streams count steps and epochs from 0
        order = batch_indices(epoch + 1, len(rows), len(rows), config.seed * 1_000_003 + step - 1) if rows else []
        for i in range(config.minibatches):
            chosen = order[len(order) * i // config.minibatches:len(order) * (i + 1) // config.minibatches]
            part = [rows[j] for j in chosen]
            if not any(row.has_signal or config.loss.kl_coef for row in part):
                continue
            numbers = backward(model, part, config)
            gap, bound = numbers["logprob_gap_mean"], precision_of(model).mean_gap
            if not done and gap > bound:
                raise Diverged(f"new and stored log-probs differ by {gap:.2g} in the mean before the first update, "
                               f"more than {bound:g}: engine and trainer do not run the same model, or not in the "
                               "same precision. --logprob-gap moves this bound")
            numbers["grad_norm"] = optimizer_step(model, optimizer, config.learning_rate, config.clip)
            done.append(numbers)
    return summary(done)


def backward(model: Qwen3, rows: list[Row], config: IGPOConfig) -> dict[str, float]:
    """Add the gradient of one mini-batch to the model; returns its numbers. Rows without a signal do not run where
    there is no KL term, and still count in the loss's mean; fractions and entropy are over the tokens that ran."""
    step_rollouts, step_tokens = len(rows), sum(len(row.sources) for row in rows)
    rows = [row for row in rows if row.has_signal or config.loss.kl_coef]
    sampled = sum(len(row.sources) for row in rows)
    packs = []                                                         # what each adds to the numbers of the mini-batch

    def flat(tensors) -> Tensor:                                                            # [M]
        return torch.cat(list(tensors)).to(model.head_weight.device)

    for pack in share_packs(fill_packs([len(row.tokens) for row in rows], config.pack_tokens), model.width):
        if pack is None:
            idle(model).backward()
            continue
        part = [rows[i] for i in pack]
        logp, entropies = packed_logprobs(model, part, config.temperature)
        segments = flat(torch.full((len(row.sources),), k) for k, row in enumerate(part))
        weights = token_weights(segments, config.loss.aggregate, step_rollouts, step_tokens)
        old_logp, advantages = flat(row.old_logp for row in part), flat(row.advantages for row in part)
        ref_logp = flat(row.ref_logp for row in part) if config.loss.kl_coef else None
        columns = flat(logp), old_logp, ref_logp, advantages, weights, config.loss
        loss = igpo_loss(*columns)
        loss.backward()
        stats = loss_stats(*columns)
        gaps = (columns[0].detach() - old_logp).abs()
        packs.append({
            "loss": loss.item(), "policy_loss": stats["policy_loss"],
            **({"kl": stats["kl"]} if config.loss.kl_coef else {}),
            "clip_fraction": stats["clipped"] / sampled, "dual_clip_fraction": stats["dual_clipped"] / sampled,
            "approx_kl": stats["approx_kl"] / sampled, "entropy": float(torch.cat(entropies).sum()) / sampled,
            "tokens": sum(len(row.tokens) for row in part), "logprob_gap": float(gaps.max()),
            "logprob_gap_mean": float(gaps.sum()) / sampled,
            "ratio_min": stats["ratio_min"], "ratio_max": stats["ratio_max"]})
    numbers = added(gather(packs, width=model.width))
    if not math.isfinite(numbers["loss"]):
        raise Diverged(f"the loss is {numbers['loss']}: look at the last lines of metrics.jsonl for a ratio, a KL or a "
                       "gradient norm that grew, and lower the learning rate")
    return numbers


def added(parts: list[dict]) -> dict:
    """The sums of the numbers of several parts, but their extremes where a number is one."""
    return {key: EXTREMES.get(key, sum)([part[key] for part in parts]) for key in parts[0]}


def packed_logprobs(model: Qwen3, rows: list[Row], temperature: float,
                    entropy: bool = True) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Log-probs of the sampled tokens of each row and, if asked for, their entropies: two tuples of [m] tensors. At the
    sampling temperature: the ratio compares the distribution that was sampled from."""
    device = model.head_weight.device
    tokens = torch.cat([row.tokens for row in rows])                                              # [N]
    starts = [0, *accumulate(len(row.tokens) for row in rows)]
    sources = torch.cat([row.sources + start for row, start in zip(rows, starts, strict=False)])  # [M]
    targets = tokens[sources + 1].to(device)
    found = model.logprobs(tokens.to(device), torch.tensor(starts, dtype=torch.int32), sources, targets, temperature,
                           entropy=entropy, dtype=precision_of(model).compute)
    counts = [len(row.sources) for row in rows]
    if not entropy:
        return found.split(counts), ()
    logp, entropies = found
    return logp.split(counts), entropies.detach().split(counts)


@torch.no_grad()
def with_reference(rows: list[Row], reference: Qwen3, config: IGPOConfig) -> list[Row]:
    """The rows with the log-probs of the reference policy."""
    found: list[tuple[int, Tensor]] = []                                                 # of a row, its log-probs
    for pack in share_packs(fill_packs([len(row.tokens) for row in rows], config.pack_tokens), reference.width):
        if pack is None:
            idle(reference)
            continue
        logp, _ = packed_logprobs(reference, [rows[i] for i in pack], config.temperature, entropy=False)
        found += zip(pack, [own.cpu() for own in logp], strict=True)
    ref_logp = dict(gather(found, width=reference.width))
    return [replace(row, ref_logp=ref_logp[i]) for i, row in enumerate(rows)]


def summary(done: list[dict]) -> dict:
    """One set of numbers for all optimiser steps of a batch: means, but all tokens, the extremes of ratios, and the
    gaps before the first step."""
    if not done:
        return {"updates": 0, "tokens": 0}
    total = added(done)
    means = {key: value / len(done) for key, value in total.items() if key not in ("tokens", *EXTREMES)}
    return total | means | {"updates": len(done)} | {key: done[0][key] for key in BEFORE}
