"""``gcodec FILE``, ``gcodec -d FILE.gc`` and the like: what users of gzip, xz and zstd type, as the verbs behind it."""

from __future__ import annotations

import argparse
import glob
import os
import re
import stat
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from ..errors import did_you_mean
from .parser import END, VERBS, UsageError
from .streams import STDIO

#: Options that choose the verb, with what they add to it.
CHOICES: dict[str, tuple[str, ...]] = {
    "-z": ("compress",),
    "--compress": ("compress",),
    "-d": ("decompress",),
    "--decompress": ("decompress",),
    "--uncompress": ("decompress",),
    "-t": ("verify",),
    "--test": ("verify",),
    "-l": ("decompress", "--list"),
    "--list": ("decompress", "--list"),
}
#: What other programs call a verb.
_ELSEWHERE = {
    **dict.fromkeys(("extract", "restore", "unpack", "unzip", "x"), "decompress"),
    **dict.fromkeys(("info", "list", "ls", "show", "stat"), "inspect"),
    **dict.fromkeys(("check", "test"), "verify"),
    **dict.fromkeys(("add", "archive", "create", "pack", "zip"), "compress"),
    **dict.fromkeys(("benchmark", "compare"), "bench"),
}
#: Letters of options without a value, which may be joined: ``-dfk``.
LETTERS = "zdtlckfq"
#: Levels, as gzip, xz and zstd take them.
LEVEL = re.compile(r"-\d+|--(fast|best|ultra|extreme)(=.*)?", re.ASCII)
#: Options after which a word cannot be their value.
FLAGS = frozenset((*CHOICES, *(f"-{letter}" for letter in LETTERS), "--force", "--json", "--keep", "--quiet"))
HELP = frozenset(("-h", "--help", "-V", "--version"))
#: Joined letters that end in the option that takes a number.
_COUNTED = re.compile(rf"-[{LETTERS}]*T", re.ASCII)
_JOINED = re.compile(rf"-([{LETTERS}]*)(?:T(\d+))?", re.ASCII)


def verb_line(argv: Sequence[str]) -> list[str] | None:
    """Return the command line with its verb, for one that has none; None if it asks for help, or names no file and
    verb and its output goes to a terminal.

    Output that goes elsewhere is to be an archive, in which help would be taken for one.

    Args:
        argv: A command line whose first word is no verb.

    Raises:
        UsageError: Options that choose different verbs, an option that gcodec lacks, or a word that is neither a verb
            nor a file, or there is neither a word nor anything to read.
    """
    end = argv.index(END) if END in argv else len(argv)
    words = [word for argument in _with_counts(argv[:end]) for word in _split(argument)]
    names = argv[end:]  # after the end of options, which is the first of them
    _check_options(words)
    chosen = {CHOICES[word] for word in words if word in CHOICES}
    if len(chosen) > 1:
        raise UsageError("-z, -d, -t and -l exclude each other: give one")
    if not chosen and words and not words[0].startswith("-") and not _may_be_file(words[0]):
        meant = did_you_mean(_ELSEWHERE.get(words[0], words[0]), VERBS)
        raise UsageError(f"{words[0]}: neither a verb nor a file{meant} (gcodec --help)")
    if not chosen and "-c" not in words and not any(map(_may_be_file, words)) and len(names) < 2:
        if os.isatty(1) or not HELP.isdisjoint(words):
            return None
        if not _is_fed():
            raise UsageError("name a verb or a file, or pipe something in (gcodec --help)")
        return ["compress", *words]
    verb = chosen.pop() if chosen else ("compress",)
    return [*verb, *(word for word in words if word not in CHOICES), *names]


def use_standard_input(args: argparse.Namespace) -> None:
    """Lets a command line of the short form that names no file work on standard input."""
    for name in ("inputs", "archives"):
        if getattr(args, name, None) == []:
            setattr(args, name, [STDIO])


def _check_options(words: Sequence[str]) -> None:
    """Raise UsageError for what other compressors take and gcodec does not, for a verb that does not come first, and
    for a verb's option almost right."""
    for before, word in pairwise(("", *words)):
        if word in VERBS and before in FLAGS and not Path(word).exists():
            raise UsageError(f"{word}: a verb must come first, and its options after it: gcodec {word} {before} ...")
        if LEVEL.fullmatch(word) and not before.startswith("--"):  # else it may be that option's value
            raise UsageError(f"{word}: gcodec has no compression levels; leave this option out")
        meant = did_you_mean(word, (option for option in CHOICES if option.startswith("--")))
        if word.startswith("--") and word not in CHOICES and meant:
            raise UsageError(f"{word}: no such option{meant}")


def _is_fed() -> bool:
    """Return True if standard input comes from a file or another program."""
    try:
        source = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(source) or stat.S_ISREG(source) or stat.S_ISSOCK(source)


def _may_be_file(word: str) -> bool:
    """Return True if a word can be meant as a file: it exists, or is written as a path."""
    return word == STDIO or (
        not word.startswith("-") and ("." in word or "/" in word or glob.has_magic(word) or Path(word).exists())
    )


def _with_counts(arguments: Sequence[str]) -> list[str]:
    """Return a command line with each ``-T`` joined to the number behind it. Raises UsageError where there is none."""
    result: list[str] = []
    for argument in arguments:
        if result and _COUNTED.fullmatch(result[-1]) and argument.isdecimal():
            result[-1] += argument
        else:
            result.append(argument)
    for word in result:
        if _COUNTED.match(word) and not _JOINED.fullmatch(word):
            raise UsageError(f"{word}: -T takes a number of threads, as in -T4")
    return result


def _split(argument: str) -> list[str]:
    """Return ``-dfk`` as three options, ``-T4`` as an option and its value, and ``-dfT4`` as all of them."""
    joined = _JOINED.fullmatch(argument)
    if joined is None or argument == "-":
        return [argument]
    letters, threads = joined.groups()
    counted = ["--threads", threads] if threads and int(threads) else []
    return [*(f"-{letter}" for letter in letters), *counted]
