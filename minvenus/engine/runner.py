"""The tensors of the engine: the pages of keys and values, and the model's forward pass over them.

It turns the scheduler's work into flat tokens, positions and slots. Attention over pages is in
kernels/paged.py, the rest of the forward pass in model/qwen3.py.

N tokens of all sequences in a step, M of them whose hidden state is used, S sequences, P pages,
K kv heads, D channels of one, V vocabulary.
"""

import math
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minvenus.engine.decode import DecodeCache, MergedModel
from minvenus.engine.scheduler import Work
from minvenus.kernels.attention import uses_triton
from minvenus.kernels.logprob import matmul, multiplicand, token_logprobs
from minvenus.kernels.paged import paged_attention, write_pages

PART = 1024      # tokens that a CPU runs at once: what a layer computes of them stays in its cache


class Runner:
    def __init__(self, model, pages: int, page_size: int):
        config = model.config
        self.model = model
        self.page_size = page_size
        self.device = model.head_weight.device
        self.on_cpu = not uses_triton(self.device)
        self.shape = (config.num_hidden_layers, pages, page_size, config.num_key_value_heads,
                      config.head_dim)
        self.make_pages()
        self.forget_weights()

    def make_pages(self) -> None:
        dtype = self.model.head_weight.dtype
        self.k_pages: Any = torch.empty(self.shape, dtype=dtype, device=self.device)
        self.v_pages: Any = torch.empty_like(self.k_pages)           # [layers, P, page, K, D]
        self.decode_cache: Any = None
        if self.on_cpu and dtype == torch.float32:
            self.decode_cache = DecodeCache(self.k_pages, self.v_pages)

    def free_pages(self) -> None:
        """Drop the pages; the next step makes new ones."""
        self.k_pages = None
        self.v_pages = None
        self.decode_cache = None
        torch.cuda.empty_cache()     # else pieces of it go to tensors that stay, such as moments

    def forget_weights(self) -> None:
        """Drop every copy of the weights; the next step makes a new one."""
        self.merged: Any = None
        self.best_rows: float = 0                # steps of more sequences want another copy

    def run(self, work: list[Work]) -> tuple[list[Work], Tensor]:
        """Compute the tokens of a step and store their keys and values. Returns the work in the
        order in which it ran, and in that order the hidden states that jobs use [M, hidden]."""
        if self.k_pages is None:
            self.make_pages()
        self._copy_pages(work)
        if len(work) > self.best_rows:
            self._copy_model(len(work))

        if self.decode_cache and all(item.sequence.decoding for item in work):
            work = self.decode_cache.arrange(work)
            tables = [item.sequence.block_table for item in work]
            if self.decode_cache.hold(tables):
                return work, self._decode(work)

        hidden = [self._forward(part) for part in self._parts(work)]
        return work, torch.cat(hidden)

    def _copy_pages(self, work: list[Work]) -> None:
        copies = [pair for _, _, copies in work for pair in copies]
        if copies:
            source, target = self._tensor(copies).T
            for pages in (self.k_pages, self.v_pages):
                pages[:, target] = pages[:, source]      # all is read before anything is written

    def _copy_model(self, sequences: int) -> None:
        self.merged = self.model
        self.best_rows = math.inf
        if self.on_cpu and MergedModel.fits(self.model):
            self.merged = MergedModel(self.model, sequences)
            self.best_rows = self.merged.best_rows

    def _parts(self, work: list[Work]) -> list[list[Work]]:
        """The step in parts of about PART tokens on a CPU, whole on a GPU."""
        parts: list[list[Work]] = [[]]
        tokens = 0
        for item in work:
            if self.on_cpu and parts[-1] and tokens + item.new > PART:
                parts.append([])
                tokens = 0
            parts[-1].append(item)
            tokens += item.new
        return parts

    def _decode(self, work: list[Work]) -> Tensor:
        """One token of every sequence, on a CPU."""
        tokens, positions, slots = self._flatten(work)
        attend_cache = self.decode_cache.attend(positions)

        def attend(layer, q, k, v):
            k_pages, v_pages = self.k_pages[layer], self.v_pages[layer]
            write_pages(k, v, k_pages, v_pages, slots)
            return attend_cache(layer, q, k, v)

        return self.merged.model(tokens, positions, attend)

    def _forward(self, work: list[Work]) -> Tensor:
        """Any tokens of any sequences. In the last layer only those whose hidden state is used are
        queries: the last ones of each sequence."""
        tokens, positions, slots = self._flatten(work)
        new = [item.new for item in work]
        outputs = [item.sequence.outputs(item.new) for item in work]
        lengths = [item.sequence.num_computed + item.new for item in work]
        output_rows: list[int] = []
        for end, count in zip(accumulate(new), outputs, strict=True):
            output_rows += range(end - count, end)

        tables = [torch.tensor(item.sequence.block_table.pages) for item in work]
        block_table = pad_sequence(tables, batch_first=True).to(self.device)     # [S, pages]
        device_lengths = self._tensor(lengths)
        all_queries = self._tensor([0, *accumulate(new)])
        last_queries = self._tensor([0, *accumulate(outputs)])
        longest = (max(new), max(lengths))

        def attend(layer, q, k, v):
            k_pages, v_pages = self.k_pages[layer], self.v_pages[layer]
            write_pages(k, v, k_pages, v_pages, slots)
            cu_queries = all_queries if len(q) == len(k) else last_queries
            return paged_attention(q, k_pages, v_pages, block_table, device_lengths, cu_queries,
                                   longest=longest)

        rows = None
        if len(output_rows) < len(tokens):
            rows = self._tensor(output_rows)
        return self.merged.model(tokens, positions, attend, rows)

    def _flatten(self, work: list[Work]) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, positions and slots of everything that runs, [N] each."""
        size = self.page_size
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for sequence, new, _ in work:
            start = sequence.num_computed
            pages = sequence.block_table.pages
            new_positions = range(start, start + new)
            tokens += sequence.tokens[start:start + new]
            positions += new_positions
            slots += [pages[i // size] * size + i % size for i in new_positions]
        return self._tensor(tokens), self._tensor(positions), self._tensor(slots)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [B, hidden] -> [B, V] in float32, summed as the trainer does it."""
        if hidden.dtype == torch.float32:
            return self.merged.logits(hidden)
        weight = self.model.head_weight
        shape = (len(hidden), len(weight))
        out = torch.empty(shape, dtype=torch.float32, device=self.device)
        matmul(multiplicand(hidden), multiplicand(weight).T, out)
        return out

    def logprobs(self, hidden: Tensor, targets: list[int], temperature: float) -> list[float]:
        """The log-prob of the target after each hidden state [M, hidden]."""
        ids = self._tensor(targets)
        logprobs = token_logprobs(hidden, self.model.head_weight, ids, temperature)
        return logprobs.tolist()

    def _tensor(self, values: list) -> Tensor:
        # non_blocking: the device may still be busy, and the host need not wait for it
        tensor = torch.tensor(values, dtype=torch.int64)
        return tensor.to(self.device, non_blocking=True)
