"""The laws of casts: weights of 16 bits beside what they are casts of take next to nothing, and come back."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.archive import ArchiveReader
from gcodec.archive.cast_segments import _first_halves, casts_last
from gcodec.archive.layout import STORED
from gcodec.archive.tensor_groups import MAX_SMALL
from gcodec.archive.type_casts import CASTS
from gcodec.archive.whole_files import add_file
from gcodec.archive.writer import ArchiveWriter
from gcodec.cli import main
from gcodec.errors import Corruption, GcodecError, Unsupported
from tests.archive.test_archive import opened
from tests.archive.test_damaged_archives import index_of, with_index
from tests.support.same import assert_same

pytest.importorskip("torch")

import torch

MASTERS = {
    f"{n}.weight": 0.02 * torch.randn(300, 220 + n, generator=torch.Generator().manual_seed(n)) for n in range(3)
}
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def state_of(masters: dict[str, torch.Tensor], dtype: torch.dtype, *, first: bool = True) -> dict[str, Any]:
    """Return what a training script saves: weights, and the float32 values that they are casts of."""
    weights = {name: value.to(dtype) for name, value in masters.items()}
    parts = {"model": weights, "optimizer": {name: {"master": value} for name, value in masters.items()}}
    return parts if first else dict(reversed(parts.items()))


def saved(state: Any, **options: Any) -> bytes:
    """Return the archive of an object."""
    stream = io.BytesIO()
    gcodec.save(state, stream, **options)
    return stream.getvalue()


def segments_of(data: bytes) -> list[Any]:
    """Return all segments of an archive."""
    with opened(data) as archive:
        return [segment for entry in archive.files for segment in entry.segments]


@pytest.mark.parametrize("dtype", TYPES)
def test_values_are_cast_as_torch_does_but_for_nan(dtype):
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x0FFF, 0x1000, 0x1001, 0x3000], np.uint32)
    bits = (np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | lower).reshape(-1)
    values = torch.from_numpy(bits.view(np.float32).copy())
    expected = values.to(TYPES[dtype]).view(torch.int16).numpy().view(np.uint16)
    found = CASTS[dtype].apply(bits.view(np.uint8)).view("<u2")
    is_nan = values.isnan().numpy()
    assert np.array_equal(found[~is_nan], expected[~is_nan])
    sign, infinity = np.uint16(0x8000), np.uint16(0x7F80 if dtype == "bfloat16" else 0x7C00)
    assert np.all((found[is_nan] & ~sign) > infinity)
    assert np.array_equal(found[is_nan] >> 15, bits[is_nan] >> 31)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("first", [True, False])
def test_casts_take_next_to_nothing_and_come_back(dtype, first, tmp_path):
    state = state_of(MASTERS, TYPES[dtype], first=first)
    data = saved(state)
    assert_same(gcodec.load(io.BytesIO(data)), state)
    alone = saved({"optimizer": state["optimizer"]})
    assert len(data) < len(alone) + 300 * len(MASTERS)
    assert sum(segment.cast is not None for segment in segments_of(data)) == len(MASTERS)
    torch.save(state, tmp_path / "state.pt")
    gcodec.compress_file(tmp_path / "state.pt")
    gcodec.decompress_file(tmp_path / "state.pt.gc", tmp_path / "back.pt")
    assert (tmp_path / "back.pt").read_bytes() == (tmp_path / "state.pt").read_bytes()


def test_parts_of_a_cast_are_read_alone(tmp_path):
    (tmp_path / "x.gc").write_bytes(saved(state_of(MASTERS, torch.bfloat16)))
    with gcodec.open(tmp_path / "x.gc") as file:
        for name, master in MASTERS.items():
            rows = file.get_slice(f"model/{name}")[11:30]
            assert torch.equal(rows, master[11:30].bfloat16())
    only = gcodec.load_file(tmp_path / "x.gc", names=["model/*"])
    assert_same(only, {f"model/{name}": value.bfloat16() for name, value in MASTERS.items()})


@pytest.mark.parametrize("dtype", TYPES)
def test_values_that_are_no_casts_among_casts_come_back(dtype):
    masters = {name: value.clone() for name, value in MASTERS.items()}
    masters["0.weight"][5, :4] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30])
    state = state_of(masters, TYPES[dtype])
    state["model"]["0.weight"][50:52] *= 1.5
    state["model"]["1.weight"].view(torch.int16)[40, :3] = torch.tensor([0x7FC1, -1, 0x7F81], dtype=torch.int16)
    data = saved(state)
    assert_same(gcodec.load(io.BytesIO(data)), state)
    assert sum(segment.cast is not None for segment in segments_of(data)) == len(MASTERS)
    assert len(data) < len(saved({"optimizer": state["optimizer"]})) + 2000


def test_tensors_that_are_alike_in_size_only_are_no_casts():
    other = 0.02 * torch.randn(300, 220, generator=torch.Generator().manual_seed(9))
    state = {"zeros": torch.zeros(300, 220, dtype=torch.bfloat16), "more zeros": torch.zeros(300, 220),
             "weights": other.bfloat16(), "others": MASTERS["0.weight"], "truncated": other[:290].bfloat16(),
             "small": torch.ones(4, dtype=torch.bfloat16), "small master": torch.ones(4)}  # fmt: skip
    data = saved(state)
    assert_same(gcodec.load(io.BytesIO(data)), state)
    assert not any(segment.cast for segment in segments_of(data))


def saved_files(folder: Path, files: dict[str, dict[str, torch.Tensor]]) -> None:
    """Write a .safetensors or .pt file for each name."""
    folder.mkdir()
    for name, tensors in files.items():
        if name.endswith(".pt"):
            torch.save(tensors, folder / name)
        else:
            gcodec.save_file(tensors, folder / "x.gc")
            gcodec.decompress_file(folder / "x.gc", folder / name)
            (folder / "x.gc").unlink()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("names", [("a.bin.pt", "b.safetensors"), ("m.fp16.safetensors", "m.safetensors")])
@pytest.mark.parametrize(("auto_base", "by_command"), [(False, False), (True, False), (True, True)])
def test_a_file_of_casts_of_another_files_tensors_takes_next_to_nothing(
    dtype, names, auto_base, by_command, tmp_path, monkeypatch
):
    """Whichever comes first by name."""
    monkeypatch.chdir(tmp_path)
    narrow = {name: value.to(TYPES[dtype]) for name, value in MASTERS.items()}
    saved_files(Path("both"), dict(zip(names, (narrow, MASTERS), strict=True)))
    saved_files(Path("one"), {names[1]: MASTERS})
    if by_command:
        assert main(["compress", "-q", "both", "one", *["--auto-base"] * auto_base]) == 0
    else:
        gcodec.compress_file("both", auto_base=auto_base)
        gcodec.compress_file("one")
    assert Path("both.gc").stat().st_size < Path("one.gc").stat().st_size + 2500
    gcodec.decompress_file("both.gc", "all/")
    for name in names:
        assert main(["decompress", "-q", "both.gc", "--only", f"both/{name}", "-o", "alone/"]) == 0
        for place in ("all", "alone"):
            assert Path(place, "both", name).read_bytes() == Path("both", name).read_bytes()


def test_files_of_casts_come_after_those_that_they_may_be_of(tmp_path):
    """A file of half of another's size, in its folder; all others keep their order."""
    sizes = {"a": 500_000, "b": 1_009_000, "c": 1_300_000, "d": 995_000, "e": 2_000_000, "f": 50_000, "g": 100_000}
    sizes |= {"other/h": 500_000, "other/i": 1_000_000}
    (tmp_path / "other").mkdir()
    files = [tmp_path / name for name in (*sizes, "gone")]
    for path, size in zip(files, sizes.values(), strict=False):
        path.write_bytes(bytes(size))
    found = [path.name for path in casts_last([None, *files], lambda path: path) if path]
    assert found == ["b", "d", "a", "e", "c", "f", "g", "i", "h", "gone"]


def test_the_first_file_of_half_the_size_is_the_one_that_comparing_all_pairs_finds():
    rng = np.random.default_rng(0)
    for _ in range(100):
        sizes = rng.choice(
            [200_000, 205_000, 400_000, 410_000, 790_000, *rng.integers(10, 900_000, 8)], rng.integers(30)
        )
        expected = {}
        for place, size in enumerate(sizes.tolist()):
            halves = [k for k, half in enumerate(sizes[:place].tolist()) if 0.95 * size <= 2 * half <= 1.05 * size]
            if halves and size > 2 * MAX_SMALL:
                expected[place] = halves[0]
        assert dict(_first_halves(sorted((size, place) for place, size in enumerate(sizes.tolist())))) == expected


def test_what_a_cast_is_of_that_changes_meanwhile_is_an_error_and_leaves_no_archive(tmp_path):
    narrow = {name: value.bfloat16() for name, value in MASTERS.items()}
    saved_files(tmp_path / "both", {"a.safetensors": MASTERS, "b.safetensors": narrow})
    wide, done = tmp_path / "both/a.safetensors", 0

    def progress(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        if done > wide.stat().st_size:
            wide.write_bytes(wide.read_bytes()[:-1] + b"?")

    with pytest.raises(GcodecError, match=r"a\.safetensors: was written to while other files") as caught:
        gcodec.compress_file(tmp_path / "both", progress=progress)
    assert not isinstance(caught.value, Corruption) and not (tmp_path / "both.gc").exists()


def test_a_cast_of_what_a_file_no_longer_holds_is_stored_by_itself(tmp_path):
    """Files that were compressed from a stream, or that are gone or others by then, are read no second time."""
    narrow = {name: value.bfloat16() for name, value in MASTERS.items()}
    saved_files(tmp_path / "both", {"a.safetensors": MASTERS, "b.safetensors": narrow})
    paths = [tmp_path / "both/a.safetensors", tmp_path / "both/b.safetensors"]

    first = paths[0].read_bytes()

    def n_casts(change: Callable[[], object]) -> int:
        stream = io.BytesIO()
        paths[0].write_bytes(first)
        with ArchiveWriter(stream) as archive:
            for path in paths:
                with path.open("rb") as file:
                    add_file(archive, file, path.name)
                change()
        with opened(stream.getvalue()) as archive:
            restored = [b"".join(map(bytes, archive.restored(entry))) for entry in archive.files]
        assert restored[1] == paths[1].read_bytes()
        return sum(segment.cast is not None for segment in segments_of(stream.getvalue()))

    assert n_casts(lambda: None) == len(MASTERS)
    assert n_casts(lambda: paths[0].write_bytes(bytes(1000))) == 0
    assert n_casts(lambda: paths[0].unlink(missing_ok=True)) == 0


def test_a_lossy_mode_makes_no_casts(tmp_path):
    """The float32 values that come back are others than those that the weights were cast from."""
    tensors = {name: value.bfloat16() for name, value in MASTERS.items()} | {f"of {n}": v for n, v in MASTERS.items()}
    gcodec.save_file(tensors, tmp_path / "x.gc", mantissa_bits=10)
    assert not any(segment.cast for segment in segments_of((tmp_path / "x.gc").read_bytes()))
    back = gcodec.load_file(tmp_path / "x.gc")
    assert all(torch.equal(back[name], value.bfloat16()) for name, value in MASTERS.items())


def test_a_cast_that_equals_an_earlier_cast_comes_back(tmp_path):
    """As where masters change between two checkpoints by less than a step of the weights."""
    for number in range(2):
        masters = {name: value.clone() for name, value in MASTERS.items()}
        masters["0.weight"][9, :3] *= 1 + 1e-6 * number
        torch.save(state_of(masters, torch.bfloat16), tmp_path / f"{number}.pt")
    files = [tmp_path / "0.pt", tmp_path / "1.pt"]
    assert main(["compress", "-q", *map(str, files), "-o", str(tmp_path / "both.gc")]) == 0
    gcodec.decompress_file(tmp_path / "both.gc", f"{tmp_path}/back/")
    assert all((tmp_path / "back" / path.name).read_bytes() == path.read_bytes() for path in files)
    for path in files:  # each by itself
        out = tmp_path / "alone"
        assert main(["decompress", "-q", str(tmp_path / "both.gc"), "--only", path.name, "-o", f"{out}/"]) == 0
        assert (out / path.name).read_bytes() == path.read_bytes()


def test_a_series_stores_casts_in_its_differences_too(tmp_path):
    checkpoints, states = gcodec.Checkpointer(tmp_path, full_every=3), []
    for step in range(4):
        moved = {name: value * (1 + 1e-3 * step) for name, value in MASTERS.items()}
        states.append(state_of(moved, torch.bfloat16))
        checkpoints.save(step, states[-1])
    for step, state in enumerate(states):
        assert_same(checkpoints.load(step), state)
        assert any(segment.cast for file in tmp_path.glob(f"*{step}*") for segment in segments_of(file.read_bytes()))
    checkpoints.delete(0)
    assert_same(checkpoints.load(1), states[1])


def test_casts_of_no_segment_that_they_may_be_of_are_refused():
    head, index = index_of(saved(state_of(MASTERS, torch.bfloat16)))
    segments = index["files"][0]["segments"]
    narrow = [number for number, segment in enumerate(segments) if "cast" in segment]
    number, (file, of) = narrow[0], segments[narrow[0]]["cast"]
    other = segments[narrow[1]]["cast"][1]

    def refused(why: str, at: int = number, kind: type[GcodecError] = Corruption, **changes: Any) -> None:
        changed = json.loads(json.dumps(index))
        segment = changed["files"][0]["segments"][at]
        segment.update(changes)
        changed["files"][0]["segments"][at] = {key: value for key, value in segment.items() if value is not None}
        with pytest.raises(kind, match=why), opened(with_index(head, json.dumps(changed).encode())) as archive:
            for entry in archive.files:
                for _ in archive.restored(entry):
                    pass

    for place in ([file, number], [file, narrow[1]], [file, 1 << 40], [1, 0], [1 << 60, 0], [file, other]):
        refused("is no cast of", cast=place)
    for place in ([], [0], [0, 0, 0]):
        refused("must name a file and a segment", cast=place)
    refused("is not a number", cast=[0, -1])
    refused("one of a base, a cast and an earlier version", base="0" * 16)
    refused("is no cast of", at=of, cast=[file, other])
    refused("base", cast=None, kind=Unsupported)  # its frame refers to a base, and nothing says to which
    refused("no chunks", same=[file, of])


def test_damage_of_what_a_cast_is_of_is_called_damage():
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 1 << 32, 90_000, np.uint32).view(np.float32))
    state = {"weights": noise.bfloat16(), "master": noise}  # which no compression makes smaller
    data = bytearray(saved(state))
    with opened(bytes(data)) as archive:
        entry = archive.files[0]
        [segment] = [segment for segment in entry.segments if segment.cast]
        assert segment.cast is not None
        of = entry.segments[segment.cast[1]]
    assert of.chunks[0].codec == STORED
    data[of.offset + of.chunks[0].stored // 8 * 4 + 3] ^= 0x40  # of a value's exponent
    with ArchiveReader(io.BytesIO(bytes(data))) as archive, pytest.raises(Corruption):
        archive.read("weights")


def test_the_command_line_and_reports_name_what_a_tensor_is_a_cast_of(tmp_path: Path, capsys, monkeypatch):
    from gcodec.cli import main

    monkeypatch.setenv("COLUMNS", "200")  # enough for whole names

    (tmp_path / "x.gc").write_bytes(saved(state_of(MASTERS, torch.bfloat16)))
    for arguments in (["inspect"], ["decompress", "--list"]):
        assert main([*arguments, str(tmp_path / "x.gc")]) == 0
        assert "cast of optimizer/0.weight/master" in capsys.readouterr().out
