"""Reads GGUF, llama.cpp's file format: named values, then tensors, some of them in blocks of 32.

    file      "GGUF", version, number of tensors, number of values; values; tensors; their data
    value     name, type, content                    text is its length and UTF-8
    tensor    name, sizes (the last axis first), block type, offset in the data

    F32       float32
    Q8_0      d, q_1 .. q_32            x_i = d q_i          d is a float16, q_i an int8
    Q4_1      d, m, q_1 .. q_32         x_i = d q_i + m      q_i and q_{i+16} in one byte
"""

import struct
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy

from minvenus.config import ConfigError

NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}     # type -> its struct code
TEXT, ARRAY = 8, 9
F32, Q4_1, Q8_0 = 0, 3, 8
BLOCK = 32  # numbers of a block
BLOCK_BYTES = {F32: 4 * BLOCK, Q4_1: 4 + BLOCK // 2, Q8_0: 2 + BLOCK}


@dataclass
class GGUF:
    """The content of a file."""

    values: dict = field(default_factory=dict)
    tensors: dict[str, numpy.ndarray] = field(default_factory=dict)  # in float32


def read_gguf(path: Path) -> GGUF:
    """All values and tensors, or one clear error."""
    try:
        return Reader(path.read_bytes()).read()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except (ValueError, struct.error, KeyError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a whole GGUF file: {error!r}") from None


class Reader:
    def __init__(self, data: bytes):
        self.data = data
        self.place = 0

    def read(self) -> GGUF:
        if self.data[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        self.place = 4
        _, tensor_count, value_count = self.numbers("IQQ")
        content = GGUF()
        for _ in range(value_count):
            name = self.text()
            content.values[name] = self.value(*self.numbers("I"))

        places = {}
        for _ in range(tensor_count):
            name = self.text()
            [axes] = self.numbers("I")
            sizes = self.numbers("Q" * axes)
            kind, offset = self.numbers("IQ")
            places[name] = tuple(reversed(sizes)), kind, offset
        alignment = content.values.get("general.alignment", 32)
        start = -(-self.place // alignment) * alignment
        for name, (shape, kind, offset) in places.items():
            content.tensors[name] = self.tensor(shape, kind, start + offset)
        return content

    def numbers(self, form: str) -> tuple:
        values = struct.unpack_from("<" + form, self.data, self.place)
        self.place += struct.calcsize("<" + form)
        return values

    def text(self) -> str:
        [length] = self.numbers("Q")
        encoded = self.data[self.place : self.place + length]
        self.place += length
        return encoded.decode()

    def value(self, kind: int):
        if kind == TEXT:
            return self.text()
        if kind == ARRAY:
            item_kind, count = self.numbers("IQ")
            return [self.value(item_kind) for _ in range(count)]
        return self.numbers(NUMBERS[kind])[0]

    def tensor(self, shape: tuple[int, ...], kind: int, place: int) -> numpy.ndarray:
        if kind not in BLOCK_BYTES:
            raise ValueError(f"a tensor of block type {kind}: only F32, Q4_1 and Q8_0 are read")
        size = prod(shape) * BLOCK_BYTES[kind] // BLOCK
        raw = numpy.frombuffer(self.data, numpy.uint8, size, place)
        if kind == F32:
            return raw.view(numpy.float32).reshape(shape).copy()
        blocks = raw.reshape(-1, BLOCK_BYTES[kind])
        scale = blocks[:, 0:2].copy().view(numpy.float16).astype(numpy.float32)  # [blocks, 1]
        if kind == Q8_0:
            numbers = scale * blocks[:, 2:].view(numpy.int8)
        else:
            lowest = blocks[:, 2:4].copy().view(numpy.float16).astype(numpy.float32)
            halves = blocks[:, 4:] & 15, blocks[:, 4:] >> 4
            numbers = scale * numpy.concatenate(halves, axis=1) + lowest
        return numbers.reshape(shape)
