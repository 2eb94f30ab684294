"""One IGPO update: rollouts and their advantages to a step of the policy.

    logp of the sampled tokens at the sampling temperature -> igpo_loss -> backward, micro-batch by micro-batch -> one step

Rollouts are packed without padding; the loss is over the sampled tokens of each rollout, its turn's advantage on each of them.
The log-probs that were stored while sampling are the old policy. What produced the rollouts is unknown here.

B rollouts of a mini-batch, N tokens of a micro-batch, M sampled ones among them.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minvenus.igpo.advantage import token_advantages
from minvenus.igpo.loss import igpo_loss
from minvenus.kernels.logprob import token_logprobs
from minvenus.model.qwen3 import Qwen3
from minvenus.settings import IGPOConfig
from minvenus.sft.dataset import fill_packs
from minvenus.train.data import batch_indices
from minvenus.train.optim import Diverged, optimiser_step
from minvenus.types import Rollout


@dataclass(frozen=True)
class Trained:
    """What the loss needs of one rollout. The last three have one entry per sampled token."""

    tokens: Tensor               # [L] int64
    sources: Tensor              # [m] position whose hidden state predicts the token
    old_logp: Tensor             # [m] float32
    advantages: Tensor           # [m] float32

    @property
    def signal(self) -> bool:
        """Whether the policy loss has a gradient here. The bound is that of the shares in igpo/advantage.py."""
        return bool((self.advantages.abs() >= 1e-9).any())


def trained(rollout: Rollout, advantages: list[float]) -> Trained:
    """Each turn's advantage on that turn's sampled tokens; prompts, observations and forced tokens are left out."""
    tokens = torch.tensor(rollout.tokens)
    positions = torch.tensor(rollout.sampled).nonzero()[:, 0]
    old = torch.tensor([logp for logp in rollout.logprobs if logp is not None])
    spread = token_advantages(advantages, [(turn.start, turn.end) for turn in rollout.turns], len(rollout.tokens))
    return Trained(tokens, positions - 1, old, torch.tensor(spread)[positions])


def logprobs(model: Qwen3, rows: list[Trained], temperature: float):
    """New log-probs of the sampled tokens of each row, and their entropies: two lists of [m] tensors."""
    device = model.head_weight.device
    tokens = torch.cat([row.tokens for row in rows]).to(device)                                       # [N]
    starts = [0, *accumulate(len(row.tokens) for row in rows)]
    sources = torch.cat([row.sources + start for row, start in zip(rows, starts, strict=False)]).to(device)      # [M]
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        hidden = model.packed(tokens, torch.tensor(starts, dtype=torch.int32, device=device))[sources]
    if device.type == "cuda":
        hidden = hidden.bfloat16()              # the last norm gives float32; the head's products are in bfloat16 too
    # at the sampling temperature: the ratio compares the distribution that was sampled from
    logp, entropies = token_logprobs(hidden, model.head_weight.to(hidden.dtype), tokens[sources + 1], temperature, entropy=True)
    counts = [len(row.sources) for row in rows]
    return logp.split(counts), entropies.detach().split(counts)


@torch.no_grad()
def all_logprobs(model: Qwen3, rows: list[Trained], temperature: float, pack_tokens: int) -> list[Tensor]:
    """Log-probs of every row under a model that is not trained, such as the reference policy."""
    result: list[Tensor] = [torch.empty(0)] * len(rows)
    for pack in fill_packs([len(row.tokens) for row in rows], pack_tokens):
        for i, logp in zip(pack, logprobs(model, [rows[i] for i in pack], temperature)[0], strict=True):
            result[i] = logp.cpu()
    return result


def backward(model: Qwen3, rows: list[Trained], ref_logp: list[Tensor] | None, config: IGPOConfig) -> dict[str, float]:
    """Add the gradient of one mini-batch to the model; returns its statistics. Rows without a signal do not run where there is no
    KL term, and still count in the loss's mean; clip fractions, ratios and entropy are over the tokens that ran."""
    sequences, tokens = sum(1 for row in rows if len(row.sources)), sum(len(row.sources) for row in rows)
    runs = [i for i, row in enumerate(rows) if row.signal or config.kl_coef]
    ran = sum(len(rows[i].sources) for i in runs)
    totals: dict[str, float] = {"tokens": float(sum(len(rows[i].tokens) for i in runs))}
    gap, ratio_min, ratio_max = 0.0, float("inf"), 0.0
    for pack in fill_packs([len(rows[i].tokens) for i in runs], config.pack_tokens):
        part = [rows[runs[i]] for i in pack]
        logp, entropies = logprobs(model, part, config.temperature)
        reference = [ref_logp[runs[i]] for i in pack] if ref_logp else [row.old_logp for row in part]
        padded = [pad_sequence(list(x), batch_first=True).to(logp[0].device) for x in (
            logp, [row.old_logp for row in part], reference, [row.advantages for row in part],
            [torch.ones(len(row.sources), dtype=torch.bool) for row in part])]
        loss, stats = igpo_loss(*padded, clip_low=config.clip_low, clip_high=config.clip_high, dual_clip=config.dual_clip,
                                kl_coef=config.kl_coef, aggregate=config.aggregate, step_sequences=sequences, step_tokens=tokens)
        if not torch.isfinite(loss):
            raise Diverged(f"the loss is {loss.item()}: look at the last lines of metrics.jsonl for a ratio, a KL or a gradient "
                           "norm that grew, and lower the learning rate")
        loss.backward()
        gap = max(gap, max(float((new.detach().cpu() - row.old_logp).abs().max()) for new, row in zip(logp, part, strict=True)))
        ratio_min, ratio_max = min(ratio_min, stats["ratio_min"]), max(ratio_max, stats["ratio_max"])
        for key in ("clip_fraction", "dual_clip_fraction", "approx_kl"):
            totals[key] = totals.get(key, 0.0) + stats["tokens"] / ran * stats[key]
        totals["entropy"] = totals.get("entropy", 0.0) + float(torch.cat(list(entropies)).sum()) / ran
        for key, value in (("loss", loss.item()), ("policy_loss", stats["policy_loss"]), ("kl", stats["kl"])):
            totals[key] = totals.get(key, 0.0) + value
    return totals | {"logprob_gap": gap, "ratio_min": ratio_min, "ratio_max": ratio_max}


def update(model: Qwen3, optimizer, rows: list[Trained], reference: Qwen3 | None, config: IGPOConfig, step: int) -> dict:
    """Epochs of optimiser steps on the rows of a batch. A mini-batch without any signal costs none, if there is no KL term to the
    reference. `tokens` counts those that ran through the model."""
    assert reference is not None or not config.kl_coef
    ref_logp = all_logprobs(reference, rows, config.temperature, config.pack_tokens) if reference and config.kl_coef else None
    stats: list[dict] = []
    for epoch in range(config.epochs):
        order = batch_indices(epoch, len(rows), len(rows), config.seed * 1_000_003 + step) if rows else []
        for part in split(order, config.minibatches):
            if not any(rows[i].signal or config.kl_coef for i in part):
                continue
            try:
                numbers = backward(model, [rows[i] for i in part], [ref_logp[i] for i in part] if ref_logp else None, config)
                if not stats and numbers["logprob_gap"] > config.logprob_gap:
                    raise Diverged(f"new and stored log-probs differ by {numbers['logprob_gap']:.2g} before the first update, "
                                   f"more than --logprob-gap {config.logprob_gap}: engine and trainer do not run the same model, "
                                   "or not in the same precision")
                numbers["grad_norm"] = optimiser_step(model, optimizer, config.learning_rate, config.clip)
            except Diverged as error:
                raise Diverged(f"step {step + 1}: {error}", moved=bool(stats)) from None
            stats.append(numbers)
    return summary(stats)


def summary(stats: list[dict]) -> dict:
    """One set of numbers for all optimiser steps of a batch: means, but the extremes of ratios and the gap before the first."""
    if not stats:
        return {"updates": 0, "tokens": 0}
    means = {key: sum(s[key] for s in stats) / len(stats) for key in stats[0]}
    return means | {"updates": len(stats), "tokens": int(sum(s["tokens"] for s in stats)),
                    "logprob_gap": stats[0]["logprob_gap"], "ratio_min": min(s["ratio_min"] for s in stats),
                    "ratio_max": max(s["ratio_max"] for s in stats)}


def split(order: list[int], parts: int) -> list[list[int]]:
    return [order[len(order) * i // parts:len(order) * (i + 1) // parts] for i in range(parts)]
