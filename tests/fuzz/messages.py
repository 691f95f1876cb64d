"""What ranks send and checkpoints hold, to fuzz: messages, payloads of compressors, packed states, codebooks."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import xxhash

from gcodec.averaging.state import pack_state, unpack_state
from gcodec.compressors import DGC, QSGD, AllGather, Blockwise, Frames, RedSync, SparCML, TopK
from gcodec.compressors.batching import join_payloads, split_payloads
from gcodec.compressors.contract import Compressor, Place
from gcodec.compressors.payload import ENVELOPE
from gcodec.distributed.reduction.coder import Coder
from gcodec.distributed.stats import Counters
from gcodec.distributed.transport.message import HEADER, Header, check
from gcodec.dtypes import BY_NAME
from gcodec.format.codebook import read_inline, read_residual
from gcodec.format.modes import lossless
from tests.fuzz import frames
from tests.fuzz.mutation import Dice, Text, change_bytes, change_length, changed
from tests.support.frame_builder import Draft

ARRAYS = ("|O", "<f4", "|V0", "<U1", "<M8[s]", "<u2", "<i4", "|b1", "<c8", "<f2", "xyz", "(2,3)f4", "f4,i8")
DTYPES = ("float32", "bfloat16", "float16")


class Messages:
    """The fuzzing target of messages of an all-reduce: a header with its CRC mended, and behind it a mutated frame.

    A case is the number of the type, the number of values that are due, and the message.
    """

    seconds, n_prefix = 10.0, 5 + HEADER
    head = struct.Struct("<BI")

    def __init__(self) -> None:
        self.coders = [Coder(BY_NAME[name], lossless(BY_NAME[name]), None, None, [], 1, Counters()) for name in DTYPES]
        self.seeds = [seed for seed in frames.seeds() if seed.frame[5] in (1, 2, 3) and not seed.base_hash]

    def cases(self) -> list[bytes]:
        """Return the cases from which all others are made."""
        return [self._case(seed, seed.frame) for seed in self.seeds]

    def _case(self, seed: frames.Seed, frame: bytes) -> bytes:
        n_values = min(int.from_bytes(seed.frame[24:32], "little"), 1 << 16)
        message = np.empty(HEADER, np.uint8)
        self.expected(n_values)._replace(payload=len(frame)).write_to(message)
        return self.head.pack(seed.frame[5] - 1, n_values) + message.tobytes() + frame

    @staticmethod
    def expected(n_values: int) -> Header:
        """Return the header that is due."""
        return Header(0, 1, 2, 7, 0x123456789ABCDEF0, n_values, 0)

    def mutate(self, dice: Dice) -> bytes:
        """Return a new case."""
        seed = dice.pick(self.seeds)
        if dice.random() < 0.5:
            return self._case(seed, frames.mutated_frame(dice, seed))
        case, start = bytearray(self._case(seed, seed.frame)), self.head.size
        for _ in range(1 + dice.below(2)):
            change_bytes(dice, case, start + dice.pick((0, 4, 40, 40)), start + 60)
        if dice.random() < 0.95:
            case[start + 60 : start + 64] = zlib.crc32(case[start : start + 60]).to_bytes(4, "little")
        if dice.random() < 0.1:
            del case[max(start + HEADER, dice.below(len(case))) :]
        return bytes(case)

    def run(self, case: bytes) -> Any:
        """Check a message and decode its frame, as a rank does that has received it."""
        number, n_values = self.head.unpack_from(case)
        coder = self.coders[number % len(DTYPES)]
        n_values = min(n_values, 1 << 16)
        out = np.empty(n_values, coder.dtype.uint)
        payload = check(np.frombuffer(case, np.uint8, -1, self.head.size), self.expected(n_values), "from rank 1")
        coder.decode(payload, out)
        return out


class Payloads:
    """The fuzzing target of compressors' payloads: sections changed, the envelope's checksum mended.

    A case is the number of the setting and the payload.
    """

    seconds, n_prefix = 10.0, 1
    settings: tuple[Compressor, ...] = (
        TopK(0.1),
        DGC(0.2),
        DGC(0.2, mantissa_bits=3),
        RedSync(0.1),
        RedSync(0.1, same_sign=True),
        QSGD(4),
        QSGD(8, bucket=64),
        Blockwise(3, block=32),
        Blockwise(8),
        SparCML(TopK(0.1)),
        Frames(),
    )
    n_direct = 9  #: settings whose payloads are read without a conversation, which takes far longer

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(3)
        self.gradient = torch.randn(60, 15, generator=random)
        self.flat = self.gradient.reshape(-1)
        self.seeds = [bytes(self._first(setting)[1]) for setting in self.settings]

    def _first(self, setting: Compressor) -> tuple[Any, bytes]:
        """Return a conversation that waits for its first answer, and the payload that it has sent."""
        conversation = setting.compress(self.gradient, {}, Place(1, 2))
        request = next(conversation)
        return conversation, request.payload if isinstance(request, AllGather) else request.payloads[1]  # type: ignore[union-attr]

    def cases(self) -> list[bytes]:
        """Return the cases from which all others are made."""
        joined = join_payloads(self.seeds[:3])
        return [bytes([number]) + payload for number, payload in enumerate(self.seeds)] + [b"\xff" + joined]

    def mutate(self, dice: Dice) -> bytes:
        """Return a new case."""
        if dice.random() < 0.05:
            return b"\xff" + changed(dice, join_payloads(self.seeds[:3]))
        number = dice.below(self.n_direct) if dice.random() < 0.97 else dice.below(len(self.settings))
        payload = bytearray(self.seeds[number])
        if number == len(self.settings) - 1:
            return bytes([number]) + changed(dice, bytes(payload))
        for _ in range(1 + dice.below(3)):
            whole = (ENVELOPE, len(payload))
            start, stop = dice.pick(((0, ENVELOPE), (ENVELOPE, ENVELOPE + 12), whole, whole))
            (change_bytes if dice.random() < 0.75 else change_length)(dice, payload, start, min(stop, len(payload)))
        if dice.random() < 0.95 and len(payload) >= ENVELOPE:
            payload[4:8] = bytes(4)
            payload[4:8] = (xxhash.xxh3_64_intdigest(bytes(payload)) & 0xFFFFFFFF).to_bytes(4, "little")
        return bytes([number]) + bytes(payload)

    def run(self, case: bytes) -> Any:
        """Read a payload, as a rank does that has received it."""
        number, payload = case[0], case[1:]
        if number == 0xFF:
            return split_payloads(payload, 3)
        number %= len(self.settings)
        setting = self.settings[number]
        if number < self.n_direct:
            return setting.unpack(payload, self.flat)  # type: ignore[attr-defined]
        conversation, own = self._first(setting)
        return conversation.send([payload, own])


class PackedStates:
    """The fuzzing target of states packed into strings, as checkpoints hold them."""

    seconds, n_prefix = 10.0, 0

    def __init__(self) -> None:
        state = {
            "step": 20,
            "rates": [0.5, 1e-3],
            "names": {"a": None, "b": True},
            "pairs": {1: 2, (3, 4): "x"},
            "residual": torch.linspace(-1, 1, 40),
            "half": torch.ones(3, 2, dtype=torch.bfloat16),
            "counts": torch.arange(6).view(2, 3),
            "histogram": np.arange(12, dtype=np.uint64),
        }
        self.texts = [Text(pack_state(value)) for value in (state, *({key: value} for key, value in state.items()))]

    def cases(self) -> list[bytes]:
        """Return the cases from which all others are made."""
        return ["".join(text.tokens).encode() for text in self.texts]

    def mutate(self, dice: Dice) -> bytes:
        """Return a new case."""
        text = dice.pick(self.texts).mutated(dice, self.texts)
        if dice.random() < 0.3:  # an array of other bytes, or of another type
            text = json_array(dice.pick(ARRAYS), bytes(dice.below(20)))
            if dice.random() < 0.5:
                shape = dice.pick(("[0]", "[2, 2]", "[-1]", "3", "[1e9]", "[4]"))
                text = f'{{"gcodec.plain_tensor": {text}, "shape": {shape}}}'
        elif dice.random() < 0.2:
            seed = dice.pick(frames.seeds())
            encoded = base64.b64encode(frames.mutated_frame(dice, seed)).decode()
            text = f'{{"gcodec.tensor": "{encoded}"}}'
        return text.encode(errors="replace")

    def run(self, case: bytes) -> Any:
        """Unpack a state."""
        return unpack_state(case.decode(errors="replace"))


def json_array(dtype: str, data: bytes) -> str:
    """Return an array as packed states hold it."""
    return f'{{"array": "{dtype}", "base64": "{base64.b64encode(data).decode()}"}}'


class Codebooks:
    """The fuzzing target of records of codebooks, for symbols and for residuals.

    A case is the number of levels (or, from 128, 128 + the digits of a residual), the width of heads, and the record.
    """

    seconds, n_prefix = 1.0, 2

    def __init__(self) -> None:
        self.seeds = [bytes([record[1], head_bits]) + record for record, head_bits in self._inline()]
        self.seeds += [bytes([128 + record[1], 8]) + record for record in self._residuals()]

    @staticmethod
    def _inline() -> Iterator[tuple[bytes, int]]:
        for seed in frames.seeds():
            draft = Draft.of(seed.frame, frames.records())
            yield from ((record, draft.kind.H) for record in draft.records if record[0] == 0)

    @staticmethod
    def _residuals() -> Iterator[bytes]:
        for seed in frames.seeds():
            yield from Draft.of(seed.frame, frames.records()).residuals

    def cases(self) -> list[bytes]:
        """Return the cases from which all others are made."""
        return self.seeds

    def mutate(self, dice: Dice) -> bytes:
        """Return a new case."""
        case = bytearray(dice.pick(self.seeds))
        for _ in range(1 + dice.below(3)):
            if dice.random() < 0.5 and len(case) > 8:  # two code lengths: their codes may still be complete
                first, second = (2 + 4 + dice.below(len(case) - 6) for _ in range(2))
                case[first], case[second] = case[second], case[first]
            else:
                (change_bytes if dice.random() < 0.9 else change_length)(dice, case, 2, len(case))
        if dice.random() < 0.05:
            case[0] = dice.below(256)
        return bytes(case)

    def run(self, case: bytes) -> Any:
        """Read a record, and make the table that it is decoded with."""
        levels, head_bits, record = case[0], case[1] if case[1] in (8, 9, 11) else 8, case[2:]
        book, _ = read_residual(record, 0, levels - 128) if levels >= 128 else read_inline(record, 0, levels, head_bits)
        book.fill_decode_table(np.empty(4096, np.uint64))
        return book.record, book.meanings
