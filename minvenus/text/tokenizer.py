"""Text to ids and back, over the `tokenizers` library, with a wall between our text and others'.

    encode(text)             trusted: every added token that the text spells becomes its single id,
                             as in Hugging Face
    encode_tagged(text)      the agent's and our own text: the six tags <think> <tool_call>
                             <tool_response> and their closings become ids, a control token such as
                             <|im_end|> never does
    encode_untrusted(text)   anybody's text: ordinary ids only, whatever it says
    decode(ids)              the text, added tokens spelled out

Where no added token is spelled the three encoders agree. They normalise as the file says (Qwen:
NFC), so decode gives the NFC form of a text back. The library's tokenizer is loaded *without* its
added tokens, so no text can make it produce one: `<|im_end|>` on a web page is a few plain pieces.
The added tokens are in a table here, and enter by the first two encoders or by their ids.
"""

import json
import re
from itertools import groupby
from pathlib import Path

import tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from minvenus.config import ConfigError, read_json
from minvenus.text.companions import companions

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
# Whitespace at the end and in runs, one to four bytes per character, no leading space: a lossy
# tokenizer fails on it.
PROBE = "One. Two,\n\n 3 日本 ñ\t🙂 \n"
# Symbols of the bytes that UTF-8 uses: 0xC0, 0xC1 and those from 0xF5 on are in no text.
NO_BYTES = {chr(byte) for byte in (0xC0, 0xC1, *range(0xF5, 0x100))}
BYTE_SYMBOLS = set(ByteLevel.alphabet()) - NO_BYTES
TINY = Path(__file__).with_name("tiny_tokenizer.json")      # about 750 ids; behaves as Qwen3's does


class Tokenizer:
    """A byte-level BPE tokenizer with Qwen3's added tokens. Make one with `from_file` or `tiny`."""

    def __init__(self, path: Path, raw: dict):
        self.added = {token["content"]: token["id"] for token in raw["added_tokens"]}
        self.spelling = {i: content for content, i in self.added.items()}
        # ids are 0 .. size-1; a model may have more rows
        self.size = len(raw["model"]["vocab"].keys() | self.added)
        self.end_of_text = self.added["<|endoftext|>"]
        self.im_start = self.added["<|im_start|>"]
        self.im_end = self.added["<|im_end|>"]
        self.think = self.added["<think>"]
        self.think_end = self.added["</think>"]
        self.tool_response = self.added["<tool_response>"]
        self.tool_response_end = self.added["</tool_response>"]
        # a turn ends at either, as in Qwen's generation_config.json
        self.stop_ids = (self.im_end, self.end_of_text)
        self.files = companions(path, raw["added_tokens"])      # what belongs beside saved weights
        self._plain = load_without_added_tokens(path, raw)
        self._at_added = splitter(self.added)
        self._at_tags = splitter(TAGS)
        if self.decode(self.encode_untrusted(PROBE)) != PROBE:
            raise ConfigError(f"{path} does not give {PROBE!r} back after encoding it: not a "
                              "byte-level tokenizer")

    @classmethod
    def from_file(cls, path) -> "Tokenizer":
        """Load a tokenizer.json, or the one in a folder."""
        path = Path(path)
        if path.is_dir():
            path = path / "tokenizer.json"
        return cls(path, read_tokenizer_json(path))

    @classmethod
    def tiny(cls) -> "Tokenizer":
        return cls.from_file(TINY)

    def encode(self, text: str) -> list[int]:
        return self._encode_pieces(self._at_added.split(text))

    def encode_tagged(self, text: str) -> list[int]:
        return self._encode_pieces(self._at_tags.split(text))

    def encode_untrusted(self, text: str) -> list[int]:
        return self._encoding(text).ids

    def untrusted_offsets(self, text: str) -> list[tuple[int, int, int]]:
        """(id, start, end) of every id of encode_untrusted(text): it writes the characters
        text[start:end]. Several ids of one character share its span. Together the spans cover the
        text without a gap."""
        encoding = self._encoding(text)
        spans: list[tuple[int, int, int]] = []        # last id first
        next_start = len(text)                        # of the next character with ids of its own
        backwards = zip(encoding.ids[::-1], encoding.offsets[::-1], strict=True)
        for token, (start, end) in backwards:
            if spans and start < spans[-1][1]:
                next_start = spans[-1][1]
            # the library leaves out an accent that NFC joined
            spans.append((token, start, max(end, next_start)))
        return spans[::-1]

    def decode(self, ids: list[int]) -> str:
        """The text of ids, added tokens spelled out. Bytes that are not UTF-8 (half a character)
        come out as U+FFFD."""
        if ids and not 0 <= min(ids) <= max(ids) < self.size:
            raise ConfigError(f"ids from {min(ids)} to {max(ids)} are not all in the vocabulary of "
                              f"{self.size}")
        texts = []
        for added, run in groupby(ids, self.spelling.__contains__):
            if added:
                texts += [self.spelling[i] for i in run]
            else:
                texts.append(self._plain.decode(list(run)))
        return "".join(texts)

    def _encode_pieces(self, pieces: list[str]) -> list[int]:
        """The ids of text, added token, text, added token, ..., text."""
        ids: list[int] = []
        for i, piece in enumerate(pieces):
            if i % 2:
                ids.append(self.added[piece])
            else:
                ids += self.encode_untrusted(piece)
        return ids

    def _encoding(self, text: str) -> tokenizers.Encoding:
        try:
            return self._plain.encode(text, add_special_tokens=False)
        except TypeError:                             # of the library, about half a surrogate pair
            raise ConfigError("the text is not Unicode, replace what UTF-8 cannot hold (words of "
                              "a command line need a UTF-8 locale, as LC_ALL=C.UTF-8): "
                              f"{text!r:.200}") from None


def splitter(spellings) -> re.Pattern:
    """A pattern whose split() gives text, spelling, text, ..., text; the longest spelling wins."""
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")


def whole_characters(text: str) -> str:
    """Replace lone halves of surrogate pairs by U+FFFD: JSON can spell them, UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_tokenizer_json(path: Path) -> dict:
    """The JSON of a tokenizer file that can serve as Qwen3's does, or one clear error."""
    raw = read_json(path)
    try:
        model, added = raw["model"], raw["added_tokens"]
        ids = {*model["vocab"].values(), *(token["id"] for token in added)}
        contents = {token["content"] for token in added}
        is_bpe = model["type"] == "BPE"
    except (AttributeError, KeyError, TypeError):
        is_bpe = False
    if not is_bpe:
        raise ConfigError(f"{path} is not a tokenizer.json with a BPE model and added tokens, each "
                          "with its id and content")

    missing = {*CONTROL, *TAGS} - contents
    if missing:
        raise ConfigError(f"{path} lacks the added tokens {', '.join(sorted(missing))}: not a "
                          "Qwen3 tokenizer")
    if not model["vocab"].keys() >= BYTE_SYMBOLS:
        raise ConfigError(f"{path} lacks symbols of some bytes: characters would be lost without "
                          "a word")
    for token in added:
        if token.get("lstrip") or token.get("rstrip") or token.get("single_word"):
            raise ConfigError(f"{path} has added tokens with lstrip, rstrip or single_word, which "
                              "minvenus does not read")
    if set(map(type, ids)) != {int} or ids != set(range(len(ids))):
        raise ConfigError(f"{path}: its ids must be the whole numbers from 0 to {len(ids) - 1}: "
                          "one without a token could be sampled")
    return raw


def load_without_added_tokens(path: Path, raw: dict) -> tokenizers.Tokenizer:
    """The library's tokenizer, unable to produce an added token: it is in no table, and merges that
    lead to one are refused. The post-processor (a BOS, trimmed offsets), truncation and padding go
    too: every id stands for text that was there."""
    added = {token["id"] for token in raw["added_tokens"]}      # some files list them twice
    vocab = {content: i for content, i in raw["model"]["vocab"].items() if i not in added}
    bare = raw | {
        "model": raw["model"] | {"vocab": vocab, "unk_token": None},
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(bare, ensure_ascii=False))
    except Exception as error:                        # the library raises plain Exception
        raise ConfigError(f"{path} cannot be loaded: {error}") from None
