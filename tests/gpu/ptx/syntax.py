"""PTX as data: the functions of a module and their statements. What NVRTC does not write, and what is not known here,
is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class UnknownPtxError(Exception):
    """PTX that is not understood here; the message quotes it."""


class Parameter(NamedTuple):
    """A parameter or a result of a function."""

    name: str
    size: int  #: bytes


class Statement(NamedTuple):
    """One statement of a function's body.

    ``word`` is its instruction or directive, ``"{"`` and ``"}"`` for the ends of a scope, ``":"`` for a label, whose
    name is the operand.
    """

    word: str
    operands: tuple[str, ...]
    guard: str  #: ``"p1"`` or ``"!p1"``: the register by which it is done or not; empty if it always is
    place: str  #: file and line of the CUDA source
    used: int  #: a bit for each byte of a vector of which only some are meant to be loaded, or 0

    @property
    def text(self) -> str:
        """The statement, as errors quote it."""
        return f"{self.word} {', '.join(self.operands)}".strip()


class Function(NamedTuple):
    """A kernel, or a function that kernels call; ``body`` is empty where it is only declared."""

    name: str
    is_kernel: bool
    result: Parameter | None
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]


class Module(NamedTuple):
    """What NVRTC makes of a file; ``shared`` are arrays of shared memory by their names, with their bytes."""

    functions: tuple[Function, ...]
    shared: dict[str, int]


WIDTHS = {"8": 1, "16": 2, "32": 4, "64": 8}
_COMMENT = re.compile(r"//[^\n]*")
_FUNCTION = re.compile(
    r"(?:\.visible\s+)?\.(?P<kind>entry|func)\s*(?:\((?P<result>[^)]*)\))?\s*(?P<name>[\w$]+)\s*"
    r"(?:\((?P<parameters>[^)]*)\))?\s*(?P<directives>(?:\.(?:maxntid|minnctapersm|noreturn)[^\n{;]*\s)*)(?P<end>[{;])"
)
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](?P<bits>\d+)\s+(?P<name>[\w$]+)(?:\[(?P<n>\d+)\])?")
_SHARED = re.compile(r"\.shared\s+\.align\s+\d+\s+\.b8\s+(?P<name>[\w$]+)\[(?P<n>\d+)\]\s*;")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)".*$', re.MULTILINE)
_PLACE = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)[^\n]*$", re.MULTILINE)
_NAMES_FOR_DEBUGGERS = re.compile(r"^\s*\.section\s+\.debug_str\s*\{[^}]*\}", re.MULTILINE)
#: What else may stand beside functions: numbers that the compiler has put into instructions already.
_ELSE = re.compile(
    r"\s*(?:\.(?:version|target|address_size)\s[^\n]*\n|\.global\s+\.align\s+\d+\s+\.\w+\s+[\w$]+\s*=[^;]*;)"
)


def read(text: str) -> Module:
    """Return a module from its PTX, made with ``-lineinfo``.

    Raises:
        UnknownPtxError: Something in it is not understood.
    """
    text = _NAMES_FOR_DEBUGGERS.sub("", _COMMENT.sub("", text))
    files = {number: name.rpartition("/")[2] for number, name in _FILE.findall(text)}
    text = _PLACE.sub(lambda found: f".loc {files[found[1]]}:{found[2]};", _FILE.sub("", text))
    shared = {found["name"]: int(found["n"]) for found in _SHARED.finditer(text)}
    text = _SHARED.sub("", text)
    functions, at = [], 0
    for found in _FUNCTION.finditer(text):
        if found.start() < at:
            raise UnknownPtxError(found[0])
        _check_else(text[at : found.start()])
        at = found.end()
        if found["end"] == "{":
            at = _end_of_scope(text, at)
        body = text[found.end() : at - 1] if found["end"] == "{" else ""
        result = _parameters(found["result"])
        functions.append(
            Function(
                found["name"],
                found["kind"] == "entry",
                result[0] if result else None,
                _parameters(found["parameters"]),
                tuple(_statements(body)),
            )
        )
    _check_else(text[at:])
    return Module(tuple(functions), shared)


def split_operands(text: str) -> tuple[str, ...]:
    """Return the operands that commas separate, but not those within braces, brackets or parentheses."""
    return tuple(part.strip() for part in re.split(r",(?![^{(\[]*[})\]])", text) if part.strip())


def _check_else(text: str) -> None:
    rest = _ELSE.sub("", text + "\n").strip()
    if rest:
        raise UnknownPtxError(rest[:200])


def _end_of_scope(text: str, at: int) -> int:
    """Return where the scope ends whose inside begins here."""
    depth = 1
    for found in re.finditer(r"[{}]", text[at:]):
        depth += 1 if found[0] == "{" else -1
        if not depth:
            return at + found.end()
    raise UnknownPtxError(f"a scope that does not end: {text[at : at + 80]}")


def _parameters(text: str | None) -> tuple[Parameter, ...]:
    found = []
    for part in split_operands(text or ""):
        own = _PARAMETER.fullmatch(part)
        if own is None:
            raise UnknownPtxError(part)
        found.append(Parameter(own["name"], WIDTHS[own["bits"]] * int(own["n"] or 1)))
    return tuple(found)


def _statements(body: str) -> Iterator[Statement]:
    """Yield the statements of a body. A brace where none has begun is that of a scope, else of a vector's operands."""
    text, place, used = "", "", 0
    for piece in re.findall(r"[{};]|[^{};]+", body):
        while not text and (label := re.match(r"\s*([\w$]+):", piece)):
            yield Statement(":", (label[1],), "", place, 0)
            piece = piece[label.end() :]
        if piece in "{}" and not text:
            yield Statement(piece, (), "", place, 0)
        elif piece != ";":
            text = (text + piece).lstrip()
        else:
            word, _, rest = text.replace("\n", " ").replace("\t", " ").partition(" ")
            text, guard = "", ""
            if word.startswith("@"):
                guard = word[1:].replace("%", "")
                word, _, rest = rest.strip().partition(" ")
            if word == ".loc":
                place = rest.strip()
            elif word == ".pragma":
                mask = re.search(r"used_bytes_mask (0x[0-9a-f]+)", rest)
                used = int(mask[1], 16) if mask else used
            else:
                yield Statement(word, split_operands(rest), guard, place, used)
                used = 0
    if text.strip():
        raise UnknownPtxError(text)
