"""Trusted and untrusted text, offsets, refusals: with the tiny tokenizer and Qwen3's."""

import json
import unicodedata

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import MODELS, ConfigError
from minvenus.experiments.base import MERGES, NOT_SPECIAL, SPECIAL, make_tiny_tokenizer
from minvenus.text.tokenizer import TINY, Tokenizer
from tests.text.conftest import library

ADDED = SPECIAL + NOT_SPECIAL
SIZE = 256 + MERGES + len(ADDED)  # ids of the tiny tokenizer; the added tokens are the last ones


# Spellings whole, cut anywhere or turned around; what NFC changes (accents, Hangul); bytes without
# a merge; line ends.
pieces = st.sampled_from(ADDED).flatmap(
    lambda s: st.integers(1, len(s) - 1).flatmap(
        lambda cut: st.sampled_from([s, s[cut:] + s[:cut], s[:cut]])
    )
)
odd = st.sampled_from(
    [
        "e\u0301",
        "\u0301",
        "\u0338",
        "\u1100\u1161",
        "日本",
        "🙂",
        ".\n",
        " \n\n ",
        "\r\n",
        "\x00",
        "12",
        "don't",
        "<",
        "|>",
    ]
)
plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
hostile = st.lists(st.one_of(pieces, odd, plain), max_size=12).map("".join)
tame = hostile.filter(lambda text: not any(s in text for s in ADDED))


# -------------------------------------------------------------------------------------------- trust


@given(text=hostile)
def test_untrusted_text_never_becomes_an_added_id_and_decodes_to_itself(tokenizer, text):
    ids = tokenizer.encode_untrusted(text)
    assert not set(ids) & set(tokenizer.added.values())
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


@given(text=hostile)
def test_trusted_encoding_and_decoding_are_the_library_s(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids == library(tokenizer).encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == library(tokenizer).decode(ids, skip_special_tokens=False)


@given(text=tame)
def test_ordinary_text_encodes_alike_trusted_or_not(tokenizer, text):
    assert (
        tokenizer.encode_untrusted(text) == tokenizer.encode(text) == tokenizer.encode_tagged(text)
    )


# ------------------------------------------------------------------------------------------ offsets


def test_the_ids_of_one_character_share_its_span_and_an_accent_that_normalisation_joins_is_covered(
    tokenizer,
):
    spans = tokenizer.untrusted_offsets("x𓀀y")  # four bytes, in neither vocabulary
    assert len(spans) > 3 and [s[1:] for s in spans[1:-1]] == [(1, 2)] * (len(spans) - 2)
    assert {span[1:] for span in tokenizer.untrusted_offsets("e\u0301")} == {(0, 2)}


@given(text=hostile)
def test_offsets_cover_the_text_in_order_and_their_ids_are_the_encoding(tokenizer, text):
    spans = tokenizer.untrusted_offsets(text)
    assert [i for i, _, _ in spans] == tokenizer.encode_untrusted(text)
    if text.isascii():
        assert all(tokenizer.decode([i]) == text[start:end] for i, start, end in spans)
    reached = 0
    for _, start, end in spans:
        assert start <= reached and start < end <= len(text)
        reached = max(reached, end)
    assert reached == len(text)


# ---------------------------------------------------------------------------------------- the files


def test_the_ids_of_qwen3_are_those_of_the_protocol(qwen):
    assert (qwen.size, qwen.im_start, qwen.stop_ids) == (151_669, 151_644, (151_645, 151_643))
    tags = (qwen.think, qwen.think_end, qwen.tool_response, qwen.tool_response_end)
    assert tags == (151_667, 151_668, 151_665, 151_666)
    assert qwen.encode("\n") == [198] and qwen.encode("\n\n") == [271]


def test_an_id_or_a_text_that_stands_for_nothing_is_an_error(tiny):
    for ids in ([0, SIZE], [-1]):
        with pytest.raises(ConfigError, match=f"vocabulary of {SIZE}"):
            tiny.decode(ids)
    with pytest.raises(ConfigError, match=r"not Unicode.*LC_ALL=C.UTF-8.*abc\\udc00"):
        tiny.encode_untrusted("abc\udc00")


def load_changed(folder, change) -> Tokenizer:
    """The tiny tokenizer from a file with one change."""
    raw = json.loads(TINY.read_text(encoding="utf-8"))
    change(raw)
    (folder / "tokenizer.json").write_text(json.dumps(raw), encoding="utf-8")
    return Tokenizer.from_file(folder)


def list_a_tag_as_a_merge(raw):
    """An added token in the vocabulary as well, with merges that lead from its bytes to it."""
    think = next(token["id"] for token in raw["added_tokens"] if token["content"] == "<think>")
    steps = ["<t", "<th", "<thi", "<thin", "<think", "<think>"]
    raw["model"]["vocab"].update(dict(zip(steps, [*range(SIZE, SIZE + 5), think], strict=True)))
    raw["model"]["merges"][:0] = [[step[:-1], step[-1]] for step in steps]


def last(**fields):
    """A change of the last added token."""
    return lambda raw: raw["added_tokens"][-1].update(fields)


FLAGS, NO_BPE = "with lstrip, rstrip or single_word", "not a tokenizer.json with a BPE model"
IDS = f"ids must be the whole numbers from 0 to {SIZE - 1}"


@pytest.mark.parametrize(
    "message, change",
    [
        (
            "lacks the added tokens </think>, <think>: not a Qwen3",
            lambda raw: raw.update(added_tokens=raw["added_tokens"][:-2]),
        ),
        ("lacks symbols of some bytes", lambda raw: raw["model"]["vocab"].pop("!")),
        (FLAGS, last(single_word=True)),
        (FLAGS, last(lstrip=True)),
        (FLAGS, last(rstrip=True)),
        (NO_BPE, lambda raw: raw["model"].update(type="WordPiece")),
        (NO_BPE, lambda raw: raw["added_tokens"][-1].pop("id")),
        (NO_BPE, lambda raw: raw["added_tokens"].append("<think>")),
        (NO_BPE, lambda raw: raw["model"].pop("vocab")),
        (IDS, last(id=SIZE)),
        ("ids must be the whole numbers", last(id=str(SIZE - 1))),
        ("ids must be the whole numbers", lambda raw: raw["model"]["vocab"].update(x="7")),
        ("ids must be the whole numbers", lambda raw: raw["model"]["vocab"].update(x=-1)),
        (
            "not a byte-level tokenizer",
            lambda raw: raw["pre_tokenizer"]["pretokenizers"][1].update(add_prefix_space=True),
        ),
        ("cannot be loaded", list_a_tag_as_a_merge),
    ],
)
def test_a_file_that_cannot_serve_is_refused_in_one_message(tmp_path, message, change):
    with pytest.raises(ConfigError, match=message):
        load_changed(tmp_path, change)


def test_a_file_may_lack_the_bytes_that_are_in_no_text(tmp_path, tiny):
    """0xC0 is spelled \u00c0 there."""

    def rename(raw):
        vocab = raw["model"]["vocab"]
        vocab["unused"] = vocab.pop("\u00c0")

    assert load_changed(tmp_path, rename).encode("a city") == tiny.encode("a city")


def test_an_added_token_that_the_vocabulary_lists_as_well_is_one_id(tmp_path, tiny):
    tokenizer = load_changed(tmp_path, lambda raw: raw["model"]["vocab"].update(tiny.added))
    assert tokenizer.size == SIZE, "no id beyond the last one is sampled"


def test_where_one_added_token_begins_another_the_longer_one_is_taken(tmp_path):
    def add(raw):
        raw["added_tokens"].append(raw["added_tokens"][-2] | {"id": SIZE, "content": "<think>!"})

    tokenizer = load_changed(tmp_path, add)
    ids = tokenizer.encode("<think>!<think>")
    assert ids == [SIZE, SIZE - 2] == library(tokenizer).encode("<think>!<think>").ids


def test_truncation_padding_a_bos_and_trimmed_offsets_in_the_file_change_nothing(tiny, tmp_path):
    loaded = tokenizers.Tokenizer.from_file(str(TINY))
    loaded.enable_truncation(3)
    loaded.enable_padding(length=20)
    bos = tokenizers.processors.TemplateProcessing(
        "<|endoftext|> $A", special_tokens=[("<|endoftext|>", tiny.end_of_text)]
    )
    text = " The founder of the  company was born in the city. "
    for processor in (bos, tokenizers.processors.ByteLevel(trim_offsets=True)):
        loaded.post_processor = processor
        loaded.save(str(tmp_path / "tokenizer.json"))
        assert Tokenizer.from_file(tmp_path).encode(text) == tiny.encode(text)
        assert Tokenizer.from_file(tmp_path).untrusted_offsets(text) == tiny.untrusted_offsets(text)


# ------------------------------------------------------------------------------- the tiny tokenizer


def test_the_committed_tiny_tokenizer_is_what_the_command_makes_and_fits_the_tiny_model(tiny):
    assert TINY.read_bytes() == make_tiny_tokenizer().encode()
    assert tiny.size == SIZE == 752 < MODELS["tiny"].vocab_size
    assert [tiny.decode([SIZE - len(ADDED) + i]) for i in range(len(ADDED))] == list(ADDED)


def test_the_tiny_tokenizer_cuts_text_as_qwen3_does(tiny, qwen):
    small, large = (
        json.loads(t.files["tokenizer.json"].read_text(encoding="utf-8")) for t in (tiny, qwen)
    )
    for part in ("normalizer", "pre_tokenizer", "post_processor"):
        assert small[part] == large[part]
    assert (
        small["decoder"]["type"] == large["decoder"]["type"] == "ByteLevel"
    )  # its other fields do nothing here
    for ours, theirs in zip(small["added_tokens"], large["added_tokens"], strict=True):
        assert ours | {"id": 0} == theirs | {"id": 0}
