"""The laws of ``--dtype``: it says what raw values are, and nothing of files that say so themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import save as safetensors_bytes

from gcodec.archive import load_file
from tests.archive.test_files import npz
from tests.cli.test_cli import FLOATS, write
from tests.support import commands
from tests.support.commands import run

folder = commands.folder


@pytest.mark.parametrize("lossy", [[], ["--mantissa-bits", 3]], ids=["lossless", "lossy"])
def test_types_are_not_given_to_files_that_have_their_own(capsys, lossy):
    files = {
        "x.npz": npz({"a": FLOATS}),
        "c.npz": npz({"a": FLOATS}, compressed=True),
        "x.bin": npz({"a": FLOATS}),
        "x.safetensors": safetensors_bytes({"a": FLOATS}),
    }
    write(files)
    for name in files:
        run("compress", name, "--dtype", "bfloat16", *lossy, code=1)
        assert f"{name}: is a " in capsys.readouterr().err
        assert not Path(f"{name}.gc").exists()


def test_raw_values_may_begin_as_other_files_do():
    files = {"zip": b"PK\x03\x04" + FLOATS.tobytes(), "safetensors": (8).to_bytes(8, "little") + b"{" + bytes(7) * 9}
    write(files)
    for name, data in files.items():
        run("compress", name, "--dtype", "uint8")
        assert load_file(f"{name}.gc")[name].tobytes() == data
