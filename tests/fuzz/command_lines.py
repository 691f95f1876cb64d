"""Command lines over hostile folders: there is never a traceback, and whatever was left out has a line of its own."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from gcodec.archive import ArchiveReader
from gcodec.cli import main
from gcodec.cli.parser import VERBS, Parser, parser_for
from gcodec.errors import InvalidArgument
from gcodec.files.urls import resolved
from tests.fuzz.hostile_trees import Draws, Fault, Tree, contents, remove
from tests.fuzz.mutation import Dice

LINE = re.compile(r"(gcodec: (error|note): |stdout: ).")
#: What an error may speak of that is no file of the tree.
SUBJECTS = (
    "standard output",
    "standard input",
    "out of memory",
    "working folder",
    "/dev/",
    "/proc/",
    "/sys/",
    ".npy",
    "odd.gc",
    "damaged.gc",
    "half.gc",
    "several tensors",
    "archive: ",
)
SIZE = 96  #: bytes of a case


class Ended(NamedTuple):
    """How a command ended.

    Attributes:
        code: The exit code.
        out: The bytes on standard output.
        lines: The lines on standard error.
    """

    code: int
    out: bytes
    lines: list[str]


class CommandLines:
    """The fuzzing target of the command line: a folder is made, and commands are run in it, by the bytes of a case."""

    seconds, n_prefix = 20.0, 0

    def __init__(self) -> None:
        self._contents = contents()
        self._commands = (
            self._of_tree,
            self._of_tree,
            self._any,
            self._any,
            self._any,
            self._any,
            self._extract,
            self._of_series,
        )

    def cases(self) -> list[bytes]:
        """Return cases that use each verb once, so that all modules are imported and all kernels are compiled."""
        dice = Dice("cases")
        return [bytes([number, *dice.randbytes(SIZE)]) for number in range(len(self._commands)) for _ in range(4)]

    def mutate(self, dice: Dice) -> bytes:
        """Return a new case."""
        return dice.randbytes(SIZE)

    def run(self, case: bytes) -> Any:
        """Run the commands of a case; raises AssertionError for what no command may do."""
        draws, top = Draws(case), Path(tempfile.mkdtemp(prefix="gcodec-fuzz-"))
        here = os.getcwd()  # noqa: PTH109
        os.chdir(top)
        try:
            command = draws.pick(self._commands)
            for name in ("odd.gc", "damaged.gc", "half.gc"):
                Path(name).write_bytes(self._contents[name])
            tree = Tree(top, draws, self._contents)
            session = Session(top, tree, draws)
            with ExitStack() as stack:
                # Nothing need reach the disk, for which a busy machine may wait for seconds each time.
                stack.enter_context(mock.patch.object(os, "fsync", lambda descriptor: None))
                if draws.happens(0.5):
                    fault = Fault(top, draws, self._contents, pipes=command == self._of_tree)
                    session.fault = stack.enter_context(fault)
                command(session)
            session.check_nothing_left_over()
        finally:
            os.chdir(here)
            remove(top)
        if session.codes[0]:
            raise InvalidArgument(f"exit code {session.codes[0]}")
        return session.codes

    def _of_tree(self, session: Session) -> None:
        """Archive the whole tree, and ask all other verbs about the archive."""
        draws, before = session.draws, session.before
        made = session.call("compress", "tree", "-o", "all.gc", *session.options("-q", "--smallest", "--threads=2"))
        if not os.path.lexists("all.gc"):
            assert made.code or session.is_disturbed, "no archive, and no error"
            return
        checked = session.call("verify", "all.gc", "--against", "tree")
        listed = session.call("decompress", "-l", "all.gc", *session.options("--json"))
        restored = session.call("decompress", "all.gc", "-o", "back/")
        session.call("inspect", "all.gc", *session.options("--chunks", "--json"))
        if not session.is_disturbed:
            with session.undisturbed():
                _check_complete(before, made, checked, restored)
            assert not listed.code, listed.lines
        if draws.happens(0.3):
            session.call(
                "decompress",
                "all.gc",
                "-o",
                draws.pick(("tree", "back", "back/", "-")),
                *session.options("-f", "--rm", "-k"),
            )

    def _any(self, session: Session) -> None:
        """Run any verb on anything in the tree."""
        draws, name = session.draws, session.name
        options: list[str] = session.options("-f", "-q", "--json", "--rm", "--threads=1")
        output = draws.pick(("", name(), f"{name()}/", "-", "new", "new/", "memory://fuzz/x"))
        to = ["-o", output] if output else []
        lines: tuple[Sequence[str], ...] = (
            ("compress", name(), name(), *to, *options, *session.options("--smallest", "--mantissa-bits=7")),
            ("compress", name(), *to, "--base", name(), *options),
            ("compress", f"{name()}/*.[a-z]*", *to, *options),
            ("decompress", name(), *to, *options),
            ("decompress", name(), *to, "--only", draws.pick(("*", "s", "é.npy", "tree/*", "x/")), *options),
            ("decompress", "-l", name(), name(), *session.options("--json")),
            ("verify", name(), name(), *session.options("--json", "-q")),
            ("verify", name(), "--against", name(), *session.options("--json", "-q")),
            ("inspect", name(), name(), *session.options("--json", "--chunks")),
            ("bench", name(), "--sizes", "--peers", "none", "--limit", "1", *session.options("--json", "--csv=c.csv")),
            ("report", name(), *to, *session.options("-f", "-q")),
            ("record", "dumps", name(), *session.options("--json")),
            ("--", name()),
            ("-d", "--", name()),
            ("-t", "--", name()),
            ("-l", "--", name()),
            (name(),),
        )
        session.call(*draws.pick(lines))

    def _extract(self, session: Session) -> None:
        """Take single tensors, of odd names, out of an archive."""
        draws = session.draws
        archive = draws.pick(("odd.gc", "odd.gc", "damaged.gc", "half.gc"))
        names = [
            draws.pick((b"*", b"*.npy", b"x*", "日*".encode(), draws.name())).decode("utf-8", "replace")
            for _ in range(1 + draws.below(2))
        ]
        only = [f"--only={name}" for name in names]
        output = draws.pick(("new/", "new/", "./", session.name(), "all.safetensors"))
        session.call("decompress", archive, *only, "-o", output, *session.options("-f", "--json", "-q"))

    def _of_series(self, session: Session) -> None:
        """Keep files of the tree as a series, in a new folder or one of the tree."""
        draws, name = session.draws, session.name
        folder = draws.pick(("steps", name()))
        session.call("series", "add", folder, name(), "--step", "3", *session.options("--rm", "--json", "-q"))
        session.call("series", "add", folder, name(), *session.options("--rm", "--step=5"))
        session.call("series", "list", folder, *session.options("--json"))
        session.call("series", draws.pick(("verify", "restore", "restore")), folder, *session.options("-q", "--json"))
        session.call("series", *draws.pick((("delete", folder, "3"), ("prune", folder, "--keep-last", "1"))))


class Session:
    """Commands run one after another in one folder.

    Args:
        top: The folder, in which the process is.
        tree: The tree in it.
        draws: The choices of the case.

    Attributes:
        before: What is in the tree, as of :meth:`Tree.what_is_there`.
        codes: The exit codes so far.
        fault: What happens meanwhile; None: nothing does.
    """

    def __init__(self, top: Path, tree: Tree, draws: Draws) -> None:
        self.top, self.tree, self.draws = top, tree, draws
        self.before = tree.what_is_there()
        self.codes: list[int] = []
        self.fault: Fault | None = None

    @property
    def is_disturbed(self) -> bool:
        """Return True if the fault has happened."""
        return self.fault is not None and bool(self.fault.happened)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Let nothing happen in a block."""
        fault = self.fault or Fault(self.top, Draws(b""), {}, pipes=False)
        fault.paused = True
        yield
        fault.paused = False

    def name(self) -> str:
        """Return a path of something in the tree, or of nothing."""
        if self.draws.happens(0.1):
            return os.fsdecode(self.draws.name())
        place = self.draws.pick(self.tree.places)
        with self.undisturbed():  # who names a pipe waits for it, as with other programs; nobody writes to it here
            return "odd.gc" if stat.S_ISFIFO(_mode(place)) else os.fsdecode(place)

    def options(self, *names: str) -> list[str]:
        """Return each option in one case of five."""
        return [name for name in names if self.draws.happens(0.2)]

    def call(self, *words: str) -> Ended:
        """Run a command and hold it to what all commands must keep to."""
        # The same name may stand where no file can: `-o -` takes bytes, which are no text.
        encoding = self.draws.pick(("utf-8", "utf-8", "utf-8", "ascii", "latin-1"))
        out, err, given = io.BytesIO(), io.BytesIO(), io.BytesIO(b"given on standard input")
        stdout, stderr = io.TextIOWrapper(out, encoding), io.TextIOWrapper(err, "utf-8", "backslashreplace")
        with (
            redirect_stdout(stdout),
            redirect_stderr(stderr),
            mock.patch.object(sys, "stdin", io.TextIOWrapper(given)),
            mock.patch("gcodec.cli.parser_for", _parser_of),
        ):
            code = main(words)
        stdout.flush()
        stderr.flush()
        self.codes.append(code)
        ended = Ended(code, out.getvalue(), err.getvalue().decode().split("\n")[:-1])
        self._check(words, ended)
        if not {"-", "-c"}.intersection(words) and "-o-" not in words:
            _check_text(ended, encoding, "--json" in words[: words.index("--") if "--" in words else None])
        return ended

    def _check(self, words: Sequence[str], ended: Ended) -> None:
        """Hold what a command says on standard error to one line for each thing, with its name."""
        assert ended.code in (0, 1, 2), f"{words[0]}: exit code {ended.code}"
        errors = [line for line in ended.lines if line.startswith("gcodec: error: ")]
        assert bool(errors) == bool(ended.code), f"{words[0]}: exit code {ended.code} with {ended.lines}"
        subjects = {escaped(word.rpartition("=")[2].rstrip("/")) for word in words} | set(SUBJECTS)
        subjects |= {escaped(os.path.basename(place)) for place in self.tree.places} | {str(self.top)}  # noqa: PTH119
        for line in ended.lines:
            assert LINE.match(line) and line.isprintable(), f"{words[0]} prints {line!r}"
            named = any(subject in line for subject in subjects)
            assert named or ended.code != 1 or line not in errors, f"{words[0]} names no file: {line!r}"

    def check_nothing_left_over(self) -> None:
        """Look for files that are removed when a command ends."""
        if not self.is_disturbed:
            left = [
                name for _, _, files in os.walk(self.top) for name in files if name.endswith((".partial", ".replaced"))
            ]
            assert not left, f"left behind: {left}"


@cache
def _made_parser(*names: str) -> Parser:
    return parser_for(names)


def _parser_of(names: Sequence[str]) -> Parser:
    """Return a verb's parser, which takes most of a short command's time, made once."""
    return _made_parser(*(name for name in names if name in VERBS))


def _mode(place: bytes) -> int:
    try:
        return os.stat(place).st_mode  # noqa: PTH116 - of bytes
    except OSError:
        return 0


def escaped(name: str | bytes) -> str:
    """Return a name as it may be printed."""
    text = os.fsdecode(name)
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _check_text(ended: Ended, encoding: str, as_json: bool) -> None:
    """Hold standard output to printable lines, or to JSON."""
    text = ended.out.decode(encoding)
    for line in text.split("\n"):
        assert line.isprintable(), f"prints {line!r}"
    if as_json and text and ended.code < 2:
        json.loads(text)


def _check_complete(before: dict[str, bool], made: Ended, checked: Ended, restored: Ended) -> None:
    """Hold the archive of a tree to having all files, or a line for each that it lacks.

    Args:
        before: What was in the tree, as of :meth:`Tree.what_is_there`.
        made: The end of ``compress``.
        checked: The end of ``verify --against``.
        restored: The end of ``decompress`` to ``back/``.
    """
    with ArchiveReader(Path("all.gc"), threads=1) as archive:
        archived = {entry.path for entry in archive.files}
    lacking = [path for path, is_file in before.items() if not is_file or path not in archived]
    for path in lacking:
        wanted = [escaped(path), *(f"{escaped(str(parent))}: " for parent in Path(path).parents)]
        assert any(part in line for part in wanted for line in made.lines), f"nothing is said of {path!r}"
    assert bool(lacking) == bool(made.code), f"exit code {made.code}, {len(lacking)} left out"
    assert not lacking or checked.code, "verify calls an archive complete that is not"
    assert not restored.code, restored.lines
    changing = any(str(resolved(path)).startswith(("/proc", "/sys")) for path in before)
    assert changing or bool(lacking) == bool(checked.code), checked.lines
    for path in archived:
        if not str(resolved(path)).startswith(("/proc", "/sys")):
            same = Path("back", path).read_bytes() == Path(path).read_bytes()
            assert same, f"restored with other bytes: {path!r}"
