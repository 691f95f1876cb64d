"""The laws of archives against a base: files come out with the same base, and never without it or with another."""

from __future__ import annotations

import io
import json
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from safetensors.numpy import save as safetensors_bytes

import gcodec
from gcodec.archive import ArchiveReader, ArchiveWriter, Base, Bases, load_file, save_file
from gcodec.archive.chunks import unpack_chunk
from gcodec.errors import Corruption, GcodecError, InvalidArgument, Unsupported
from gcodec.files import ArraySource, plan_or_bytes
from gcodec.sync import Publisher
from tests.archive.base_cases import NEW, OLD, RNG, B, H, W, bfloat16, hash_of, later, torch_bytes
from tests.archive.test_damaged_archives import index_of, outcome, with_index
from tests.archive.test_files import npy, npz, torch_file
from tests.cli.test_cli import names, write
from tests.support import commands

folder = commands.folder


def saved(tensors: dict[str, Any], **options: Any) -> bytes:
    stream = io.BytesIO()
    save_file(tensors, stream, **options)
    return stream.getvalue()


def archive_of(files: dict[str, bytes], base: Bases | None = None, **options: Any) -> bytes:
    """Return an archive of files given by their contents."""
    stream = io.BytesIO()
    with ArchiveWriter(stream, **options) as archive:
        for path, data in files.items():
            with closing(plan_or_bytes(path, ArraySource([np.frombuffer(data, np.uint8)]))) as plan:
                archive.add(plan, None, base.find(path) if base else None)
    return stream.getvalue()


def restored(data: bytes, base: Bases | None, **options: Any) -> dict[str, bytes]:
    with ArchiveReader(io.BytesIO(data), base=base, **options) as archive:
        return {entry.path: b"".join(part.tobytes() for part in archive.restored(entry)) for entry in archive.files}


def bases_of(data: bytes) -> dict[str, str | None]:
    """Return the hash of what each tensor is coded against."""
    with ArchiveReader(io.BytesIO(data)) as archive:
        return {tensor.name: entry.segments[tensor.segment].base for entry, tensor in archive.tensors()}


KINDS: dict[str, Any] = {"x.safetensors": safetensors_bytes, "x.npz": npz, "x.pt": torch_bytes}


# ------------------------------------------------------------------------------------------------ There and back


@pytest.mark.parametrize("part_bytes", [256, 1 << 14, 1 << 22])
@pytest.mark.parametrize("path", KINDS)
def test_files_archived_against_a_base_are_restored_with_it(path, part_bytes):
    old, new = KINDS[path](OLD), KINDS[path](NEW)
    write({"old/" + path: old})
    with Bases("old") as bases:
        data = archive_of({path: new}, bases, part_bytes=part_bytes, threads=2)
        assert data == archive_of({path: new}, bases, part_bytes=part_bytes, threads=1)
        assert restored(data, bases) == restored(data, bases, threads=1) == {path: new}
    with Bases("old/" + path) as bases:
        assert restored(data, bases) == {path: new}
    if part_bytes > 256:
        assert len(data) < 0.9 * len(archive_of({path: new}, part_bytes=part_bytes))


def test_a_checkpoint_is_smaller_against_the_one_before():
    alone, data = saved(NEW), saved(NEW, base=OLD)
    assert len(data) < 0.85 * len(alone)
    assert bases_of(data) == {name: hash_of(OLD[name]) if name in ("w", "b", "half") else None for name in NEW}
    loaded = load_file(io.BytesIO(data), base=OLD)
    assert loaded.keys() == NEW.keys() and all(np.array_equal(loaded[name], NEW[name]) for name in NEW)
    assert data == saved(NEW, base=OLD, threads=1)


def forms(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the same tensors in all forms that a base may have."""
    write(
        {
            "f/x.safetensors": safetensors_bytes(tensors),
            "f/x.npz": npz(tensors),
            "f/x.pt": torch_bytes(tensors),
            "f/z.npz": npz(tensors, compressed=True),
            "f/x.gc": saved(tensors),
        }
    )
    model = {"model/" + name: array for name, array in tensors.items()}  # as in the .pt
    return {
        "dict": tensors,
        "npz": "f/x.npz",
        "compressed npz": "f/z.npz",
        "archive": "f/x.gc",
        "path": Path("f/x.npz"),
        "safetensors": "f/x.safetensors",
        "model": model,
    }


@pytest.mark.parametrize("form", ["dict", "npz", "compressed npz", "archive", "path", "safetensors"])
def test_a_base_may_come_from_any_form_of_file_that_holds_its_values(form):
    pytest.importorskip("torch")
    known = forms(OLD)
    data = saved(NEW, base=known[form])
    assert bases_of(data) == bases_of(saved(NEW, base=OLD))
    for name, base in known.items():
        with nullcontext() if name != "model" else pytest.raises(Unsupported, match="no such tensor"):
            assert np.array_equal(load_file(io.BytesIO(data), base=base)["w"], NEW["w"])


def test_torch_tensors_and_views_of_one_storage_are_bases():
    torch = pytest.importorskip("torch")
    old = {name: torch.from_numpy(OLD[name]) for name in ("w", "b")} | {"bf": torch.from_numpy(-W).bfloat16()}
    new = {name: torch.from_numpy(NEW[name]) for name in ("w", "b")} | {"bf": torch.from_numpy(-NEW["w"]).bfloat16()}
    data = saved(new, base=old)
    assert all(bases_of(data).values())
    assert all(torch.equal(tensor, new[name]) for name, tensor in load_file(io.BytesIO(data), base=old).items())
    flat = torch.cat([old["b"], old["w"].reshape(-1)])  # as one storage, of which tensors are views
    write({"flat.pt": torch_file({"b": flat[:3000], "w": flat[3000:].view(200, 100)})})
    assert bases_of(saved({"w": NEW["w"], "b": NEW["b"]}, base="flat.pt")) == {"w": hash_of(W), "b": hash_of(B)}
    data = saved({"w": NEW["w"]}, base="flat.pt")
    assert bases_of(data) == {"w": hash_of(W)}
    assert np.array_equal(load_file(io.BytesIO(data), base="flat.pt")["w"], NEW["w"])
    assert np.array_equal(load_file(io.BytesIO(data), base={"w": W})["w"], NEW["w"])


def strided(change: float) -> dict[str, Any]:
    """Return tensors that a dictionary and a state of them hold as other bytes, or under other names."""
    torch = pytest.importorskip("torch")
    w, h, b = (torch.from_numpy(later(array, change)) for array in (W, H, B))
    return {
        "transposed": w.t(),
        "all": b,
        "same": b,
        "rows": b[1000:],
        "layer/bias": h[0].clone(),
        "layer/fortran": np.asfortranarray(h.numpy()),
        "small": b[:9].clone(),
        "step": torch.ones(()) * change,
    }


READERS: dict[str, Any] = {
    "load": lambda path, base: gcodec.load(path, base=base),
    "load_file": lambda path, base: load_file(path, base=base),
    "open": lambda path, base: read_lazily(path, base),
    "decompress_file": lambda path, base: read_decompressed(path, base),
}


def read_lazily(path: str, base: Any) -> dict[str, Any]:
    with gcodec.open(path, base=base) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - a file is no mapping


def read_decompressed(path: str, base: Any) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(gcodec.decompress_file(path, f"{path}.safetensors", base=base, force=True)[0])


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", [save_file, gcodec.save])
def test_a_dictionary_of_strided_and_shared_tensors_is_the_base_for_every_reader(writer, reader, tmp_path):
    base, path = strided(0), str(tmp_path / "new.gc")
    writer(new := strided(1e-4), path, base=base)
    with pytest.raises(Unsupported, match="base"):
        READERS[reader](path, None)
    for name, value in READERS[reader](path, base).items():
        if name in new and value.shape == new[name].shape:  # a file of a state has them as they are stored
            assert np.array_equal(value, new[name])
    with pytest.raises(Unsupported, match="base"):
        READERS[reader](path, strided(1e-3))


def test_raw_bits_of_a_named_type_are_a_base_for_that_type():
    old, new = {"w": bfloat16(W)}, {"w": bfloat16(NEW["w"])}
    assert bases_of(saved(new, base=old)) == {"w": None}  # integers, as far as anyone knows
    data = saved(new, base=old, dtype="bfloat16")
    assert bases_of(data) == {"w": hash_of(old["w"])}
    assert np.array_equal(load_file(io.BytesIO(data), base=old)["w"].view(np.uint16), new["w"])


def test_tensors_without_a_fitting_base_are_coded_alone():
    old = {"w": W.reshape(100, 200), "b": B[:-1], "half": H.astype(np.float64), "wide": OLD["wide"], "more": W}
    data = saved(NEW | {"extra": B}, base=old)
    assert bases_of(data) == {**dict.fromkeys([*NEW, "extra"]), "w": hash_of(W)}  # another shape, as many values
    loaded = load_file(io.BytesIO(data), base={"w": W})
    assert all(np.array_equal(loaded[name], NEW[name]) for name in NEW)
    alone = load_file(io.BytesIO(data), names=["b", "half"])
    assert np.array_equal(alone["b"], NEW["b"])


def test_an_archive_that_gains_nothing_by_a_base_needs_none():
    other = {name: RNG.standard_normal(array.shape).astype(array.dtype) for name, array in OLD.items()}
    assert saved(NEW, base=other) == saved(NEW) == saved(NEW, base={})
    assert saved({}, base=OLD) == saved({})


@pytest.mark.parametrize("noise", [1e-7, 1e-3, 1e-2, 1])
def test_a_base_never_makes_an_archive_larger(noise):
    """Rows that predict each other (docs/format.md, section 8) may do so better than a base does."""
    rows = (RNG.standard_normal((400, 1)) * RNG.standard_normal(128)).astype(np.float32)
    new = {"rows": later(rows, 1e-4), "w": W, "b": B}
    base = {name: later(array, noise) for name, array in new.items()}
    assert len(saved(new, base=base)) <= len(saved(new)) + 100  # the hashes in the index


def test_empty_single_and_special_values_are_restored_with_their_base():
    strange = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 3e38], np.float32)
    old = {"none": B[:0], "one": B[:1], "strange": np.tile(strange, 3000), "zeros": np.zeros(9000, np.float32)}
    new = old | {"strange": np.roll(old["strange"], 1), "zeros": np.full(9000, np.nan, np.float32)}
    for tensors, base in ((new, old), (old, new), (old, old)):
        loaded = load_file(io.BytesIO(saved(tensors, base=base)), base=base)
        assert all(loaded[name].tobytes() == tensors[name].tobytes() for name in tensors)


def test_each_archive_of_a_chain_is_the_base_of_the_next():
    second, third = later(W), later(later(W))
    save_file({"w": W}, "1.gc")
    save_file({"w": second}, "2.gc", base="1.gc")
    with Bases("1.gc") as first, ArchiveReader("2.gc", base=first) as base:
        data = saved({"w": third}, base=base)
        assert np.array_equal(load_file(io.BytesIO(data), base=base)["w"], third)
    with pytest.raises(Unsupported, match=r"2\.gc.*:w: was compressed against a base"):
        load_file(io.BytesIO(data), base="2.gc")
    with Bases("1.gc") as first, Bases("2.gc", base=first) as bases:
        assert restored(data, bases)
    assert np.array_equal(load_file(io.BytesIO(data), base={"w": second})["w"], third)


class Watched:
    """A source that remembers the longest read."""

    def __init__(self, data: bytes) -> None:
        self._source, self.longest = ArraySource([np.frombuffer(data, np.uint8)]), 0
        self.size = self._source.size

    def read(self, start: int, stop: int) -> np.ndarray:
        self.longest = max(self.longest, stop - start)
        return self._source.read(start, stop)


def test_bases_are_read_part_by_part():
    old, new = safetensors_bytes({"w": W}), safetensors_bytes({"w": NEW["w"]})
    source = Watched(old)
    plan = plan_or_bytes("old", source)
    assert plan.tensors
    with Bases(plan) as bases:
        data = archive_of({"new": new}, bases, part_bytes=1 << 12)
        assert restored(data, bases) == {"new": new} and source.longest == 4000  # ten rows
    with ArchiveReader(io.BytesIO(saved({"w": W}))) as archive, Bases(archive) as bases:
        again = archive_of({"new": new}, bases, part_bytes=1 << 12)
        assert restored(again, bases) == {"new": new}
        assert index_of(again)[0] == index_of(data)[0]  # only the base's name differs


@pytest.fixture
def unpacked(monkeypatch) -> list[str]:
    """Return the names of archives, one for each chunk that is unpacked from now on."""
    names = list[str]()

    def counting(chunk: Any, payload: Any, where: str, *others: Any) -> Any:
        names.append(where.partition(":")[0])
        return unpack_chunk(chunk, payload, where, *others)

    monkeypatch.setattr("gcodec.archive.reader.unpack_chunk", counting)
    return names


def test_tensors_end_to_end_are_read_at_once_from_each_archive_of_a_chain(unpacked):
    tensors, publisher, chain = {f"{n}": later(B[:200]) for n in range(20)}, Publisher(), list[str]()
    for version in range(4):
        published = publisher.publish(tensors)
        chain = [f"{version}.gc", *chain]
        Path(chain[0]).write_bytes(published.difference or published.anchor())
        loaded, tensors = tensors, {name: later(array) for name, array in tensors.items()}
    unpacked.clear()
    found = load_file(chain[0], base=chain[1:])
    assert all(np.array_equal(found[name], loaded[name]) for name in loaded)
    assert [unpacked.count(name) for name in ("3.gc", "2.gc", "1.gc", "0.gc")] == [1, 1, 1, 20]


def test_small_tensors_of_a_group_are_bases_without_unpacking_the_group_for_each(unpacked):
    tensors, chain = {f"{n}": later(B[:200]) for n in range(20)}, ["0.gc"]
    save_file(tensors, "0.gc")
    for step in (1, 2):
        loaded = tensors = {name: later(array) for name, array in tensors.items()}
        with Bases.in_chain(chain) as bases:
            Path(f"{step}.gc").write_bytes(archive_of({"x": safetensors_bytes(tensors)}, bases))
        chain = [f"{step}.gc", *chain]
    unpacked.clear()
    found = load_file(chain[0], base=chain[1:], threads=1)
    assert all(np.array_equal(found[name], loaded[name]) for name in loaded)
    assert [unpacked.count(name) for name in chain] == [20, 20, 1]


def test_a_base_is_looked_up_once_for_all_chunks_of_a_segment(monkeypatch):
    looked_up, find = list[str](), Base.bytes_for

    def counting(self: Base, *arguments: Any, **options: Any) -> Any:
        looked_up.append(self.name)
        return find(self, *arguments, **options)

    monkeypatch.setattr(Base, "bytes_for", counting)
    files = [safetensors_bytes({"w": array}) for array in (W, later(W), later(W))]
    Path("0.gc").write_bytes(archive_of({"x": files[0]}, part_bytes=1 << 12))
    for step in (1, 2):
        with Bases.in_chain([f"{n}.gc" for n in reversed(range(step))]) as bases:
            Path(f"{step}.gc").write_bytes(archive_of({"x": files[step]}, bases, part_bytes=1 << 12))
    with Bases.in_chain(["1.gc", "0.gc"]) as bases, ArchiveReader("2.gc", base=bases) as archive:
        looked_up.clear()
        assert b"".join(part.tobytes() for part in archive.restored(archive.files[0])) == files[2]
    assert looked_up == ["1.gc", "0.gc"]


# ---------------------------------------------------------------------------------------------- Missing and wrong


DATA = saved(NEW, base=OLD)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (None, "tensors.safetensors:w: was compressed against a base, tensors.safetensors, which must be given"),
        ({}, "tensors.safetensors:w: .* has no such tensor of 80000 bytes of float32"),
        ({"w": W[1:], "b": B}, "tensors.safetensors:w: .* has no such tensor"),
        ({**OLD, "w": W.astype(np.float64)}, "tensors.safetensors:w: .* has no such tensor"),
        ({**OLD, "w": W.view(np.int32)}, "tensors.safetensors:w: .* has no such tensor"),
        (NEW, "tensors.safetensors:w .*base is not the array"),
        ({**OLD, "w": np.where(W[150, 7] == W, 0, W)}, "tensors.safetensors:w .*base is not the array"),
        ({**OLD, "w": -W}, "tensors.safetensors:w .*base is not the array"),
        ({**OLD, "b": NEW["b"]}, "tensors.safetensors:b .*base is not the array"),
    ],
)
def test_tensors_are_not_decoded_without_the_values_of_their_base(base, message):
    for wanted in (None, ["w", "b"]):
        with pytest.raises(Unsupported, match=message):
            load_file(io.BytesIO(DATA), base=base, names=wanted)
    assert np.array_equal(load_file(io.BytesIO(DATA), base=base, names=["wide"])["wide"], NEW["wide"])


def test_an_archive_that_is_another_base_is_refused_before_it_is_read():
    write({"other.gc": saved({**OLD, "w": NEW["w"]})})
    with pytest.raises(Unsupported, match=r"w: was compressed against .* of other values than other\.gc has"):
        load_file(io.BytesIO(DATA), base="other.gc")


def test_what_open_returns_is_a_base_until_it_is_closed(tmp_path):
    old, new, file = tmp_path / "old.gc", tmp_path / "new.gc", tmp_path / "new.npy"
    gcodec.save_file({"w": W}, old)
    np.save(file, W + np.float32(1e-6))
    with gcodec.open(old) as base:
        gcodec.save_file({"w": W + np.float32(1e-6)}, new, base=base)
        assert np.array_equal(load_file(new, base=base)["w"], W + np.float32(1e-6))
        assert np.array_equal(gcodec.load(new, base=base)["w"], W + np.float32(1e-6))
        with gcodec.open(new, base=base) as opened:
            assert np.array_equal(opened["w"], W + np.float32(1e-6))
        assert gcodec.compress_file(file, base=base).path == tmp_path / "new.npy.gc"
        assert np.array_equal(base["w"], W)  # it stays open
        expected = new.read_bytes()
    gcodec.save_file({"w": W + np.float32(1e-6)}, new, base=old)
    assert new.read_bytes() == expected
    with pytest.raises(InvalidArgument, match="closed"):
        load_file(new, base=base)


def test_files_without_tensors_and_lossy_modes_take_no_base():
    write({"notes.txt": b"hello", "bad.npy": npy(W)[:1000]})
    for base, message in (
        ("nowhere", "no such file"),
        ("notes.txt", "no tensors"),
        ("bad.npy", "bad.npy"),
        ({"w": np.array(["text"])}, "'w'"),
    ):
        with pytest.raises(GcodecError, match=message):
            saved(NEW, base=base)
    for lossy in ({"mantissa_bits": 5}, {"levels": {"w": np.zeros(W.shape, np.uint8)}}):
        with pytest.raises(InvalidArgument, match="lossless"):
            saved(NEW, base=OLD, **lossy)


def test_an_archive_never_replaces_its_own_base():
    save_file(OLD, "x.gc")
    before = Path("x.gc").read_bytes()
    with pytest.raises(InvalidArgument, match="is the base"):
        save_file(NEW, "x.gc", base="x.gc")
    assert Path("x.gc").read_bytes() == before and names() == ["x.gc"]


# ----------------------------------------------------------------------------------------------------------- Damage


def test_damage_in_the_archive_or_in_its_base_is_found():
    small = {"w": W[:20], "b": B[:400]}
    old, new = saved({name: later(array) for name, array in small.items()}), saved({})
    write({"old.gc": old})
    new = saved(small, base="old.gc")
    with Bases("old.gc") as bases:
        good = restored(new, bases)
        for at in range(0, len(new), 7):
            damaged = bytearray(new)
            damaged[at] ^= 1 << at % 8
            with suppress(GcodecError):
                assert restored(bytes(damaged), bases) == good
    for at in range(0, len(old), 7):
        damaged = bytearray(old)
        damaged[at] ^= 1 << at % 8
        write({"bad.gc": bytes(damaged)})
        with suppress(GcodecError), Bases("bad.gc") as bases:
            assert restored(new, bases) == good


def test_a_damaged_archive_is_no_base():
    noise = RNG.integers(0, 1 << 32, 4000, np.uint32).view(np.float32)  # stored as it is, without a checksum
    data = bytearray(saved({"w": noise}))
    data[100] ^= 1
    write({"bad.gc": bytes(data)})
    with pytest.raises(Corruption, match=r"bad\.gc.*hash"):
        saved({"w": noise}, base="bad.gc")


def test_an_index_that_lies_about_bases_is_refused():
    chunks, index = index_of(DATA)
    segments = index["files"][0]["segments"]
    place = next(n for n, segment in enumerate(segments) if "base" in segment)
    lies: list[Any] = ["x", "", 7, None, [], "0" * 15, "G" * 16]
    for lie in lies:
        changed = json.loads(json.dumps(index))
        changed["files"][0]["segments"][place]["base"] = lie
        with pytest.raises(Corruption):
            ArchiveReader(io.BytesIO(with_index(chunks, changed)))
    del segments[place]["base"]  # frames still say what they need
    with pytest.raises(Unsupported, match="encoded against a base"), Bases(saved_to("old.gc", OLD)) as bases:
        restored(with_index(chunks, index), bases)
    segments[place]["base"] = segments[place - 1]["base"] = "0" * 16
    assert outcome(with_index(chunks, index)) is None


def saved_to(path: str, tensors: dict[str, Any]) -> str:
    save_file(tensors, path)
    return path


def test_a_reader_written_from_the_page_alone_reads_against_a_base():
    """By docs/archive.md, section 5, chunks of a segment are frames of the same range of the base."""
    with Bases(saved_to("old.gc", OLD)) as bases:
        small = archive_of({"x.safetensors": safetensors_bytes(NEW)}, bases, part_bytes=1 << 12)
    for data in (DATA, small):
        chunks, index = index_of(data)
        [file] = index["files"]
        assert isinstance(file["base"], str)
        at, found = 8, {}
        for number, segment in enumerate(file["segments"]):
            name, part = next(t["name"] for t in file["tensors"] if t["segment"] == number), b""
            if "base" in segment:
                assert hash_of(OLD[name]) == segment["base"]
            for codec, stored, size in segment["chunks"]:
                chunk = chunks[at : at + stored]
                known = OLD[name].reshape(-1).view(np.uint8)[len(part) : len(part) + size].view(OLD[name].dtype)
                base = known if "base" in segment else None
                decoded = gcodec.decode(chunk, base=base).tobytes() if codec == 2 else b""
                part += (chunk, zstandard.decompress(chunk) if codec == 1 else b"", decoded)[codec]
                at += stored + -stored % 8
            found[name] = part
        assert found == {name: array.tobytes() for name, array in NEW.items()}
