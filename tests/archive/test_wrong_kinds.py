"""Only damage is called Corruption: a whole file of another kind is named as what it is, with the call that reads it.

Programs that go back to an earlier checkpoint where one is damaged rely on both.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import gcodec
from gcodec.errors import Corruption, WrongKind
from gcodec.sync import Subscriber
from tests.support.gguf_files import Stored, gguf_file

VALUES = np.linspace(-1, 1, 200, dtype=np.float32)


def made(write: Callable[[Any], object]) -> bytes:
    """Return the bytes that a function writes to a stream."""
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


def safetensors() -> bytes:
    from safetensors.numpy import save

    return bytes(save({"w": VALUES}))


def zip_of_text() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("notes.txt", "no tensors")
    return stream.getvalue()


READS, NOTHING = "gcodec.load", ""
#: Files by name: their bytes, what an error says that they are, and the call that it names.
WHOLE: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "a.safetensors": (safetensors, ".safetensors file", READS),
    "a.pt": (lambda: made(lambda to: torch.save({"w": torch.ones(3)}, to)), "torch.save", READS),
    "a.npz": (lambda: made(lambda to: np.savez(to, w=VALUES)), "numpy.savez", READS),
    "a.npy": (lambda: made(lambda to: np.save(to, VALUES)), ".npy file", READS),
    "a.gguf": (lambda: gguf_file({"w": Stored("float32", (200,), VALUES.tobytes())}), ".gguf file", READS),
    "old.pt": (
        lambda: made(lambda to: torch.save({"w": torch.ones(3)}, to, _use_new_zipfile_serialization=False)),
        "a pickle",
        READS,
    ),
    "a.pkl": (lambda: pickle.dumps({"lr": 0.1}), "a pickle", READS),
    "a.zip": (zip_of_text, "zip file", READS),
    "a.frame": (lambda: gcodec.encode(VALUES), "a gcodec frame", "gcodec.decode"),
    "config.json": (lambda: b'{"hidden_size": 64, "layers": 2}\n', "text", NOTHING),
    "pointer.gc": (lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS", "git lfs pull"),
    "a.bin": (lambda: VALUES.tobytes(), NOTHING, NOTHING),
}
READERS: dict[str, Callable[[Path], object]] = {
    "load_file": gcodec.load_file,
    "open": gcodec.open,
    "load_into": lambda path: gcodec.load_into(torch.nn.Linear(2, 2), path),
    "decompress_file": gcodec.decompress_file,
    "subscriber": lambda path: Subscriber().apply(path),
    "archive": gcodec.archive.ArchiveReader,
    "stream": lambda path: _of_stream(path),
}


def _of_stream(path: Path) -> object:
    with path.open("rb") as stream:
        return gcodec.load_file(stream)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("reader", READERS)
def test_a_whole_file_of_another_kind_is_not_called_damaged(reader, name, tmp_path):
    make, what, call = WHOLE[name]
    (tmp_path / name).write_bytes(make())
    with pytest.raises(WrongKind) as found:
        READERS[reader](tmp_path / name)
    assert not isinstance(found.value, Corruption)
    for part in (str(tmp_path / name), "not a gcodec archive", what, call):
        assert part in str(found.value)


@pytest.mark.parametrize("name", [name for name in WHOLE if WHOLE[name][2] == READS and name not in ("a.pkl", "a.zip")])
def test_the_call_that_an_error_names_reads_the_file(name, tmp_path):
    (tmp_path / name).write_bytes(WHOLE[name][0]())
    assert gcodec.load(tmp_path / name) is not None


@pytest.mark.parametrize("name", ["a.zip", "a.frame", "config.json", "pointer.gc", "a.bin"])
def test_what_no_call_loads_is_not_called_damaged_either(name, tmp_path):
    (tmp_path / name).write_bytes(WHOLE[name][0]())
    with pytest.raises(WrongKind, match=rf"{name}: not a gcodec archive; nor is it a \.pt") as found:
        gcodec.load(tmp_path / name)
    assert "zip file of" in str(found.value) if name == "a.zip" else WHOLE[name][1] in str(found.value)


@pytest.mark.parametrize("kind", ["a.npy", "a.npz", "a.gguf", "a.safetensors", "config.json"])
def test_a_step_that_is_another_kind_of_file_is_not_called_damaged(kind, tmp_path):
    checkpoints = gcodec.Checkpointer(tmp_path)
    path = Path(checkpoints.save(3, {"w": VALUES}).path)
    path.write_bytes(WHOLE[kind][0]())
    with pytest.raises(WrongKind, match=r"step-00000003\.gc: not a gcodec archive"):
        checkpoints.load()


@pytest.mark.parametrize("name", ["x.gc", "last.ckpt", ""])
def test_an_archive_that_lost_bytes_is_damaged_under_whatever_name(name, tmp_path):
    whole = made(lambda to: gcodec.save({"w": VALUES}, to))

    def outcome(data: bytes, load: Callable[[Any], object]) -> None:
        given: Any = io.BytesIO(data)
        if name:
            given = tmp_path / name
            given.write_bytes(data)
        with pytest.raises(Corruption):
            load(given)

    rng = np.random.default_rng(1)
    for load in (gcodec.load, gcodec.load_file, gcodec.open):
        for size in (0, 1, 3, 4, 7, 8, 30, 39, 40, len(whole) // 2, len(whole) - 1):
            outcome(whole[:size], load)
        for n_lost in (1, 2, 4, 8, 9, 16, 64):  # of its first bytes
            outcome(bytes(n_lost) + whole[n_lost:], load)
            outcome(rng.bytes(n_lost) + whole[n_lost:], load)
            outcome(b"P" * n_lost + whole[n_lost:], load)
        outcome(bytes(len(whole)), load)  # blocks that never reached the disk
        outcome(bytes(4096) + whole[4096:-40], load)
        if name != "last.ckpt":  # which nothing tells from a file of another program
            outcome(rng.bytes(9) + whole[9:-40], load)


def test_frames_are_told_from_other_files_too(tmp_path):
    frame = gcodec.encode(VALUES)
    with pytest.raises(Corruption, match="not a gcodec frame"):
        gcodec.decode(b"\0" + frame[1:])
    for name in ("a.npy", "a.npz", "a.safetensors"):
        with pytest.raises(WrongKind, match=rf"not a gcodec frame.*; this is .*{WHOLE[name][1]}"):
            gcodec.decode(WHOLE[name][0]())


def test_an_encrypted_or_unknown_member_of_a_zip_is_not_called_damaged_and_the_file_is_kept_as_it_is(tmp_path):
    """Flags and methods are patched in both headers, for Python writes neither."""
    whole = made(lambda to: np.savez_compressed(to, w=VALUES))
    local, central = whole.index(b"PK\x03\x04"), whole.index(b"PK\x01\x02")
    for offset, value, why in ((6, 1, "is encrypted"), (8, 99, "compression method")):
        data = bytearray(whole)
        data[local + offset] |= value
        data[central + offset + 2] |= value
        (tmp_path / "a.npz").write_bytes(data)
        with pytest.raises(gcodec.Unsupported, match=rf"a\.npz: cannot unpack: .*{why}"):
            gcodec.load(tmp_path / "a.npz")
        note = gcodec.compress_file(tmp_path / "a.npz", force=True).note
        assert "kept as plain bytes: cannot unpack" in note
        gcodec.decompress_file(tmp_path / "a.npz.gc", tmp_path / "back.npz", force=True)
        assert (tmp_path / "back.npz").read_bytes() == data
