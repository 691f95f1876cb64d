"""Frames to fuzz: golden frames, valid and invalid, with parts changed, moved and exchanged and all checksums mended.

A case is the number of the function that reads it, the hash of the base that it is read with (0 for none), and the
frame. The frame and the base lie against pages that may not be touched, and so does the output.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import numpy as np

import gcodec
from gcodec import codec
from gcodec.format.change_codebook import ChangeCodebook
from gcodec.format.codebook import Codebook
from gcodec.frame.decode import FrameReader
from tests.codec.guarded_memory import guarded_bytes
from tests.fuzz.mutation import Dice, change_bytes, change_length
from tests.support import laws, reference
from tests.support.make_golden import as_base, as_known, read_manifest
from tests.support.paths import GOLDEN, GOLDEN_INVALID

LIMIT = 1 << 18  #: bytes of values that a frame may decode to
MAX_SEED = 3000  #: bytes of a golden frame that is mutated
HEAD = struct.Struct("<BQ")  #: of a case: function and hash of the base
DECODE, INTO_ARRAY, RANGE, INSPECT, STREAM = range(5)
CHECKSUM_FIELD = slice(40, 48)
_MULTIPLIERS = (np.arange(1, (1 << 16) + 1, dtype=np.uint64) * np.uint64(0x9E3779B1)).astype(np.uint32) | np.uint32(1)
_MULTIPLIERS = _MULTIPLIERS.astype(np.uint64)


def word_sum(data: bytes | bytearray) -> int:
    """Return the checksum of docs/format.md section 3 with seed 0; the bytes that hold it must be zero."""
    words = np.frombuffer(data, "<u4", len(data) >> 2)
    return int((words * _MULTIPLIERS[: len(words)]).sum())


class Seed:
    """A frame in parts that can be changed.

    Attributes:
        prefix: Header and tables: the prelude without the index of block sizes.
        blocks: The blocks.
        base_hash: The base that it needs, 0 for none.
    """

    def __init__(self, frame: bytes, base_hash: int) -> None:
        self.frame, self.base_hash = frame, base_hash
        n_values, prelude_bytes = struct.unpack_from("<QQ", frame, 24)
        n_blocks = -(-n_values >> frame[9])
        index_at = prelude_bytes - (4 * n_blocks + 7 & ~7)
        self.prefix, self.blocks, at = frame[:index_at], [], prelude_bytes
        for size in struct.unpack_from(f"<{n_blocks}I", frame, index_at):
            self.blocks.append(frame[at : at + size])
            at += size


@functools.cache
def seeds() -> tuple[Seed, ...]:
    """Return the valid golden frames that are short, in the order of their names."""
    found = []
    for name, described in sorted(read_manifest(GOLDEN).items()):
        frame, base = (GOLDEN / f"{name}.frame").read_bytes(), as_base(GOLDEN, described)
        if len(frame) <= MAX_SEED:
            found.append(Seed(frame, 0 if base is None else reference.base_hash(base)))
    return tuple(found)


@functools.cache
def records() -> dict[tuple[int, int], bytes]:
    """Return the inline records of all codebooks that golden frames name, by id and hash."""
    found = dict(laws.SHIPPED)
    for folder in (GOLDEN, GOLDEN_INVALID):
        for described in read_manifest(folder).values():
            found |= as_known(described.get("codebooks", []))
    return found


@functools.cache
def find_codebook(codebook_id: int, digest: int) -> Codebook | ChangeCodebook | None:
    """Return the codebook that a frame names, read from its record."""
    record = records().get((codebook_id, digest))
    return None if record is None else laws.book_of(record, digest)


@functools.cache
def bases() -> dict[int, np.ndarray]:
    """Return the bases of golden frames by their hash, in guarded memory."""
    found = {}
    for folder in (GOLDEN, GOLDEN_INVALID):
        for described in read_manifest(folder).values():
            base = as_base(folder, described)
            if base is not None:
                guarded = guarded_bytes(base.nbytes, "after", base.itemsize).view(base.dtype)
                guarded[:] = base
                found[reference.base_hash(base)] = guarded
    return found


def seal_block(block: bytes | bytearray, number: int) -> bytes:
    """Return a block with the checksum that belongs to its place."""
    if len(block) < 16:
        return bytes(block)
    data = bytearray(block)
    data[8:16] = bytes(8)
    data[8:16] = (word_sum(data) + (number + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1).to_bytes(8, "little")
    return bytes(data)


def seal_prelude(frame: bytearray, prelude_bytes: int) -> None:
    """Set the checksum of a prelude right, in place."""
    frame[CHECKSUM_FIELD] = bytes(8)
    frame[CHECKSUM_FIELD] = word_sum(frame[:prelude_bytes]).to_bytes(8, "little")


def assemble(prefix: bytes | bytearray, blocks: list[bytes], sealed: bool = True) -> bytearray:
    """Return the frame of these parts: padding, index, lengths and checksums are made for them."""
    if sealed:
        blocks = [seal_block(block, number) for number, block in enumerate(blocks)]
    frame = bytearray(prefix)
    frame += bytes(-len(frame) % 8)
    frame += struct.pack(f"<{len(blocks)}I", *map(len, blocks))
    frame += bytes(-len(frame) % 8)
    prelude_bytes = len(frame)
    struct.pack_into("<Q", frame, 16, prelude_bytes + sum(map(len, blocks)))
    struct.pack_into("<Q", frame, 32, prelude_bytes)
    seal_prelude(frame, prelude_bytes)
    for block in blocks:
        frame += block
    return frame


def mutated_frame(dice: Dice, seed: Seed) -> bytes:
    """Return a frame with a few things changed; nearly always all checksums and lengths are right again."""
    prefix, blocks = bytearray(seed.prefix), list(seed.blocks)
    for _ in range(dice.pick((1, 1, 1, 2, 3))):
        how = dice.random()
        if how < 0.08:
            prefix[dice.pick((5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))] = dice.pick(EDGES_OF_FIELDS)
        elif how < 0.14:
            change_bytes(dice, prefix, 24, 32)
        elif how < 0.34:
            change_bytes(dice, prefix, 48, len(prefix))
        elif how < 0.40:
            change_length(dice, prefix, 48, len(prefix), dice.pick((1, 2, 4, 8)))
        elif how < 0.42:
            prefix = bytearray(dice.pick(seeds()).prefix)
        elif blocks:
            place = dice.below(len(blocks))
            if how < 0.92:
                block = bytearray(blocks[place])
                if how < 0.64:
                    change_bytes(dice, block, 0, min(48, len(block)))
                elif how < 0.84:
                    change_bytes(dice, block, 16, len(block))
                else:
                    change_length(dice, block, 16, len(block), 8)
                blocks[place] = bytes(block)
            elif how < 0.95:
                blocks[place] = dice.pick(dice.pick(seeds()).blocks or [b""])
            elif how < 0.97:
                other = dice.below(len(blocks))
                blocks[place], blocks[other] = blocks[other], blocks[place]
            elif how < 0.985:
                blocks.insert(place, blocks[place])
            else:
                del blocks[place]
    frame = assemble(prefix, blocks, sealed=dice.random() < 0.98)
    last = dice.random()
    if last < 0.03:  # the index, the lengths: what assembling has set right
        prelude_bytes = int.from_bytes(frame[32:40], "little")
        change_bytes(dice, frame, *dice.pick(((16, 24), (32, 40), (max(48, prelude_bytes - 16), prelude_bytes))))
        seal_prelude(frame, prelude_bytes)
    elif last < 0.05:  # a checksum that is wrong
        change_bytes(dice, frame, 0, len(frame))
    elif last < 0.06:
        del frame[dice.below(len(frame)) :]
    elif last < 0.07:
        frame += bytes(dice.below(40))
    return bytes(frame)


EDGES_OF_FIELDS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17, 20, 21, 32, 33, 64, 128, 254, 255)


class GuardedMemory:
    """Memory that ends right before a page that may not be touched."""

    def __init__(self, size: int) -> None:
        self.whole = guarded_bytes(size, "after", 64)

    def copy_of(self, data: bytes) -> np.ndarray:
        """Return a copy of the bytes whose last one lies before the page, as uint8."""
        place = self.whole[len(self.whole) - len(data) :]
        place[:] = np.frombuffer(data, np.uint8)
        return place

    def room_for(self, dtype: np.dtype, n_values: int) -> np.ndarray:
        """Return an array that ends before the page."""
        return self.whole[len(self.whole) - n_values * dtype.itemsize :].view(dtype)


class Frames:
    """The fuzzing target of everything that reads a frame."""

    seconds, n_prefix = 10.0, HEAD.size

    def __init__(self) -> None:
        self.input, self.output = GuardedMemory(1 << 20), GuardedMemory(LIMIT)
        bases(), records(), seeds()

    def cases(self) -> list[bytes]:
        """Return the cases from which all others are made: the seeds, read in every way."""
        return [HEAD.pack(how, seed.base_hash) + seed.frame for seed in seeds() for how in range(5)]

    def mutate(self, dice: Dice) -> bytes:
        """Return a new case."""
        seed = dice.pick(seeds())
        how = dice.pick((DECODE, DECODE, DECODE, INTO_ARRAY, INTO_ARRAY, INTO_ARRAY, RANGE, INSPECT, INSPECT, STREAM))
        return HEAD.pack(how, seed.base_hash) + mutated_frame(dice, seed)

    def run(self, case: bytes) -> Any:
        """Read the frame of a case."""
        how, base_hash = HEAD.unpack_from(case)
        frame, base = case[HEAD.size :], bases().get(base_hash)
        data = self.input.copy_of(frame)
        if how == INSPECT:
            return str(gcodec.inspect(data))
        if how == RANGE:
            start, stop = sorted((len(frame) % 61, len(frame) % 97))
            return gcodec.decode_range(data, start, stop, max_output_bytes=LIMIT, threads=1, base=base)
        if how == STREAM:
            stream = gcodec.Decoder(threads=1, like="numpy", max_output_bytes=LIMIT)
            stream.decode(data)
            return stream.decode(data)
        reader = FrameReader(data, find_codebook)
        out = None
        if how == INTO_ARRAY and reader.prelude.n_values * reader.prelude.dtype.itemsize <= LIMIT:
            kind = reader.prelude.dtype
            out = self.output.room_for(np.dtype(kind.uint), reader.prelude.n_values)
            reader.decode_blocks(0, reader.prelude.n_blocks, out, 1, codec._base_of(base, reader.prelude))
            return out

        def by_steps() -> Any:
            return codec.decode_frame(reader, None, "numpy", 1, LIMIT, base)

        return by_steps() if base is not None else laws.beside_few_calls(data, by_steps, LIMIT)


class FramesBesideReference(Frames):
    """The same frames, read by gcodec and by the decoder that was written from docs/format.md alone."""

    def mutate(self, dice: Dice) -> bytes:
        seed = dice.pick(seeds())
        return HEAD.pack(DECODE, seed.base_hash) + mutated_frame(dice, seed)

    def run(self, case: bytes) -> Any:
        """Assert that both decoders find the same values or refuse for the same kind of reason."""
        _, base_hash = HEAD.unpack_from(case)
        frame, base = case[HEAD.size :], bases().get(base_hash)
        try:
            found = self.found(frame, base)
        except gcodec.InvalidArgument:  # a base of another type or size, which the frame may not even refer to
            found = self.found(frame, None)
        try:
            wanted: Any = reference.decode(frame, records(), base=base, limit=LIMIT).bits
        except reference.Refused as refused:
            wanted = refused.kind
        either = ("corruption", "unsupported")  # of several faults of one step, either may be reported
        assert laws.same_outcome(found, wanted) or (str(found) in either and str(wanted) in either), (
            f"gcodec: {found}, the reference: {wanted}"
        )
        if isinstance(found, str):
            raise gcodec.GcodecError(found)
        return found

    @staticmethod
    def found(frame: bytes, base: np.ndarray | None) -> Any:
        """Return the values that gcodec finds, as bits, or the kind of refusal."""
        try:
            by_steps = codec.decode_frame(FrameReader(frame, find_codebook), None, "numpy", 1, LIMIT, base)
            return laws.bits_of(by_steps if base is not None else laws.beside_few_calls(frame, lambda: by_steps, LIMIT))
        except gcodec.InvalidArgument:
            raise
        except gcodec.GcodecError as error:
            return laws.kind_of(error)
