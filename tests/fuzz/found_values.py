"""Files of unknown kinds to fuzz, in which values are found: archived and restored, and their archives damaged.

Such a file is larger than a case may usefully be, so a case is its recipe: one byte that says what is done, and for
each piece of the file four bytes, from which it is made.
"""

from __future__ import annotations

import io
import struct
from functools import cache
from typing import Any

import numpy as np

from gcodec.archive import ArchiveReader, ArchiveWriter
from gcodec.archive.found_values import with_found_values
from gcodec.errors import Corruption, GcodecError, Unsupported
from gcodec.files import plan_file
from tests.fuzz.containers import ArchiveSeed, source_of
from tests.fuzz.mutation import Dice, changed

PIECE = struct.Struct("<BBH")  #: of a recipe: kind, seed or number of bytes to leave out, and size in units of 64 bytes
EDIT = struct.Struct("<BHIB")  #: of a damaged archive: which, seed of an index that is mutated, place, exclusive or
FLOATS = ("<f4", "<f2", "<f8", "<u2")
SIZES = (1, 60, 128, 511, 512, 513, 600, 1024, 1500, 2048, 4096)
MOST_UNITS = 6000  #: of 64 bytes in a file


def floats(dtype: str, seed: int, n_bytes: int) -> bytes:
    """Return values as weights have them, the type of whole numbers standing for bfloat16."""
    size = np.dtype(dtype).itemsize
    normal = np.random.default_rng(seed).standard_normal(-(-n_bytes // size)) / 30
    values: np.ndarray = normal.astype("<f4").view("<u4") >> 16 if dtype == "<u2" else normal
    return values.astype(dtype).tobytes()[:n_bytes]


@cache
def piece(kind: int, seed: int, n_units: int) -> bytes:
    """Return a piece of a file: values of a type, text, what no compression makes smaller, one byte, counts, rows."""
    size = 64 * n_units
    match kind % 12:
        case 0 | 1 | 2 | 3 as number:
            return floats(FLOATS[number], seed, size)
        case 4:
            return (b"".join(b"%d %s" % (i * i, b"word" * (i % 5)) for i in range(size // 5 + 1)))[:size]
        case 5:
            return np.random.default_rng(seed).bytes(size)
        case 6:
            return bytes([seed]) * size
        case 7:
            return np.arange(seed, seed + size // 4, dtype="<i4").tobytes()
        case 8:  # values that occur again, which Zstandard finds
            return (floats("<f4", seed, 1 << 12) * (size // (1 << 12) + 1))[:size]
        case 9:  # values of which each third is another type's
            rows = np.zeros(size // 16 + 1, "<f4, <i4, <f8")
            rows["f0"], rows["f1"] = np.random.default_rng(seed).standard_normal(len(rows)), np.arange(len(rows))
            return rows.tobytes()[:size]
        case 10:  # values with low bits that are zero, NaN and inf among them
            bits = np.frombuffer(floats("<f4", seed, size), "<u4") & np.uint32(0xFFFFE000)
            return np.where(bits % 97 == 0, np.uint32(0x7F800000 + (seed & 1)), bits).astype("<u4").tobytes()
    return b"\x7fELF" + bytes(seed)


def expanded(recipe: bytes) -> bytes:
    """Return the file that a recipe stands for; a piece of a seed of more than 200 begins some bytes later."""
    found, left = bytearray(), MOST_UNITS
    for kind, seed, n_units in PIECE.iter_unpack(recipe[: len(recipe) // PIECE.size * PIECE.size]):
        n_units = min(n_units, left)
        left -= n_units
        found += piece(kind, seed % 8, n_units)[max(0, seed - 200) :]
    return bytes(found)


def plain_recipe(*pieces: tuple[int, int, int]) -> bytes:
    """Return the recipe of some pieces."""
    return b"".join(PIECE.pack(*each) for each in pieces)


#: Samples lie 256 KiB apart, so that values in the middle of a file need more than that to be found.
RECIPES = (
    plain_recipe((0, 1, 1200), (4, 0, 900), (5, 2, 700)),
    plain_recipe((1, 1, 1100), (6, 0, 100), (2, 1, 1100), (4, 201, 300)),
    plain_recipe((5, 203, 100), (3, 2, 4500), (7, 0, 600)),
    plain_recipe((9, 1, 2000), (0, 5, 1500)),
)


class FoundValues:
    """The fuzzing target of files of unknown kinds: the same bytes come back, and damage is found."""

    seconds, n_prefix = 10.0, 1

    def __init__(self) -> None:
        self.files = [expanded(recipe) for recipe in RECIPES]
        plans = [with_found_values(plan_file("x.bin", source_of(data))) for data in self.files]
        assert all(any(segment.dtype for segment in plan.segments) for plan in plans), "no values to be found"
        self.archives = [self._archive_of(data) for data in self.files]
        self.seeds = [ArchiveSeed(data) for data in self.archives]
        self.texts = [seed.index for seed in self.seeds]

    def cases(self) -> list[bytes]:
        """Return the cases from which all others are made."""
        return [*(b"\0" + recipe for recipe in RECIPES), b"\1" + EDIT.pack(0, 0, 70, 1), b"\2" + EDIT.pack(1, 7, 0, 0)]

    def mutate(self, dice: Dice) -> bytes:
        """Return a new case."""
        how = dice.random()
        if how < 0.4:
            edits = (
                EDIT.pack(dice.below(len(RECIPES)), dice.below(1 << 16), dice.below(1 << 31), dice.below(256))
                for _ in range(dice.pick((1, 1, 1, 2, 5)))
            )
            return bytes([1 + dice.below(2)]) + b"".join(edits)
        if how < 0.5:
            return b"\0" + changed(dice, dice.pick(RECIPES))
        pieces = [
            (
                dice.below(12),
                dice.pick((dice.below(8), dice.below(8), 200 + dice.below(56))),
                dice.pick(SIZES) + dice.pick((0, 0, 0, 1, dice.below(64))),
            )
            for _ in range(1 + dice.below(5))
        ]
        return b"\0" + plain_recipe(*pieces)

    def run(self, case: bytes) -> Any:
        """Archive and restore a file, or restore an archive that was damaged."""
        if case[0] % 3 == 0:
            data = expanded(case[1:])
            assert self._restored(self._archive_of(data)) == data, "the restored file differs"
            return len(data)
        edits = list(EDIT.iter_unpack(case[1 : 1 + (len(case) - 1) // EDIT.size * EDIT.size]))
        number, seed = edits[0][:2] if edits else (0, 0)
        number %= len(RECIPES)
        if case[0] % 3 == 2:  # with hashes that are right again: other values, or any GcodecError
            return len(self._restored(self.seeds[number].mutated(Dice(seed), self.texts)))
        archive = bytearray(self.archives[number])
        for _, _, place, change in edits:
            archive[place % len(archive)] ^= change
        try:
            assert self._restored(bytes(archive)) == self.files[number], "damage gave other bytes"
        except Corruption:
            raise
        except GcodecError as error:
            # Of another version, a frame may have its checksum elsewhere: that cannot be told from damage.
            if isinstance(error, Unsupported) and "the frame is of version" in str(error):
                raise
            raise AssertionError(f"damage is called {type(error).__name__}") from error
        return number

    @staticmethod
    def _archive_of(data: bytes) -> bytes:
        """Return the archive of a file."""
        stream = io.BytesIO()
        with ArchiveWriter(stream, threads=1) as writer:
            writer.add(with_found_values(plan_file("x.bin", source_of(data))))
        return stream.getvalue()

    @staticmethod
    def _restored(archive: bytes) -> bytes:
        """Return the file in an archive, with a limit."""
        with ArchiveReader(source_of(archive), threads=1, max_output_bytes=1 << 23) as reader:
            reader.check_limit()
            return b"".join(part.tobytes() for entry in reader.files for part in reader.restored(entry))
