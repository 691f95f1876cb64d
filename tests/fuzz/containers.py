"""Archives and tensor files to fuzz: their index, headers and members are changed, and all hashes mended."""

from __future__ import annotations

import io
import pickletools
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash
import zstandard

from gcodec.archive import ArchiveReader, ArchiveWriter, Bases, save_file
from gcodec.archive.dicts import plan_tensors
from gcodec.archive.index import read_index
from gcodec.archive.layout import STORED, TRAILER, ZSTD, Trailer, padding
from gcodec.files import ArraySource, plan_file
from tests.fuzz.mutation import NUMBERS, Dice, Text, change_bytes, changed, mutated_zip
from tests.support.gguf_files import Stored, gguf_file, strings, text, uint32

LIMIT = 1 << 22  #: bytes that an archive may be restored to


def source_of(data: bytes) -> ArraySource:
    """Return the bytes as a file in memory."""
    return ArraySource([np.frombuffer(data, np.uint8)])


# ---------------------------------------------------------------------------------------------------------- Archives


def some_tensors(seed: int) -> dict[str, np.ndarray]:
    """Return a few small tensors: floats that compress and do not, whole numbers, none, an empty one."""
    random = np.random.default_rng(seed)
    return {
        "layer/weight": (random.normal(size=(20, 16)) / 32).astype(np.float32),
        "layer/bias": np.zeros(40, np.float16),
        "half": random.normal(size=90).astype(np.float16),
        "noise": random.integers(0, 256, 24, np.uint8),
        "steps": np.arange(30, dtype=np.int64),
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 3), np.float32),
    }


def archives() -> list[bytes]:
    """Return small archives: of tensors, exact and rounded, against a base, of several files, of nothing."""
    tensors, found = some_tensors(1), []
    near = {
        name: (value + value / 4096).astype(value.dtype) if value.dtype.kind == "f" else value
        for name, value in tensors.items()
    }
    options: list[dict[str, Any]] = [{}, {"mantissa_bits": 4}, {"metadata": {"step": "20"}}]
    for more in options:
        stream = io.BytesIO()
        save_file(tensors, stream, threads=1, **more)
        found.append(stream.getvalue())
    stream = io.BytesIO()
    save_file(near, stream, threads=1, base=tensors)
    found.append(stream.getvalue())
    stream = io.BytesIO()
    with ArchiveWriter(stream, threads=1, part_bytes=256) as archive:
        for name, data in (*tensor_files(), ("folder/notes.txt", b"a line of text\n" * 20), ("nothing", b"")):
            archive.add(plan_file(name, source_of(data)))
    found.append(stream.getvalue())
    stream = io.BytesIO()
    with ArchiveWriter(stream, threads=1):
        pass
    return [*found, stream.getvalue()]


def tensor_files() -> list[tuple[str, bytes]]:
    """Return a small file of each kind that needs no torch: .npy in rows and columns, .npz, .safetensors."""
    from safetensors.numpy import save

    stream, flat, columns = io.BytesIO(), io.BytesIO(), io.BytesIO()
    tensors = some_tensors(2)
    np.savez(stream, allow_pickle=True, **{name.replace("/", "."): value for name, value in tensors.items()})
    np.save(flat, tensors["half"])
    np.save(columns, np.asfortranarray(tensors["layer/weight"]))
    return [
        ("half.npy", flat.getvalue()),
        ("columns.npy", columns.getvalue()),
        ("all.npz", stream.getvalue()),
        ("all.safetensors", save(tensors, {"step": "1"})),
    ]


def sealed_archive(body: bytes, index: bytes, codec: int) -> bytes:
    """Return an archive of this body and this index, whose hash is right."""
    stored = index if codec == STORED else zstandard.ZstdCompressor(1).compress(index)
    return body + stored + bytes(padding(len(stored))) + Trailer(len(stored), len(index), codec).write_to(stored)


class ArchiveSeed:
    """An archive in parts.

    Attributes:
        body: Everything before the index.
        index: The text of the index.
        stored: For each chunk that is stored as it is and is a whole blob: first byte, size, and its hash.
    """

    def __init__(self, data: bytes) -> None:
        trailer = Trailer.read_from(data)
        end = len(data) - TRAILER.size
        start = end - trailer.index_bytes - padding(trailer.index_bytes)
        text = data[start : start + trailer.index_bytes]
        if trailer.index_codec == ZSTD:
            text = zstandard.ZstdDecompressor().decompress(text)
        self.body, self.index, self.codec = data[:start], Text(text.decode()), trailer.index_codec
        self.frames: list[tuple[int, int]] = []
        self.stored: list[tuple[int, int, str]] = []
        for entry in read_index(source_of(data)):
            for blob in (entry.verbatim, *entry.segments):
                at = blob.offset
                for chunk in blob.chunks:
                    if chunk.codec == STORED and len(blob.chunks) == 1:
                        self.stored.append((at, chunk.stored, blob.hash))
                    at += chunk.stored + padding(chunk.stored)

    def mutated(self, dice: Dice, others: Sequence[Text]) -> bytes:
        """Return an archive with another index, other contents, or both, sealed again."""
        body, index, how = self.body, "", dice.random()
        if how < 0.3 and self.body:
            changed_body = bytearray(body)
            if self.stored and dice.random() < 0.5:
                at, size, digest = dice.pick(self.stored)
                change_bytes(dice, changed_body, at, at + size)
                mended = xxhash.xxh3_64_hexdigest(bytes(changed_body[at : at + size]))
                index = "".join(self.index.tokens).replace(digest, mended, 1)
            else:
                change_bytes(dice, changed_body, 0, len(changed_body))
            body = bytes(changed_body)
        if how > 0.2:
            index = self.index.mutated(dice, others)
        text = (index or "".join(self.index.tokens)).encode(errors="replace")
        archive = sealed_archive(body, text, ZSTD if dice.random() < 0.1 else STORED)
        if dice.random() < 0.05:
            archive = changed(dice, archive, 2)
        return archive


class Archives:
    """The fuzzing target of archives: index, listing, restoring, loading."""

    seconds, n_prefix = 10.0, 0

    def __init__(self) -> None:
        self.whole = archives()
        self.seeds = [ArchiveSeed(data) for data in self.whole]
        self.texts = [seed.index for seed in self.seeds]
        self.base = Bases(plan_tensors(some_tensors(1)))

    def cases(self) -> list[bytes]:
        """Return the cases from which all others are made."""
        return self.whole

    def mutate(self, dice: Dice) -> bytes:
        """Return a new case."""
        return dice.pick(self.seeds).mutated(dice, self.texts)

    def run(self, case: bytes) -> Any:
        """Restore every file and read every tensor of an archive."""
        with ArchiveReader(source_of(case), threads=1, max_output_bytes=LIMIT, base=self.base) as archive:
            archive.check_limit()
            for entry in archive.files:
                for _ in archive.restored(entry):
                    pass
                archive.metadata(entry)
            return [
                archive.array(entry, tensor, archive.segment_bytes(entry, tensor), like="numpy")
                for entry, tensor in archive.tensors()
            ]


class ArchiveIndexes(Archives):
    """The same archives, of which only the index is read, as ``gcodec inspect`` and ``--list`` do."""

    seconds = 1.0

    def run(self, case: bytes) -> Any:
        """Read the index of an archive."""
        return read_index(source_of(case))


# ------------------------------------------------------------------------------------------------------ Tensor files


def npy_file(header: str, data: bytes, version: int = 1, length: int | None = None) -> bytes:
    """Return a .npy file with this text as its header."""
    text = header.encode("utf-8" if version == 3 else "latin-1", errors="replace")
    size = len(text) if length is None else length
    field = (size & 0xFFFF).to_bytes(2, "little") if version == 1 else (size & 0xFFFFFFFF).to_bytes(4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + field + text + data


def mutated_npy(dice: Dice, headers: Sequence[Text], data: bytes) -> bytes:
    """Return a .npy file with another header, whose length is right."""
    text = dice.pick(headers).mutated(dice, headers)
    file = npy_file(text, data, dice.pick((1, 1, 1, 2, 3)))
    return changed(dice, file, 2) if dice.random() < 0.15 else file


NPY_HEADERS = tuple(
    map(
        Text,
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (20, 16), }          \n",
            "{'descr': '<f2', 'fortran_order': True, 'shape': (8, 4, 3), }\n",
            "{'descr': '|V2', 'fortran_order': False, 'shape': (48,), }\n",
            "{'descr': [('a', '<f4'), ('b', '<i8', (2,))], 'fortran_order': False, 'shape': (3,), }\n",
            "{'descr': '>c16', 'fortran_order': False, 'shape': (), }\n",
            "{'descr': '|O', 'fortran_order': False, 'shape': (0, 4), }\n",
            "{'descr': ('<f4', (2, 3)), 'fortran_order': False, 'shape': (2,), }\n",
            "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (6,), }\n",
        ),
    )
)
SAFETENSORS_HEADERS = tuple(
    map(
        Text,
        (
            '{"__metadata__":{"step":"1","b":"c"},"a":{"dtype":"F32","shape":[20,4],"data_offsets":[0,320]},'
            '"b":{"dtype":"BF16","shape":[8],"data_offsets":[320,336]},"c":{"dtype":"I64","shape":[],"data_offsets":[336,344]}}',
            '{"x":{"dtype":"F8_E4M3","shape":[2,3,4],"data_offsets":[0,24]},"y":{"dtype":"F64","shape":[40],'
            '"data_offsets":[24,344]}}',
            '{"e":{"dtype":"F16","shape":[0,5],"data_offsets":[0,0]},"f":{"dtype":"F4","shape":[688],"data_offsets":[0,344]}}',
            "{}",
        ),
    )
)
VALUES = np.random.default_rng(3).normal(size=400).astype(np.float32).tobytes()


class TensorFiles:
    """A fuzzing target of files of one kind: they are taken apart as ``gcodec compress`` does."""

    seconds, n_prefix = 1.0, 0
    name = ""

    def cases(self) -> list[bytes]:
        """Return the cases from which all others are made."""
        raise NotImplementedError

    def mutate(self, dice: Dice) -> bytes:
        """Return a new case."""
        raise NotImplementedError

    def run(self, case: bytes) -> Any:
        """Take the file apart."""
        plan = plan_file(self.name, source_of(case))
        plan.close()
        return plan


class NpyFiles(TensorFiles):
    """The fuzzing target of ``.npy``."""

    name = "x.npy"

    def cases(self) -> list[bytes]:
        headers = [npy_file("".join(header.tokens), VALUES[:192]) for header in NPY_HEADERS]
        return [*(data for name, data in tensor_files() if name.endswith(".npy")), *headers]

    def mutate(self, dice: Dice) -> bytes:
        return mutated_npy(dice, NPY_HEADERS, VALUES[: dice.pick((0, 96, 192, 1280))])


class NpzFiles(TensorFiles):
    """The fuzzing target of ``.npz``, stored and compressed."""

    name = "x.npz"

    def __init__(self) -> None:
        import zipfile

        self.whole = [data for name, data in tensor_files() if name.endswith(".npz")]
        for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
            stream = io.BytesIO()
            with zipfile.ZipFile(stream, "w", method) as archive:
                archive.writestr("a.npy", npy_file("".join(NPY_HEADERS[0].tokens), VALUES[:1280]))
                archive.writestr("b.npy", npy_file("".join(NPY_HEADERS[1].tokens), VALUES[:192]))
            self.whole.append(stream.getvalue())

    def cases(self) -> list[bytes]:
        return self.whole

    def mutate(self, dice: Dice) -> bytes:
        if dice.random() < 0.2:
            return changed(dice, dice.pick(self.whole))
        members = []
        for name in (b"a.npy", b"b.npy", b"c/d.npy")[: 1 + dice.below(3)]:
            header = dice.pick(NPY_HEADERS)
            file = npy_file("".join(header.tokens), VALUES[: dice.pick((96, 192, 1280))])
            members.append((name, mutated_npy(dice, NPY_HEADERS, VALUES[:192]) if dice.random() < 0.5 else file))
        return mutated_zip(dice, members)


class SafetensorsFiles(TensorFiles):
    """The fuzzing target of ``.safetensors``."""

    name = "x.safetensors"

    def cases(self) -> list[bytes]:
        headers = ["".join(header.tokens).encode() for header in SAFETENSORS_HEADERS]
        return [
            *(data for name, data in tensor_files() if name.endswith(".safetensors")),
            *(len(header).to_bytes(8, "little") + header + VALUES[:344] for header in headers),
        ]

    def mutate(self, dice: Dice) -> bytes:
        text = dice.pick(SAFETENSORS_HEADERS).mutated(dice, SAFETENSORS_HEADERS).encode(errors="replace")
        file = len(text).to_bytes(8, "little") + text + VALUES[: dice.pick((0, 344, 344, 344, 400))]
        return changed(dice, file, 2) if dice.random() < 0.1 else file


#: Keys of .gguf files: numbers, strings, arrays, arrays in each other, and the one that says how tensors are aligned.
GGUF_KEYS = (
    uint32("general.alignment", 64),
    uint32("general.alignment", 8),
    uint32("n", 7),
    strings("words", ["", "é"]),
    text("flag") + struct.pack("<IB", 7, 1),
    text("f") + struct.pack("<Id", 12, 0.5),
    text("deep") + struct.pack("<IIQIQIQ", 9, 9, 2, 9, 1, 4, 1) + bytes(4) + struct.pack("<IQH", 2, 1, 3),
)
GGUF_NAMES = (b"", b"a", b"token_embd.weight", b"blk.0.attn_q.weight", b"\xff", b"x" * 70)
GGUF_TYPES = (0, 0, 1, 2, 8, 12, 24, 27, 28, 30, 39, 4, 31, 99)


class GgufFiles(TensorFiles):
    """The fuzzing target of ``.gguf``: keys and tensors that are made anew, and fields of them changed."""

    name = "x.gguf"

    def cases(self) -> list[bytes]:
        tensors = {
            "embd": Stored("float32", (6, 16), VALUES[:384]),
            "norm": Stored("float16", (40,), VALUES[:80]),
            "half": Stored("bfloat16", (2, 3, 4), VALUES[:48]),
            "q": Stored("Q8_0", (2, 32), VALUES[:68]),
        }
        return [
            gguf_file(tensors),
            gguf_file(tensors, GGUF_KEYS[2:], version=2),
            gguf_file({}),
            gguf_file(tensors, (GGUF_KEYS[0], *GGUF_KEYS[2:]), alignment=64),
        ]

    def mutate(self, dice: Dice) -> bytes:
        if dice.random() < 0.1:
            return changed(dice, dice.pick(self.cases()))
        keys = [dice.pick(GGUF_KEYS) for _ in range(dice.below(4))]
        tensors = [self._tensor(dice, 96 * place) for place in range(dice.pick((0, 1, 1, 2, 3)))]
        counts = [len(tensors), len(keys)]
        if dice.random() < 0.1:
            counts[dice.below(2)] = dice.pick((0, 1, 2, 1 << 20, *NUMBERS))
        version = dice.pick((2, 3, 3, 3, 3, 3, 3, 3, 1, 4, 3 << 24))
        parts = [b"GGUF", struct.pack("<IQQ", version, *counts), *keys, *tensors]
        if dice.random() < 0.4:
            place = 1 + dice.below(len(parts) - 1)
            parts[place] = changed(dice, parts[place], 1)
        header = b"".join(parts)
        return header + bytes(-len(header) % dice.pick((32, 32, 64, 8))) + VALUES[: dice.pick((0, 200, 400, 1600))]

    @staticmethod
    def _tensor(dice: Dice, offset: int) -> bytes:
        """Return the row of a tensor of up to 96 bytes, nearly always."""
        shape = [dice.pick((1, 2, 3, 4)) for _ in range(dice.pick((0, 1, 1, 2, 2, 3, 4, 5)) - 1)]
        shape.insert(0, dice.pick((1, 2, 3, 8, 32, 256)))
        if dice.random() < 0.05:
            shape[dice.below(len(shape))] = dice.pick(NUMBERS)
        if dice.random() < 0.1:
            offset = dice.pick((0, 1, 31, 32, 64, *NUMBERS))
        name, row = dice.pick(GGUF_NAMES), struct.pack("<IQ", dice.pick(GGUF_TYPES), offset)
        return struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + row


#: Opcodes that pickles of tensors lack, and some that build deep, shared or hashed things.
OPCODES = (
    b"2",
    b"\x85",
    b"\x86",
    b"\x87",
    b"\x91",
    b"\x8f",
    b"\x90",
    b"(",
    b"t",
    b"l",
    b"d",
    b"]",
    b"}",
    b")",
    b"s",
    b"u",
    b"a",
    b"e",
    b"0",
    b"1",
    b"N",
    b"\x88",
    b"K\x01",
    b"J\xff\xff\xff\xff",
    b"\x8a\x09" + b"\xff" * 9,
    b"\x94",
    b"h\x00",
    b"h\x01",
    b"j\x01\x00\x00\x00",
    b"q\x01",
    b"r\xff\xff\xff\x00",
    b"R",
    b"\x81",
    b"b",
    b"Q",
    b".",
    b"I01\n",
    b"L12345678901234567890L\n",
    b"G@\x08\x00\x00\x00\x00\x00\x00",
    b"X\x03\x00\x00\x00abc",
    b"cos\nsystem\n",
    b"cbuiltins\neval\n",
    b"ccollections\nOrderedDict\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"\x93",
    b"\x92",
    b"ccollections\ndefaultdict\n",
    b"cnumpy\nndarray\n",
    b"\x96\x01\x00\x00\x00\x00\x00\x00\x00x",
    b"P1\n",
)
RUNS = (b"2\x86", b"\x85", b"}", b"]", b"(", b")\x91", b"2\x87", b"\x94", b"h\x00\x85", b"N\x85")


class TorchFiles(TensorFiles):
    """The fuzzing target of ``.pt``: the zip, and in it the pickle, opcode by opcode."""

    name = "x.pt"

    def __init__(self) -> None:
        import zipfile
        from collections import OrderedDict

        import torch

        tensor = torch.arange(24, dtype=torch.float32).view(4, 6)
        model = OrderedDict(weight=tensor, part=tensor[1:, ::2].t(), half=torch.ones(5, dtype=torch.bfloat16))
        shared = {
            "model": model,
            "step": 20,
            "names": ["a", ("b", {"c": None})],
            "nested": {"state": {0: {"exp_avg": tensor + 1}}},
        }
        roots: list[Any] = [
            tensor,
            shared,
            torch.nn.Linear(3, 2).state_dict(),
            torch.nn.Parameter(tensor),
            [torch.zeros(0, 3), torch.tensor(1.5), torch.ones(3, dtype=torch.uint16), {1.5, "x"}],
        ]
        self.whole, self.opcodes, self.others = [], [], []
        for root in roots:
            stream = io.BytesIO()
            torch.save(root, stream)
            self.whole.append(stream.getvalue())
            with zipfile.ZipFile(stream) as archive:
                members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
            pickled = members.pop("data.pkl")
            places = [place for _, _, place in pickletools.genops(pickled)]
            self.opcodes.append([pickled[a:b] for a, b in zip(places, [*places[1:], len(pickled)], strict=True)])
            self.others.append([(b"x/" + name.encode(), data) for name, data in members.items()])

    def cases(self) -> list[bytes]:
        return self.whole

    def mutate(self, dice: Dice) -> bytes:
        if dice.random() < 0.03:
            return changed(dice, dice.pick(self.whole))
        place = dice.below(len(self.opcodes))
        opcodes = list(self.opcodes[place])
        for _ in range(dice.pick((1, 1, 1, 2, 4))):
            at, how = dice.below(len(opcodes)), dice.random()
            if how < 0.2:
                del opcodes[at : at + dice.pick((1, 1, 2, 4))]
                opcodes = opcodes or [b"."]
            elif how < 0.5:
                opcodes.insert(at, dice.pick(OPCODES))
            elif how < 0.6:
                opcodes[at] = dice.pick(dice.pick(self.opcodes))
            elif how < 0.7:
                opcodes[at:at] = opcodes[at : at + dice.pick((1, 2, 4, 8))] * dice.pick((1, 1, 2, 30))
            elif how < 0.73:
                opcodes.insert(at, dice.pick(RUNS) * dice.pick((2, 10, 40, 400)))
            elif how < 0.75:
                opcodes[at] = b"})" + dice.pick(RUNS) * dice.pick((2, 10, 40, 400)) + b"K\x01s"
            elif how < 0.95:
                opcodes[at] = changed(dice, opcodes[at], 1)
            else:
                del opcodes[at:]
                opcodes.append(b".")
        pickled = b"".join(opcodes)
        return mutated_zip(dice, [(b"x/data.pkl", pickled), *self.others[place]])


class StoredFiles(TensorFiles):
    """Tensor files that are archived and restored: the same bytes come back, or the file is refused."""

    seconds, n_prefix = 10.0, 1

    def __init__(self) -> None:
        self.kinds: list[TensorFiles] = [NpyFiles(), NpzFiles(), SafetensorsFiles(), TorchFiles(), GgufFiles()]

    def cases(self) -> list[bytes]:
        return [bytes([number]) + case for number, kind in enumerate(self.kinds) for case in kind.cases()]

    def mutate(self, dice: Dice) -> bytes:
        number = dice.below(len(self.kinds))
        return bytes([number]) + self.kinds[number].mutate(dice)

    def run(self, case: bytes) -> Any:
        """Archive and restore a file."""
        name, data = self.kinds[case[0] % len(self.kinds)].name, case[1:]
        stream = io.BytesIO()
        plan = plan_file(name, source_of(data))
        exact = plan.exact
        with ArchiveWriter(stream, threads=1) as writer:
            writer.add(plan)
        plan.close()
        with ArchiveReader(source_of(stream.getvalue()), threads=1) as archive:
            (entry,) = archive.files
            restored = b"".join(part.tobytes() for part in archive.restored(entry))
            assert not exact or restored == data, "the restored file differs"
            return archive.files
