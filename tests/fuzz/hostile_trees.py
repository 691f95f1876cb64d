"""Folders with everything in them that a file system allows, made as the bytes of a case say."""

from __future__ import annotations

import errno
import io
import os
import shutil
import socket
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np

from gcodec.archive import save_file
from tests.fuzz.containers import tensor_files

T = TypeVar("T")

LONG = (b"x" * 255, "é".encode() * 127, "日".encode() * 85, b"y" * 251 + b".npy", b"z" * 252 + b".gc")
NAMES = (
    b"x.npy",
    b"a.npy",
    b"m-3.npy",
    b"s.safetensors",
    b"all.npz",
    b"step-000020.safetensors",
    b"x.gc",
    b"notes.txt",
    b"t.pt",
    b"q.gguf",
    b"no suffix",
    b" ",
    b".hidden",
    b"-f",
    b"--rm",
    b"--",
    b"-",
    b"-o x.npy",
    b"[a-z]*",
    b"*",
    b"?",
    b"[",
    b"~",
    b"$HOME",
    b"%s{0}",
    b"a:b.npy",
    b"back\\slash.npy",
    b"s3:",
    b"file:",
    b"\xff\xfe.npy",
    b"cut \xe2\x80",
    b"\xed\xa0\x80.npy",
    b"new\nline.npy",
    b"gcodec: error: not me\n",
    b"return\r.npy",
    b"\x1b[31mred.npy",
    b"\x7f",
    b"bell\a",
    b"tab\t.npy",
    "\N{RIGHT-TO-LEFT OVERRIDE}ypn.exe".encode(),
    "zero\N{ZERO WIDTH SPACE}.npy".encode(),
    "\x9b31m.npy".encode(),
    "\u2028.npy".encode(),
    "\N{LANGUAGE TAG}.npy".encode(),
    "\N{SOFT HYPHEN}.npy".encode(),
    "\N{BYTE ORDER MARK}x.npy".encode(),
    "日本\N{IDEOGRAPHIC SPACE}語.npy".encode(),
    "é.npy".encode(),
    "e\N{COMBINING ACUTE ACCENT}.npy".encode(),
    "\N{NO-BREAK SPACE}".encode(),
    *LONG,
)
#: Files of the system: without a size, with a wrong one, or that cannot be read.
OF_SYSTEM = (
    "/proc/self/status",
    "/proc/self/environ",
    "/proc/self/mem",
    "/proc/version",
    "/proc/self/clear_refs",
    "/proc/sys/vm/compact_memory",
    "/proc/self/fd/0",
    "/proc/self/fd",
    "/proc/2/exe",
    "/proc/self/cwd",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/devices/system/cpu/online",
    "/sys/class/net/lo/speed",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/fd/0",
)
TARGETS = (b".", b"..", b"gone", b"gone\n\x1b[31m", b"\xff", b"x.npy", b"a.npy/x", b"x" * 300)
ERRORS = tuple(
    getattr(errno, name)
    for name in (
        "EIO",
        "EACCES",
        "ENOENT",
        "ESTALE",
        "ELOOP",
        "ENAMETOOLONG",
        "EMFILE",
        "ENOSPC",
        "EROFS",
        "EPERM",
        "ENOTDIR",
        "EISDIR",
        "EBUSY",
        "ENODEV",
    )
)
#: Functions that take a path or a descriptor first, by which everything in a tree is reached.
CALLS = (
    "open",
    "stat",
    "lstat",
    "scandir",
    "listdir",
    "readlink",
    "preadv",
    "pread",
    "link",
    "rename",
    "replace",
    "unlink",
    "remove",
    "mkdir",
    "rmdir",
    "chmod",
    "chown",
    "utime",
    "fstat",
    "fsync",
    "close",
)


class Draws:
    """Choices that the bytes of a case make, one after another: a byte for each, and 0 after the last one.

    Args:
        case: The bytes.
    """

    def __init__(self, case: bytes) -> None:
        self._bytes = iter(case)

    def below(self, n: int) -> int:
        """Return an integer from 0 to ``n`` - 1, ``n`` being at most 256."""
        return next(self._bytes, 0) % n

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[self.below(len(items))]

    def happens(self, share: float) -> bool:
        """Return True in this share of all cases; never after the last byte."""
        return next(self._bytes, 0) > 255 - 256 * share

    def name(self) -> bytes:
        """Return the name of a file: one of the table's, or two of them joined."""
        name = self.pick(NAMES)
        return (name[:100] + self.pick(NAMES))[:255] if self.happens(0.2) else name


def contents() -> dict[str, bytes]:
    """Return what files of a tree may hold, by kind: each kind of tensor file, archives of these, and damaged ones."""
    files = dict(tensor_files())
    odd = {name.decode("utf-8", "replace"): np.arange(5, dtype=np.float32) for name in NAMES}
    odd |= {
        "../up": np.ones(3, np.float32),
        "/root/x": np.ones(3, np.float32),
        "x" * 300: np.ones(3, np.float32),
        "x" * 300 + "y": np.ones(3, np.float32),
        "日" * 300: np.ones(3, np.float16),
        "a/b": np.ones(2, np.float64),
    }
    stream = io.BytesIO()
    save_file(odd, stream, threads=1, metadata={"\x1b[2J": "\N{RIGHT-TO-LEFT OVERRIDE}", "a\nb": "c\rd"})
    files |= {"odd.gc": stream.getvalue(), "odd.safetensors": _safetensors(odd)}
    files |= {"half.gc": files["odd.gc"][:400], "half.safetensors": files["all.safetensors"][:300]}
    damaged = bytearray(files["odd.gc"])
    damaged[40] ^= 1
    return files | {"damaged.gc": bytes(damaged), "empty": b"", "text": b"a line of text\n" * 40}


def _safetensors(tensors: dict[str, np.ndarray]) -> bytes:
    from safetensors.numpy import save

    return save(tensors, {"\x1b[2J": "\N{RIGHT-TO-LEFT OVERRIDE}"})


class Tree:
    """A folder ``tree`` in a folder of its own, with things in it that a case draws.

    Args:
        top: An empty folder.
        draws: The choices.
        contents: Of :func:`contents`.

    Attributes:
        places: Paths from ``top`` on of all that was made, the tree first.
    """

    def __init__(self, top: Path, draws: Draws, contents: dict[str, bytes]) -> None:
        self._top, self._draws, self._contents = os.fsencode(top), draws, contents
        self._folders = [b"tree"]
        self.places = [b"tree"]
        os.mkdir(self._whole(b"tree"))  # noqa: PTH102 - of bytes
        for _ in range(draws.below(9)):
            place = b"/".join((draws.pick(self._folders), draws.name()))
            with suppress(OSError):  # a name that is taken, or too long, or what only root may make
                draws.pick(MAKERS)(self, place)
                self.places.append(place)

    def _whole(self, place: bytes) -> bytes:
        return b"/".join((self._top, place))

    def what_is_there(self) -> dict[str, bool]:
        """Return of everything in the tree that is no folder with something in it: is it, or leads it to, a file?"""
        found = {}
        for folder, folders, files in os.walk(os.path.join(self._top, b"tree")):  # noqa: PTH118 - of bytes
            for name in (*folders, *files):
                path = os.path.join(folder, name)  # noqa: PTH118 - of bytes
                is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
                if not is_folder or not os.listdir(path):  # noqa: PTH208 - of bytes
                    found[os.fsdecode(os.path.relpath(path, self._top))] = os.path.isfile(path)  # noqa: PTH113
        return found

    def file(self, place: bytes) -> None:
        """Make a file of some kind."""
        kinds = sorted(self._contents)
        alike = [kind for kind in kinds if os.fsencode(Path(kind).suffix or ".") == os.path.splitext(place)[1]]  # noqa: PTH122
        kind = self._draws.pick(alike if alike and self._draws.happens(0.8) else kinds)
        with open(self._whole(place), "xb") as file:
            file.write(self._contents[kind])

    def sparse(self, place: bytes) -> None:
        """Make a file that is a hole, with a byte behind it."""
        with open(self._whole(place), "xb") as file:
            file.seek(1 << 17)
            file.write(b"x")

    def closed(self, place: bytes) -> None:
        """Make a file or folder that nobody but root may read."""
        (self.folder if self._draws.happens(0.5) else self.file)(place)
        os.chmod(self._whole(place), 0)  # noqa: PTH101 - of bytes

    def folder(self, place: bytes) -> None:
        """Make a folder, in which more may be made."""
        os.mkdir(self._whole(place))  # noqa: PTH102 - of bytes
        self._folders.append(place)

    def link(self, place: bytes) -> None:
        """Make a link: to something of the tree, to itself, to nothing."""
        how = self._draws.below(4)
        if how == 0:
            target = self._whole(self._draws.pick(self.places))
        elif how == 1:
            target = os.path.basename(place)  # noqa: PTH119 - of bytes
        else:
            target = self._draws.pick(TARGETS)
        os.symlink(target, self._whole(place))  # noqa: PTH211 - of bytes

    def link_to_system(self, place: bytes) -> None:
        """Make a link to a file, folder or device of the system."""
        os.symlink(self._draws.pick(OF_SYSTEM), self._whole(place))  # noqa: PTH211 - of bytes

    def second_name(self, place: bytes) -> None:
        """Make a hard link."""
        os.link(self._whole(self._draws.pick(self.places)), self._whole(place), follow_symlinks=False)

    def pipe(self, place: bytes) -> None:
        """Make a pipe that nobody writes to."""
        os.mkfifo(self._whole(place))

    def socket(self, place: bytes) -> None:
        """Make a socket."""
        if len(self._whole(place)) < 100:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(self._whole(place))

    def device(self, place: bytes) -> None:
        """Make a device, as far as the system lets us: one that is always empty, and one without an end."""
        os.mknod(self._whole(place), 0o020666, os.makedev(1, self._draws.pick((3, 5))))


MAKERS: tuple[Callable[[Tree, bytes], None], ...] = (
    Tree.file,
    Tree.file,
    Tree.file,
    Tree.file,
    Tree.folder,
    Tree.folder,
    Tree.link,
    Tree.link,
    Tree.link_to_system,
    Tree.second_name,
    Tree.sparse,
    Tree.closed,
    Tree.pipe,
    Tree.socket,
    Tree.device,
)


def put_in_place(path: str, how: int, contents: dict[str, bytes]) -> None:
    """Change what is at a path in one of eight ways: it vanishes, grows, shrinks, becomes something else."""
    is_file = os.path.isfile(path)  # noqa: PTH113 - who opened a pipe to write to it would wait
    with suppress(OSError):
        if how < 3 and not is_file:
            return
        if how == 0:
            os.truncate(path, os.stat(path).st_size // 2)  # noqa: PTH116 - of bytes
        elif how == 1:
            with open(path, "ab") as file:
                file.write(b"more")
        elif how == 2:
            with open(path, "r+b") as file:
                file.write(contents["text"])
        elif os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114 - of bytes
            shutil.rmtree(path)
        else:
            os.unlink(path)  # noqa: PTH108 - of bytes
        if how == 4:
            os.mkdir(path)  # noqa: PTH102 - of bytes
        elif how == 5:
            os.symlink(os.path.basename(path), path)  # noqa: PTH119, PTH211 - of bytes
        elif how == 6:
            os.mkfifo(path)
        elif how == 7:
            os.symlink("/dev/zero", path)  # noqa: PTH211 - of bytes


class Fault:
    """A context in which one call that reaches a file below a folder fails, or finds something else in its place.

    Args:
        top: The folder.
        draws: Which call, and what happens.
        contents: Of :func:`contents`.
        pipes: A pipe may come into the place of a file.

    Attributes:
        happened: Paths to which it has happened.
        paused: True while it may not happen.
    """

    def __init__(self, top: Path, draws: Draws, contents: dict[str, bytes], *, pipes: bool) -> None:
        self._here, self._contents, self._pipes = f"{top}/", contents, pipes
        self._left, self._how = draws.below(64), draws.below(8)
        self._code = draws.pick(ERRORS) if draws.happens(0.6) else 0
        self._wanted = draws.pick(CALLS) if draws.happens(0.5) else ""
        if self._wanted:
            self._left %= 6
        self.happened: list[str] = []
        self.paused = False
        self._real: dict[str, Any] = {name: getattr(os, name) for name in CALLS}

    def __enter__(self) -> Fault:
        self._patches = ExitStack()
        for name in CALLS:
            self._patches.enter_context(mock.patch.object(os, name, partial(self._call, name)))
        for name in ("io.open", "builtins.open"):
            self._patches.enter_context(mock.patch(name, partial(self._open, io.open)))
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    def _open(self, real: Callable[..., Any], file: Any, *args: Any, **options: Any) -> Any:
        """Open a file by way of ``os.open``, so that opening may fail."""
        if not isinstance(file, int) and not options.get("opener"):
            options["opener"] = lambda path, flags: os.open(path, flags, 0o666)
        return real(file, *args, **options)

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a function of the system, or fail."""
        real = self._real[name]
        if self.happened or self.paused or self._wanted not in ("", name) or not args:
            return real(*args, **options)
        self.paused = True
        try:
            place = self._path_of(args[0])
            if place.startswith(self._here):
                self._left -= 1
                if self._left < 0:
                    self._happen(name, place, args[0])
        finally:
            self.paused = False
        return real(*args, **options)

    def _path_of(self, place: object) -> str:
        if isinstance(place, int):
            with suppress(OSError):
                place = self._real["readlink"](f"/proc/self/fd/{place}")
        return os.path.abspath(os.fsdecode(place)) if isinstance(place, str | bytes | os.PathLike) else ""  # noqa: PTH100

    def _happen(self, name: str, place: str, given: Any) -> None:
        """Raise the error, or change what is at the path."""
        self.happened.append(place)
        if self._code:
            if name == "close":
                self._real["close"](given)
            raise OSError(self._code, os.strerror(self._code), *([] if isinstance(given, int) else [given]))
        may_be_pipe = self._pipes and place.count("/") > self._here.count("/")  # not what a command line names
        put_in_place(place, self._how if may_be_pipe or self._how != 6 else 5, self._contents)


def remove(top: Path) -> None:
    """Remove a folder with all that is in it, closed folders included."""
    for folder, _, _ in os.walk(os.fsencode(top)):
        os.chmod(folder, 0o700)  # noqa: PTH101 - of bytes
    shutil.rmtree(top)
