"""The laws of the command line: every kind of input there and back, exit codes, nothing left behind or replaced
unasked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file as load_safetensors
from safetensors.numpy import save_file as save_safetensors

import gcodec
from gcodec.archive import ArchiveWriter, load_file
from gcodec.cli import VERBS, display
from gcodec.cli.gcomp import DumpPolicy
from gcodec.files import ArraySource, open_source, plan_file
from gcodec.recorder import read_dump
from gcodec.truncation.optimizers import levels_for, view_from_dump
from tests.archive.test_files import npy, npz, torch_file
from tests.support import commands
from tests.support.commands import run
from tests.support.paths import CORPUS

DUMPS = sorted(CORPUS.glob("*.safetensors"))
RNG = np.random.default_rng(3)
FLOATS = (RNG.standard_normal((50, 60)) * 1e-3).astype(np.float32)


folder = commands.folder


def result_of(capsys, *arguments: object, code: int = 0) -> Any:
    capsys.readouterr()
    run(*arguments, "--json", code=code)
    return json.loads(capsys.readouterr().out)


def process(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "gcodec", *arguments], input=stdin, capture_output=True, check=False, env=environment()
    )


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(gcodec.__file__).parents[1])}


def write(files: dict[str, bytes]) -> None:
    for path, data in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)


def names() -> list[str]:
    return sorted(path.relative_to(Path.cwd()).as_posix() for path in Path.cwd().rglob("*") if path.is_file())


# ------------------------------------------------------------------------------------------------ There and back


def kinds() -> dict[str, bytes]:
    return {
        "a.npy": npy(FLOATS),
        "b.npz": npz({"x": FLOATS, "n": np.arange(5)}),
        "c.safetensors": DUMPS[0].read_bytes(),
        "d.txt": b"not a tensor at all",
    }


def test_files_of_every_kind_are_decompressed_byte_for_byte():
    files = kinds()
    write(files)
    run("compress", *files)
    assert names() == sorted([*files, *(f"{name}.gc" for name in files)])
    for name in files:
        Path(name).unlink()
    run("decompress", *(f"{name}.gc" for name in files))
    assert {name: Path(name).read_bytes() for name in files} == files


def test_torch_files_are_decompressed_byte_for_byte():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    write({"model.pt": torch_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})})
    run("compress", "model.pt")
    run("decompress", "model.pt.gc", "-o", "again.pt")
    assert Path("again.pt").read_bytes() == Path("model.pt").read_bytes()
    assert torch.equal(torch.load("again.pt", weights_only=True)["model"]["weight"], model.weight)


def test_a_folder_becomes_one_archive_with_its_paths():
    files = {f"run/{name}": data for name, data in kinds().items()} | {"run/sub/deep/e.npy": npy(FLOATS)}
    write(files)
    run("compress", "run")
    shutil.move("run", "before")
    run("decompress", "run.gc")
    assert {path: Path(path).read_bytes() for path in files} == files
    run("decompress", "run.gc", "-o", "there/")
    assert Path("there/run/sub/deep/e.npy").read_bytes() == npy(FLOATS)
    run("verify", "run.gc", "--against", "run")
    run("verify", "run.gc", "--against", "there")


@pytest.mark.parametrize("spelling", ["run", "run/", "./run", "run/.", "sub/../run"])
def test_a_folders_archive_does_not_depend_on_its_spelling(spelling):
    write({"run/a.npy": npy(FLOATS), "sub/x": b""})
    run("compress", spelling, "-o", "x.gc")
    assert list(load_file("x.gc")) == ["a"]
    run("decompress", "x.gc", "-o", "out/")
    assert Path("out/run/a.npy").exists()


def test_several_inputs_become_one_archive_or_one_each():
    write({"p/a.npy": npy(FLOATS), "q/a.npy": npy(FLOATS + 1), "q/b.npy": npy(FLOATS + 2)})
    run("compress", "p/a.npy", "q", "-o", "all.gc")
    assert set(load_file("all.gc")) == {"p/a.npy:a", "q/a.npy:a", "q/b.npy:b"}
    run("compress", "p/a.npy", "q/b.npy", "-o", "packed/")
    run("compress", "p/a.npy", "q/b.npy", "-f", "-o", "packed")
    assert {"packed/a.npy.gc", "packed/b.npy.gc"} <= set(names())
    run("compress", "p/a.npy", "q/a.npy", "-o", "packed", "-f", code=2)  # both would be packed/a.npy.gc


def test_patterns_that_the_shell_leaves_are_expanded():
    write({"run/a.npy": npy(FLOATS), "run/b.npy": npy(FLOATS)})
    run("compress", "run/*.npy", "-o", "x.gc")
    assert set(load_file("x.gc")) == {"a.npy:a", "b.npy:b"}


def test_standard_input_is_compressed_and_decompressed_to_standard_output():
    data = npy(FLOATS)
    compressed = process("compress", "-", stdin=data)
    assert compressed.returncode == 0 and compressed.stderr.startswith(b"stdout: ")
    quiet = process("compress", "-", "-q", stdin=data)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, compressed.stdout, b"")
    restored = process("decompress", "-", stdin=compressed.stdout)
    assert (restored.returncode, restored.stdout, restored.stderr) == (0, data, b"")
    write({"x.gc": compressed.stdout})
    run("decompress", "x.gc")
    assert Path("stdin.npy").read_bytes() == data
    listed = process("decompress", "--list", "-", stdin=compressed.stdout)
    assert listed.returncode == 0 and b"50x60" in listed.stdout


def test_raw_values_and_raw_bits_are_given_their_type_by_an_option():
    write({"x.f32": FLOATS.tobytes(), "b.npy": npy((FLOATS.view(np.uint32) >> 16).astype(np.uint16))})
    run("compress", "x.f32", "--dtype", "float32")
    run("compress", "b.npy", "--dtype", "bfloat16")
    assert np.array_equal(load_file("x.f32.gc")["x"], FLOATS.reshape(-1))
    assert Path("b.npy.gc").stat().st_size < 0.85 * Path("b.npy").stat().st_size
    run("compress", "x.f32", "--dtype", "float31", "-f", code=2)
    run("compress", "b.npy", "--dtype", "float32", "-f", code=1)


def test_listing_an_archive_reads_only_its_index(capsys):
    write(kinds())
    run("compress", *kinds(), "-o", "all.gc")
    data = bytearray(Path("all.gc").read_bytes())
    data[8 : len(data) // 2] = bytes(len(data) // 2 - 8)
    Path("all.gc").write_bytes(data)
    [listed] = result_of(capsys, "decompress", "--list", "all.gc")
    assert [file["path"] for file in listed["files"]] == sorted(kinds())
    run("decompress", "--list", "all.gc")
    assert "grad/" in capsys.readouterr().out
    run("verify", "all.gc", code=1)


# ------------------------------------------------------------------------------------------------- Single tensors


def test_single_tensors_are_decompressed_by_name(capsys):
    write(kinds())
    run("compress", *kinds(), "-o", "all.gc")
    run("decompress", "all.gc", "--only", "x")
    assert np.array_equal(np.load("x.npy"), FLOATS)
    run("decompress", "all.gc", "--only", "x", code=1)
    assert "exists already" in capsys.readouterr().err
    run("decompress", "all.gc", "--only", "b.npz:n", "-o", "n.safetensors")
    assert np.array_equal(load_safetensors("n.safetensors")["n"], np.arange(5))
    run("decompress", "all.gc", "--only", "param/*", "--only", "x", "-o", "out/")
    params = [name for name in read_dump(DUMPS[0]).keys if name.startswith("param/")]
    assert set(names()) >= {f"out/{name.replace('/', '.')}.npy" for name in [*params, "x"]}
    run("decompress", "all.gc", "--only", "param/*", "-o", "one.npy", code=2)
    run("decompress", "all.gc", "--only", "nothing*", code=1)
    assert "no tensor" in capsys.readouterr().err


def test_a_single_tensor_is_written_to_standard_output():
    write({"f.npy": npy(np.asfortranarray(FLOATS))})
    run("compress", "f.npy")
    done = process("decompress", "f.npy.gc", "--only", "f", "-o", "-")
    assert done.stdout == npy(np.ascontiguousarray(FLOATS)) and done.returncode == 0


def test_tensors_of_types_that_numpy_lacks_are_written_as_safetensors(capsys):
    bits = (FLOATS.view(np.uint32) >> 16).astype(np.uint16)
    write({"b.npy": npy(bits)})
    run("compress", "b.npy", "--dtype", "bfloat16")
    run("decompress", "b.npy.gc", "--only", "b")
    assert plan_file("b", open_bytes("b.safetensors")).tensors[0].dtype == "bfloat16"
    run("decompress", "b.npy.gc", "--only", "b", "-o", "bits.npy")
    assert "raw bits" in capsys.readouterr().err
    assert np.array_equal(np.load("bits.npy"), bits)


def open_bytes(path: str) -> ArraySource:
    return ArraySource([np.frombuffer(Path(path).read_bytes(), np.uint8)])


# ---------------------------------------------------------------------------------------------------- Lossy modes


def test_compress_with_mantissa_bits_keeps_its_bound(capsys):
    write({"a.npy": npy(FLOATS)})
    [result] = result_of(capsys, "compress", "a.npy", "--mantissa-bits", 6)
    assert not result["exact"] and result["bits_per_value"] < 12
    run("decompress", "a.npy.gc", "-o", "lossy.npy")
    lossy = np.load("lossy.npy")
    assert 0 < np.max(np.abs(lossy / FLOATS - 1)) <= 2.0**-7
    [checked] = result_of(capsys, "verify", "a.npy.gc", "--against", "a.npy")
    [difference] = checked["files"][0]["differences"]
    assert difference["max_relative"] == pytest.approx(np.max(np.abs(lossy.astype(float) / FLOATS - 1)), rel=1e-3)
    assert difference["changed"] == np.count_nonzero(lossy != FLOATS)


@pytest.mark.parametrize("options", [[], ["--ladder", "paper", "--rounding", "truncate"], ["--literal"]])
@pytest.mark.parametrize("dump", DUMPS, ids=lambda path: path.stem)
def test_gcomp_makes_gradients_smaller_and_leaves_the_rest(dump, options):
    run("compress", dump, "-o", "lossless.gc")
    run("compress", dump, "-o", "x.gc", "--mode", "gcomp", *options)
    assert Path("x.gc").stat().st_size < 0.99 * Path("lossless.gc").stat().st_size
    run("decompress", "x.gc", "-o", "again.safetensors")
    before, after = load_safetensors(dump), load_safetensors("again.safetensors")
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name].tobytes() != after[name].tobytes()}
    assert changed and all(name.startswith("grad/") for name in changed)
    assert len(Path("again.safetensors").read_bytes()) == dump.stat().st_size
    run("verify", "x.gc", "--against", dump)


def test_gcomp_has_the_optimizers_levels_in_parts_of_any_size():
    dump = read_dump(DUMPS[-1])
    for part_bytes in (1 << 22, 1 << 12):
        with (
            closing(plan_file("x.safetensors", open_source(DUMPS[-1]))) as plan,
            ArchiveWriter("x.gc", force=True, part_bytes=part_bytes) as archive,
        ):
            archive.add(plan, DumpPolicy(plan))
        for name, tensor in load_file("x.gc", names=[f"grad/{name}" for name in dump.names]).items():
            parameter = name.removeprefix("grad/")
            view = view_from_dump(dump.optimizer, dump.hyper(parameter), dump.state(parameter))
            grad = dump.grad(parameter)
            levels = levels_for(view, dump.param(parameter), grad)
            assert np.array_equal(tensor, gcodec.decode(gcodec.encode(grad, levels=levels)))


def test_gcomp_without_a_dump_explains_what_it_needs(capsys):
    write({"a.npy": npy(FLOATS), "notes.txt": b"hello"})
    run("compress", "a.npy", "--mode", "gcomp", code=1)
    assert "Recorder" in capsys.readouterr().err
    run("compress", "notes.txt", "--mode", "gcomp")
    metadata = {"format": "gcodec-dump-1", "step": "1", "optimizer": "Lion", "groups": '[{"lr": 1, "params": ["w"]}]'}
    tensors = {"grad/w": FLOATS, "param/w": FLOATS}
    for change, message in (
        ({}, "Lion"),
        ({"format": "gcodec-dump-9"}, "gcodec-dump-9"),
        ({"groups": "[7]"}, "malformed"),
        ({"optimizer": "SGD", "groups": '[{"lr": 1, "params": ["v"]}]'}, "lacks its gradient"),
    ):
        save_safetensors(tensors, "x.safetensors", metadata=metadata | change)
        run("compress", "x.safetensors", "--mode", "gcomp", code=1)
        assert message in capsys.readouterr().err
    assert not Path("x.safetensors.gc").exists()


# ------------------------------------------------------------------------------------------------- Looking at things


def test_a_lossy_file_of_which_the_type_was_given_is_verified_against_its_original(capsys):
    bits = (FLOATS.view(np.uint32) >> 16).astype(np.uint16)
    write({"raw": FLOATS.tobytes(), "bits.npy": npy(bits), "short": b"abc", "other": npy(FLOATS)})
    for name, dtype in (("raw", "float32"), ("bits.npy", "bfloat16")):
        run("compress", name, "--dtype", dtype, "--mantissa-bits", 3)
        [checked] = result_of(capsys, "verify", f"{name}.gc", "--against", name)
        [difference] = checked["files"][0]["differences"]
        assert 0 < difference["max_relative"] <= 2.0**-4 and difference["values"] == FLOATS.size
        for other in ("short", "other"):
            run("verify", f"{name}.gc", "--against", other, code=1)
            assert f"{other} holds " in capsys.readouterr().err


def test_inspect_shows_archives_frames_and_files(capsys):
    write({"frame": gcodec.encode(FLOATS)})
    run("compress", DUMPS[0], "-o", "x.gc", "--mode", "gcomp")
    [archive] = result_of(capsys, "inspect", "x.gc")
    assert archive["bytes"] == Path("x.gc").stat().st_size
    [file] = archive["files"]
    assert file["metadata"]["format"] == "gcodec-dump-1"
    for segment in file["segments"]:
        assert segment["stored_bytes"] == sum(c["stored_bytes"] + -c["stored_bytes"] % 8 for c in segment["chunks"])
        assert not segment["lossy"] or segment["name"].startswith("grad/")
        assert segment["lossy"] or not segment["name"].startswith("grad/") or segment["bytes"] < 4096
    assert {mode for segment in file["segments"] for mode in segment["modes"]} >= {"lossless", "near-lossless"}
    run("inspect", "x.gc", "--chunks")
    text = capsys.readouterr().out
    assert all(tensor["name"] in text for tensor in file["tensors"]) and "bits" in text and "0/3/6/9" in text
    [frame] = result_of(capsys, "inspect", "frame")
    assert frame["kind"] == "frame" and frame["shape"] == [50, 60]
    [plain] = result_of(capsys, "inspect", DUMPS[0])
    assert plain["kind"] == "file" and {t["name"] for t in plain["tensors"]} == {t["name"] for t in file["tensors"]}
    run("inspect", "frame", DUMPS[0])


def test_verify_names_how_another_file_differs(capsys):
    write({"a.npy": npy(FLOATS), "b.npy": npy(FLOATS + 1), "c.npy": npy(FLOATS[1:])})
    run("compress", "a.npy")
    run("verify", "a.npy.gc", "--against", "a.npy")
    assert "byte for byte" in capsys.readouterr().out
    wrong = {"b.npy": "differs from b.npy at byte", "c.npy": "bytes, c.npy has", "d.npy": "d.npy: No such file"}
    for other, message in wrong.items():
        run("verify", "a.npy.gc", "--against", other, code=1)
        assert message in capsys.readouterr().err
    run("compress", "a.npy", "-f", "--mantissa-bits", 3)
    run("verify", "a.npy.gc", "--against", "a.npy")
    assert "largest relative change" in capsys.readouterr().out
    run("verify", "a.npy.gc", "--against", "c.npy", code=1)


def test_a_remade_npz_equals_its_original_in_every_value(capsys):
    arrays: dict[str, np.ndarray] = {"x": FLOATS, "n": np.arange(9)}
    write({"a.npz": npz(arrays, compressed=True), "b.npz": npz(arrays | {"x": FLOATS + 1})})
    run("compress", "a.npz")
    run("verify", "a.npz.gc", "--against", "a.npz")
    assert "in every value" in capsys.readouterr().out
    run("verify", "a.npz.gc", "--against", "b.npz", code=1)
    assert "values differ" in capsys.readouterr().err


def test_record_explains_itself_and_lists_dumps(capsys):
    run("record", "--snippet", "--every", 50, "--folder", "here")
    snippet = capsys.readouterr().out
    compile(snippet, "snippet", "exec")
    assert "every=50" in snippet and "'here'" in snippet
    run("record")
    assert "gcodec compress" in capsys.readouterr().out
    rows = result_of(capsys, "record", CORPUS)
    assert [row["dump"] for row in rows] == [str(path) for path in DUMPS]
    assert all(row["format"] == "gcodec-dump-1" and row["parameters"] > 3 for row in rows)
    run("record", DUMPS[0])
    assert "SGD" in capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb, capsys):
    run(verb, "--help")
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: gcodec {verb}") and max(map(len, printed.splitlines())) <= 120


def test_what_needs_no_kernel_loads_no_large_packages():
    write(
        {"n.npy": npy(np.arange(5)), "text": b"one two three " * 1000, "random": np.random.default_rng(0).bytes(9000)}
    )
    run("compress", "n.npy")
    run("compress", "text", "random", "-o", "files.gc")
    program = (
        "import sys; from gcodec.cli import main; main({}); "
        "print([name for name in ({}, 'torch', 'numba', 'rich.progress', 'gcodec.demo') if name in sys.modules])"
    )
    lines = (
        ["--help"],
        ["decompress", "--list", "n.npy.gc"],
        ["decompress", "n.npy.gc", "files.gc", "-o", "back/"],
        ["verify", "n.npy.gc", "files.gc"],
    )
    for arguments in lines:
        name = "numpy" if arguments == ["--help"] else "fsspec"
        done = subprocess.run(
            [sys.executable, "-c", program.format(arguments, repr(name))], capture_output=True, check=True,
            env=environment(),
        )  # fmt: skip
        assert done.stdout.endswith(b"[]\n")


def test_progress_is_shown_on_terminals_only(monkeypatch, capsys):
    write({"a.npy": npy(FLOATS)})
    run("compress", "a.npy")
    assert not capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run("compress", "a.npy", "-f", "-q")
    assert not capsys.readouterr().err
    run("compress", "a.npy", "-f")
    assert "kB" in capsys.readouterr().err


def test_version_prints_the_packages_version(capsys):
    run("--version")
    assert capsys.readouterr().out == f"gcodec {gcodec.__version__}\n"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("2kB", 2000),
        ("3 MiB", 3 << 20),
        ("0.5g", 500_000_000),
        ("7b", 7),
    ],
)
def test_sizes_with_units_are_parsed(text, size):
    assert display.parse_size(text) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.00 kB"),
        (12_345, "12.35 kB"),
        (123_456_789, "123.46 MB"),
        (5e12, "5.00 TB"),
    ],
)
def test_sizes_are_shown_with_units(size, text):
    assert display.size(size) == text


def test_columns_stay_in_line_beside_wide_characters(capsys):
    display.print_table(("name", ">n", "end"), [("重み", "1", "x"), ("abcdef", "22", "y")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["name     n  end", "重み     1  x", "abcdef  22  y"]


# ------------------------------------------------------------------------------------------------- Files that are large

MEASURE = """
from pathlib import Path
from gcodec.cli import main
codes = [main(arguments) for arguments in {}]
peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(codes, peak)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_files():
    def peak(values: int) -> int:
        array = np.lib.format.open_memmap("x.npy", "w+", "<f4", (values,))
        for at in range(0, values, 1 << 20):
            array[at : at + (1 << 20)] = RNG.standard_normal(min(1 << 20, values), dtype=np.float32)
        del array
        steps = [
            ["compress", "x.npy", "-f"],
            ["verify", "x.npy.gc", "--against", "x.npy"],
            ["decompress", "x.npy.gc", "-o", "y.npy", "-f"],
            ["decompress", "x.npy.gc", "--only", "x", "-o", "y.npy", "-f"],
            ["compress", "x.npy", "-f", "--mantissa-bits", "9"],
        ]
        done = subprocess.run(
            [sys.executable, "-c", MEASURE.format(steps)], capture_output=True, check=True, text=True, env=environment()
        )
        codes, kilobytes = done.stdout.strip().splitlines()[-1].rsplit(" ", 1)
        assert codes == "[0, 0, 0, 0, 0]"
        return int(kilobytes) << 10

    small, large = peak(1 << 20), peak(1 << 28)
    assert large - small < 150 << 20  # of a file of a gigabyte


def test_compressed_zips_above_the_limit_are_refused_alone_and_kept_as_bytes_in_folders(capsys):
    data = npz({"x": np.zeros(100_000, np.float32)}, compressed=True)
    odd = b"\x93NUMPY\x01\x00\x02\x00()"
    write({"x.npz": data, "folder/x.npz": data, "folder/odd.npy": odd, "folder/y.npy": npy(FLOATS)})
    run("compress", "x.npz", "--max-unpacked-bytes", "100kB", code=1)
    assert "x.npz: its compressed members unpack to 400128 bytes" in capsys.readouterr().err
    run("compress", "x.npz", "--max-unpacked-bytes", "500kB", "--rm")
    run("compress", "folder", "--max-unpacked-bytes", "100kB")
    shutil.rmtree("folder")
    run("decompress", "folder.gc")
    assert Path("folder/x.npz").read_bytes() == data and names() == [
        "folder.gc",
        "folder/odd.npy",
        "folder/x.npz",
        "folder/y.npy",
        "x.npz.gc",
    ]


def test_verify_compares_with_a_copy_of_another_name(capsys):
    write({"run/a.npy": npy(FLOATS), "run/sub/b.txt": b"b"})
    run("compress", "run")
    shutil.copytree("run", "copy")
    [checked] = result_of(capsys, "verify", "run.gc", "--against", "copy")
    assert [row["original"] for row in checked["files"]] == ["copy/a.npy", "copy/sub/b.txt"]
    write({"copy/sub/b.txt": b"c", "copy/later.txt": b""})
    run("verify", "run.gc", "--against", "copy", code=1)  # and run is still there, with what was archived
    assert "differs from copy/sub/b.txt" in capsys.readouterr().err
    write({"copy/sub/b.txt": b"b"})
    run("verify", "run.gc", "--against", "copy", code=1)
    assert "copy/later.txt: is not in run.gc" in capsys.readouterr().err


def test_verify_names_files_of_the_folder_that_the_archive_lacks(capsys):
    write({"run/a.npy": npy(FLOATS), "run/sub/b.txt": b"b", "there/beside.txt": b""})
    run("compress", "run", "-o", "run/own.gc")
    run("verify", "run/own.gc", "--against", "run")  # the archive itself is not missing in it
    write({"run/sub/later.txt": b"later"})
    Path("run/lost").symlink_to("gone")
    shutil.copytree("run", "there/run", symlinks=True)
    for against, place in (("run", f"{Path.cwd()}/run"), ("there", "there/run"), (".", "run")):
        capsys.readouterr()
        run("verify", "run/own.gc", "--against", against, code=1)
        printed = capsys.readouterr()
        lines = [
            f"{place}/lost: is a link to gone, which is not there",
            *([f"{place}/own.gc: is not in run/own.gc"] if against == "there" else []),
            f"{place}/sub/later.txt: is not in run/own.gc",
        ]
        assert printed.err.splitlines() == [f"gcodec: error: {line}" for line in lines]
        assert "own.gc: good, 2 files" in printed.out
    [checked] = result_of(capsys, "verify", "run/own.gc", "--against", "run", code=1)
    assert checked["ok"] and len(checked["problems"]) == 2
    run("compress", "run/a.npy", "run/sub/b.txt", "-o", "two.gc")
    run("verify", "two.gc", "--against", "run")  # files that were chosen: others may lie beside them


def test_fill_values_come_back_from_a_lossy_archive(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(0).normal(280, 20, 30_000).astype(np.float32)
    values[::3], values[1] = 1e20, -54321.5
    np.save("a.npy", values)
    run("compress", "a.npy", "--mantissa-bits", 7, "--fill-value", "1e20", "--fill-value=-54321.5")
    back = gcodec.load_file("a.npy.gc")["a"]
    assert np.array_equal(back == np.float32(1e20), values == np.float32(1e20)) and back[1] == values[1]
    assert (back != values).any()
    gcodec.save_file({"a": values}, "b.gc", mantissa_bits=7, keep=[1e20, -54321.5])
    assert np.array_equal(gcodec.load_file("b.gc")["a"], back)
    run("compress", "a.npy", "-f", "--fill-value", "1e20", code=2)


def test_folders_may_be_left_out_before_the_file_of_a_tensor_but_not_in_its_name(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = np.ones(5000, np.float32)
    gcodec.save({"model": {"w": one}, "ema": {"w": 2 * one, "z": 3 * one}}, "state.gc")
    for name in ("w", "z", "ema"):
        run("decompress", "state.gc", "--only", name, "-o", "x.npy", code=1)
        assert "2 files have" not in capsys.readouterr().err
    run("decompress", "state.gc", "--only", "ema/w", "-o", "x.npy")
    assert np.array_equal(np.load("x.npy"), 2 * one)
    Path("a/b").mkdir(parents=True)
    save_safetensors({"n:w": one, "m/w": 2 * one}, "a/b/f.safetensors")
    run("compress", "a", "-o", "a.gc")
    for name, factor in (("f.safetensors:n:w", 1), ("b/f.safetensors:m/w", 2), ("a/b/f.safetensors:m/w", 2)):
        run("decompress", "a.gc", "-f", "--only", name, "-o", "x.npy")
        assert np.array_equal(np.load("x.npy"), factor * one)
    for name in ("w", "safetensors:n:w", "f.safetensors:w", ":m/w"):
        run("decompress", "a.gc", "-f", "--only", name, "-o", "x.npy", code=1)
