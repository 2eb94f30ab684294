"""The tensors of the engine: the pages of keys and values, and the model's forward pass over them.

It turns the scheduler's work into flat tokens, positions and slots. Attention over pages is in
kernels/paged.py, the rest of the forward pass in model/qwen3.py.

N tokens of all sequences in a step, M of them whose hidden state is used, S sequences, P pages,
K kv heads, D channels of one, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from minvenus.engine.decode import DecodeCache, MergedModel, is_small
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
        self.is_small = self.on_cpu and MergedModel.fits(model) and is_small(model)
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
        """Drop the copy of the weights; the next step makes a new one."""
        self.merged: Any = None

    def run(self, work: list[Work]) -> tuple[list[Work], Tensor, Tensor]:
        """Compute the tokens of a step and store their keys and values. Returns the work in the
        order in which it ran, and in that order the hidden states that jobs use [M, hidden] and the
        tokens that scorings ask for."""
        if self.k_pages is None:
            self.make_pages()
        self._copy_pages(work)
        if self.merged is None:
            merge = self.on_cpu and MergedModel.fits(self.model)
            self.merged = MergedModel(self.model) if merge else self.model

        if self.decode_cache and all(item.sequence.decoding for item in work):
            work = self.decode_cache.arrange(work)
            tables = [item.sequence.block_table for item in work]
            if self.decode_cache.hold(tables):
                return work, *self._decode(work)

        hidden, targets = zip(*self._run_parts(self._parts(work)), strict=True)
        return work, torch.cat(hidden), torch.cat(targets)

    @contextmanager
    def threads(self) -> Iterator[None]:
        """A small model's operations run in one thread each, while this lasts.

        Divided among threads they would gain little, and wait for a core that another process
        keeps busy. Parts of a step run in `workers` threads, each of which takes the next part
        when it is done. So no number depends on how many there are.
        """
        threads = torch.get_num_threads()
        self.workers = threads if self.is_small else 1
        if self.workers > 1:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    def _run_parts(self, parts: list[list[Work]]) -> list[tuple[Tensor, Tensor]]:
        if self.workers == 1 or len(parts) == 1:
            return [self._forward(part) for part in parts]
        with ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads,
                                initargs=(1,)) as pool:
            return list(pool.map(self._forward, parts))

    def _copy_pages(self, work: list[Work]) -> None:
        copies = [pair for _, _, copies in work for pair in copies]
        if copies:
            source, target = self._tensors(*zip(*copies, strict=True))
            for pages in (self.k_pages, self.v_pages):
                pages[:, target] = pages[:, source]      # all is read before anything is written

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

    def _decode(self, work: list[Work]) -> tuple[Tensor, Tensor]:
        """One token of every sequence, on a CPU."""
        tokens, positions, slots = self._tensors(*self._flatten(work))
        k_pages, v_pages = self.k_pages.unbind(), self.v_pages.unbind()
        attend_cache = self.decode_cache.attend(positions)

        def attend(layer, q, k, v):
            write_pages(k, v, k_pages[layer], v_pages[layer], slots)
            return attend_cache(layer, q, k, v)

        return self.merged.model(tokens, positions, attend), tokens[:0]

    @torch.inference_mode()                              # each thread has a mode of its own
    def _forward(self, work: list[Work]) -> tuple[Tensor, Tensor]:
        """Any tokens of any sequences. In the last layer only those whose hidden state is used are
        queries: the last ones of each sequence."""
        lengths: list[int] = []
        bounds, output_bounds = [0], [0]
        output_rows: list[int] = []
        targets: list[int] = []
        block_table: list[int] = []
        width = max(len(item.sequence.block_table.pages) for item in work)
        for sequence, new, _ in work:
            length = sequence.num_computed + new
            outputs = sequence.outputs(new)
            lengths.append(length)
            bounds.append(bounds[-1] + new)
            output_bounds.append(output_bounds[-1] + outputs)
            output_rows += range(bounds[-1] - outputs, bounds[-1])
            if not sequence.job.sampling:
                targets += sequence.tokens[length - outputs + 1:length + 1]
            block_table += sequence.block_table.pages
            block_table += [0] * (-len(block_table) % width)

        integers = (lengths, bounds, output_bounds, output_rows, targets, block_table)
        tokens, positions, slots, *tensors = self._tensors(*self._flatten(work), *integers)
        seen, queries, last_queries, rows, targets_, table = tensors
        longest = (max(item.new for item in work), max(lengths))

        def attend(layer, q, k, v):
            k_pages, v_pages = self.k_pages[layer], self.v_pages[layer]
            write_pages(k, v, k_pages, v_pages, slots)
            cu_queries = queries if len(q) == len(k) else last_queries
            return paged_attention(q, k_pages, v_pages, table.view(-1, width), seen, cu_queries,
                                   longest=longest)

        used = rows if len(rows) < len(tokens) else None
        return self.merged.model(tokens, positions, attend, used), targets_

    def _flatten(self, work: list[Work]) -> tuple[list[int], list[int], list[int]]:
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
        return tokens, positions, slots

    def _tensors(self, *lists: Sequence[int]) -> list[Tensor]:
        """The lists on the device, in one copy that the host does not wait for."""
        integers: list[int] = []
        for numbers in lists:
            integers += numbers
            integers += [0] * (len(numbers) % 2)    # kernels are compiled for multiples of 16 bytes
        tensor = torch.tensor(integers, dtype=torch.int64).to(self.device, non_blocking=True)
        parts = tensor.split([len(numbers) + len(numbers) % 2 for numbers in lists])
        return [part[:len(numbers)] for part, numbers in zip(parts, lists, strict=True)]

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [B, hidden] -> [B, V] in float32, summed as the trainer does it."""
        if hidden.dtype == torch.float32:
            return self.merged.logits(hidden)
        weight = self.model.head_weight
        shape = (len(hidden), len(weight))
        out = torch.empty(shape, dtype=torch.float32, device=self.device)
        matmul(multiplicand(hidden), multiplicand(weight).T, out)
        return out

    def logprobs(self, hidden: Tensor, targets: Tensor, temperature: float) -> list[float]:
        """The log-prob of the target after each hidden state [M, hidden]."""
        logprobs = token_logprobs(hidden, self.model.head_weight, targets, temperature)
        return logprobs.tolist()
