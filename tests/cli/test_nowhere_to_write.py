"""Disks that are full and folders that cannot be written to: the error names the place, and nothing is lost."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.cli import test_faults
from tests.cli.test_faults import Command, Outcome, Tally, contents, fill, folders_in, run_in, start
from tests.support.children import become

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="faults as on Linux")]

commands = test_faults.commands


def test_a_full_disk_leaves_everything_as_it_was(commands, tmp_path):
    tally, random = Tally("no room for a file (limit of its size)"), Random(7)
    for command in commands:
        largest = max(len(command.after[name]) for name in command.written)
        for number in range(12):
            size = 0 if number == 0 else random.randrange(largest)

            def limit(size: int = size) -> None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

            outcome = run_in(tmp_path / "case", command, limit)
            tally.judge(command, outcome, {1}, where=f"{size} bytes")
            if outcome.files != command.before:
                tally.failures.append(f"{command.name}: {size} bytes: not as it was")
    tally.close("exit code 1, everything as it was")


def test_a_full_file_system_leaves_everything_as_it_was(commands, tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "none", folder], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounting needs root")
    tally, random = Tally("no room on a file system (tmpfs)"), Random(8)
    try:
        for command in commands:
            need = sum(len(command.after[name]) for name in command.written)
            for _ in range(5):
                place = folder / "case"
                shutil.rmtree(folder / "ballast", ignore_errors=True)
                fill(place, command.before)
                free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_bsize
                room = random.randrange(max(need - 65536, 1))
                fill(folder / "ballast", {"b": bytes(free - room)})
                code, printed = start(place, command).wait()
                outcome = Outcome(code, printed, contents(place), folders_in(place))
                tally.judge(command, outcome, {1}, where=f"{room} bytes")
                if outcome.files != command.before:
                    tally.failures.append(f"{command.name}: {room} bytes: not as it was")
    finally:
        subprocess.run(["umount", folder], check=True)
    tally.close("exit code 1, everything as it was")


def test_places_that_cannot_be_written_to_leave_everything_as_it_was(commands, request):
    folder = Path(os.path.realpath(os.environ.get("TMPDIR", "/tmp"))) / f"gcodec-faults-{os.getpid()}"
    request.addfinalizer(lambda: shutil.rmtree(folder, ignore_errors=True))
    tally = Tally("folders and files without permission, and full devices")
    for command in commands:
        for place in ("folder", "files", "device"):
            fill(folder, command.before)
            folder.chmod(0o777)
            if place == "folder":
                for path in (*folder.rglob("*/"), folder):
                    path.chmod(0o555)
            elif place == "files":
                for path in folder.rglob("*"):
                    path.chmod(0 if path.is_file() else 0o777)
            arguments = command.arguments
            if place == "device":
                if "-o" in arguments or command.removed or len(command.written) > 1:
                    continue
                arguments = (*arguments, "-o", "/dev/full")
            tried = Command(f"{command.name}, {place}", arguments, command.before, command.after)
            code, printed = start(folder, tried, lambda: become(4001)).wait()
            for path in (folder, *folder.rglob("*")):
                path.chmod(0o755)
            outcome = Outcome(code, printed, contents(folder), folders_in(folder))
            tally.judge(tried, outcome, {1})
            if outcome.files != command.before:
                tally.failures.append(f"{tried.name}: not as it was")
    tally.close("exit code 1, everything as it was")
