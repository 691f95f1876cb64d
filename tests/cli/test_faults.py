"""The command line under faults: killed, told to end, out of space, its inputs changing, forbidden, several at once.

Every case runs a command in a forked process on files of its own, lets a fault happen, and compares what is there
afterwards with what was there before and with what an undisturbed run leaves. What is tried how often, and what held,
goes into the table of docs/reliability.md.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

import gcodec
from gcodec.archive import ArchiveReader
from gcodec.cli import main
from gcodec.files import FileSource
from tests.archive.test_files import npy, npz
from tests.support.children import forked
from tests.support.reliability import record

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="faults as on Linux")]

RNG = np.random.default_rng(11)
BIG = npy(RNG.standard_normal(700_000, dtype=np.float32))
SMALL = {f"run/{n:02}.npy": npy(RNG.standard_normal(3000, dtype=np.float32)) for n in range(10)}
SMALL |= {"run/deep/z.npz": npz({"a": np.arange(2000, dtype=np.float32)}, compressed=True), "run/notes.txt": b"none"}
OLD = b"what was there before"
ENDING = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
LEFT_BEHIND = (".partial", ".replaced")  #: ends of names that only a kill may leave

Files = dict[str, bytes]


@dataclass(frozen=True)
class Command:
    """A command, with the files before it.

    Attributes:
        name: In messages.
        arguments: What follows ``gcodec``.
        before: The files that are there.
        after: The files that are there when it has ended well.
    """

    name: str
    arguments: tuple[str, ...]
    before: Files
    after: Files

    @property
    def removed(self) -> set[str]:
        """Inputs that the command removes at its end."""
        return self.before.keys() - self.after.keys()

    @property
    def written(self) -> set[str]:
        """Files that the command makes or replaces."""
        return {name for name, data in self.after.items() if self.before.get(name) != data}


def contents(folder: Path) -> Files:
    """Return all files below a folder by their relative paths."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fill(folder: Path, files: Files) -> Path:
    """Make a folder with these files and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def commands(tmp_path_factory) -> list[Command]:
    """The commands that faults happen to, each run once undisturbed; this also compiles the kernels."""
    folder, made = tmp_path_factory.mktemp("made"), []

    def add(name: str, before: Files, *arguments: str) -> Files:
        fill(folder, before)
        with in_folder(folder):
            assert main([*arguments, "-q", "--threads", "2"]) == 0
        made.append(Command(name, (*arguments, "-q", "--threads", "2"), before, contents(folder)))
        return made[-1].after

    single, several = {"x.npy": BIG}, {name: data for name, data in SMALL.items() if name < "run/03"}
    archive = {"x.npy.gc": add("compress", single, "compress", "x.npy")["x.npy.gc"]}
    add("compress -f", single | {"x.npy.gc": OLD}, "compress", "x.npy", "-f")
    add("compress --rm", single, "compress", "x.npy", "--rm")
    add("compress --rm, several", several, "compress", *several, "-o", "all.gc", "--rm")
    folder_archive = {"run.gc": add("compress a folder", SMALL, "compress", "run")["run.gc"]}
    add("decompress", archive, "decompress", "x.npy.gc")
    add("decompress -f", archive | {"x.npy": OLD}, "decompress", "x.npy.gc", "-f")
    add("decompress --rm", archive, "decompress", "x.npy.gc", "--rm")
    add("decompress a folder", folder_archive, "decompress", "run.gc", "-o", "new/out/")
    old = dict.fromkeys(SMALL, OLD)
    add("decompress a folder -f", folder_archive | old, "decompress", "run.gc", "-f")
    add("decompress a folder -f --rm", folder_archive | old, "decompress", "run.gc", "-f", "--rm")
    add("decompress --only", folder_archive, "decompress", "run.gc", "--only", "0*", "-o", "tensors/")
    return made


class in_folder:  # noqa: N801 - used like a function
    """Change the working folder for a block."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._before = folder, Path.cwd()

    def __enter__(self) -> None:
        os.chdir(self._folder)

    def __exit__(self, *error: object) -> None:
        os.chdir(self._before)


def folders_in(folder: Path) -> frozenset[str]:
    """Return all folders below a folder by their relative paths."""
    return frozenset(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_dir())


class Outcome(NamedTuple):
    """How a command ended: its exit code, what it printed, and what was there afterwards."""

    code: int
    printed: str
    files: Files
    folders: frozenset[str]


def run_in(folder: Path, command: Command, fault: Callable[[], object] = lambda: None) -> Outcome:
    """Run a command in a process of its own, with a fault prepared there."""
    fill(folder, command.before)
    code, printed = start(folder, command, fault).wait()
    return Outcome(code, printed, contents(folder), folders_in(folder))


def start(folder: Path, command: Command, fault: Callable[[], object] = lambda: None) -> Any:
    """Start a command in a folder that is filled already."""

    def child() -> int:
        os.chdir(folder)
        fault()
        return main(list(command.arguments))

    return forked(child)


# ----------------------------------------------------------------------------------------------------- Judgments


def complaints(command: Command, outcome: Outcome, codes: set[int], *, killed: bool = False) -> Iterator[str]:
    """Yield what is wrong with an outcome.

    Args:
        command: What was run.
        outcome: How it ended.
        codes: Exit codes that may be.
        killed: Nothing could be tidied up: files beside their final names may be left, and of several files some.
    """
    files = outcome.files
    if outcome.code not in codes:
        yield f"exit code {outcome.code}: {outcome.printed}"
    if "Traceback" in outcome.printed:
        yield outcome.printed
    done = {name for name in command.written if files.get(name) == command.after[name]}
    undone = {name for name in command.written if files.get(name) == command.before.get(name)}
    if half := command.written - done - undone:
        yield f"neither old nor new: {sorted(half)}"
    if not killed and done and undone - done:
        yield f"some files, but not {sorted(undone)}"
    needed = {parent.as_posix() for name in {**command.before, **files} for parent in PurePosixPath(name).parents}
    if not killed and (empty := outcome.folders - needed):
        yield f"left behind the folders {sorted(empty)}"
    if (lost := command.removed - files.keys()) and done != command.written:
        yield f"lost {sorted(lost)}"
    if outcome.code == 0 and files != command.after:
        yield "exit code 0, but not what it should leave"
    kept = command.before.keys() - command.written
    if changed := {name for name in kept & files.keys() if files[name] != command.before[name]}:
        yield f"changed {sorted(changed)}"
    if more := {
        name
        for name in files.keys() - command.before.keys() - command.written
        if not (killed and name.endswith(LEFT_BEHIND))
    }:
        yield f"left behind {sorted(more)}"


class Tally:
    """The cases of one kind, and those that failed."""

    def __init__(self, what: str) -> None:
        self.what, self.n_cases, self.failures = what, 0, []  # type: ignore[var-annotated]

    def judge(
        self, command: Command, outcome: Outcome, codes: set[int], *, killed: bool = False, where: Any = ""
    ) -> None:
        """Count a case, and keep what is wrong with it; ``where`` the fault happened goes into the message."""
        self.n_cases += 1
        if wrong := list(complaints(command, outcome, codes, killed=killed)):
            self.failures.append(f"{command.name}, {where}: {'; '.join(wrong)}")

    def close(self, held: str) -> None:
        """Write the row of the table; raises AssertionError if a case failed."""
        result = held if not self.failures else "; ".join(self.failures[:3])
        record(self.what, self.n_cases, len(self.failures), result)
        print(f"{self.what}: {self.n_cases} cases, {len(self.failures)} failures")
        assert not self.failures, "\n".join(self.failures[:20])


# -------------------------------------------------------------------------------- Ended before each file operation


OPERATIONS = {"open", "os.remove", "os.rename", "os.link", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.utime"}


def on_operations(step: Callable[[], object]) -> None:
    """Call ``step`` before each file operation in the working folder, from now on, in this process."""
    here, fsync = str(Path.cwd()), os.fsync

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        named = event in OPERATIONS and isinstance(arguments[0], str | bytes | os.PathLike)
        if named and os.path.abspath(os.fsdecode(arguments[0])).startswith(here):  # noqa: PTH100
            step()

    def step_and_fsync(descriptor: Any) -> None:
        step()
        fsync(descriptor)

    sys.addaudithook(watch)
    os.fsync = step_and_fsync  # type: ignore[assignment]


def signal_before(number: int, signum: int) -> None:
    """Send this process a signal before its file operation of this number."""
    left = [number]

    def step() -> None:
        left[0] -= 1
        if left[0] == -1:
            os.kill(os.getpid(), signum)

    on_operations(step)


def n_operations(folder: Path, command: Command) -> int:
    """Return how many file operations an undisturbed run has."""
    read, written = os.pipe()
    run_in(folder, command, lambda: on_operations(lambda: os.write(written, b".")))
    os.close(written)
    with open(read, "rb") as stream:
        return len(stream.read())


def test_nothing_is_lost_if_it_is_killed_before_any_file_operation(commands, tmp_path):
    tally = Tally("kill -9 before each file operation of each command")
    for command in commands:
        for number in range(n_operations(tmp_path / "case", command)):
            outcome = run_in(tmp_path / "case", command, lambda: signal_before(number, signal.SIGKILL))  # noqa: B023
            tally.judge(command, outcome, {-signal.SIGKILL}, killed=True, where=number)
    tally.close("no input lost, no half-written file under a final name")


@pytest.mark.parametrize("signum", ENDING)
def test_signals_before_any_file_operation_leave_all_files_or_none(signum, commands, tmp_path):
    tally = Tally(f"{signum.name} before each file operation of each command")
    for command in commands:
        for number in range(n_operations(tmp_path / "case", command)):
            outcome = run_in(tmp_path / "case", command, lambda: signal_before(number, signum))  # noqa: B023
            tally.judge(command, outcome, {ENDING[signum]}, where=number)
    tally.close("all files or none, nothing left behind")


# -------------------------------------------------------------------------------------------- Ended at some moment


def ended_at_random(command: Command, folder: Path, signum: int, delay: float) -> Outcome:
    """Run a command and send it a signal after some seconds."""
    fill(folder, command.before)
    child = start(folder, command)
    time.sleep(delay)
    with suppress(ProcessLookupError):
        os.kill(child.pid, signum)
    code, printed = child.wait()
    return Outcome(code, printed, contents(folder), folders_in(folder))


def test_nothing_is_lost_if_it_is_ended_at_any_moment(commands, tmp_path):
    tallies = {signum: Tally(f"{signum.name} at a random moment") for signum in (signal.SIGKILL, *ENDING)}
    random = Random(5)
    for command in commands:
        begin = time.perf_counter()
        run_in(tmp_path / "case", command)
        seconds = time.perf_counter() - begin
        for signum, tally in tallies.items():
            for _ in range(20 if signum == signal.SIGKILL else 6):
                delay = random.uniform(0, seconds)
                outcome = ended_at_random(command, tmp_path / "case", signum, delay)
                codes = {0, -signum, *([ENDING[signum]] if signum in ENDING else [])}
                killed = signum == signal.SIGKILL
                tally.judge(command, outcome, codes, killed=killed, where=f"after {delay:.4f} s")
    for signum, tally in tallies.items():
        left = "" if signum == signal.SIGKILL else ", nothing left behind"
        tally.close(f"no input lost, no half-written file under a final name{left}")


def test_nothing_is_lost_if_a_whole_process_is_ended_at_any_moment(commands, tmp_path):
    tally, random = Tally("the program as a user starts it, ended at a random moment by any of four signals"), Random(6)
    environment = {**os.environ, "PYTHONPATH": str(Path(gcodec.__file__).parents[1])}
    folder = tmp_path / "case"
    program = [sys.executable, "-m", "gcodec"]
    begin = time.perf_counter()
    subprocess.run([*program, "--help"], env=environment, check=True, stdout=subprocess.DEVNULL)
    start_seconds = time.perf_counter() - begin
    for number in range(48):
        command, signum = random.choice(commands), (signal.SIGKILL, *ENDING)[number % 4]
        fill(folder, command.before)
        with subprocess.Popen(
            [*program, *command.arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as running:
            time.sleep(random.uniform(0.3, 4) * start_seconds)
            running.send_signal(signum)
            printed = running.communicate()[1].decode()
        # Before the command line has taken its handlers, a signal has its default effect, and Ctrl-C ends an import.
        printed = printed.replace("Traceback", "trace")
        outcome = Outcome(running.returncode, printed, contents(folder), folders_in(folder))
        codes = {0, -signum, *([ENDING[signum]] if signum in ENDING else [])}
        codes |= {1} if signum == signal.SIGINT and outcome.files == command.before else set()
        tally.judge(command, outcome, codes, killed=signum == signal.SIGKILL, where=(signum, number))
    tally.close("no input lost, no half-written file, nothing left behind but by SIGKILL")


# --------------------------------------------------------------------------------------------- Inputs that change


def grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(1000))


def shrunk(path: Path) -> None:
    os.truncate(path, 500)


def rewritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"other bytes")


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1])
    other.replace(path)


def taken_away(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    path.write_bytes(b"")


CHANGES = (grown, shrunk, rewritten, replaced, taken_away, emptied)


def change_at_read(path: str, number: int, change: Callable[[Path], None], sign: Path) -> None:
    """Let a change happen to a file when this process has read from it so many times; then make the file ``sign``."""
    read, left = FileSource.read, [number]

    def read_and_change(self: FileSource, start: int, stop: int, *more: Any) -> Any:
        result = read(self, start, stop, *more)
        if Path(self.name).name == Path(path).name:
            left[0] -= 1
            if left[0] == -1:
                change(Path(path))
                sign.touch()
        return result

    FileSource.read = read_and_change  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("change", CHANGES)
def test_an_input_that_changes_is_kept_and_its_archive_is_whole(change, commands, tmp_path):
    tally = Tally(f"an input is {change.__name__.replace('_', ' ')} while it is compressed")
    folder = tmp_path / "case"
    for command in commands:
        if not command.name.startswith("compress"):
            continue
        path = "x.npy" if "x.npy" in command.before else min(command.before)
        changed = fill(tmp_path / "changed", {path: command.before[path]})
        change(changed / path)
        wanted = {name: data for name, data in command.before.items() if name not in {path, *command.written}}
        wanted |= {name: data for name, data in contents(changed).items() if name == path}
        for number in range(50):
            sign = tmp_path / f"{len(list(tmp_path.iterdir()))}"
            outcome = run_in(folder, command, lambda: change_at_read(path, number, change, sign))  # noqa: B023
            if not sign.exists():  # so many reads there are not
                break
            tally.n_cases += 1
            found = {name: data for name, data in outcome.files.items() if name not in command.written}
            if outcome.code != 1 or found != wanted or "Traceback" in outcome.printed:
                tally.failures.append(f"{command.name}, {number}: {outcome.code} {outcome.printed} {sorted(found)}")
            for name in command.written & outcome.files.keys():
                if outcome.files[name] != command.before.get(name):
                    with ArchiveReader(folder / name) as archive:
                        assert all(
                            sum(part.size for part in archive.restored(entry)) == entry.size for entry in archive.files
                        )
    tally.close("exit code 1, the input kept, the archive whole or not there")


# ------------------------------------------------------------------------------------------------- Several at once


def test_several_processes_onto_one_target_leave_one_whole_result(commands, tmp_path):
    tally, folder = Tally("three processes at once onto one target"), tmp_path / "case"
    for command in commands:
        if command.removed:  # the first one takes the others' input away
            continue
        force = "-f" in command.arguments
        for number in range(8):
            fill(folder, command.before)
            children = [start(folder, command) for _ in range(3)]
            ends = [child.wait() for child in children]
            files, codes = contents(folder), sorted(code for code, _ in ends)
            tally.n_cases += 1
            printed = "".join(text for _, text in ends)
            right = codes == [0, 0, 0] if force else codes == [0, 1, 1]
            if files != command.after or not right or "Traceback" in printed:
                tally.failures.append(f"{command.name}, {number}: {codes}, {printed}, {sorted(files)}")
    tally.close("one whole result; without -f one process has it, and the others end with 1")
