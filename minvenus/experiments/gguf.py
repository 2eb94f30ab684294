"""Reads GGUF, llama.cpp's file format: named values, then tensors, some of them in blocks of 32.

    file      "GGUF", version, number of tensors, number of values; values; tensors; their data
    value     name, type, content                    text is its length and UTF-8
    tensor    name, sizes (the last axis first), block type, offset in the data

    F32       float32
    Q8_0      d, q_1 .. q_32            x_i = d q_i          d is a float16, q_i an int8
    Q4_1      d, m, q_1 .. q_32         x_i = d q_i + m      q_i and q_{i+16} in one byte
"""

import struct
from math import prod

import numpy

NUMBERS = {4: "I", 5: "i", 6: "f", 7: "?"}     # types of values that are read -> struct code
TEXT, ARRAY = 8, 9
F32, Q4_1, Q8_0 = 0, 3, 8
BLOCKS = {  # block type -> how many numbers a block has, its layout
    F32: (1, numpy.dtype("<f4")),
    Q4_1: (32, numpy.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])),
    Q8_0: (32, numpy.dtype([("d", "<f2"), ("q", "i1", 32)])),
}


class GGUF:
    """The content of a file: `values` by name, and `tensors` by name in float32. A damaged file is
    a ValueError, a KeyError or a struct.error."""

    def __init__(self, data: bytes):
        self.data = data
        self.place = 0
        magic, _, tensor_count, value_count = self.numbers("4sIQQ")
        if magic != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        self.values = {}
        for _ in range(value_count):
            name = self.text()
            self.values[name] = self.value(*self.numbers("I"))

        headers = []
        for _ in range(tensor_count):
            name = self.text()
            [axes] = self.numbers("I")
            *sizes, kind, offset = self.numbers(f"{axes}QIQ")
            headers.append((name, sizes[::-1], kind, offset))
        start = -(-self.place // 32) * 32
        self.tensors = {}
        for name, shape, kind, offset in headers:
            self.tensors[name] = self.tensor(shape, kind, start + offset)

    def numbers(self, form: str) -> tuple:
        values = struct.unpack_from("<" + form, self.data, self.place)
        self.place += struct.calcsize("<" + form)
        return values

    def text(self) -> str:
        [length] = self.numbers("Q")
        [encoded] = self.numbers(f"{length}s")
        return encoded.decode()

    def value(self, kind: int):
        if kind == TEXT:
            return self.text()
        if kind == ARRAY:
            item_kind, count = self.numbers("IQ")
            return [self.value(item_kind) for _ in range(count)]
        return self.numbers(NUMBERS[kind])[0]

    def tensor(self, shape: list[int], kind: int, place: int) -> numpy.ndarray:
        size, layout = BLOCKS[kind]
        blocks = numpy.frombuffer(self.data, layout, prod(shape) // size, place)
        if kind == F32:
            return blocks.reshape(shape)
        numbers = blocks["q"]
        if kind == Q4_1:
            numbers = numpy.concatenate((numbers & 15, numbers >> 4), axis=1)
        weight = blocks["d"].astype(numpy.float32)[:, None] * numbers
        if kind == Q4_1:
            weight += blocks["m"].astype(numpy.float32)[:, None]
        return weight.reshape(shape)
