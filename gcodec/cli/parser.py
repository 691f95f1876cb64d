"""The parser of the command line: its verbs in groups, and a question where a word is almost one that is known."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from ..errors import did_you_mean
from .streams import STDIO

VERBS = {
    "compress": "compress tensor files and folders into .gc archives",
    "decompress": "restore files, list their contents, or extract single tensors",
    "inspect": "show what is in an archive, a frame or a tensor file",
    "report": "write a page with sizes, distributions and curves, of a file or a training run",
    "verify": "decode everything, check every hash, compare with the original",
    "series": "keep checkpoints of a run in a folder, each stored as the difference from the one before",
    "record": "explain how to record gradients from a training script; list what dumps hold",
    "warmup": "compile the kernels ahead of the first use",
    "bench": "measure sizes and speeds on this machine, compared with other codecs",
    "demo": "train two small models, record their gradients and compress them",
    "completion": "print a script that completes verbs, options and files in bash, zsh or fish",
}
#: Groups of verbs, as help shows them, with an example of each.
GROUPS = {
    "files": {
        "compress": "gcodec compress model.safetensors",
        "decompress": "gcodec decompress model.safetensors.gc",
        "inspect": "gcodec inspect model.safetensors.gc",
        "report": "gcodec report model.safetensors.gc",
        "verify": "gcodec verify model.safetensors.gc",
    },
    "training": {
        "series": "gcodec series add run/series run/step-*.pt",
        "record": "gcodec record --every 500",
    },
    "this machine": {
        "warmup": "gcodec warmup",
        "bench": "gcodec bench model.safetensors",
        "demo": "gcodec demo",
        "completion": "source <(gcodec completion bash)",
    },
}
#: After it, all words are names of files.
END = "--"
USAGE = """gcodec VERB ...
       gcodec FILE ...          make FILE.gc            (gcodec compress)
       gcodec -d FILE.gc ...    restore FILE            (gcodec decompress)
       gcodec -l | -t FILE.gc   list it | test it       (-c: to standard output)"""
EPILOG = """gcodec VERB --help says more.
Exit codes: 0 success, 1 error in the data or a file, 2 error in the command line, 130 interrupted."""


class UsageError(Exception):
    """The command line asks for something that has no meaning; the exit code is 2."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors name what was probably meant, and whose help is not lost without a word."""

    def print_help(self, file: Any = None) -> None:
        """Print help, and raise what hinders that, which argparse would pass over."""
        print(self.format_help(), end="", file=file)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError: as of all commands, the error is one line."""
        unknown = re.match(r"unrecognized arguments: (--?[\w-]+)", message)
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message)
        if unknown:
            message += did_you_mean(unknown[1], [word for action in actions_of(self) for word in action.option_strings])
        elif choice:
            message += did_you_mean(choice[1], re.findall(r"[\w.-]+", choice[2]))
        raise UsageError(f"{message} ({self.prog} --help)")


def parser_for(names: Iterable[str]) -> Parser:
    """Return the parser, with the arguments of these verbs; others are known by name only."""
    parser = Parser(
        "gcodec",
        usage=USAGE,
        description="Compresses gradients, checkpoints and any float tensors, losslessly or near-losslessly.",
        epilog=f"{_verb_list()}\n{EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="store_true", help="show the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", help=argparse.SUPPRESS, prog="gcodec")
    wanted = set(names)
    for name, text in VERBS.items():
        verb = verbs.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.", formatter_class=argparse.RawTextHelpFormatter
        )
        if name in wanted:
            module = importlib.import_module(f"gcodec.cli.{name}")
            module.add_arguments(verb)
            verb.set_defaults(run=module.run)
    return parser


def parse_line(parser: Parser, argv: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command line; what is left over is an error of the verb that it was given to.

    Names may stand before, between and after options: argparse takes those of one place and leaves the others over.
    """
    args, rest = parser.parse_known_args(argv)
    innermost = parser
    for name in argv:
        innermost = verbs_of(innermost).get(name, innermost)
    if rest:
        end = rest.index(END) if END in rest else len(rest)
        names = next((action for action in actions_of(innermost) if action.nargs in ("*", "+")), None)
        if names is None or any(word.startswith("-") and word != STDIO for word in rest[:end]):
            innermost.error(f"unrecognized arguments: {' '.join(rest)}")
        words = [*rest[:end], *rest[end + 1 :]]
        setattr(args, names.dest, [*getattr(args, names.dest), *(_value(innermost, names, word) for word in words)])
    for action in actions_of(innermost):
        value = getattr(args, action.dest, None)
        name = "/".join(action.option_strings) or f"{action.metavar}"
        if "" in (value if isinstance(value, list) else [value]):  # it would be this folder: a variable that is not set
            innermost.error(f"argument {name}: must not be empty")
        if action.option_strings and isinstance(value, list) and (not value or [] in value):
            innermost.error(f"argument {name}: must not be {END}")  # which argparse takes away
    return args


def _value(parser: Parser, action: argparse.Action, word: str) -> Any:
    """Return what a word is as one of a verb's names; an error of the verb if it is none."""
    if not callable(action.type):
        return word
    try:
        return action.type(word)
    except ValueError:
        parser.error(f"argument {action.metavar}: invalid value: {word!r}")


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options and positional arguments of a parser, those that help hides left out."""
    return [action for action in parser._actions if action.help != argparse.SUPPRESS]


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the verbs of a parser, each with its own parser; empty for one without verbs."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _verb_list() -> str:
    def lines() -> Iterator[str]:
        for title, verbs in GROUPS.items():
            yield f"{title}:"
            for name, example in verbs.items():
                yield f"  {name:<12}{VERBS[name]}\n{'':14}{example}"
            yield ""

    return "\n".join(lines())
