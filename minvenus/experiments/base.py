"""The tiny base model: pretrained on generated text until it can copy and look up, as a real base model can.

    steps 0 ..       readings       pages, then the same facts again
    then             + notes        how questions are followed through a web, in plain words
    then             + sessions     the same as conversations with tool calls, of a teacher that wanders

The readings teach look-up, the notes that one look-up leads to the next, the sessions where both are written in a
conversation. All names occur, those of test questions too, but no web of any question does. The wandering teacher
opens wrong results, follows wrong links and stops early far more often than the teachers of the demonstrations: the
base can read and write the format, but not find its way. Everything follows from the seed.

Look-up appears after 90 steps of readings instead of not within 1,000 because of three things: the same high rate for
embeddings and norms as for matrices (AdamW with a seventh of it stays at guessing among the names in sight), Muon on
the matrices, and readings in which a relation stands right before its name and on one page only. Muon takes orthogonal
steps:

    M <- mu M + G,   U = orthogonal(G + mu M),   W <- W - lr * sqrt(max(1, rows / columns)) * U

A direction with a small gradient gets as large a step as one with a large gradient: so a small model finds look-up by
attention early, where AdamW stays with the frequencies of words for long.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from minvenus.agent.prompt import TOYWEB
from minvenus.config import ModelConfig, check
from minvenus.console import Progress
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.settings import SFTConfig
from minvenus.sft.dataset import Example, encode, encode_pieces
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.toyweb import make_case
from minvenus.tools.toyweb_lessons import Teacher, notes, reading, teach
from minvenus.train.update import sft_step
from minvenus.types import setting

WANDERER = Teacher(wrong_result=0.5, wrong_relation=0.1, at_once=0.05, stop_early=0.1)
INIT_STD = 0.08                   # of the random weights; projections into the residual stream start at zero
SHARED = 0.5                      # first number of every embedding: a constant that attention by position alone can use
NOTES_FROM, SESSIONS_FROM = 120, 250         # the steps from which notes and sessions are mixed in
BATCH = 24                        # texts per step
MOMENTUM = 0.95                   # mu of Muon
RATE = 0.02                       # of Muon on matrices and of AdamW on the rest; falls to 0 over the last 40 %


@dataclass(frozen=True)
class BaseConfig:
    """python -m minvenus.experiments base: pretrain the tiny model on generated text."""

    out: str = setting("runs/base", "folder of the model")
    seed: int = setting(0, "of the weights and the texts")
    steps: int = setting(1000, "optimiser steps", least=1)

    def __post_init__(self):
        check(self)


def main(config: BaseConfig) -> Path:
    tokenizer = Tokenizer.tiny()
    model = start(config.seed)
    folder = Path(config.out)
    files = tokenizer.files | TOYWEB.files
    weights.check_save(folder, files)                        # refused now rather than after the training
    optimizer = Muon(model)
    progress = Progress("base", 0, config.steps)
    for step in range(config.steps):
        rate = RATE * min(1.0, (step + 1) / 20, (config.steps - step) / (0.4 * config.steps))
        batch = texts(config.seed, step, tokenizer)
        progress.show(step + 1, sft_step(model, optimizer, batch, rate, SFTConfig()))
    weights.save(model, folder, files)                              # whole or not at all
    return folder


def start(seed: int) -> Qwen3:
    """Random weights. Attention and MLP add nothing yet: their output projections are zero."""
    model = Qwen3(ModelConfig.preset("tiny"), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2:
                p.normal_(0.0, INIT_STD, generator=generator)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                p.zero_()
        model.model.embed_tokens.weight[:, 0] = SHARED
    return model


def texts(seed: int, step: int, tokenizer: Tokenizer) -> list[Example]:
    """The batch of a step: readings only, then readings and notes, then all three kinds."""
    kinds = ["reading"] if step < NOTES_FROM else ["reading", "notes"]
    if step >= SESSIONS_FROM:
        kinds = ["reading", "notes", "session", "session"]
    return [text(kinds[i % len(kinds)], seed, step * BATCH + i, tokenizer) for i in range(BATCH)]


def text(kind: str, seed: int, index: int, tokenizer: Tokenizer) -> Example:
    if kind == "session":
        messages = teach(make_case(seed, "base", index), WANDERER, f"session {seed} {index}")
        return encode({"messages": messages}, tokenizer)
    return encode_pieces(reading(seed, index) if kind == "reading" else notes(seed, index), tokenizer)


class Muon:
    """Muon on the matrices, AdamW on all other parameters. `param_groups[0]["lr"]` is the rate of both. In float32,
    unlike torch's own Muon, which computes in bfloat16."""

    def __init__(self, model: nn.Module):
        parameters = dict(model.named_parameters())
        inner = [name for name, p in parameters.items() if p.dim() == 2 and "embed" not in name and "head" not in name]
        self.matrices = [parameters.pop(name) for name in inner]
        self.sums = [torch.zeros_like(p) for p in self.matrices]
        self.adam = torch.optim.AdamW(parameters.values(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
        self.param_groups = self.adam.param_groups

    @torch.no_grad()
    def step(self) -> None:
        rate = self.param_groups[0]["lr"]
        for p, total in zip(self.matrices, self.sums, strict=True):
            assert p.grad is not None                 # every matrix takes part in every forward pass
            total.mul_(MOMENTUM).add_(p.grad)
            step = orthogonal(p.grad + MOMENTUM * total)
            p.sub_(step, alpha=rate * max(1.0, p.size(0) / p.size(1)) ** 0.5)
        self.adam.step()


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest matrix with singular values of about 1 (from 0.7 to 1.2); a zero matrix stays zero."""
    wide = matrix.size(0) <= matrix.size(1)
    x = matrix if wide else matrix.T
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x if wide else x.T
