"""Builds the tiny tokenizer: 752 ids that behave as Qwen3's 151,669 do.

    python -m minvenus.experiments.tiny_tokenizer         writes minvenus/text/tiny_tokenizer.json again

    0 .. 255      the byte symbols, in the order of their printable stand-ins (id 0 is "!", as in Qwen's file)
    256 .. 725    merges: first those that give every word of the toy web one id, then those of tiny_corpus.txt
    726 .. 751    Qwen3's added tokens, in Qwen3's order, with Qwen3's `special` flags

Normaliser, split pattern and decoder are those of Qwen3's file: digits stay single, punctuation joins the newlines
after it, a word takes the space before it. So a test of token borders with this tokenizer holds with the real one.
The tiny model has 768 rows; ids 752 .. 767 are unused, as are the last 267 rows of a Qwen3 model.
"""

from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from minvenus.text import tokenizer as text_tokenizer
from minvenus.tools.toyweb import NAMES, PETS, RELATIONS, VERBS

MERGES = 470
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
           "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
           "<|image_pad|>", "<|video_pad|>")
# Added, but not flagged special: a decoder that skips special tokens keeps these.
NOT_SPECIAL = ("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
               "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>")
CORPUS = Path(__file__).with_name("tiny_corpus.txt").read_text(encoding="utf-8")
FRAME = Path(__file__).with_name("tiny_frame.txt").read_text(encoding="utf-8")      # what surrounds the toy web's words
TOY_TEXT = FRAME + "".join(f" {word}" for word in NAMES + PETS + RELATIONS + VERBS)
TOY_WEIGHT = 1000               # copies of TOY_TEXT in the training text: its pieces are merged first


def make_tiny_tokenizer() -> str:
    """The text of tiny_tokenizer.json. The trainer breaks ties between pairs by their ids, so it is the same on every
    run."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ])
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=len(alphabet) + MERGES, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TOY_TEXT] * TOY_WEIGHT + [CORPUS], trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL]
                         + [AddedToken(token, normalized=False, special=False) for token in NOT_SPECIAL])
    return tokenizer.to_str(pretty=True) + "\n"


if __name__ == "__main__":
    text_tokenizer.TINY.write_text(make_tiny_tokenizer(), encoding="utf-8")
    print(f"wrote {text_tokenizer.TINY}")
