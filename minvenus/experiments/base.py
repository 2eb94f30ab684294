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
the matrices, and readings in which a relation stands right before its name and on one page only.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from minvenus.config import ConfigError, ModelConfig
from minvenus.console import Progress
from minvenus.experiments.muon import Muon
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.sft.dataset import Example, encode, encode_pieces
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.toyweb import make_case
from minvenus.tools.toyweb_lessons import Teacher, notes, reading, teach
from minvenus.train.update import sft_step, validation_loss

WANDERER = Teacher(wrong_result=0.5, wrong_relation=0.1, at_once=0.05, stop_early=0.1)
INIT_STD = 0.08                   # of the random weights; projections into the residual stream start at zero
SHARED = 0.5                      # first number of every embedding: a constant that attention by position alone can use
HELD_OUT = 1_000_003              # added to the seed of sessions that are never trained on


@dataclass(frozen=True)
class BaseConfig:
    """python -m minvenus.experiments base: pretrain the tiny model on generated text."""

    out: str = "runs/base"                 # folder of the model
    seed: int = 0                          # of the weights and the texts
    steps: int = 1000                      # optimiser steps
    notes_from: int = 120                  # the step from which notes are mixed in
    sessions_from: int = 250               # the step from which sessions are
    batch: int = 24                        # texts per step
    learning_rate: float = 0.02            # of Muon on matrices and of AdamW on the rest; falls to 0 over the last 40 %
    pack_tokens: int = 8192                # tokens of one forward pass at most

    def __post_init__(self):
        if min(self.steps, self.batch, self.pack_tokens) < 1 or not self.learning_rate > 0:
            raise ConfigError("steps, batch, pack_tokens and learning_rate must be positive")


def main(config: BaseConfig) -> Path:
    torch.manual_seed(config.seed)
    tokenizer = Tokenizer.tiny()
    model = start(config.seed)
    folder = Path(config.out)
    weights.check_save(model, folder, tokenizer.files)              # refused now rather than after the training
    optimizer = Muon(model)
    progress = Progress("base", 0, config.steps)
    held_out = [session(config.seed + HELD_OUT, i, tokenizer) for i in range(32)]
    for step in range(config.steps):
        rate = config.learning_rate * min(1.0, (step + 1) / 20, (config.steps - step) / (0.4 * config.steps))
        batch = texts(config, step, tokenizer)
        began = time.perf_counter()
        numbers = sft_step(model, optimizer, batch, rate, 1.0, config.pack_tokens, "token-mean")
        if (step + 1) % 100 == 0 or step + 1 == config.steps:
            numbers["validation_loss"] = validation_loss(model, held_out, config.pack_tokens, "token-mean")
        speed = numbers["tokens"] / (time.perf_counter() - began)
        progress.show(step + 1, numbers, {"tokens_per_second": speed})
    weights.save(model, folder, tokenizer.files)                    # whole or not at all
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


def texts(config: BaseConfig, step: int, tokenizer: Tokenizer) -> list[Example]:
    """The batch of a step: readings only, then readings and notes, then all three kinds."""
    first = step * config.batch
    kinds = ["reading"] if step < config.notes_from else ["reading", "notes"]
    if step >= config.sessions_from:
        kinds = ["reading", "notes", "session", "session"]
    makers = {"reading": lambda i: encode_pieces(reading(config.seed, i), tokenizer),
              "notes": lambda i: encode_pieces(notes(config.seed, i), tokenizer),
              "session": lambda i: session(config.seed, i, tokenizer)}
    return [makers[kinds[i % len(kinds)]](first + i) for i in range(config.batch)]


def session(seed: int, index: int, tokenizer: Tokenizer) -> Example:
    messages = teach(make_case(seed, "base", index), WANDERER, f"session {seed} {index}")
    return encode({"messages": messages}, tokenizer)
