"""Drawing the next token, and its log-prob.

    drawn from    logits minus the penalty of ids already written in this turn, without ids that the
                  tokenizer does not have, divided by the temperature, then top-k, then top-p,
                  renormalised
    log-prob      the plain softmax of logits / temperature over the whole vocabulary: what a
                  trainer computes again

The two distributions are equal unless something is cut off or penalised. At temperature 0 the most
probable token is taken, and its log-prob is the one at temperature 1, because at 0 there is none.

A token is drawn by inverting the cumulative sum at one uniform number from the sequence's own
generator, so the sample of a sequence depends on its own logits only.

B sequences of one `Sampling`, V vocabulary, W <= V ids that may be drawn.
"""

import hashlib
import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

BELOW_ONE = 1 - 2**-53      # the largest float64 below 1
NOISE_AHEAD = 64    # uniform numbers made at once: a call per token would cost more than the draw


@dataclass(frozen=True)
class Sampling:
    """How a turn is sampled and when it ends."""

    max_tokens: int                       # the turn is cut here if no stop id was drawn
    temperature: float = 1.0              # 0 = always the most probable token
    top_k: int | None = None              # only the k most probable ids; None = all
    top_p: float = 1.0                    # only the most probable ids that together reach this
    presence_penalty: float = 0.0         # taken from the logit of every id already in this turn
    stop_ids: tuple[int, ...] = ()        # ids that end the turn and belong to it

    def __post_init__(self):
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not (self.temperature == 0 or 1e-3 <= self.temperature <= 1e3):
            raise ValueError("temperature must be 0 (greedy) or lie in [0.001, 1000], got "
                             f"{self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, or None for all ids; got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")
        if not math.isfinite(self.presence_penalty):
            raise ValueError(f"presence_penalty must be finite, got {self.presence_penalty}")

    @cached_property
    def distribution(self) -> tuple:
        """Turns that are equal here are drawn in one call, wherever they end."""
        return self.temperature, self.top_k, self.top_p, self.presence_penalty

    @property
    def plain_temperature(self) -> float:
        """The temperature of the log-probs, also when they are computed again."""
        return self.temperature or 1.0


@dataclass
class Completion:
    """One turn as it was sampled."""

    tokens: list[int]                     # with the stop id, if one was drawn
    logprobs: list[float]                 # plain softmax at the sampling temperature


class Noise:
    """The uniform numbers of one sequence. Its name, made of seed, step, question and rollout,
    decides all of them."""

    def __init__(self, seed: int, question: int | str, rollout: int,
                 step: int | None = None):
        if step is None:
            self._name = f"{seed}/{question}/{rollout}"
        else:
            self._name = f"{seed}/{step} {question}/{rollout}"
        self._generator: torch.Generator | None = None
        self._ahead: list[float] = []

    def draw(self) -> float:
        if self._generator is None:
            # not hash(), which differs between processes
            digest = hashlib.blake2b(self._name.encode(), digest_size=8).digest()
            seed = int.from_bytes(digest) >> 1
            self._generator = torch.Generator().manual_seed(seed)
        if not self._ahead:
            numbers = torch.rand(NOISE_AHEAD, generator=self._generator, dtype=torch.float64)
            self._ahead = numbers.tolist()[::-1]
        return self._ahead.pop()


class Sampler:
    """Gives sequences their next tokens. Ids from `width` on are never drawn."""

    def __init__(self, width: int):
        self.width = width

    def draw(self, sequences: list, logits: Tensor) -> None:
        """A token for each sequence whose turn runs; logits [S, V]. Those that have the same
        distribution are drawn together. The host waits for the device once."""
        alike: dict[tuple, list[int]] = defaultdict(list)
        for row, sequence in enumerate(sequences):
            alike[sequence.job.sampling.distribution].append(row)

        drawn = []                                       # tokens and log-probs, [2, B] each
        for rows in alike.values():
            members = [sequences[row] for row in rows]
            member_logits = select(logits, rows)
            tokens = self.tokens(members, member_logits)
            temperature = members[0].job.sampling.plain_temperature
            logprobs = plain_logprobs(member_logits, tokens, temperature)
            drawn.append(torch.stack((tokens.double(), logprobs.double())))     # both are exact

        columns = drawn[0] if len(drawn) == 1 else torch.cat(drawn, dim=1)
        all_tokens, all_logprobs = columns.tolist()
        if not all(map(math.isfinite, all_logprobs)):
            raise ValueError("no token can be drawn: the logits are not finite; log-probs "
                             f"{all_logprobs}")
        order = chain(*alike.values())
        for row, token, logprob in zip(order, all_tokens, all_logprobs, strict=True):
            sequences[row].add(int(token), logprob)

    def tokens(self, sequences: list, logits: Tensor) -> Tensor:
        """The tokens of sequences with one distribution [B]; tests put others in their place."""
        sampling = sequences[0].job.sampling
        written = []
        if sampling.presence_penalty:
            written = [sequence.written for sequence in sequences]
        z = drawn_logits(logits.float(), sampling, self.width, written)           # [B, W]
        if sampling.temperature == 0:
            return z.argmax(dim=-1)

        weights = z.softmax(dim=-1)
        noise = [sequence.noise.draw() for sequence in sequences]
        uniform = torch.tensor(noise, dtype=torch.float64)                        # [B]
        return invert(weights, uniform.to(z.device, non_blocking=True))


def select(x: Tensor, rows: list[int]) -> Tensor:
    """Some rows of x, by numbers that are known to the host: a list as an index would make it wait
    for the device."""
    if len(rows) == len(x):
        return x
    return torch.stack([x[row] for row in rows])


def plain_logprobs(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Log-probs of one token per row under softmax(logits / temperature): [B, V], [B] -> [B]"""
    logprobs = scaled(logits.float(), temperature).log_softmax(dim=-1)
    return logprobs.gather(1, tokens[:, None])[:, 0]


def scaled(logits: Tensor, temperature: float) -> Tensor:
    return logits if temperature == 1.0 else logits / temperature


def drawn_logits(logits: Tensor, sampling: Sampling, width: int,
                 written: list[list[int]]) -> Tensor:
    """What tokens are drawn from: logits [B, V] -> [B, W], -inf where an id is cut off. `written`:
    the ids that each row has in this turn, for the presence penalty."""
    z = logits[:, :width]
    if sampling.presence_penalty:
        rows: list[int] = []
        ids: list[int] = []
        for row, turn in enumerate(written):
            ids += set(turn)                             # once each
            rows += [row] * (len(ids) - len(rows))
        index = torch.tensor((rows, ids), dtype=torch.int64).to(z.device, non_blocking=True)
        z = z.clone()
        z[tuple(index)] -= sampling.presence_penalty
    z = scaled(z, sampling.plain_temperature)
    if sampling.top_k is not None or sampling.top_p < 1:
        z = keep_most_probable(z, sampling.top_k, sampling.top_p)
    return z


def keep_most_probable(z: Tensor, top_k: int | None, top_p: float) -> Tensor:
    """z [B, W] with -inf outside the top k, and of those, outside the fewest most probable ones
    that reach top_p together."""
    width = z.shape[1]
    best, ids = z.topk(min(top_k or width, width), dim=-1)                        # sorted
    if top_p < 1:
        p = best.softmax(dim=-1)
        reached = p.cumsum(dim=-1) - p                   # probability of the ids before
        best = best.masked_fill(reached >= top_p, -math.inf)     # the id that crosses top_p stays
    return torch.full_like(z, -math.inf).scatter(1, ids, best)


def invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first id whose cumulative weight exceeds uniform * total: id i with probability
    weights[i] / total. [B, W], [B] -> [B]

    In float64: in float32 the sum loses ids less probable than 6e-8. An id of weight 0 is never the
    first to exceed.
    """
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    below = total * BELOW_ONE                                    # the number before it
    target = torch.minimum(uniform[:, None] * total, below)      # rounding must not reach the total
    ids = torch.searchsorted(cumulative, target, right=True)[:, 0]
    return ids.clamp(max=weights.shape[1] - 1)                   # NaN finds no place
