"""The laws of values in files of unknown kinds: found where they are, and the file restored whatever is found."""

from __future__ import annotations

import io
import json
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec.archive import ArchiveReader
from gcodec.archive.found_values import MIN_RUN, SAMPLE, STEP, with_found_values
from gcodec.cli import main
from gcodec.errors import GcodecError, Unsupported
from gcodec.files import ArraySource, FilePlan, open_source, plan_file
from gcodec.files.elements import width

RNG = np.random.default_rng(20)
TEXT = b" ".join(b"%d %s" % (i * i, b"word" * (i % 5)) for i in range(40_000))
RANDOM = RNG.bytes(300_000)
TYPES = ("float32", "bfloat16", "float16", "float64")


@cache
def values(dtype: str, n_bytes: int = 400_000) -> bytes:
    n_values = n_bytes // (width(dtype) or 1)
    normal = np.random.default_rng(n_values).standard_normal(n_values) / 30
    if dtype == "bfloat16":
        return (normal.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return normal.astype(np.dtype(dtype).newbyteorder("<")).tobytes()


def of_float32(seed: int, n_bytes: int) -> bytes:
    return (np.random.default_rng(seed).standard_normal(n_bytes // 4) / 30).astype("<f4").tobytes()


def plain(data: bytes) -> FilePlan:
    return plan_file("x", ArraySource([np.frombuffer(data, np.uint8)]))


def found_in(data: bytes) -> list[tuple[int, int, str]]:
    segments = with_found_values(plain(data)).segments
    return [(segment.start, segment.stop, segment.dtype) for segment in segments if segment.dtype]


def archive_of(data: bytes, tmp_path: Path, mantissa_bits: int | None = None) -> bytes:
    (tmp_path / "x").write_bytes(data)
    output = io.BytesIO()
    gcodec.compress_file(tmp_path / "x", output, mantissa_bits=mantissa_bits)
    return output.getvalue()


def restored(archive: bytes) -> bytes:
    output = io.BytesIO()
    gcodec.decompress_file(io.BytesIO(archive), output)
    return output.getvalue()


@pytest.mark.parametrize("phase", [0, 1, 3])
@pytest.mark.parametrize("around", [TEXT, RANDOM, b""], ids=["text", "random", "nothing"])
@pytest.mark.parametrize("dtype", TYPES)
def test_values_are_found_between_other_bytes(dtype, around, phase, tmp_path):
    before = around[: len(around) // 8 * 8] + bytes(phase)
    after = around[::-1]  # else Zstandard would find it again, which is worth more than values are
    data = before + values(dtype) + after
    found = found_in(data)
    assert {width(of) for _, _, of in found} == {width(dtype)}  # float16 may be as small when taken for bfloat16
    start, stop = found[0][0], found[-1][1]
    assert abs(start - len(before)) <= SAMPLE and abs(stop - len(before) - len(values(dtype))) <= SAMPLE
    covered = sum(end - begin for begin, end, _ in found)
    assert covered >= 0.9 * len(values(dtype))
    archive = archive_of(data, tmp_path)
    assert restored(archive) == data
    unit = "<u2" if dtype == "bfloat16" else dtype
    frame = len(gcodec.encode(np.frombuffer(values(dtype), unit), dtype=dtype))
    others = sum(len(archive_of(part, tmp_path)) for part in (around, after) if part)
    assert len(archive) <= 1.02 * (frame + others) + 4000


@pytest.mark.parametrize("n_bytes", [STEP // 2, STEP, 200_000])
def test_values_are_found_where_samples_meet_every_second_piece_only(n_bytes):
    data = b"".join(of_float32(seed, n_bytes - 8) + b"13 more bytes" + bytes(3 + seed % 2) for seed in range(24))
    covered = sum(stop - start for start, stop, _ in found_in(data))
    assert covered >= 0.8 * len(data)


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">f2"])
def test_big_endian_values_are_found_a_byte_further_on(dtype):
    data = (np.random.default_rng(1).standard_normal(100_000) / 30).astype(dtype).tobytes()
    ((start, stop, found),) = found_in(data)
    assert (start, width(found)) == (1, int(dtype[-1])) and stop > len(data) - 8


def test_values_of_several_types_and_phases_are_told_apart():
    parts = [values("float32"), b"x" * 777, values("bfloat16"), TEXT, values("float64"), values("float16"), b"y"]
    found = found_in(b"".join(parts))
    assert {width(dtype) for _, _, dtype in found} == {2, 4, 8}
    for n_bytes, whole in ((4, 400_000), (2, 800_000), (8, 400_000)):
        covered = sum(stop - start for start, stop, dtype in found if width(dtype) == n_bytes)
        assert abs(covered - whole) <= 3 * SAMPLE


@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        RANDOM,
        zlib.compress(TEXT * 5),
        bytes(500_000),
        b"abc" * 200_000,
        RNG.integers(0, 50_000, 200_000).astype("<u2").tobytes(),
        RNG.integers(-100, 100, 400_000).astype("i1").tobytes(),
        np.repeat(RNG.integers(0, 1000, 4000), 40).astype("<i4").tobytes(),
        TEXT.decode().encode("utf-16-le"),
        values("float32", 1 << 16) * 8,  # repetitions, which Zstandard finds
        values("float32")[: MIN_RUN - 8],
        b"",
    ],
    ids=["text", "random", "zlib", "zeros", "period", "uint16", "int8", "runs", "utf-16", "repeated", "short", "empty"],
)
def test_files_in_which_values_would_save_nothing_stay_as_they_are(data):
    assert with_found_values(plain(data)).segments == plain(data).segments


@pytest.mark.parametrize(
    "data",
    [
        b"".join(of_float32(seed, 1_000_000) * 2 for seed in range(5)),
        values("bfloat16", 1_200_002) * 3,
        values("float64", 1_000_000) * 3,
        b"".join(b"odd" + of_float32(seed, 600_000) + b"size" + of_float32(seed, 600_000) for seed in range(6)),
        b"".join(of_float32(seed, 200_000) + TEXT for seed in range(20)),
        (RANDOM[:30_000] + of_float32(0, 560_000)) * 2,
        b"".join(
            of_float32(seed, 1 << 18) if 18 < seed < 22 else of_float32(seed, 16_384) + TEXT[: (1 << 18) - 16_384]
            for seed in range(41)
        )
        + of_float32(41, 1 << 18),
    ],
    ids=["copies", "bfloat16", "float64", "copies-at-odd-places", "text-between", "random-before", "where-samples-are"],
)
def test_a_file_becomes_no_larger_than_with_zstandard(data, tmp_path, monkeypatch):
    found = archive_of(data, tmp_path)
    assert restored(found) == data
    monkeypatch.setattr("gcodec.archive.whole_files.with_found_values", lambda plan: plan)
    assert len(found) <= 1.01 * len(archive_of(data, tmp_path))


@given(st.lists(st.tuples(st.sampled_from([*TYPES, "text", "random", "zeros"]), st.integers(1, 300_000)), max_size=5))
def test_any_mixture_gives_segments_in_order_that_are_whole_values(pieces):
    sources = {"text": TEXT, "random": RANDOM, "zeros": bytes(300_000), **{t: values(t) for t in TYPES}}
    data = b"".join(sources[kind][:size] for kind, size in pieces)
    plan = with_found_values(plain(data))
    assert b"".join(plan.source.read(s.start, s.stop).tobytes() for s in plan.segments) == data or not found_in(data)
    for segment in plan.segments:
        assert (segment.stop - segment.start) % (width(segment.dtype or "uint8") or 1) == 0
    assert not plan.tensors  # so that no lossy mode and no name applies to a guess


def test_a_lossy_mode_changes_no_value_that_was_only_found(tmp_path):
    data = TEXT + values("float32")
    archive = archive_of(data, tmp_path, mantissa_bits=4)
    assert restored(archive) == data
    assert archive == archive_of(data, tmp_path)  # found they are, and as small as without the mode
    assert "stays exact" in gcodec.compress_file(tmp_path / "x", io.BytesIO(), mantissa_bits=4).note
    assert not gcodec.compress_file(tmp_path / "x", io.BytesIO()).note


def test_lists_say_how_much_was_found_and_what_the_base_is(tmp_path, capsys):
    old, new = tmp_path / "old.h5", tmp_path / "new.h5"
    old.write_bytes(TEXT + values("float32") + TEXT[::-1] + values("float64"))
    new.write_bytes(TEXT + near(values("float32"), 3) + TEXT[::-1] + values("float64"))
    gcodec.compress_file(old)
    gcodec.compress_file(new, base=old)
    assert main(["decompress", "--list", "--json", str(tmp_path / "new.h5.gc")]) == 0
    row = json.loads(capsys.readouterr().out)[0]["files"][0]
    with ArchiveReader(tmp_path / "new.h5.gc") as archive:
        sizes = {segment.dtype: segment.bytes for segment in archive.files[0].segments if segment.dtype}
    assert row["found"] == sizes and set(sizes) == {"float32", "float64"}
    for verb in (["inspect"], ["decompress", "--list"]):
        assert main([*verb, str(tmp_path / "new.h5.gc")]) == 0
        printed = capsys.readouterr().out
        assert " kB found to be float32, " in printed and " kB found to be float64\n" in printed
        assert "base: old.h5\n" in printed


def test_a_copy_of_a_file_is_called_so_though_it_is_cut_into_segments(tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    data = RANDOM + values("float32") + TEXT
    for name, content in (("a", data), ("b", data), ("c", data + data[:300_000])):
        (folder / name).write_bytes(content)
    assert main(["compress", str(folder), "-o", str(tmp_path / "run.gc"), "-q"]) == 0
    assert main(["decompress", "--list", str(tmp_path / "run.gc")]) == 0
    whole, copy, other, _ = capsys.readouterr().out.splitlines()[1:]
    assert copy.startswith("run/b: bytes, 1.45 MB as run/a")
    assert " as " not in whole + other
    with ArchiveReader(tmp_path / "run.gc") as archive:
        assert [len(entry.segments) for entry in archive.files[:2]] == [3, 3]


def near(data: bytes, seed: int) -> bytes:
    """Return float32 values that differ from these in their last bits."""
    noise = np.random.default_rng(seed).standard_normal(len(data) // 4)
    return (np.frombuffer(data, "<f4") * (1 + 1e-5 * noise)).astype("<f4").tobytes()


def test_values_of_an_earlier_file_at_the_same_place_are_the_base(tmp_path):
    old, middle, new, short = (tmp_path / name for name in ("old.h5", "middle.h5", "new.h5", "short.h5"))
    first = values("float32")
    old.write_bytes(TEXT + first + b"end")
    middle.write_bytes(TEXT + near(first, 1) + b"and")
    new.write_bytes(TEXT[::-1] + near(near(first, 1), 2) + b"END")
    short.write_bytes(old.read_bytes()[: len(TEXT) + 200_000])
    alone = gcodec.compress_file(new, io.BytesIO())
    for base in (middle, [tmp_path / "middle.h5.gc", old]):
        gcodec.compress_file(middle, base=old, force=True)
        output, back = io.BytesIO(), io.BytesIO()
        made = gcodec.compress_file(new, output, base=base)
        assert made.needs_base and made.archive_bytes < alone.archive_bytes - 0.4 * len(first)
        with pytest.raises(Unsupported, match=r"was compressed against a base, middle\.h5"):
            gcodec.decompress_file(io.BytesIO(output.getvalue()), io.BytesIO())
        with pytest.raises(Unsupported, match=r"does not hold .* bytes of float32 at byte"):
            gcodec.decompress_file(io.BytesIO(output.getvalue()), io.BytesIO(), base=short)
        with pytest.raises(GcodecError, match="hashes differ"):
            gcodec.decompress_file(io.BytesIO(output.getvalue()), io.BytesIO(), base=new)
        gcodec.decompress_file(io.BytesIO(output.getvalue()), back, base=base)
        assert back.getvalue() == new.read_bytes()


def test_a_series_keeps_files_of_unknown_kinds_as_differences(tmp_path):
    data = values("float32")
    for step in (1, 2, 3):
        (tmp_path / f"step-{step}.h5").write_bytes(TEXT + data)
        data = near(data, step)
    places = [str(tmp_path / f"step-{step}.h5") for step in (1, 2, 3)]
    assert main(["series", "add", str(tmp_path / "run"), *places, "-q"]) == 0
    stored = [(tmp_path / "run" / f"step-{step:08d}.gc").stat().st_size for step in (1, 2, 3)]
    assert max(stored[1:]) < 0.6 * stored[0]
    assert main(["series", "delete", str(tmp_path / "run"), "2", "-q"]) == 0
    assert main(["series", "restore", str(tmp_path / "run"), "3", "-o", str(tmp_path / "back.h5"), "-q"]) == 0
    assert (tmp_path / "back.h5").read_bytes() == Path(places[2]).read_bytes()


def test_what_cannot_be_read_twice_is_not_looked_at():
    class Remote(io.BytesIO):
        """A file of which every byte that is read is fetched."""

    source = open_source(Remote(values("float32")))
    plan = plan_file("x", source)
    assert with_found_values(plan) is plan
