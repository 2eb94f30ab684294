"""What the engine's tests compare with: small models that depend on every token, and the
definitions without any cache."""

import math

import torch

from minvenus.config import ModelConfig
from minvenus.engine.pages import PagePool
from minvenus.model.qwen3 import Qwen3

CONFIG = ModelConfig(
    32,
    48,
    2,
    4,
    2,
    head_dim=8,
    vocab_size=40,
    rope_theta=50.0,
    max_position_embeddings=512,
    tie_word_embeddings=False,
)


def sharp_model(seed=0, config=CONFIG):
    """Random weights, large enough that the next token really depends on the context: at the usual
    scale, every wrong cache would give the same greedy tokens."""
    model = Qwen3(config, seed).requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.mul_(12.0)
    return model


class FixedLogits:
    """A model whose next token depends on nothing: hidden is 1, so the head's column is the
    logits."""

    def __init__(self, logits):
        self.head_weight = torch.tensor(logits)[:, None]  # [V, 1]
        self.config = ModelConfig(
            1, 1, 1, 1, 1, head_dim=2, vocab_size=len(logits), max_position_embeddings=512
        )

    def model(self, tokens, positions, attend, rows=None):
        heads = torch.zeros(len(tokens), 1, 2)
        asked = heads if rows is None else heads[rows]
        attend(0, asked, heads, heads)
        return torch.ones(len(asked), 1)

    def logits(self, hidden):
        return hidden @ self.head_weight.T


class CountingModel:
    """Counts the tokens that run."""

    def __init__(self, model):
        self.real, self.count = model, 0
        self.config, self.head_weight, self.logits = model.config, model.head_weight, model.logits

    def model(self, tokens, positions, attend, rows=None):
        self.count += len(tokens)
        return self.real.model(tokens, positions, attend, rows)


def naive_scores(model, prefix, continuation, temperature=1.0):
    """One forward for every continuation, none of it reused."""
    logits = model(torch.tensor([prefix + continuation]))[0].double() / temperature
    rows = logits[len(prefix) - 1 : -1].log_softmax(dim=-1)
    return rows[torch.arange(len(continuation)), torch.tensor(continuation)].tolist()


def naive_greedy(model, prompt, count):
    """One forward for every token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


def is_greedy(model, prompt, tokens):
    """Whether each of the tokens is the most probable one after those before it; one forward for
    all."""
    logits = model(torch.tensor([prompt + tokens]))[0]
    return logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist() == tokens


def poisoned(engine):
    """Every slot of the cache that nobody has written holds NaN."""
    engine.runner.k_pages.fill_(math.nan)
    engine.runner.v_pages.fill_(math.nan)
    return engine


def check_engine(engine) -> None:
    check_pool(engine.pool, [s.block_table for s in engine.scheduler.sequences if s.block_table])


def check_pool(pool: PagePool, tables=()) -> None:
    """What holds of any pool at any time, seen from the tables that are open."""
    held = {page for table in tables for page in table.pages}
    assert pool.used == len(held), "pages are held by no table, or lost"
    assert held <= set(range(pool.count))
    for table in tables:
        assert len(set(table.pages)) == len(table.pages), "a table holds a page twice"
        assert table.num_computed <= len(table.pages) * pool.page_size, "more tokens than room"
