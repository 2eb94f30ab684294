"""The forward pass of Qwen3, Qwen2 and Llama: one core over flat tokens, thin methods around it.

    x = embed[token]
    in every layer:   n = norm(x);   x += W_o attend(rope(norm(W_q n)), rope(norm(W_k n)), W_v n)
                      n = norm(x);   x += W_down (silu(W_gate n) * W_up n)
    hidden = norm(x);   logits = W_head hidden      W_head is the embedding when the two are tied

    norm(x) = weight * x / sqrt(mean(x^2) + eps)    q and k: over the channels of each head
    Llama and Qwen2 do not normalise q and k; Qwen2 adds a bias to each of q, k and v.
    rope: channels i and i + D/2 of a head turn together by position * theta^(-2i/D)
          angles in float32

The core, Decoder, never mixes tokens: only `attend` does, which the caller passes in. So the core
knows no batches, caches or pages. Training passes attention over packed sequences (Qwen3.packed),
the engine attention over its pages. Parameter names are those of Hugging Face, which makes loading
a one-to-one mapping.

B rows of equal length L; S sequences of any length, N tokens in all, M of them with a hidden state
that is requested; H query heads, K kv heads, D channels of one; V vocabulary.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from minvenus.config import ModelConfig
from minvenus.kernels.attention import attention
from minvenus.kernels.linear import Linear, linear
from minvenus.kernels.logprob import token_logprobs

# attend(layer index, q [M, H, D], k [N, K, D], v [N, K, D]) -> [M, H, D]; q and k are normalised
# and rotated. M is N, except in the last layer when only some hidden states are asked for: then q
# has the rows of these tokens.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
MLP_TOKENS = 2**15       # that go through an MLP at once
ALL = slice(None)        # rows of a layer's tokens: all of them


class RMSNorm(nn.Module):
    """Over the last axis: the hidden channels of a token, or the channels of each of its heads."""

    def __init__(self, channels: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels))
        self.eps = eps

    def forward(self, x):
        # Computed in float32 and rounded to x's type before the weight, as in Hugging Face. CUDA's
        # autocast would not round, and the engine, which has none, would: log-probs would differ.
        with torch.autocast(x.device.type, enabled=False):
            normalised = F.rms_norm(x, self.weight.shape, eps=self.eps)
        return self.weight * normalised


def frequencies(head_dim: int, theta: float, device=None) -> Tensor:
    """theta^(-2i/D) of every channel pair i [D/2], in float32."""
    channels = torch.arange(0, head_dim, 2, device=device).float()
    return 1.0 / theta ** (channels / head_dim)


def rotation(positions: Tensor, frequency: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines for `rotate`: positions [N], frequencies [D/2] -> two [N, 1, D].

    Computed from the positions at hand: no table that grows with the longest context, no buffer
    that a cast to bfloat16 would round. A float32 holds every whole number up to 2^24 exactly, so
    also position 262,143.
    """
    angles = positions.float()[:, None, None] * frequency                      # [N, 1, D/2]
    cos = angles.cos()
    sin = angles.sin()
    cosines = torch.cat((cos, cos), dim=-1)
    sines = torch.cat((-sin, sin), dim=-1)
    return cosines, sines


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the channel pairs (i, i + D/2) of x [N, heads, D], in float32; then back to x's type.

        out_i = x_i cos - x_{i + D/2} sin          out_{i + D/2} = x_{i + D/2} cos + x_i sin
    """
    half = x.shape[-1] // 2
    partners = x.roll(half, dims=-1)                         # i and i + D/2 swapped
    turned = x * cos + partners * sin
    return turned.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        hidden = config.hidden_size
        self.head_dim = config.head_dim
        q_size = config.num_attention_heads * self.head_dim
        kv_size = config.num_key_value_heads * self.head_dim
        self.q_proj = Linear(hidden, q_size, bias=config.qkv_bias)
        self.k_proj = Linear(hidden, kv_size, bias=config.qkv_bias)
        self.v_proj = Linear(hidden, kv_size, bias=config.qkv_bias)
        self.o_proj = Linear(q_size, hidden, bias=False)
        norm = RMSNorm if config.qk_norm else nn.Identity
        self.q_norm = norm(self.head_dim, config.rms_norm_eps)       # one weight for all heads
        self.k_norm = norm(self.head_dim, config.rms_norm_eps)

    def forward(self, x, angles, attend, rows):
        cos, sin = angles
        q = self.split_heads(self.q_proj(x[rows]))                             # [M, H, D]
        k = self.split_heads(self.k_proj(x))                                   # [N, K, D]
        v = self.split_heads(self.v_proj(x))                                   # [N, K, D]

        k = rotate(self.k_norm(k), cos, sin)
        q = rotate(self.q_norm(q), cos[rows], sin[rows])
        k = k.to(v.dtype)                                    # under autocast norms give float32
        q = q.to(v.dtype)
        out = attend(q, k, v)
        return self.o_proj(out.flatten(-2))                                    # [M, hidden]

    def split_heads(self, x):
        return x.unflatten(-1, (-1, self.head_dim))


class MLP(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = Linear(hidden, inner, bias=False)
        self.up_proj = Linear(hidden, inner, bias=False)
        self.down_proj = Linear(inner, hidden, bias=False)

    def forward(self, x):
        # in parts: at 256K tokens each temporary of the backward pass would take 5 GB at once
        parts = [self.down_proj(F.silu(self.gate_proj(part)) * self.up_proj(part))
                 for part in x.split(MLP_TOKENS)]
        return torch.cat(parts) if len(parts) > 1 else parts[0]


class Block(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x, angles, attend, rows):
        n = self.input_layernorm(x)
        x = x[rows] + self.self_attn(n, angles, attend, rows)
        n = self.post_attention_layernorm(x)
        return x + self.mlp(n)


class Decoder(nn.Module):
    """The core: tokens [N], positions [N], attend -> hidden states after the last norm.

    It returns [N, hidden], or with `rows` [M] the hidden states of these tokens only, [M, hidden].
    The last layer then computes keys and values of all tokens, and everything else for these
    tokens only. Nothing is checked here.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.head_dim = config.head_dim
        self.theta = config.rope_theta
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

        self.recompute = False     # training: keep only layer inputs, compute the rest again
        self.offload = False       # with recompute: keep them in the host's memory

    def forward(self, tokens, positions, attend: Attend, rows=None):
        frequency = frequencies(self.head_dim, self.theta, positions.device)
        angles = rotation(positions, frequency)
        x = self.embed_tokens(tokens)                                          # [N, hidden]
        recompute = self.recompute and torch.is_grad_enabled()
        offload = recompute and self.offload

        # `angles` is a tuple: checkpoint saves tensors only, so it is not copied per layer
        with save_on_cpu(pin_memory=x.is_cuda) if offload else nullcontext():
            for index, layer in enumerate(self.layers):
                last = index + 1 == len(self.layers)
                layer_rows = rows if last and rows is not None else ALL
                arguments = x, angles, partial(attend, index), layer_rows
                if recompute:
                    x = checkpoint(
                        layer, *arguments, use_reentrant=False, preserve_rng_state=False)
                else:
                    x = layer(*arguments)
        return self.norm(x)


class Qwen3(nn.Module):
    """Qwen3 with random weights drawn from `seed`; on the meta device, shapes only."""

    def __init__(self, config: ModelConfig, seed: int = 0):
        super().__init__()
        self.config = config
        device = torch.empty(0).device           # torch's default
        with torch.device("meta"):               # else torch's layers draw from its own generator
            self.model = Decoder(config)
            if not config.tie_word_embeddings:
                self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if device.type == "meta":
            return
        self.to_empty(device=device)
        generator = torch.Generator(device).manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:                         # biases and norms
                nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
            else:
                nn.init.normal_(parameter, 0.0, 0.02, generator)

    @property
    def head_weight(self) -> Tensor:
        """[V, hidden]: the embedding itself when tied."""
        tied = self.config.tie_word_embeddings
        return self.model.embed_tokens.weight if tied else self.lm_head.weight

    def logits(self, hidden):
        return linear(hidden, self.head_weight)              # [..., hidden] -> [..., V]

    def forward(self, tokens):
        """Every row is a sequence of its own. tokens [B, L] -> logits [B, L, V]."""
        rows, length = tokens.shape
        cu_seqlens = torch.arange(rows + 1, dtype=torch.int32) * length
        hidden = self.packed(tokens.flatten(), cu_seqlens)
        return self.logits(hidden).unflatten(0, (rows, length))

    def packed(self, tokens, cu_seqlens, rows=None):
        """Hidden states of S sequences end to end, without padding.

        tokens [N], cu_seqlens [S + 1] -> [N, hidden], or of the tokens at `rows` [M] only:
        [M, hidden]. cu_seqlens should be on the CPU: the host reads it, and would have to wait for
        a GPU.
        """
        lengths = cu_seqlens.diff().tolist()
        check_packed(self.config, tokens, cu_seqlens, lengths)
        longest = max(lengths)
        positions = torch.cat([torch.arange(length) for length in lengths])
        positions = positions.to(tokens.device, non_blocking=True)
        cu_seqlens = cu_seqlens.to(tokens.device, non_blocking=True)

        def attend(layer, q, k, v):
            if rows is None or layer + 1 < len(self.model.layers):
                return attention(q, k, v, cu_seqlens, longest)
            # queries for `rows` only: the others are zeros, and their outputs are dropped
            queries = q.new_zeros(len(k), *q.shape[1:])
            queries = queries.index_copy(0, rows, q)
            return attention(queries, k, v, cu_seqlens, longest)[rows]

        return self.model(tokens, positions, attend, rows)

    def logprobs(self, tokens, cu_seqlens, sources, temperature=1.0, entropy=False, dtype=None):
        """What SFT and IGPO train on: the log-probs [M] of the tokens after `sources` [M].

        tokens [N] and cu_seqlens [S + 1] as for `packed`; with `entropy`, (log-probs, entropies).
        Matrix products are in `dtype`, by default the parameters' own. sources should be on the
        CPU, like cu_seqlens.
        """
        parameter_type = self.head_weight.dtype
        dtype = dtype or parameter_type
        sources = sources.to(tokens.device, non_blocking=True)
        with torch.autocast(tokens.device.type, dtype, enabled=dtype != parameter_type):
            hidden = self.packed(tokens, cu_seqlens, sources)

        hidden = hidden.to(dtype)
        weight = self.head_weight.to(dtype)
        targets = tokens[sources + 1]
        return token_logprobs(hidden, weight, targets, temperature, entropy=entropy)


def check_packed(config, tokens, cu_seqlens, lengths):
    """Token ids are checked on a CPU only: a GPU would have to wait for them."""
    flat = tokens.dim() == 1 and sum(lengths) == len(tokens)
    shortest = min(lengths, default=0)
    if not flat or shortest < 1 or cu_seqlens[0] != 0:
        raise ValueError("need flat tokens [N] and cu_seqlens [S + 1] that rise from 0 to N; "
                         f"got {list(tokens.shape)} and {cu_seqlens.tolist()}")

    longest = max(lengths)
    limit = config.max_position_embeddings
    if longest > limit:
        raise ValueError(f"a sequence has {longest} tokens, the model has "
                         f"max_position_embeddings {limit}: shorten it")
    if tokens.device.type == "cpu":
        lowest, highest = map(int, tokens.aminmax())
        most = config.vocab_size - 1
        if lowest < 0 or highest > most:
            raise ValueError(f"token ids must lie in 0 to {most}, got {lowest} to {highest}")
