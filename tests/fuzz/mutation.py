"""Mutations of bytes, of nested text and of zips: cheap, drawn from one seeded generator, and valid where it matters.

What a format's own file in this folder adds is the structure: which bytes are mutated, and which checksums, lengths and
offsets are set right afterwards, so that cases get past the first check.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")

EDGES = (0, 1, 2, 3, 7, 8, 15, 16, 63, 64, 127, 128, 255)  #: bytes near which bounds are
NUMBERS = (
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    16,
    32,
    48,
    64,
    255,
    256,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 48) - 1,
    1 << 48,
    (1 << 62) - 1,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)


class Dice(Random):
    """A seeded generator with draws that cost a fraction of ``randrange`` and ``choice``."""

    def below(self, n: int) -> int:
        """Return an integer from 0 to ``n`` - 1."""
        return int(self.random() * n)

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[int(self.random() * len(items))]


def change_bytes(dice: Dice, data: bytearray, start: int, stop: int) -> None:
    """Change a byte or a number somewhere from ``start`` to ``stop``, in place; the length stays."""
    if stop <= start:
        return
    at, how = start + dice.below(stop - start), dice.below(8)
    if how < 3:
        data[at] ^= 1 << dice.below(8)
    elif how == 3:
        data[at] = dice.pick(EDGES)
    elif how == 4:
        data[at] = dice.below(256)
    elif how == 5:
        data[at] = data[at] + dice.pick((1, -1, 2, -2, 8, -8)) & 255
    else:
        size = dice.pick((2, 4, 4, 8))
        at = start + (at - start) // size * size
        if at + size <= stop:
            value = (
                dice.pick(NUMBERS)
                if how == 6
                else int.from_bytes(data[at : at + size], "little") + dice.pick((1, -1, 4, -4, 8, -8, 256, -256))
            )
            data[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")


def change_length(dice: Dice, data: bytearray, start: int, stop: int, unit: int = 1) -> None:
    """Remove, repeat or insert a few units of bytes somewhere from ``start`` to ``stop``, in place."""
    n_units = max(stop - start, 0) // unit
    at, size = start + dice.below(n_units + 1) * unit, dice.pick((1, 1, 1, 2, 3, 8)) * unit
    how = dice.below(4)
    if how < 2:
        del data[at : min(at + size, max(stop, at))]
    else:
        data[at:at] = bytes(size) if how == 2 else data[at : min(at + size, stop)]


def changed(dice: Dice, data: bytes, times: int = 3) -> bytes:
    """Return bytes with a few changes anywhere, some of which change the length, and sometimes cut short."""
    result = bytearray(data)
    for _ in range(1 + dice.below(times)):
        (change_bytes if dice.random() < 0.8 else change_length)(dice, result, 0, len(result))
    if dice.random() < 0.05:
        del result[dice.below(len(result) + 1) :]
    return bytes(result)


# ------------------------------------------------------------------------------------------------------ Nested text

TOKENS = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|-?\d+(?:\.\d+)?|\w+|\s+|.""", re.DOTALL)
OPEN, CLOSE = "([{", ")]}"
ATOMS = (
    "0",
    "1",
    "-1",
    "2",
    "3",
    "0.5",
    "-0.0",
    "1e400",
    "NaN",
    "Infinity",
    "true",
    "false",
    "null",
    "True",
    "None",
    '""',
    '"x"',
    "[]",
    "{}",
    "()",
    "[[]]",
    "[0]",
    '"0"',
    '"float32"',
    '"bfloat16"',
    '"float64"',
    '"uint8"',
    '"<f4"',
    '"|O"',
    '"<U9"',
    '"../x"',
    '"/x"',
    '"a/b"',
    '"a//b"',
    r'"\u0000"',
    r'"\ud800"',
    '"\N{SNOWMAN}"',
    r'"\n"',
    *map(str, NUMBERS),
    "9" * 30,
    "9" * 400,
)
PIECES = ("\\", '"', "0", "[", "}", ",", ":", " ", "x", "\x00", "\x7f", "é")
RARE = ("[" * 3000, "(" * 300, "9" * 6000, "-" * 2000, '{"a":' * 2000, '"' + "x" * 5000 + '"')


class Text:
    """A text of brackets, strings and numbers (JSON, or a Python literal), to be mutated by its tokens.

    Attributes:
        tokens: The text, split.
        spans: First and last token of every value: of every bracket with what is in it, string and number.
    """

    def __init__(self, text: str) -> None:
        self.tokens = TOKENS.findall(text)
        self.spans: list[tuple[int, int]] = []
        opened: list[int] = []
        for place, token in enumerate(self.tokens):
            if token in OPEN:
                opened.append(place)
            elif token in CLOSE and opened:
                self.spans.append((opened.pop(), place))
            elif token[0] in "\"'" or token[0].isalnum() or token[0] == "-":
                self.spans.append((place, place))

    def mutated(self, dice: Dice, others: Sequence[Text] = ()) -> str:
        """Return a text in which values have been replaced, removed, repeated or exchanged."""
        tokens = list(self.tokens)
        for _ in range(dice.pick((1, 1, 1, 2, 3))):
            first, last = dice.pick(self.spans)
            how = dice.below(12)
            if how < 5:
                tokens[first : last + 1] = [dice.pick(ATOMS), *[""] * (last - first)]
            elif how < 7:
                other = dice.pick(others) if others and dice.random() < 0.3 else self
                begin, end = dice.pick(other.spans)
                tokens[first] = "".join(other.tokens[begin : end + 1])
                tokens[first + 1 : last + 1] = [""] * (last - first)
            elif how == 7:  # with the comma or colon behind it
                last = min(last + 1, len(tokens) - 1)
                tokens[first : last + 1] = [""] * (last + 1 - first)
            elif how == 8:
                tokens[last] += "," + "".join(tokens[first : last + 1])
            elif how == 9 and tokens[first][:1].isdigit() and first == last:
                digits = tokens[first]
                value = int(digits) if digits.isdigit() and len(digits) < 40 else 0
                tokens[first] = str(value + dice.pick((1, -1, 4, -4, 8, 64, value, 1 << 62)))
            elif how == 10:
                token = tokens[last]
                at = dice.below(len(token) + 1)
                tokens[last] = token[:at] + dice.pick(PIECES) + token[at + 1 :]
            elif dice.random() < 0.03:
                tokens[first] = dice.pick(RARE)
        return "".join(tokens)


# -------------------------------------------------------------------------------------------------------------- Zips

LOCAL, CENTRAL, END = struct.Struct("<4s5H3I2H"), struct.Struct("<4s6H3I5H2I"), struct.Struct("<4s4H2IH")


def write_zip(members: Sequence[tuple[bytes, bytes]], deflated: bool = False) -> bytearray:
    """Return a zip of (name, contents) whose checksums, sizes and places are right."""
    result, directory = bytearray(), bytearray()
    for name, data in members:
        crc, method, stored = zlib.crc32(data), 0, data
        if deflated:
            packer = zlib.compressobj(1, zlib.DEFLATED, -15)
            method, stored = 8, packer.compress(data) + packer.flush()
        fields = (0, method, 0, 33, crc, len(stored), len(data), len(name), 0)
        directory += CENTRAL.pack(b"PK\x01\x02", 20, 20, *fields, 0, 0, 0, 0, len(result)) + name
        result += LOCAL.pack(b"PK\x03\x04", 20, *fields) + name + stored
    at = len(result)
    result += directory
    result += END.pack(b"PK\x05\x06", 0, 0, len(members), len(members), len(directory), at, 0)
    return result


def mutated_zip(dice: Dice, members: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return a zip with its structure changed now and then: names, headers, the directory, members twice or missing."""
    members = list(members)
    if dice.random() < 0.1:
        place = dice.below(len(members))
        name, data = members[place]
        members[place : place + 1] = dice.pick(
            ([], [(name, data)] * 2, [(dice.pick(members)[0], data)], [(changed(dice, name), data)])
        )
    result = write_zip(members, deflated=dice.random() < 0.1)
    if dice.random() < 0.25:
        # Most of a zip's structure is at its end.
        start = 0 if dice.random() < 0.3 else max(0, len(result) - 22 - 60 * max(len(members), 1))
        for _ in range(1 + dice.below(3)):
            (change_bytes if dice.random() < 0.9 else change_length)(dice, result, start, len(result))
    return bytes(result)
