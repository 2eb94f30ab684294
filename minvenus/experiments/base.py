"""The tiny base model and its tokenizer.

The model is pretrained on generated text until it can copy and look up, as a real base model can:

    from step 0      readings    pages, then the same facts again: look-up
    from step 120    notes       questions followed through a web in plain words: chains of look-ups
    from step 250    sessions    the same as conversations with tool calls; the teacher wanders

The wandering teacher opens wrong results, follows wrong links and stops early far more often than
the teachers of the demonstrations: the base can read and write the format, but not find its way.
All names occur, those of test questions too, but no web of any question does. Everything follows
from the seed.

Look-up appears after 90 steps of readings instead of not within 1,000 because of three things: the
same high rate for embeddings and norms as for matrices (AdamW with a seventh of it stays at
guessing among the names in sight), Muon on the matrices, and readings in which a relation stands
right before its name and on one page only. Muon takes orthogonal steps:

    M <- mu M + G,   U = orthogonal(G + mu M),   W <- W - lr * sqrt(max(1, rows / columns)) * U

A direction with a small gradient gets as large a step as one with a large gradient: so a small
model finds look-up by attention early, where AdamW stays with the frequencies of words for long.

The tokenizer (minvenus/text/tiny_tokenizer.json) has 752 ids that behave as Qwen3's 151,669 do:

    0 .. 255      the byte symbols, in the order of their printable stand-ins (id 0 is "!")
    256 .. 725    merges: first those that give every word of the toy web one id, then those of
                  tiny_corpus.txt
    726 .. 751    Qwen3's added tokens, in Qwen3's order, with Qwen3's `special` flags

Normaliser, split pattern and decoder are those of Qwen3's file: digits stay single, punctuation
joins the newlines after it, a word takes the space before it. So a test of token borders with this
tokenizer holds with the real one. The tiny model has 768 rows; ids 752 .. 767 are unused, as are
the last 267 rows of a Qwen3 model.
"""

from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch import Tensor, nn

from minvenus.agent.prompt import TOYWEB
from minvenus.config import ModelConfig, check
from minvenus.console import Progress
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.setting import setting
from minvenus.sft.dataset import Example, encode, encode_pieces
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.toyweb import NAMES, PETS, RELATIONS, VERBS
from minvenus.tools.toyweb_lessons import Teacher, base_case, notes, reading, teach
from minvenus.train.settings import SFTConfig
from minvenus.train.sft import sft_step

WANDERER = Teacher(wrong_result=0.5, wrong_relation=0.1, at_once=0.05, stop_early=0.1)
NOTES_FROM = 120                  # steps
SESSIONS_FROM = 250
BATCH = 24                        # texts per step

INIT_STD = 0.08                   # of the random weights
SHARED = 0.5                      # first number of every embedding, for attention by position
MOMENTUM = 0.95                   # mu of Muon
RATE = 0.02                       # of Muon on matrices and of AdamW on all other parameters
WARMUP = 20                       # steps in which the rate rises
DECAY = 0.4                       # share of the steps, the last ones, in which the rate falls to 0


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
    folder = Path(config.out)
    files = tokenizer.files | TOYWEB.files
    weights.check_save(folder, files)               # refused now rather than after the training

    model = start(config.seed)
    optimizer = Muon(model)
    progress = Progress("base", 0, config.steps)
    for step in range(config.steps):
        rise = (step + 1) / WARMUP
        fall = (config.steps - step) / (DECAY * config.steps)
        rate = RATE * min(1.0, rise, fall)
        batch = texts(config.seed, step, tokenizer)
        numbers = sft_step(model, optimizer, batch, rate, SFTConfig())
        progress.show(step + 1, numbers)

    weights.save(model, folder, files)              # whole or not at all
    return folder


def start(seed: int) -> Qwen3:
    """Random weights. Attention and MLP add nothing yet: their output projections are zero."""
    model = Qwen3(ModelConfig.preset("tiny"), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, INIT_STD, generator=generator)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
        model.model.embed_tokens.weight[:, 0] = SHARED
    return model


# --------------------------------------------------------------------------------------- the texts


def texts(seed: int, step: int, tokenizer: Tokenizer) -> list[Example]:
    """The batch of a step: readings only, then readings and notes, then all three kinds.

    The hops of a web go by its index, too: sessions have three or four, notes mostly two.
    """
    kinds = ["reading"]
    if step >= NOTES_FROM:
        kinds = ["reading", "notes"]
    if step >= SESSIONS_FROM:
        kinds = ["reading", "notes", "session", "session"]

    batch = []
    for i in range(BATCH):
        kind = kinds[i % len(kinds)]
        batch.append(text(kind, seed, step * BATCH + i, tokenizer))
    return batch


def text(kind: str, seed: int, index: int, tokenizer: Tokenizer) -> Example:
    if kind == "reading":
        return encode_pieces(reading(seed, index), tokenizer)
    if kind == "notes":
        return encode_pieces(notes(seed, index), tokenizer)
    messages = teach(base_case(seed, index), WANDERER, f"session {seed} {index}")
    return encode({"messages": messages}, tokenizer)


# --------------------------------------------------------------------------------------------- Muon


class Muon:
    """Muon on the matrices, AdamW on all other parameters.

    `param_groups[0]["lr"]` is the rate of both. Computes in float32, unlike torch's own Muon, which
    computes in bfloat16.
    """

    def __init__(self, model: nn.Module):
        self.matrices = []
        others = []
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "embed" not in name and "head" not in name:
                self.matrices.append(parameter)
            else:
                others.append(parameter)
        self.sums = [torch.zeros_like(matrix) for matrix in self.matrices]
        self.adam = torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
        self.param_groups = self.adam.param_groups

    @torch.no_grad()
    def step(self) -> None:
        rate = self.param_groups[0]["lr"]
        for matrix, total in zip(self.matrices, self.sums, strict=True):
            gradient = matrix.grad
            assert gradient is not None           # every matrix takes part in every forward pass
            total.mul_(MOMENTUM).add_(gradient)
            update = orthogonal(gradient + MOMENTUM * total)
            rows, columns = matrix.shape
            matrix.sub_(update, alpha=rate * max(1.0, rows / columns) ** 0.5)
        self.adam.step()


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest matrix with singular values of about 1 (0.7 to 1.2); a zero matrix stays zero."""
    wide = matrix.size(0) <= matrix.size(1)
    x = matrix if wide else matrix.T
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x if wide else x.T


# ------------------------------------------------------------------------------------ the tokenizer

MERGES = 470
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = """
    <|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|>
    <|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|>
    <|image_pad|> <|video_pad|>
""".split()
# Added, but not flagged special: a decoder that skips special tokens keeps these.
NOT_SPECIAL = """
    <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|>
    <|file_sep|> <tool_response> </tool_response> <think> </think>
""".split()
TOY_WEIGHT = 1000             # copies of the toy web's words in the training text: merged first


def make_tiny_tokenizer() -> str:
    """The text of tiny_tokenizer.json. The trainer breaks ties between pairs by their ids, so it is
    the same on every run."""
    here = Path(__file__).parent
    corpus = (here / "tiny_corpus.txt").read_text(encoding="utf-8")
    frame = (here / "tiny_frame.txt").read_text(encoding="utf-8")       # around the toy web's words
    words = "".join(f" {word}" for word in NAMES + PETS + RELATIONS + VERBS)

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    plain = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(**plain),
    ])
    tokenizer.post_processor = ByteLevel(**plain)
    tokenizer.decoder = decoders.ByteLevel()

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = len(alphabet) + MERGES
    trainer = BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([frame + words] * TOY_WEIGHT + [corpus], trainer)
    for token in SPECIAL + NOT_SPECIAL:
        tokenizer.add_tokens([AddedToken(token, normalized=False, special=token in SPECIAL)])
    return tokenizer.to_str(pretty=True) + "\n"
