"""The laws of bytes that an archive has already: they are stored once, and restored as if they were stored twice."""

from __future__ import annotations

import io
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save as safetensors_bytes

import gcodec
from gcodec.archive import ArchiveReader, ArchiveWriter
from gcodec.archive.description import describe_file
from gcodec.archive.dicts import plan_tensors
from gcodec.archive.encoding_policy import MantissaBits
from gcodec.archive.equal_segments import MIN_BYTES
from gcodec.archive.layout import archive_header
from gcodec.archive.shared_memory import lies_in
from gcodec.archive.state_files import TensorSource, plan_state
from gcodec.cli import main
from gcodec.errors import Corruption, LimitExceeded
from gcodec.files import plan_or_bytes
from gcodec.files.source import Bytes, ByteSource, open_source
from tests.archive.test_archive import gradients, opened, restored
from tests.archive.test_damaged_archives import index_of, with_index
from tests.archive.test_files import npy, torch_file

WEIGHTS, OTHERS = gradients(100, 300), gradients(100, 300)


def copies_in(data: bytes | Path) -> list[tuple[int, int] | None]:
    """Return what each segment of an archive says of whose bytes it has."""
    with ArchiveReader(io.BytesIO(data) if isinstance(data, bytes) else data) as archive:
        return [segment.same for entry in archive.files for segment in entry.segments]


def add(archive: ArchiveWriter, path: Path, mantissa_bits: int | None = None) -> None:
    with closing(open_source(path)) as source, closing(plan_or_bytes(path.name, source)) as plan:
        archive.add(plan, None if mantissa_bits is None else MantissaBits(plan, mantissa_bits))


def archive_of(files: dict[str, bytes], mantissa_bits: int | None = None) -> bytes:
    """Return an archive of files that lie in a folder."""
    stream = io.BytesIO()
    with TemporaryDirectory() as folder, ArchiveWriter(stream) as archive:
        for name, data in files.items():
            path = Path(folder, name)
            path.write_bytes(data)
            add(archive, path, mantissa_bits)
    return stream.getvalue()


def test_equal_tensors_are_stored_once_and_come_back_in_memory_of_their_own(tmp_path):
    once, twice = tmp_path / "once.gc", tmp_path / "twice.gc"
    gcodec.save_file({"a": WEIGHTS, "b": OTHERS}, once)
    gcodec.save_file({"a": WEIGHTS, "b": OTHERS, "c": WEIGHTS.copy()}, twice)
    assert twice.stat().st_size < once.stat().st_size + 300
    loaded = gcodec.load_file(twice)
    assert all(np.array_equal(loaded[name], array) for name, array in {"a": WEIGHTS, "b": OTHERS, "c": WEIGHTS}.items())
    loaded["a"][:] = 0
    assert np.array_equal(loaded["c"], WEIGHTS)
    with gcodec.open(twice) as file:
        assert np.array_equal(file.get_slice("c")[17:19], WEIGHTS[17:19])


def test_objects_and_streams_have_equal_tensors_once():
    sizes = []
    for state in ({"x": [WEIGHTS]}, {"x": [WEIGHTS, WEIGHTS.copy()]}):
        with io.BytesIO() as stream:
            gcodec.save(state, stream)
            sizes.append(len(stream.getvalue()))
            stream.seek(0)
            assert all(np.array_equal(array, WEIGHTS) for array in gcodec.load(stream)["x"])
    assert sizes[1] < sizes[0] + 300


def test_files_of_several_kinds_in_one_archive_have_equal_tensors_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # enough for whole names
    torch = pytest.importorskip("torch")
    folder, back = tmp_path / "model", tmp_path / "back"
    folder.mkdir()
    (folder / "a.npy").write_bytes(npy(WEIGHTS))
    (folder / "b.safetensors").write_bytes(safetensors_bytes({"w": WEIGHTS, "o": OTHERS}))
    (folder / "c.pt").write_bytes(torch_file({"w": torch.from_numpy(WEIGHTS), "o": torch.from_numpy(OTHERS)}))
    assert main(["compress", str(folder), "-o", str(tmp_path / "m.gc"), "-q"]) == 0
    stored = sum(len(gcodec.encode(array)) for array in (WEIGHTS, OTHERS))
    assert (tmp_path / "m.gc").stat().st_size < 1.1 * stored
    assert main(["decompress", str(tmp_path / "m.gc"), "-o", f"{back}/", "-q"]) == 0
    for path in folder.iterdir():
        assert (back / "model" / path.name).read_bytes() == path.read_bytes()
    capsys.readouterr()
    assert main(["decompress", "--list", str(tmp_path / "m.gc")]) == 0
    assert capsys.readouterr().out.count(" as model/b.safetensors:w") == 2
    assert main(["inspect", str(tmp_path / "m.gc")]) == 0
    assert "same as model/b.safetensors:w" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "m.gc")]) == 0
    assert "same as model/b.safetensors:w" in (tmp_path / "m.gc.html").read_text(encoding="utf-8")


def test_equal_files_without_tensors_are_stored_once(tmp_path, capsys):
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    big, small, other = rng.bytes(MIN_BYTES), rng.bytes(MIN_BYTES - 1), rng.bytes(MIN_BYTES)
    state = torch_file({"rng": list(range(2000))})  # without tensors
    files = {"tokenizer.json": big, "small.txt": small, "state.pt": state, "model.npy": npy(WEIGHTS)}
    folder = tmp_path / "run"
    for step in ("a", "b"):
        (folder / step).mkdir(parents=True)
        for name, data in files.items():
            (folder / step / name).write_bytes(data)
    (folder / "b" / "other.json").write_bytes(other)
    assert main(["compress", str(folder), "-o", str(tmp_path / "r.gc"), "-q"]) == 0
    with ArchiveReader(tmp_path / "r.gc") as archive:
        own = {entry.path for entry in archive.files if entry.stored > 200}
    assert own == {
        f"run/{path}"
        for path in ("a/tokenizer.json", "a/state.pt", "a/small.txt", "a/model.npy", "b/small.txt", "b/other.json")
    }
    assert main(["decompress", str(tmp_path / "r.gc"), "-o", f"{tmp_path}/back/", "-q"]) == 0
    for path in folder.glob("*/*"):
        assert (tmp_path / "back" / path.relative_to(tmp_path)).read_bytes() == path.read_bytes()
    capsys.readouterr()
    for verb in (["decompress", "--list"], ["inspect"]):
        assert main([*verb, str(tmp_path / "r.gc")]) == 0
        assert "run/b/tokenizer.json: bytes, 4.10 kB as run/a/tokenizer.json\n" in capsys.readouterr().out
        assert main([*verb, "--json", str(tmp_path / "r.gc")]) == 0
        [result] = json.loads(capsys.readouterr().out)
        assert {file["path"]: file["same"] for file in result["files"] if "same" in file} == {
            f"run/b/{name}": f"run/a/{name}" for name in ("tokenizer.json", "state.pt")
        }


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 2]), st.sampled_from([0, MIN_BYTES // 8, MIN_BYTES // 4 - 1])),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([0, 700]),
)
def test_what_differs_in_one_bit_or_in_size_is_stored_apart(kinds, more):
    arrays = []
    for value, place in kinds:
        array = np.zeros(MIN_BYTES // 4 + more, np.float32)
        array[place] = value
        arrays.append(array)
    files = {f"{number}.npy": npy(array) for number, array in enumerate(arrays)}
    data = archive_of(files)
    assert restored(data) == files
    different = {array.tobytes() for array in arrays}
    if len(different) <= 3:
        assert copies_in(data).count(None) == len(different)


def test_only_the_same_bytes_of_the_same_type_from_some_size_on_are_stored_once():
    bits, small = WEIGHTS.view(np.int32), np.arange(MIN_BYTES // 4 - 1, dtype=np.int64).view(np.float32)[1::2].copy()
    assert copies_in(archive_of({"a.npy": npy(WEIGHTS), "b.npy": npy(bits)})) == [None, None]
    assert small.nbytes < MIN_BYTES
    assert copies_in(archive_of({"a.npy": npy(small), "b.npy": npy(small)})) == [None, None]
    assert copies_in(archive_of({"a.npy": npy(bits), "b.npy": npy(OTHERS), "c.npy": npy(bits)})) == [None, None, (0, 0)]


def test_long_runs_of_plain_bytes_are_stored_once_too():
    noise = np.random.default_rng(3).bytes(3 << 20)
    data = archive_of({"a.bin": noise, "b.bin": noise, "c.bin": noise[:-1] + b"x"})
    assert restored(data) == {"a.bin": noise, "b.bin": noise, "c.bin": noise[:-1] + b"x"}
    assert copies_in(data) == [None, (0, 0), None]


def test_files_with_the_same_long_header_both_keep_its_metadata():
    names = [f"{number:04}.{'x' * 250}" for number in range(4000)]
    files = {
        f"{value}.safetensors": safetensors_bytes(dict.fromkeys(names, np.array([value])), {"key": "value"})
        for value in range(2)
    }
    data = archive_of(files)
    assert restored(data) == files
    with opened(data) as archive:
        assert archive.files[1].segments[0].same == (0, 0)
        assert [archive.metadata(entry) for entry in archive.files] == [{"key": "value"}] * 2


def test_lossy_archives_and_differences_have_all_segments_of_their_own(tmp_path):
    files = {"a.npy": npy(WEIGHTS), "b.npy": npy(WEIGHTS)}
    assert copies_in(archive_of(files, 7)) == [None, None] != copies_in(archive_of(files))
    gcodec.save_file({"a": WEIGHTS, "b": WEIGHTS.copy()}, tmp_path / "old.gc")
    changed = WEIGHTS.copy()
    changed[0] += 1
    gcodec.save_file({"a": changed, "b": changed.copy()}, tmp_path / "new.gc", base=tmp_path / "old.gc")
    assert set(copies_in(tmp_path / "new.gc")) == {None}
    assert np.array_equal(gcodec.load_file(tmp_path / "new.gc", base=tmp_path / "old.gc")["b"], changed)


@pytest.mark.parametrize("happens", ["changed", "removed", "shortened"])
def test_a_file_that_is_another_one_by_the_time_it_is_compared_with_is_not_relied_on(tmp_path, happens):
    first, second, stream = tmp_path / "a.npy", tmp_path / "b.npy", io.BytesIO()
    first.write_bytes(npy(WEIGHTS))
    alike = WEIGHTS.copy()
    alike[50] = 7
    second.write_bytes(npy(alike))
    with ArchiveWriter(stream) as archive:
        add(archive, first)
        if happens == "removed":
            first.unlink()
        else:
            first.write_bytes(npy(alike) if happens == "changed" else npy(alike[:60]))
        add(archive, second)
    assert restored(stream.getvalue()) == {"a.npy": npy(WEIGHTS), "b.npy": npy(alike)}
    assert copies_in(stream.getvalue()) == [None, None]


def test_chunks_are_described_once_whoever_shares_them():
    with opened(archive_of({f"{n}.npy": npy(WEIGHTS) for n in range(3)})) as archive:
        segments = [describe_file(archive, entry)["segments"][0] for entry in archive.files]
        assert [segment.get("same") for segment in segments] == [None, "0.npy:0", "0.npy:0"]
        assert [len(segment["chunks"]) for segment in segments] == [1, 0, 0]
        for segment in segments:
            padded = [chunk["stored_bytes"] + -chunk["stored_bytes"] % 8 for chunk in segment["chunks"]]
            assert sum(padded) == segment["stored_bytes"]


def test_limits_count_what_copies_restore_to():
    data = archive_of({f"{n}.npy": npy(WEIGHTS) for n in range(5)})
    assert len(data) < 2 * WEIGHTS.nbytes
    with opened(data, max_output_bytes=3 * WEIGHTS.nbytes) as archive, pytest.raises(LimitExceeded):
        archive.check_limit()


def test_copies_that_name_no_earlier_segment_of_the_same_bytes_are_refused():
    head, index = index_of(
        archive_of({"a.npy": npy(WEIGHTS), "b.npy": npy(OTHERS), "c.npy": npy(WEIGHTS), "d.npy": npy(WEIGHTS)})
    )
    files = index["files"]
    assert [file["segments"][0].get("same") for file in files] == [None, None, [0, 0], [0, 0]]
    assert files[2]["segments"][0]["chunks"] == []

    def refused(why: str, file: int = 2, **changes: Any) -> None:
        changed = json.loads(json.dumps(index))
        changed["files"][file]["segments"][0].update(changes)
        with pytest.raises(Corruption, match=why):
            opened(with_index(head, json.dumps(changed).encode()))

    wrong: dict[str, list[Any]] = {
        "there is no earlier segment": [[2, 0], [3, 0], [4, 0], [0, 1], [1 << 40, 0], [0, 1 << 61]],
        "must name a file and a segment": [[], [0], [0, 0, 0]],
        "must be an array": ["0", {}, 0],
        "is not a number": [[-1, 0], [0, 0.5], [0, "0"], [True, 0]],
    }
    for why, places in wrong.items():
        for place in places:
            refused(why, same=place)
    refused("must have the size, hash and type", same=[1, 0])
    refused("must have the size, hash and type", file=3, same=[2, 0])
    refused("must have the size, hash and type", hash=files[1]["segments"][0]["hash"])
    refused("must have the size, hash and type", dtype="bfloat16")
    refused("must have the size, hash and type", lossy=True)
    refused("must have the size, hash and type", file=0, base="0" * 16)
    refused("no chunks and no base", chunks=files[0]["segments"][0]["chunks"])
    refused("no chunks and no base", base="0" * 16)
    refused("do not sum to its size", bytes=files[0]["segments"][0]["bytes"] - 4)


@pytest.mark.parametrize("n_chunks", [96, 97, 98, 200])
def test_a_segment_of_very_many_chunks_may_not_be_that_of_another(n_chunks):
    """A reader takes its time for each chunk, and would take hours for a small archive of many such copies."""
    data = bytes(6144)
    empty = {"bytes": 0, "hash": xxhash.xxh3_64_hexdigest(b""), "chunks": []}
    own = {"bytes": len(data), "hash": xxhash.xxh3_64_hexdigest(data)}
    sizes = [16] * (n_chunks - 1) + [len(data) - 16 * (n_chunks - 1)]
    segments = [{**own, "chunks": [[0, size, size] for size in sizes]}, {**own, "chunks": [], "same": [0, 0]}]
    file = {"path": "x", "format": "bytes", "exact": True, "size": 2 * len(data), "verbatim": empty, "tensors": []}
    archive = with_index(archive_header() + data, json.dumps({"files": [{**file, "segments": segments}]}).encode())
    if n_chunks <= 1 + len(data) / 64:
        assert restored(archive) == {"x": 2 * data}
    else:
        with pytest.raises(Corruption, match=f"has {n_chunks} chunks, too many for its 6144 bytes"):
            opened(archive)


@pytest.mark.parametrize(("columns", "copies"), [(8, [None, (0, 0)]), (5, [None, None])])
def test_equal_segments_of_very_small_chunks_are_stored_apart(columns, copies):
    """Parts are of whole rows: of 40 bytes in the one, and of 64 in the other."""
    tensors, stream = dict.fromkeys("ab", np.arange(1000.0).reshape(-1, columns)), io.BytesIO()
    with ArchiveWriter(stream, part_bytes=64) as archive:
        archive.add(plan_tensors({name: array.copy() for name, array in tensors.items()}))
    assert copies_in(stream.getvalue()) == copies
    loaded = gcodec.load_file(io.BytesIO(stream.getvalue()))
    assert all(np.array_equal(loaded[name], array) for name, array in tensors.items())


def test_only_tensors_whose_bytes_are_their_very_memory_are_compared():
    """Others would be copied again for each piece that is compared."""
    torch = pytest.importorskip("torch")
    z = torch.complex(torch.from_numpy(WEIGHTS), torch.from_numpy(OTHERS))
    state = {
        "numpy": WEIGHTS,
        "order": WEIGHTS.astype(">f4"),
        "fortran": np.asfortranarray(WEIGHTS),
        "steps": WEIGHTS[:, ::2],
        "torch": torch.from_numpy(OTHERS),
        "more": torch.from_numpy(OTHERS + 1),
        "complex": z,
        "conjugate": torch.complex(z.real, z.imag).conj(),
        "negative": z.clone().conj().imag,
    }
    plan, at_hand, read = plan_state("x", state), set(), {}
    assert isinstance(plan.source, TensorSource)
    for view in plan.tensors:
        start, value = plan.segments[view.segment].start, state.get(view.name)
        if value is not None and plan.source.is_at_hand(start):
            read[start] = plan.source.read(start, start + 8)
            assert lies_in(value, read[start])
            at_hand.add(view.name)
    assert all(plan.source.read(start, start + 8).base is data.base for start, data in read.items())  # made once
    assert at_hand == {"numpy", "torch", "more", "complex"}


class Counting:
    """The bytes of another source; counts those that are read."""

    def __init__(self, source: ByteSource) -> None:
        self.source, self.size, self.n_read = source, source.size, 0

    def read(self, start: int, stop: int) -> Bytes:
        self.n_read += stop - start
        return self.source.read(start, stop)

    def is_at_hand(self, start: int) -> bool:
        return True


def test_of_what_begins_like_nothing_before_only_the_beginning_is_read_twice():
    plan = plan_tensors({str(n): array for n, array in enumerate([*gradients(20, 40, 50), *gradients(5, 80, 50)])})
    source = Counting(plan.source)
    with ArchiveWriter(io.BytesIO()) as archive:
        archive.add(replace(plan, source=source))
    assert source.n_read == source.size + 25 * 512


def test_what_cannot_be_opened_again_is_compared_with_in_its_own_file_only(tmp_path):
    alike = WEIGHTS.copy()
    alike[50] = 7
    stream = io.BytesIO()
    files: list[Any] = [[WEIGHTS, alike, WEIGHTS], WEIGHTS, [alike, WEIGHTS, alike], WEIGHTS, alike]
    with ArchiveWriter(stream) as archive:
        for number, arrays in enumerate(files):
            if isinstance(arrays, list):
                plan = plan_tensors({str(place): array.copy() for place, array in enumerate(arrays)})
                archive.add(replace(plan, path=str(number)))
            else:
                path = tmp_path / f"{number}.npy"
                path.write_bytes(npy(arrays))
                add(archive, path)
    assert copies_in(stream.getvalue()) == [None, None, (0, 0), None, None, (1, 0), (2, 0), (1, 0), None]
