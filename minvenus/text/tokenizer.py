"""Text to ids and back, over the `tokenizers` library, with a wall between what we write and what others write.

    encode(text)             trusted: every added token spelled in the text becomes its single id, as in Hugging Face
    encode_tagged(text)      the agent's and our own text: the six tags <think> <tool_call> <tool_response> and their
                             closings become ids, a control token such as <|im_end|> never does
    encode_untrusted(text)   anybody's text: ordinary ids only, whatever it says
    decode(ids)              the text, added tokens spelled out

Where no added token is spelled the three encoders agree. They normalise as the file says (Qwen: NFC), so decode gives
the NFC form of a text back. The library's tokenizer is loaded *without* its added tokens, so no text can make it
produce one: `<|im_end|>` on a web page is a few plain pieces. The added tokens are in a table here, and enter by the
first two encoders or by their ids.
"""

import json
import re
from itertools import groupby
from pathlib import Path

import tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from minvenus.config import ConfigError

NEEDED = {                                    # attribute of a Tokenizer -> the added token whose id it holds
    "end_of_text": "<|endoftext|>",
    "im_start": "<|im_start|>",
    "im_end": "<|im_end|>",
    "tool_call": "<tool_call>",
    "tool_call_end": "</tool_call>",
    "tool_response": "<tool_response>",
    "tool_response_end": "</tool_response>",
    "think": "<think>",
    "think_end": "</think>",
}
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
# What transformers reads beside tokenizer.json; none of it is needed here, all of it belongs next to saved weights.
COMPANIONS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
              "chat_template.jinja")
# Whitespace at the end and in runs, one to four bytes per character, no leading space: a lossy tokenizer fails on it.
PROBE = "One. Two,\n\n 3 日本 ñ\t🙂 \n"
TINY = Path(__file__).with_name("tiny_tokenizer.json")


class TokenizerError(ConfigError):
    """A tokenizer file that cannot be used, or a text or an id that it cannot take."""


class Tokenizer:
    """A byte-level BPE tokenizer with Qwen3's added tokens. Make one with `from_file` or `tiny`."""

    end_of_text: int
    im_start: int
    im_end: int
    tool_call: int
    tool_call_end: int
    tool_response: int
    tool_response_end: int
    think: int
    think_end: int

    def __init__(self, path: Path, raw: dict):
        self.added = {token["content"]: token["id"] for token in raw["added_tokens"]}     # spelling -> id
        self.spelling = {i: content for content, i in self.added.items()}
        missing = [content for content in NEEDED.values() if content not in self.added]
        if missing:
            raise TokenizerError(f"{path} lacks the added tokens {', '.join(missing)}: not a Qwen3 tokenizer")
        for name, content in NEEDED.items():
            setattr(self, name, self.added[content])
        self.stop_ids = (self.im_end, self.end_of_text)     # a turn ends at either, as in Qwen's generation_config.json
        # What to copy next to saved weights: name in a model folder -> file. Ours may have another name.
        beside = {name: path.with_name(name) for name in COMPANIONS}
        self.files = {"tokenizer.json": path} | {name: file for name, file in beside.items() if file.exists()}
        self.size = check_ids(path, raw)      # ids are 0 .. size-1; a model may have more rows, which are never sampled
        self._plain = load_without_added_tokens(path, raw)
        self._at_added = splitter(self.added)
        self._at_tags = splitter(TAGS)
        if self.decode(self.encode_untrusted(PROBE)) != PROBE:
            raise TokenizerError(f"{path} does not give {PROBE!r} back after encoding it: not a byte-level tokenizer")

    @classmethod
    def from_file(cls, path) -> "Tokenizer":
        """Load a tokenizer.json, or the one in a folder."""
        path = Path(path)
        path = path / "tokenizer.json" if path.is_dir() else path
        return cls(path, read_tokenizer_json(path))

    @classmethod
    def of_model(cls, folder: Path | None) -> "Tokenizer":
        """The tokenizer in a model's folder; None stands for the tiny model with random weights."""
        return cls.tiny() if folder is None else cls.from_file(folder)

    @classmethod
    def tiny(cls) -> "Tokenizer":
        """The tiny model's tokenizer of about 750 ids, which behaves as Qwen3's does."""
        return cls.from_file(TINY)

    def encode(self, text: str) -> list[int]:
        """Ids of a whole rendering that we wrote ourselves: every spelled added token becomes a real one."""
        return self._encode_pieces(self._at_added.split(text))

    def encode_tagged(self, text: str) -> list[int]:
        """Ids of a system prompt or an agent's turn: the six tags become ids, control tokens stay plain text."""
        return self._encode_pieces(self._at_tags.split(text))

    def encode_untrusted(self, text: str) -> list[int]:
        """Ids of text that anybody wrote: never an added token's id."""
        return self._encoding(text).ids

    def untrusted_offsets(self, text: str) -> list[tuple[int, int, int]]:
        """(id, start, end) of every id of encode_untrusted(text): it writes the characters text[start:end]. Several ids
        of one character share its span. Together the spans cover the text without a gap."""
        encoding = self._encoding(text)
        spans: list[tuple[int, int, int]] = []        # last id first
        next_start = len(text)                        # where the next character that has ids of its own begins
        for i, (start, end) in zip(reversed(encoding.ids), reversed(encoding.offsets), strict=True):
            if spans and start < spans[-1][1]:
                next_start = spans[-1][1]
            spans.append((i, start, max(end, next_start)))    # the library leaves out an accent that NFC joined
        return spans[::-1]

    def decode(self, ids: list[int]) -> str:
        """The text of ids, added tokens spelled out. Bytes that are not UTF-8 (half a character) come out as U+FFFD."""
        outside = sorted({i for i in ids if not 0 <= i < self.size})
        if outside:
            raise TokenizerError(f"ids {outside[:5]} are not in the vocabulary of {self.size}: mask them when sampling")
        return "".join("".join(self.spelling[i] for i in run) if added else self._plain.decode(list(run))
                       for added, run in groupby(ids, self.spelling.__contains__))

    def _encode_pieces(self, pieces: list[str]) -> list[int]:
        ids: list[int] = []
        for i, piece in enumerate(pieces):                    # odd pieces are the separators, which are added tokens
            ids += [self.added[piece]] if i % 2 else self.encode_untrusted(piece)
        return ids

    def _encoding(self, text: str) -> tokenizers.Encoding:
        try:
            return self._plain.encode(text, add_special_tokens=False)
        except (UnicodeEncodeError, TypeError):
            lone = re.search("[\ud800-\udfff]", text)         # raises by itself when text is not a string
            if lone is None:
                raise
            raise TokenizerError(f"the text has a lone surrogate {lone[0]!r} at character {lone.start()}: no UTF-8 can "
                                 "hold it; replace it where the text comes from") from None


def splitter(spellings) -> re.Pattern:
    """A pattern whose split() gives text, spelling, text, spelling, ..., text; the longest spelling wins."""
    return re.compile("(" + "|".join(re.escape(s) for s in sorted(spellings, key=len, reverse=True)) + ")")


def read_tokenizer_json(path: Path) -> dict:
    """The JSON of a byte-level BPE tokenizer file, or one clear error."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TokenizerError(f"{path} does not exist: a Qwen3 model folder has a tokenizer.json") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TokenizerError(f"{path} cannot be read as JSON: {error}") from None
    model = raw.get("model") if isinstance(raw, dict) else None
    if not isinstance(model, dict) or model.get("type") != "BPE" or not isinstance(raw.get("added_tokens"), list):
        raise TokenizerError(f"{path} is not a tokenizer.json with a BPE model and added tokens")
    absent = set(ByteLevel.alphabet()) - model.get("vocab", {}).keys()
    if absent:
        raise TokenizerError(f"{path} lacks {len(absent)} of the 256 byte symbols: some texts could not be encoded")
    options = ("lstrip", "rstrip", "single_word")
    reshaping = [token["content"] for token in raw["added_tokens"] if any(token.get(option) for option in options)]
    if reshaping:
        raise TokenizerError(f"{path}: {', '.join(options)} are not implemented, used by {', '.join(reshaping)}")
    return raw


def check_ids(path: Path, raw: dict) -> int:
    """The number of ids. They must be 0 .. n-1 without a hole: an id without a text could be sampled, not decoded."""
    ids = set(raw["model"]["vocab"].values()) | {token["id"] for token in raw["added_tokens"]}
    holes = sorted(set(range(max(ids) + 1)) - ids)
    if holes:
        raise TokenizerError(f"{path} has no token for {len(holes)} ids below {max(ids)}, the first is {holes[0]}")
    return len(ids)


def load_without_added_tokens(path: Path, raw: dict) -> tokenizers.Tokenizer:
    """The library's tokenizer, unable to produce an added token. The post-processor (a BOS, trimmed offsets),
    truncation and padding go too: every id stands for text that was there."""
    model = raw["model"] | {"unk_token": None}          # with all 256 bytes nothing is unknown
    added = {token["id"] for token in raw["added_tokens"]}
    listed = {content for content, i in model["vocab"].items() if i in added}
    if listed:                  # some files also list added tokens in the vocabulary, where merges could reach them
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        model = model | {"vocab": {content: i for content, i in model["vocab"].items() if i not in added},
                         "merges": [pair for pair in pairs if not listed & {*pair, "".join(pair)}]}
    bare = raw | {"model": model, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(bare, ensure_ascii=False))
    except Exception as error:                # the library raises plain Exception
        raise TokenizerError(f"{path} cannot be loaded: {error}") from None
