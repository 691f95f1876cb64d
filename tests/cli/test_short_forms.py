"""The laws of what users of gzip, xz and zstd type, and of typing errors."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.cli import VERBS
from gcodec.cli.parser import GROUPS, actions_of, parser_for, verbs_of
from gcodec.cli.short_form import CHOICES, verb_line
from tests.archive.test_files import npy
from tests.support import commands
from tests.support.commands import run

X = npy(np.random.default_rng(1).standard_normal((60, 70)).astype(np.float32))

folder = commands.folder


def process(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(gcodec.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-m", "gcodec", *arguments], input=stdin, capture_output=True, check=False, env=environment
    )


def write(*names: str) -> None:
    for name in names:
        Path(name).write_bytes(X)


def names() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def test_a_file_is_compressed_and_comes_back_without_a_verb():
    write("x.npy")
    run("x.npy")
    assert names() == ["x.npy", "x.npy.gc"]
    Path("x.npy").unlink()
    run("-d", "x.npy.gc")
    assert Path("x.npy").read_bytes() == X and Path("x.npy.gc").exists()
    run("-t", "x.npy.gc")
    run("x.npy", code=1)  # exists already
    run("-f", "x.npy")
    run("-dfq", "--rm", "x.npy.gc")
    assert names() == ["x.npy"]


@pytest.mark.parametrize(
    ("short", "verb"),
    [
        (["-z", "x.npy"], ["compress", "x.npy"]),
        (["--mantissa-bits", "5", "x.npy"], ["compress", "--mantissa-bits", "5", "x.npy"]),
        (["x.npy", "-o", "y.gc"], ["compress", "x.npy", "-o", "y.gc"]),
        (["-T1", "x.npy"], ["compress", "--threads", "1", "x.npy"]),
        (["-fqT2", "x.npy"], ["compress", "-f", "-q", "--threads", "2", "x.npy"]),
        (["-qT0", "x.npy"], ["compress", "-q", "x.npy"]),
        (["-kf", "x.npy", "y.npy"], ["compress", "-f", "x.npy", "y.npy"]),
        (["-T", "2", "x.npy"], ["compress", "--threads", "2", "x.npy"]),
        (["-fqT", "0", "x.npy"], ["compress", "-f", "-q", "x.npy"]),
        (["x.npy", "-fT", "1", "-q"], ["compress", "-f", "-q", "--threads", "1", "x.npy"]),
        (["-T0q", "x.npy"], []),
        (["-T", "x.npy"], []),
        (["-Tx", "x.npy"], []),
        (["x.npy", "-T"], []),
    ],
)
def test_a_short_form_does_what_its_verb_does(short, verb):
    def outcome(arguments: list[str]) -> dict[str, bytes]:
        write("x.npy", "y.npy")
        run(*arguments)
        files = {path.name: path.read_bytes() for path in Path().iterdir()}
        for path in Path().iterdir():
            path.unlink()
        return files

    if verb:
        assert outcome(short) == outcome(verb)
    else:
        write("x.npy")
        run(*short, code=2)


def test_words_behind_two_dashes_are_names_of_files(capsys):
    for name in ("-x.npy", "-dc", "-9", "compress", "--list"):
        write(name)
        for line in (["--", name], ["-f", "--", name], ["-fq", "--", name], ["-fT1", "--", name]):
            run(*line)
        run("-df", "--", f"{name}.gc")
        run("-t", "--", f"{name}.gc")
        assert names() == sorted([name, f"{name}.gc"]) and Path(name).read_bytes() == X
        for path in Path().iterdir():
            path.unlink()
    run("--", "-y.npy", code=1)
    assert "-y.npy: no such file" in capsys.readouterr().err
    packed = process("--", stdin=X)
    assert packed.stdout == process("compress", "-", stdin=X).stdout
    assert process("-d", "--", stdin=packed.stdout).stdout == X


@pytest.mark.parametrize(
    "typed",
    [
        ["x.npy", "-f", "y.npy"],
        ["compress", "x.npy", "-f", "y.npy"],
        ["x.npy", "-q", "-f", "--", "y.npy"],
        ["x.npy", "-T2", "y.npy", "-f"],
        ["-f", "x.npy", "--threads", "2", "y.npy"],
    ],
)
def test_options_may_stand_between_names(typed):
    write("x.npy", "y.npy")
    run(*typed)
    assert names() == ["x.npy", "x.npy.gc", "y.npy", "y.npy.gc"]
    Path("x.npy").unlink()
    run("-d", "x.npy.gc", "-f", "y.npy.gc")
    assert Path("x.npy").read_bytes() == X
    run("inspect", "x.npy.gc", "--json", "y.npy")
    run("series", "add", "s", "x.npy", "--step", "7")
    run("series", "restore", "s", "-f", "7", "-o", "z.npy")
    assert Path("z.npy").read_bytes() == X


def test_words_between_options_are_names_only_for_verbs_that_take_several(capsys):
    write("x.npy", "y.npy")
    for typed, said in (
        (["x.npy", "-f", "y.npy", "--bogus"], "unrecognized arguments: y.npy --bogus"),
        (["series", "restore", "s", "-f", "last"], "argument STEP: invalid value: 'last'"),
        (["series", "list", "s", "-q", "t"], "unrecognized arguments: t"),
    ):
        run(*typed, code=2)
        assert said in capsys.readouterr().err


def test_pipes_need_no_names():
    for pack, back in ((["-c"], ["-d"]), (["-zcq", "-"], ["-dcq", "-"])):
        packed = process(*pack, stdin=X)
        assert packed.returncode == 0, packed.stderr
        assert process(*back, stdin=packed.stdout).stdout == X
    assert process("-t", stdin=packed.stdout).returncode == 0
    assert b"60x70" in process("-l", stdin=packed.stdout).stdout
    assert process("-q", stdin=X).stdout == process(stdin=X).stdout == process("compress", "-", stdin=X).stdout
    write("x.npy")
    packed = process("-c", "x.npy")
    assert process("-dc", stdin=packed.stdout).stdout == X and names() == ["x.npy"]


def test_an_archive_is_not_packed_again_and_the_error_says_what_restores_it(capsys):
    write("x.npy")
    run("x.npy")
    run("x.npy.gc", code=1)
    assert "x.npy.gc: is a gcodec archive already (gcodec -d restores" in capsys.readouterr().err
    run("y.npy.gc", code=1)
    assert "y.npy.gc: no such file" in capsys.readouterr().err


def test_a_base_that_is_an_archive_is_not_taken_for_an_input():
    write("x.npy", "y.npy")
    run("x.npy")
    run("y.npy", "--base", "x.npy.gc")
    run("-df", "y.npy.gc", "--base", "x.npy.gc")
    assert Path("y.npy").read_bytes() == X


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["compres", "x.npy"], "did you mean compress?"),
        (["decmopress", "x.gc"], "did you mean decompress?"),
        (["frobnicate"], "neither a verb nor a file (gcodec --help)"),
        (["extract", "x.gc"], "extract: neither a verb nor a file; did you mean decompress?"),
        (["list", "x.gc"], "did you mean inspect?"),
        (["test", "x.gc"], "did you mean verify?"),
        (["pack", "x.npy"], "did you mean compress?"),
        (["-q", "compress", "x.npy"], "a verb must come first, and its options after it: gcodec compress -q ..."),
        (["--json", "inspect", "x.gc"], "a verb must come first, and its options after it: gcodec inspect --json ..."),
        (["compress", "x.npy", "--thread5", "1"], "did you mean --threads?"),
        (["x.npy", "--mantisa-bits", "3"], "did you mean --mantissa-bits?"),
        (["compress", "x.npy", "--mode", "gcomb"], "did you mean gcomp?"),
        (["series", "ad", "f", "x.npy"], "did you mean add?"),
        (["series", "add", "f", "x.npy", "--ful-evry", "3"], "did you mean --full-every?"),
        (["-d", "-t", "x.gc"], "exclude each other"),
        (["compress"], "name a file or a folder, or - for"),
        (["decompress", "-q"], "name an archive"),
        (["verify"], "name an archive"),
        (["--quick"], "name a verb or a file, or pipe something in"),
        (["-9", "x.npy"], "-9: gcodec has no compression levels"),
        (["--fast=3", "x.npy"], "--fast=3: gcodec has no compression levels"),
        (["x.npy", "--mantissa-bits", "-1"], "--mantissa-bits must be 1 to 52, not -1"),
        (["x.npy", "--mantissa-bits", "0"], "--mantissa-bits must be 1 to 52, not 0"),
        (["--decompres", "x.npy.gc"], "--decompres: no such option; did you mean --decompress?"),
        (["x.npy", "--forse"], "did you mean --force?"),
    ],
)
def test_typing_errors_are_answered_with_what_was_meant(typed, meant, capsys):
    write("x.npy")
    run(*typed, code=2)
    assert meant in capsys.readouterr().err and names() == ["x.npy"]


def test_missing_files_and_tensors_are_answered_with_those_of_a_similar_name(capsys):
    Path("run").mkdir()
    write("run/weights.npy")
    run("-q", "run/weights.npy")
    for typed, meant in (
        (["run/wieghts.npy"], "run/weights.npy"),
        (["-d", "run/weigths.npy.gc"], "run/weights.npy.gc"),
        (["decompress", "run/weights.npy.gc", "--only", "wiehgts"], "weights"),
    ):
        run(*typed, code=1)
        assert f"; did you mean {meant}?" in capsys.readouterr().err
    run("-d", "nowhere/weights.npy.gc", code=1)
    run("frobnicate.npy", code=1)
    assert "did you mean" not in capsys.readouterr().err
    with gcodec.open("run/weights.npy.gc") as file, pytest.raises(gcodec.InvalidArgument, match="mean weights"):
        file.get_tensor("weight")


def test_no_option_of_a_verb_is_taken_for_a_misspelled_one():
    for verb in ("compress", "decompress", "verify"):
        actions = actions_of(verbs_of(parser_for([verb]))[verb])
        for option in (word for action in actions for word in action.option_strings):
            assert option in ("-h", "--help") or verb_line(["x.npy", option]) is not None


def test_an_archive_does_not_get_the_name_of_a_tensor_file(capsys):
    write("x.npy")
    for name in ("y.safetensors", "y.pt", "y.npz"):
        run("x.npy", "-o", name, code=2)
        assert f"{name}: would be an archive" in capsys.readouterr().err
        with pytest.raises(gcodec.InvalidArgument, match=f"call it {name}.gc"):
            gcodec.compress_file("x.npy", name)
    assert names() == ["x.npy"]


def test_a_folder_for_archives_is_made_and_does_not_stay_behind_an_error():
    write("x.npy", "y.npy")
    run("x.npy", "y.npy", "-o", "packed/here/")
    assert sorted(path.name for path in Path("packed/here").iterdir()) == ["x.npy.gc", "y.npy.gc"]
    Path("broken.npy").write_bytes(X[:100])
    run("broken.npy", "-o", "other/here/", code=1)
    assert not Path("other").exists()


def test_help_shows_every_verb_with_an_example_and_fits_a_screen(capsys):
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(VERBS)
    run("--help")
    printed = capsys.readouterr().out
    assert all(
        f"\n  {name} " in printed and example in printed for group in GROUPS.values() for name, example in group.items()
    )
    assert max(map(len, printed.splitlines())) <= 110 and len(printed.splitlines()) <= 50


def spoken(line: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
    """Return exit code, output and errors of ``gcodec`` within a line of the shell, which calls it ``"$@"``."""
    environment = {**os.environ, "PYTHONPATH": str(Path(gcodec.__file__).parents[1])}
    command = ["sh", "-c", line, "sh", sys.executable, "-m", "gcodec"]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, env=environment)
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX")
@pytest.mark.parametrize("line", ['"$@" -c </dev/null >x', '"$@" -q <x >x', '"$@" >x', '"$@" compress - -o y'])
def test_an_empty_standard_input_is_an_error_that_leaves_the_output_empty(line):
    Path("x").write_bytes(b"")
    said = "gcodec: error: standard input is empty: there is nothing to compress (gcodec --help)\n"
    assert spoken(line) == (1, b"", said)
    assert Path("x").stat().st_size == 0 and names() == ["x"]


@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX")
@pytest.mark.parametrize("words", ["", " -q"])
def test_without_a_word_nor_an_input_no_help_is_taken_for_an_archive(words):
    said = "gcodec: error: name a verb or a file, or pipe something in (gcodec --help)\n"
    assert spoken(f'"$@"{words} </dev/null >x') == (2, b"", said) and Path("x").stat().st_size == 0


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals of POSIX")
def test_a_terminal_is_not_read_from_and_gets_help():
    master, terminal = os.openpty()
    environment = {**os.environ, "PYTHONPATH": str(Path(gcodec.__file__).parents[1])}
    call = [sys.executable, "-m", "gcodec"]
    with open("x.gc", "wb") as output:
        done = subprocess.run(call, stdin=terminal, stdout=output, stderr=subprocess.PIPE, check=False, env=environment)
    assert (done.returncode, Path("x.gc").read_bytes()) == (2, b"")
    assert b"name a verb or a file, or pipe something in" in done.stderr
    done = subprocess.run(call, stdin=subprocess.DEVNULL, stdout=terminal, check=False, env=environment)
    assert done.returncode == 2 and os.read(master, 1000).startswith(b"usage: gcodec")
    os.close(master)
    os.close(terminal)


# ------------------------------------------------------------------------------------------------------ Completion


CASES = {
    ("gcodec", ""): list(VERBS),
    ("gcodec", "co"): ["compress", "completion"],
    ("gcodec", "compress", "x.npy", "--man"): ["--mantissa-bits"],
    ("gcodec", "compress", "--mode", "g"): ["gcomp"],
    ("gcodec", "compress", "x.n"): [],  # then bash completes files
    ("gcodec", "series", "re"): ["restore"],
    ("gcodec", "series", "prune", "run", "--keep-"): ["--keep-last", "--keep-every"],
    ("gcodec", "completion", ""): ["bash", "zsh", "fish"],
    ("gcodec", "warmup", "bf"): ["bfloat16"],
    ("gcodec", "compress", "x", "--dtype", "float8"): ["float8_e4m3fn", "float8_e5m2"],
    ("gcodec", "x.npy", "--man"): ["--mantissa-bits"],
    ("gcodec", "x.npy", "--mode", "g"): ["gcomp"],
    ("gcodec", "-d", "x.gc", "--onl"): ["--only"],
    ("gcodec", "--dec"): ["--decompress"],
}


@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="needs bash")
def test_bash_completes_verbs_options_and_values(capsys):
    run("completion", "bash")
    script = [capsys.readouterr().out]
    for words in CASES:
        quoted = " ".join(f"'{word}'" for word in words)
        script.append(f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; COMPREPLY=(); _gcodec")
        script.append("echo ${COMPREPLY[@]}")
    done = subprocess.run(["bash", "-c", "\n".join(script)], capture_output=True, text=True, check=True)
    assert not done.stderr
    assert dict(zip(CASES, (line.split() for line in done.stdout.splitlines()), strict=True)) == CASES


def parsers(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the parser of each verb, and of each verb of a verb, with the words that call it."""
    for name, verb in verbs_of(parser).items():
        yield (*path, name), verb
        yield from parsers(verb, (*path, name))


@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="needs bash")
def test_bash_completes_just_what_the_parser_takes(capsys):
    run("completion", "bash")
    script, wanted = [capsys.readouterr().out], []

    def ask(*words: str) -> None:
        quoted = " ".join(f"'{word}'" for word in ("gcodec", *words))
        script.append(f"COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; COMPREPLY=(); _gcodec; echo ${{COMPREPLY[@]}}")

    of_files: set[str] = set()
    for path, parser in parsers(parser_for(VERBS)):
        options = [action for action in actions_of(parser) if action.option_strings]
        ask(*path, "-")
        wanted.append({name for action in options for name in action.option_strings})
        of_files |= wanted[-1] if path[0] in ("compress", "decompress", "verify") else set()
        for action in options:
            if action.choices:
                ask(*path, action.option_strings[-1], "")
                wanted.append(set(action.choices))
    ask("x.npy", "-")
    wanted.append(of_files | {*CHOICES, "-T", "-V", "--version"})
    done = subprocess.run(["bash", "-c", "\n".join(script)], capture_output=True, text=True, check=True)
    assert [set(line.split()) for line in done.stdout.splitlines()] == wanted


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_all_options_of_all_verbs(shell, capsys):
    run("completion", shell)
    script = capsys.readouterr().out
    known = [parser_for(VERBS), *(parser for _, parser in parsers(parser_for(VERBS)))]
    options = {name for parser in known for action in actions_of(parser) for name in action.option_strings}
    assert len(options) > 30
    for name in options:
        assert (name if shell != "fish" else f"-l {name[2:]}" if name[1] == "-" else f"-s {name[1:]}") in script
    assert all(name in script for name in VERBS)
