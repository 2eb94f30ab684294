"""A miniature GGUF file, written here byte by byte, as a checkpoint: values, blocks, row order."""

import struct

import numpy
import pytest
import torch

from minvenus.agent.prompt import read_format
from minvenus.config import ConfigError, ModelConfig, read_json
from minvenus.experiments.factbook import LEAD_IN, SYSTEM
from minvenus.experiments.gguf import F32, Q4_1, Q8_0
from minvenus.experiments.smollm2 import SmolLM2Config, halves_in_order, main
from minvenus.model import weights
from minvenus.text.tokenizer import BYTE_SYMBOLS, TAGS, Tokenizer

HIDDEN, HEADS, KV_HEADS, INNER, LAYERS = 64, 2, 1, 96, 2
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPARE = [f"<code_{i}>" for i in range(14)]
# three of the byte symbols are missing
TOKENS = [*CONTROL, *SPARE, *sorted(BYTE_SYMBOLS)[3:], "th", "12", "the"]
MERGES = ["t h", "1 2", "th e"]


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def value(content) -> bytes:
    """The type and the content of a value."""
    if isinstance(content, str):
        return struct.pack("<I", 8) + text(content)
    if isinstance(content, float):
        return struct.pack("<If", 6, content)
    if isinstance(content, bool):
        return struct.pack("<I?", 7, content)
    if isinstance(content, int):
        return struct.pack("<II", 4, content)
    if isinstance(content[0], str):
        return struct.pack("<IIQ", 9, 8, len(content)) + b"".join(map(text, content))
    return struct.pack(f"<IIQ{len(content)}i", 9, 5, len(content), *content)


def blocks(weight: numpy.ndarray, kind: int) -> tuple[bytes, numpy.ndarray]:
    """The bytes of a tensor, and the numbers that they stand for."""
    if kind == F32:
        return weight.astype(numpy.float32).tobytes(), weight.astype(numpy.float32)
    data, numbers = b"", []
    for row in weight.reshape(-1, 32):
        low, high = row.min(), row.max()
        if kind == Q8_0:
            scale = numpy.float16(numpy.abs(row).max() / 127)
            q = numpy.round(row / numpy.float32(scale)).astype(numpy.int8)
            data += scale.tobytes() + q.tobytes()
            numbers.append(numpy.float32(scale) * q)
        else:
            scale, least = numpy.float16((high - low) / 15), numpy.float16(low)
            q = numpy.clip(numpy.round((row - low) / numpy.float32(scale)), 0, 15).astype(
                numpy.uint8
            )
            data += scale.tobytes() + least.tobytes() + (q[:16] | q[16:] << 4).tobytes()
            numbers.append(numpy.float32(scale) * q + numpy.float32(least))
    return data, numpy.concatenate(numbers).reshape(weight.shape).astype(numpy.float32)


def llama_order(weight: numpy.ndarray, heads: int) -> numpy.ndarray:
    """llama.cpp's order of rows: (half, pair) -> (pair, half) in every head."""
    rows, columns = weight.shape
    return (
        weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
    )


def shapes() -> dict[str, tuple[tuple[int, ...], int]]:
    head = HIDDEN // HEADS
    layer = {
        "attn_norm": ((HIDDEN,), F32),
        "attn_q": ((HEADS * head, HIDDEN), Q4_1),
        "attn_k": ((KV_HEADS * head, HIDDEN), Q4_1),
        "attn_v": ((KV_HEADS * head, HIDDEN), Q4_1),
        "attn_output": ((HIDDEN, HEADS * head), Q4_1),
        "ffn_norm": ((HIDDEN,), F32),
        "ffn_gate": ((INNER, HIDDEN), Q4_1),
        "ffn_up": ((INNER, HIDDEN), Q4_1),
        "ffn_down": ((HIDDEN, INNER), Q4_1),
    }
    found = {"token_embd.weight": ((len(TOKENS), HIDDEN), Q8_0)}
    for i in range(LAYERS):
        found |= {f"blk.{i}.{name}.weight": shape for name, shape in layer.items()}
    return found | {"output_norm.weight": ((HIDDEN,), F32)}


def write_gguf(path, changes: dict | None = None) -> dict[str, numpy.ndarray]:
    """A file with random weights. Returns its numbers by GGUF name, rows of q and k in Llama's own
    order."""
    values = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.freq_base": 1e4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] * 17 + [1] * (len(TOKENS) - 17),
        "tokenizer.ggml.merges": MERGES,
    } | (changes or {})
    rng = numpy.random.default_rng(0)
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(shapes()), len(values))
    for name, content in values.items():
        header += text(name) + value(content)
    data, numbers = b"", {}
    for name, (shape, kind) in shapes().items():
        weight = rng.normal(size=shape) + (1.0 if len(shape) == 1 else 0.0)
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2])
        stored, numbers[name] = blocks(weight, kind)
        if heads:
            _, exact = blocks(weight, kind)
            stored, _ = blocks(llama_order(exact, heads), kind)
            numbers[name] = exact
        header += text(name) + struct.pack("<I", len(shape))
        header += struct.pack(f"<{len(shape)}Q", *reversed(shape))
        header += struct.pack("<IQ", kind, len(data))
        data += stored + b"\0" * (-len(stored) % 32)
    path.write_bytes(header + b"\0" * (-len(header) % 32) + data)
    return numbers


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    numbers = write_gguf(folder / "model.gguf")
    main(SmolLM2Config(gguf=str(folder / "model.gguf"), out=str(folder / "model")))
    return folder, numbers


def test_the_checkpoint_has_the_weights_under_our_names_and_q_and_k_in_our_order(converted):
    """Blocks of every kind give the numbers that were stored, to the last bit; those of q and k
    were rounded a second time, after the test had put them into llama.cpp's order."""
    folder, numbers = converted
    state = weights.load(folder / "model").state_dict()
    embeddings = state["model.embed_tokens.weight"]
    rows = [*range(3), *range(9, len(TOKENS))]  # all but those of the tags
    assert torch.equal(embeddings[rows], torch.from_numpy(numbers["token_embd.weight"])[rows])
    pairs = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for i in range(LAYERS):
        for ours, theirs in pairs.items():
            weight = state[f"model.layers.{i}.{ours}.weight"]
            stored = torch.from_numpy(numbers[f"blk.{i}.{theirs}.weight"])
            assert torch.allclose(weight, stored, atol=0.05), f"{ours} is not {theirs}"
            assert torch.equal(weight, stored) or theirs in ("attn_q", "attn_k")
    assert torch.equal(state["model.norm.weight"], torch.from_numpy(numbers["output_norm.weight"]))
    rows = torch.arange(HIDDEN * 4.0).reshape(HIDDEN, 4).numpy()
    assert numpy.array_equal(halves_in_order(llama_order(rows, HEADS), HEADS), rows)
    assert not numpy.array_equal(halves_in_order(rows, HEADS), rows), "the order matters"


def test_the_shape_is_that_of_a_llama_with_tied_embeddings(converted):
    folder, _ = converted
    shape = ModelConfig.from_json(folder / "model")
    assert (shape.qk_norm, shape.qkv_bias, shape.tie_word_embeddings) == (False, False, True)
    assert (shape.head_dim, shape.rope_theta, shape.rms_norm_eps) == (32, 1e4, 1e-5)
    assert shape.max_position_embeddings == 128
    prompt_format = read_format(folder / "model")
    assert (prompt_format.prompt, prompt_format.lead_in) == (SYSTEM, LEAD_IN)
    limits = "max_turns max_context max_new_tokens max_observation_tokens temperature top_p top_k"
    limits += " presence_penalty retries"
    values = [getattr(prompt_format, name) for name in limits.split()]
    assert values == [12, 1536, 96, 256, 1.0, 1.0, 0, 0.0, 0]


def test_tokens_and_merges_come_through_and_spare_tokens_are_tags_and_missing_bytes(converted):
    folder, _ = converted
    tokenizer = Tokenizer.from_file(folder / "model")
    assert [tokenizer.added[tag] for tag in TAGS] == list(range(3, 9))
    assert tokenizer.encode("the") == [len(TOKENS) - 1]
    assert len(tokenizer.encode("1234")) == 4, "digits one by one, whatever the merges"
    assert read_json(folder / "model" / "config.json")["dtype"] == "float32"
    for character in map(chr, range(128)):
        assert tokenizer.decode(tokenizer.encode_untrusted(character)) == character
    assert tokenizer.size == len(TOKENS)


def test_a_tag_lies_between_the_tokens_that_spell_it_and_no_two_tags_are_alike(converted):
    folder, _ = converted
    tokenizer = Tokenizer.from_file(folder / "model")
    embeddings = weights.load(folder / "model").state_dict()["model.embed_tokens.weight"]
    tags = embeddings[[tokenizer.added[tag] for tag in TAGS]]
    directions = tags / tags.norm(dim=1, keepdim=True)
    for tag in TAGS:
        mean = embeddings[tokenizer.encode_untrusted(tag[1:-1])].mean(dim=0)
        assert torch.allclose(mean, embeddings[tokenizer.added[tag]], atol=1e-6)
    # here a token is one letter, and "/tool_response" differs from "tool_response" by one of 14
    assert (directions @ directions.T - torch.eye(len(TAGS))).max() < 0.99


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:200], "error"),
        (lambda data: data[:-5000], "ValueError"),
        (lambda data: b"ABCD" + data[4:], "does not begin with GGUF"),
    ],
)
def test_a_damaged_file_is_one_clear_line(converted, tmp_path, damage, words):
    folder, _ = converted
    path = tmp_path / "model.gguf"
    path.write_bytes(damage((folder / "model.gguf").read_bytes()))
    with pytest.raises(ConfigError, match=rf"model\.gguf is no GGUF file .*{words}"):
        main(SmolLM2Config(gguf=str(path), out=str(tmp_path / "model")))


def test_another_model_and_a_missing_package_are_one_clear_line(tmp_path, monkeypatch):
    write_gguf(tmp_path / "model.gguf", {"tokenizer.ggml.pre": "llama-bpe"})
    with pytest.raises(ConfigError, match="holds another model: only SmolLM2 is converted"):
        main(SmolLM2Config(gguf=str(tmp_path / "model.gguf"), out=str(tmp_path / "model")))
    monkeypatch.setattr("minvenus.experiments.smollm2.PACKAGE", "llm-not-there")
    with pytest.raises(ConfigError, match="llm-not-there is not installed: make real-model"):
        main(SmolLM2Config(out=str(tmp_path / "model")))
