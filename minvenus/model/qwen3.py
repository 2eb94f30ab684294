"""The Qwen3 forward pass: one core over flat tokens, and thin methods around it for training and for the engine.

    x = embed[token]
    in every layer:   n = norm(x);   x += W_o attend(rope(norm(W_q n)), rope(norm(W_k n)), W_v n)
                      n = norm(x);   x += W_down (silu(W_gate n) * W_up n)
    hidden = norm(x);   logits = W_head hidden             W_head is the embedding when the two are tied

    norm(x) = weight * x / sqrt(mean(x^2) + eps)           q and k: over the channels of each head
    rope: channels i and i + D/2 of a head turn together by position * theta^(-2i/D)               angles in float32

The core, Decoder, never mixes tokens: only `attend` does, which the caller passes in. So the core knows no batches,
caches or pages. Parameter names are those of Hugging Face, which makes loading a one-to-one mapping.

B rows of equal length L; S sequences of any length, N tokens in all, M of them with a wanted hidden state; H query
heads, K kv heads, D channels of one; V vocabulary.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from minvenus.config import ModelConfig
from minvenus.kernels.attention import attention
from minvenus.kernels.logprob import token_logprobs

# attend(layer index, q [M, H, D], k [N, K, D], v [N, K, D]) -> [M, H, D]; q and k are normalised and rotated. M is N,
# except in the last layer when only some hidden states are wanted: then q has the rows of these tokens.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Linear(nn.Module):
    """y = W x. torch's own class would draw random numbers on construction, from the global generator."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x):
        return F.linear(x, self.weight)


class Embedding(nn.Module):
    def __init__(self, vocabulary: int, hidden: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, hidden))

    def forward(self, tokens):
        return F.embedding(tokens, self.weight)


class RMSNorm(nn.Module):
    """Over the last axis: the hidden channels of a token, or the channels of each of its heads."""

    def __init__(self, channels: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels))
        self.eps = eps

    def forward(self, x):
        # computed in float32 and rounded to x's type before the weight, as in Hugging Face
        return self.weight * F.rms_norm(x, self.weight.shape, eps=self.eps)


def frequencies(head_dim: int, theta: float, device=None) -> Tensor:
    """theta^(-2i/D) of every channel pair i [D/2], in float32."""
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, device=device).float() / head_dim)


def rotation(positions: Tensor, frequency: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines for `rotate`: positions [N], frequencies [D/2] -> two [N, 1, D] in float32.

    Computed from the positions at hand: no table that grows with the longest context, no buffer that a cast to
    bfloat16 would round. A float32 holds every whole number up to 2^24 exactly, so also position 262,143.
    """
    angles = positions.float()[:, None, None] * frequency                                        # [N, 1, D/2]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the channel pairs (i, i + D/2) of x [N, heads, D], in float32; then back to the type of x.

        out_i = x_i cos - x_{i + D/2} sin          out_{i + D/2} = x_{i + D/2} cos + x_i sin
    """
    partners = x.roll(x.shape[-1] // 2, dims=-1)                                                 # i and i + D/2 swapped
    return (x * cos + partners * sin).to(x.dtype)


def packed_positions(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """The position of each token of packed sequences in its own sequence [N]."""
    index = torch.arange(tokens, device=cu_seqlens.device)
    own = torch.searchsorted(cu_seqlens, index.to(cu_seqlens.dtype), right=True) - 1            # number of the sequence
    return index - cu_seqlens[own]


class Attention(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        hidden, self.head_dim = config.hidden_size, config.head_dim
        self.q_proj = Linear(hidden, config.num_attention_heads * self.head_dim)
        self.k_proj = Linear(hidden, config.num_key_value_heads * self.head_dim)
        self.v_proj = Linear(hidden, config.num_key_value_heads * self.head_dim)
        self.o_proj = Linear(config.num_attention_heads * self.head_dim, hidden)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)             # one weight for all heads
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)

    def forward(self, x, angles, attend, rows=None):
        cos, sin = angles
        wanted = x if rows is None else x[rows]
        q = self.q_proj(wanted).unflatten(-1, (-1, self.head_dim))            # [M, H, D]
        k = self.k_proj(x).unflatten(-1, (-1, self.head_dim))                 # [N, K, D]
        v = self.v_proj(x).unflatten(-1, (-1, self.head_dim))                 # [N, K, D] neither normalised nor rotated
        k = rotate(self.k_norm(k), cos, sin)
        q = rotate(self.q_norm(q), *((cos, sin) if rows is None else (cos[rows], sin[rows])))
        out = attend(q.to(v.dtype), k.to(v.dtype), v)                         # under autocast the norms give float32
        return self.o_proj(out.flatten(-2))                                   # [M, H * D] -> [M, hidden]


class MLP(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x, angles, attend, rows=None):
        mixed = self.self_attn(self.input_layernorm(x), angles, attend, rows)
        x = (x if rows is None else x[rows]) + mixed
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """The core: tokens [N], positions [N], attend -> hidden states after the last norm [N, hidden]. Checks nothing.

    With `rows` [M], hidden states of these tokens only, [M, hidden]. The last layer then computes keys and values of
    all tokens, and everything else for these tokens only.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.head_dim, self.theta = config.head_dim, config.rope_theta
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.recompute = False  # training: keep only each layer's input, compute the rest again in the backward pass
        self.offload = False    # with recompute: keep these inputs in the host's memory, not on the device

    def forward(self, tokens, positions, attend: Attend, rows: Tensor | None = None):
        angles = rotation(positions, frequencies(self.head_dim, self.theta, positions.device))
        x = self.embed_tokens(tokens)                                         # [N, hidden]
        recompute = self.recompute and torch.is_grad_enabled()
        inputs_kept: AbstractContextManager = nullcontext()
        if recompute and self.offload:
            # `angles` is a tuple, not a tensor: checkpoint does not save it, so it is not copied for every layer
            inputs_kept = save_on_cpu(pin_memory=x.is_cuda)
        with inputs_kept:
            for index, layer in enumerate(self.layers):
                arguments = x, angles, partial(attend, index), rows if index + 1 == len(self.layers) else None
                if recompute:
                    x = checkpoint(layer, *arguments, use_reentrant=False, preserve_rng_state=False)
                else:
                    x = layer(*arguments)
        return self.norm(x)


class Qwen3(nn.Module):
    """Qwen3 with random weights drawn from `seed`; on the meta device, shapes only."""

    def __init__(self, config: ModelConfig, seed: int = 0):
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size)
        if self.head_weight.device.type == "meta":
            return
        generator = torch.Generator(self.head_weight.device).manual_seed(seed)
        for parameter in self.parameters():
            if parameter.dim() == 1:
                nn.init.ones_(parameter)                                      # norms
            else:
                nn.init.normal_(parameter, 0.0, 0.02, generator)

    @property
    def head_weight(self) -> Tensor:
        """[V, hidden]: the embedding itself when tied."""
        return self.model.embed_tokens.weight if self.config.tie_word_embeddings else self.lm_head.weight

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.head_weight)                             # [..., hidden] -> [..., V]

    def forward(self, tokens: Tensor) -> Tensor:
        """Plain: every row is a sequence of its own from position 0. tokens [B, L] -> logits [B, L, V]."""
        rows, length = tokens.shape
        cu_seqlens = torch.arange(rows + 1, device=tokens.device, dtype=torch.int32) * length
        return self.logits(self.packed(tokens.flatten(), cu_seqlens)).unflatten(0, (rows, length))

    def packed(self, tokens: Tensor, cu_seqlens: Tensor, rows: Tensor | None = None) -> Tensor:
        """S sequences end to end, without padding. tokens [N], cu_seqlens [S + 1] -> hidden [N, hidden], or of the
        tokens at `rows` [M] only: [M, hidden]. cu_seqlens should be on the CPU: the host reads it, and would have to
        wait for a GPU."""
        longest = self.check_packed(tokens, cu_seqlens)
        cu_seqlens = cu_seqlens.to(tokens.device, non_blocking=True)
        positions = packed_positions(cu_seqlens, len(tokens))

        def attend(layer, q, k, v):
            if rows is None or layer + 1 < len(self.model.layers):
                return attention(q, k, v, cu_seqlens, max_seqlen=longest)
            # the last layer has queries for `rows` only: the others are filled in with zeros, their outputs dropped
            queries = q.new_zeros(k.shape[0], *q.shape[1:]).index_copy(0, rows, q)
            return attention(queries, k, v, cu_seqlens, max_seqlen=longest)[rows]

        return self.model(tokens, positions, attend, rows)

    def logprobs(self, tokens: Tensor, cu_seqlens: Tensor, sources: Tensor, targets: Tensor, temperature: float = 1.0,
                 entropy: bool = False, dtype: torch.dtype | None = None):
        """What SFT and IGPO train on: log-probs [M] of `targets` [M], each from the hidden state of token `sources` [M]
        of the packed sequences; with `entropy`, (log-probs, entropies). Matrix products are in `dtype`, by default the
        parameters' own. cu_seqlens and sources should be on the CPU, as for `packed`."""
        own = self.head_weight.dtype
        dtype = dtype or own
        sources = sources.to(tokens.device, non_blocking=True)
        with torch.autocast(tokens.device.type, dtype, enabled=dtype != own):
            hidden = self.packed(tokens, cu_seqlens, sources).to(dtype)
        return token_logprobs(hidden, self.head_weight.to(dtype), targets, temperature, entropy=entropy)

    def paged(self, tokens: Tensor, positions: Tensor, attend: Attend, rows: Tensor | None = None) -> Tensor:
        """For the engine, which checks its tokens itself: any tokens of any sequences; `attend` stores their keys and
        values and reads the earlier ones. tokens [N], positions [N] -> hidden [N, hidden], or of the tokens at `rows`
        [M] only: [M, hidden]."""
        return self.model(tokens, positions, attend, rows)

    def check_packed(self, tokens: Tensor, cu_seqlens: Tensor) -> int:
        """The length of the longest sequence. Token ids are checked on a CPU only: a GPU would have to wait for
        them."""
        bounds, vocabulary, limit = cu_seqlens.tolist(), self.config.vocab_size, self.config.max_position_embeddings
        lengths = [end - start for start, end in pairwise(bounds)]
        if tokens.dim() != 1 or not lengths or bounds[0] != 0 or bounds[-1] != len(tokens) or min(lengths) < 1:
            raise ValueError(f"need flat tokens [N] and cu_seqlens [S + 1] that rise from 0 to N; got "
                             f"{list(tokens.shape)} and {bounds}")
        if max(lengths) > limit:
            raise ValueError(f"a sequence has {max(lengths)} tokens, the model has max_position_embeddings {limit}: "
                             "shorten it")
        if tokens.device.type == "cpu" and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
            raise ValueError(f"token ids must lie in 0 to {vocabulary - 1}, got {int(tokens.min())} to "
                             f"{int(tokens.max())}")
        return max(lengths)
