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
from minvenus.sft.dataset import fill_packs
from minvenus.types import Rollout


@dataclass(frozen=True)
class Trained:
    """What the loss needs of one rollout. The last three have one entry per sampled token."""

    tokens: Tensor               # [L] int64
    sources: Tensor              # [m] position whose hidden state predicts the token
    old_logp: Tensor             # [m] float32
    advantages: Tensor           # [m] float32


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


def backward(model: Qwen3, rows: list[Trained], ref_logp: list[Tensor] | None, temperature: float, pack_tokens: int,
             **options) -> dict[str, float]:
    """Add the gradient of one mini-batch to the model; returns its statistics. `options` are those of igpo_loss."""
    sequences, tokens = sum(1 for row in rows if len(row.sources)), sum(len(row.sources) for row in rows)
    totals: dict[str, float] = {}
    gap, ratio_min, ratio_max = 0.0, float("inf"), 0.0
    for pack in fill_packs([len(row.tokens) for row in rows], pack_tokens):
        part = [rows[i] for i in pack]
        logp, entropies = logprobs(model, part, temperature)
        device = logp[0].device
        padded = [pad_sequence(list(x), batch_first=True).to(device) for x in (
            logp, [row.old_logp for row in part], [ref_logp[i] for i in pack] if ref_logp else [row.old_logp for row in part],
            [row.advantages for row in part], [torch.ones(len(row.sources), dtype=torch.bool) for row in part])]
        loss, stats = igpo_loss(*padded, step_sequences=sequences, step_tokens=tokens, **options)
        loss.backward()
        gap = max(gap, max(float((new.detach().cpu() - row.old_logp).abs().max()) for new, row in zip(logp, part, strict=True)))
        ratio_min, ratio_max = min(ratio_min, stats["ratio_min"]), max(ratio_max, stats["ratio_max"])
        share = stats["tokens"] / tokens
        for key in ("clip_fraction", "dual_clip_fraction", "approx_kl"):
            totals[key] = totals.get(key, 0.0) + share * stats[key]
        totals["entropy"] = totals.get("entropy", 0.0) + float(torch.cat(list(entropies)).sum()) / tokens
        for key, value in (("loss", loss.item()), ("policy_loss", stats["policy_loss"]), ("kl", stats["kl"])):
            totals[key] = totals.get(key, 0.0) + value
    return totals | {"logprob_gap": gap, "ratio_min": ratio_min, "ratio_max": ratio_max}
