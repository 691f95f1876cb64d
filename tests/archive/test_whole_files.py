"""Files compressed and restored from Python: the command line's archives, byte for byte, and nothing lost."""

from __future__ import annotations

import errno
import io
import os
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

import gcodec
from gcodec.cli import main
from gcodec.errors import Corruption, GcodecError, InvalidArgument, LimitExceeded, Unsupported
from tests.archive.test_files import npy

VALUES = np.random.default_rng(0).standard_normal((200, 60)).astype(np.float32)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return files of several kinds in the working folder."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", VALUES)
    np.savez("y.npz", a=VALUES, b=np.arange(5))
    Path("z.txt").write_text("some text\n" * 100)
    Path("raw.f32").write_bytes(VALUES.tobytes())
    return [Path(name) for name in ("x.npy", "y.npz", "z.txt", "raw.f32")]


def test_archives_are_those_of_the_command_line(files):
    for file in files:
        options: dict[str, Any] = {"dtype": "float32"} if file.suffix == ".f32" else {}
        found = gcodec.compress_file(file, **options)
        assert found.path == Path(f"{file}.gc") and found.exact and not found.needs_base and not found.note
        assert found.input_bytes == file.stat().st_size and found.archive_bytes == found.path.stat().st_size
        assert found.ratio == found.input_bytes / found.archive_bytes
        arguments = [f"--{name}={value}" for name, value in options.items()]
        assert main(["compress", "-q", str(file), "-o", "other.gc", "-f", *arguments]) == 0
        assert Path("other.gc").read_bytes() == found.path.read_bytes()
        restored = gcodec.decompress_file(found.path, f"out/{file.stem}/")
        assert restored == [Path("out", file.stem, file.name)]
        assert restored[0].read_bytes() == file.read_bytes()
    assert not [path for path in Path().iterdir() if "partial" in path.name]


def test_streams_are_compressed_and_decompressed_as_files_are(files):
    for file in files[:3]:
        archive, again = io.BytesIO(), io.BytesIO()
        with file.open("rb") as stream:
            assert gcodec.compress_file(stream, archive).path is None
        archive.seek(0)
        assert gcodec.decompress_file(archive, again) == []
        assert again.getvalue() == file.read_bytes()
        archive.seek(0)
        assert gcodec.decompress_file(archive, f"there/{file.stem}/") == [Path("there", file.stem, file.name)]
    assert gcodec.compress_file(io.BytesIO(Path("x.npy").read_bytes()), "w.gc").path == Path("w.gc")
    for function in (gcodec.compress_file, gcodec.decompress_file):
        with pytest.raises(InvalidArgument, match="output must be given"):
            function(io.BytesIO(b"x"))


@pytest.mark.parametrize("place", [None, b"n.npy", 7, ["x.npy"]], ids=str)
def test_what_is_no_place_of_a_file_is_refused_by_name(place, files):
    for function in (gcodec.compress_file, gcodec.decompress_file):
        with pytest.raises(InvalidArgument, match="path must be a path, a URL or a binary stream, not "):
            function(place)
        if place is not None:
            with pytest.raises(InvalidArgument, match="output must be a path, a URL or a binary stream, not "):
                function(files[0], place)


def test_files_that_are_open_for_text_are_refused_before_anything_is_written(files):
    gcodec.compress_file("x.npy", "v.gc")
    before = sorted(Path().iterdir())
    for function, place in ((gcodec.compress_file, "x.npy"), (gcodec.decompress_file, "v.gc")):
        text: Any = io.StringIO()
        with pytest.raises(InvalidArgument, match="output must be a binary stream, not a StringIO"):
            function(place, text)
        with pytest.raises(InvalidArgument, match="path must be a binary stream, not a StringIO"):
            function(text, "new")
        assert text.getvalue() == "" and sorted(Path().iterdir()) == before


@pytest.mark.parametrize("form", ["{}/new/", "{}/there/", "file://{}/new/"])
def test_a_path_that_ends_in_a_slash_is_no_file_to_be_written(form, tmp_path):
    (tmp_path / "there").mkdir()
    np.save(tmp_path / "x.npy", np.ones(3))
    place, values = form.format(tmp_path), {"a": np.ones(3)}
    for write in (
        lambda: gcodec.save(values, place),
        lambda: gcodec.save_file(values, place),
        lambda: gcodec.compress_file(tmp_path / "x.npy", place),
    ):
        with pytest.raises(InvalidArgument, match="the path of a file, not of a folder"):
            write()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["there", "x.npy"]


def test_permissions_and_times_are_kept_as_on_the_command_line(files):
    file = files[0]
    file.chmod(0o600)
    os.utime(file, ns=(10**18, 10**18))
    archive = gcodec.compress_file(file).path
    assert archive is not None
    restored = gcodec.decompress_file(archive, "again.npy")
    for path in (archive, *restored):
        assert path.stat().st_mode & 0o777 == 0o600 and path.stat().st_mtime_ns == 10**18


@pytest.mark.skipif(os.name != "posix", reason="no permission bits")
def test_the_mask_of_the_moment_counts(files):
    assert main(["compress", "-q", *map(str, files[:2]), "-o", "both.gc"]) == 0
    before = os.umask(0o022)
    try:
        for mask, mode in ((0o022, 0o644), (0o077, 0o600), (0o027, 0o640)):
            os.umask(mask)
            Path("both.gc").chmod(0o644)
            for path in gcodec.decompress_file("both.gc", f"by-{mask:o}/"):
                assert path.stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)


def test_nothing_is_replaced_that_was_not_meant(files):
    before = files[0].read_bytes()
    gcodec.compress_file("x.npy")
    with pytest.raises(GcodecError, match="exists already"):
        gcodec.compress_file("x.npy")
    gcodec.compress_file("x.npy", force=True)
    with pytest.raises(GcodecError, match="exists already"):
        gcodec.decompress_file("x.npy.gc")
    cases: list[Any] = [
        lambda: gcodec.compress_file("x.npy", "x.npy", force=True),
        lambda: gcodec.compress_file("x.npy", "y.npz", base="y.npz", force=True),
        lambda: gcodec.decompress_file("x.npy.gc", "x.npy.gc", force=True),
        lambda: gcodec.decompress_file("x.npy.gc", "y.npz", base="y.npz", force=True),
        lambda: gcodec.compress_file("x.npy.gc"),
        lambda: gcodec.compress_file("x.npy", "n.gc", base="y.npz", mantissa_bits=3),
        lambda: gcodec.compress_file("x.npy", "n.gc", mantissa_bits=99),
        lambda: gcodec.compress_file("z.txt", "n.gc", mantissa_bits=0),
    ]
    for case in cases:
        with pytest.raises(InvalidArgument):
            case()
    assert files[0].read_bytes() == before and not Path("n.gc").exists()
    with pytest.raises(FileNotFoundError):
        gcodec.compress_file("missing.npy")


def test_files_are_compressed_against_a_base_or_with_fewer_bits(files):
    np.save("new.npy", VALUES * np.float32(1.0000002))
    found = gcodec.compress_file("new.npy", base="x.npy")
    assert found.needs_base and found.ratio > gcodec.compress_file("x.npy", "alone.gc").ratio
    with pytest.raises(Unsupported, match="base"):
        gcodec.decompress_file("new.npy.gc", "out/")
    assert not Path("out").exists() or not list(Path("out").iterdir())
    (restored,) = gcodec.decompress_file("new.npy.gc", "out/", base="x.npy")
    assert restored.read_bytes() == Path("new.npy").read_bytes()
    rough = gcodec.compress_file("x.npy", "rough.gc", mantissa_bits=5)
    assert not rough.exact and rough.archive_bytes < 0.5 * found.input_bytes
    gcodec.decompress_file("rough.gc", "rough.npy")
    assert np.allclose(np.load("rough.npy"), VALUES, rtol=2.0**-6)
    assert "which would save nothing" in gcodec.compress_file("x.npy", "n.gc", base={"x": -VALUES[::-1]}).note


def test_several_files_need_a_folder(files):
    main(["compress", "-q", "x.npy", "z.txt", "-o", "all.gc"])
    for output in ("one.npy", io.BytesIO()):
        with pytest.raises(InvalidArgument, match="must be a folder"):
            gcodec.decompress_file("all.gc", output)
    assert gcodec.decompress_file("all.gc", "out/") == [Path("out/x.npy"), Path("out/z.txt")]
    with pytest.raises(LimitExceeded):
        gcodec.decompress_file("all.gc", "limited/", max_output_bytes=1000)
    data = bytearray(Path("all.gc").read_bytes())
    data[100] ^= 1
    Path("all.gc").write_bytes(data)
    with pytest.raises(Corruption):
        gcodec.decompress_file("all.gc", "damaged/")
    assert not Path("damaged").exists() and not Path("limited").exists()


def test_progress_adds_up_to_the_size(files):
    counts: list[int] = []
    found = gcodec.compress_file("y.npz", progress=counts.append)
    n_bytes = sum(counts)
    assert 0 < n_bytes <= found.input_bytes
    counts.clear()
    gcodec.decompress_file("y.npz.gc", "out/", progress=counts.append)
    assert sum(counts) == found.input_bytes


class Pipe(io.BytesIO):
    """A stream that cannot seek."""

    def seekable(self) -> bool:
        return False


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("what", ["stream", "npz", "pt"])
def test_a_folder_of_temporary_files_that_is_full_is_named(what, tmp_path, monkeypatch):
    def full() -> BinaryIO:
        return open("/dev/full", "w+b", buffering=0)

    values = np.arange(20_000, dtype=np.float32)
    np.savez_compressed(tmp_path / "x.npz", a=values)
    if what == "pt":
        torch = pytest.importorskip("torch")
        torch.save({"a": torch.from_numpy(values)}, tmp_path / "x.pt")
        gcodec.compress_file(tmp_path / "x.pt")
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    monkeypatch.setattr("gcodec.archive.state_files.TemporaryFile", full)
    with pytest.raises(OSError, match="No space") as raised:
        if what == "stream":
            gcodec.compress_file(Pipe(npy(values)), tmp_path / "x.gc")
        elif what == "npz":
            gcodec.compress_file(tmp_path / "x.npz")
        else:
            gcodec.load(tmp_path / "x.pt.gc")
    assert raised.value.filename == tempfile.gettempdir()


def test_a_file_that_cannot_be_read_is_named_and_not_what_is_written(tmp_path, monkeypatch):
    def fail(*arguments: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "x.npy").write_bytes(npy(np.arange(20_000, dtype=np.float32)))
    monkeypatch.setattr(os, "preadv", fail, raising=False)
    with pytest.raises(OSError, match="Input/output") as raised:
        gcodec.compress_file(tmp_path / "x.npy")
    assert raised.value.filename == str(tmp_path / "x.npy")


def test_a_file_is_not_restored_under_the_name_of_another_kind(files, capsys):
    """Its tensors would be looked for in a file of that kind; -o makes .safetensors files alone of other kinds."""
    for name in ("x.npy", "y.npz", "z.txt"):
        gcodec.compress_file(name)
    main(["series", "add", "-q", "series", "y.npz", "--step", "1"])
    for archive, target, kind in [
        ("x.npy.gc", "t.npz", "npy"),
        ("x.npy.gc", "t.safetensors", "npy"),
        ("y.npz.gc", "t.npy", "npz"),
        ("y.npz.gc", "t.pt", "npz"),
    ]:
        with pytest.raises(InvalidArgument, match=rf"{target}: would be a \.{kind} file .* call it t\.{kind}"):
            gcodec.decompress_file(archive, target)
        if target != "t.safetensors":
            assert main(["decompress", archive, "-o", f"{target}"]) == 2
            assert f"error: {target}: would be a .{kind} file" in capsys.readouterr().err
    assert main(["series", "restore", "series", "-o", "t.safetensors"]) == 2
    assert "t.safetensors: would be a .npz file" in capsys.readouterr().err
    assert main(["decompress", "y.npz.gc", "--only", "a", "-o", "t.npz"]) == 2
    assert "t.npz: would be a .npy file under the name of a .npz file; call it t.npy" in capsys.readouterr().err
    assert not [path for path in Path().iterdir() if path.stem == "t"]
    Path("series/step-00000001.gc").rename("odd.npy.gc")
    for archive, target, original in [
        ("z.txt.gc", "t.npy", "z.txt"),
        ("x.npy.gc", "t.bin", "x.npy"),
        ("odd.npy.gc", "t.npz", "y.npz"),
        ("y.npz.gc", "t", "y.npz"),
    ]:
        assert gcodec.decompress_file(archive, target, force=True) == [Path(target)]
        assert Path(target).read_bytes() == Path(original).read_bytes()
