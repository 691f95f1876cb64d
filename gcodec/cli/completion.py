"""``gcodec completion``: scripts that complete verbs, options and files in a shell, made from the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from ..dtypes import BY_NAME
from .parser import VERBS, actions_of, parser_for, verbs_of
from .short_form import CHOICES

EXAMPLES = """examples:
  source <(gcodec completion bash)               in ~/.bashrc
  source <(gcodec completion zsh)                in ~/.zshrc, after compinit
  gcodec completion fish > ~/.config/fish/completions/gcodec.fish

The script does not run Python: generate it again after an upgrade."""


#: Values to complete where the parser takes others, too, by the name under which it keeps them.
VALUES = {"dtype": tuple(BY_NAME), "dtypes": tuple(BY_NAME)}


class Option(NamedTuple):
    """An option of a verb.

    Attributes:
        names: As typed, ``-o`` and ``--output``.
        text: The first line of its help, without characters that a shell would read.
        value: What stands for its value in help; empty for an option without one.
        choices: The values that there are, if only these.
    """

    names: tuple[str, ...]
    text: str
    value: str
    choices: tuple[str, ...]


class Command(NamedTuple):
    """A verb, or a verb of a verb, as a shell completes it.

    Attributes:
        path: The words that call it: ``("series", "add")``; empty for ``gcodec`` alone.
        verbs: Its own verbs by name, each with its help.
        options: Its options.
        choices: The values of its positional arguments, if only these.
    """

    path: tuple[str, ...]
    verbs: dict[str, str]
    options: tuple[Option, ...]
    choices: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=tuple(SHELLS), help="print the script for this shell")


def run(args: argparse.Namespace) -> int:
    """Prints the script; returns the exit code."""
    print("\n".join(SHELLS[args.shell](list(_commands(parser_for(VERBS))))))
    return 0


def _commands(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Command]:
    """Yield a command and all below it."""
    verbs, texts = verbs_of(parser), {}
    for name, verb in verbs.items():
        texts[name] = _plain(VERBS.get(name, "") if not path else verb.description or "")
    actions = actions_of(parser)
    options = tuple(_option(action) for action in actions if action.option_strings)
    words = tuple(word for a in actions if not a.option_strings and not verbs for word in _values(a))
    yield Command(path, texts, options if path else (*options, *_short_options(verbs, options)), words)
    for name, verb in verbs.items():
        yield from _commands(verb, (*path, name))


def _short_options(verbs: dict[str, argparse.ArgumentParser], known: tuple[Option, ...]) -> Iterator[Option]:
    """Yield what may stand beside a file without a verb: options that choose the verb, and those of these verbs."""
    taken = {name for option in known for name in option.names}
    chosen = (Option((name,), f"gcodec {' '.join(words)}", "", ()) for name, words in CHOICES.items())
    meant = dict.fromkeys(words[0] for words in CHOICES.values())
    of_verbs = (_option(action) for verb in meant for action in actions_of(verbs[verb]) if action.option_strings)
    for option in (*chosen, Option(("-T",), "number of threads", "N", ()), *of_verbs):
        if names := tuple(name for name in option.names if name not in taken):
            taken.update(names)
            yield option._replace(names=names)


def _values(action: argparse.Action) -> tuple[str, ...]:
    return tuple(map(str, action.choices or VALUES.get(action.dest, ())))


def _option(action: argparse.Action) -> Option:
    value = "" if action.nargs == 0 else str(action.metavar or action.dest)
    return Option(tuple(action.option_strings), _plain(action.help or ""), value, _values(action) if value else ())


def _plain(text: str) -> str:
    """Return the first line of a text, without what has a meaning within quotes of any of the shells."""
    return "".join(c for c in text.split("\n")[0].replace(":", ",") if c not in "'\"\\`$[](){}")


def _bash(commands: list[Command]) -> Iterator[str]:
    paths = "|".join(f'" {" ".join(command.path)}"' for command in commands if command.path)
    yield "_gcodec() {"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" verb="" words="" i'
    yield "    for ((i = 1; i < COMP_CWORD; i++)); do"
    yield f'        case "$verb ${{COMP_WORDS[i]}}" in {paths}) verb="$verb ${{COMP_WORDS[i]}}" ;; esac'
    yield "    done"
    yield '    case "$verb|$before" in'
    for command in commands:
        verb = f" {' '.join(command.path)}" if command.path else ""
        for option in command.options:
            names = "|".join(f'"{verb}|{name}"' for name in option.names)
            if option.value:
                yield f'        {names}) COMPREPLY=($(compgen -W "{" ".join(option.choices)}" -- "$word")); return ;;'
    yield "    esac"
    yield '    case "$verb" in'
    for command in commands:
        verb = f" {' '.join(command.path)}" if command.path else ""
        names = " ".join(name for option in command.options for name in option.names)
        words = " ".join((*command.verbs, *command.choices))
        yield f'        "{verb}") if [[ "$word" == -* ]]; then words="{names}"; else words="{words}"; fi ;;'
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o bashdefault -o default -F _gcodec gcodec"


def _zsh(commands: list[Command]) -> Iterator[str]:
    yield "#compdef gcodec"
    for command in commands:
        yield f"{_function(command.path)}() {{"
        options = " ".join(_zsh_option(option) for option in command.options)
        if command.verbs:
            yield "    local -a verbs=(" + " ".join(f"'{name}:{text}'" for name, text in command.verbs.items()) + ")"
            yield "    if (( CURRENT == 2 )); then"
            yield f"        _describe verb verbs; _arguments {options} '*:file:_files'; return"
            yield "    fi"
            yield "    local verb=$words[2]"
            yield f"    if (( ${{+functions[{_function(command.path)}_$verb]}} )); then"
            yield f"        shift words; (( CURRENT-- )); {_function(command.path)}_$verb; return"
            yield "    fi"
        rest = f"({' '.join(command.choices)})" if command.choices else "_files"
        yield f"    _arguments -s {options} '*:argument:{rest}'"
        yield "}"
    yield 'if [[ "$funcstack[1]" == _gcodec ]]; then _gcodec "$@"; else compdef _gcodec gcodec; fi'


def _function(path: tuple[str, ...]) -> str:
    return "_".join(("_gcodec", *path))


def _zsh_option(option: Option) -> str:
    values = f"({' '.join(option.choices)})" if option.choices else "_files"
    value = f":{_plain(option.value)}:{values}" if option.value else ""
    return " ".join(f"'*{name}[{option.text}]{value}'" for name in option.names)


def _fish(commands: list[Command]) -> Iterator[str]:
    for command in commands:
        seen = [f"__fish_seen_subcommand_from {name}" for name in command.path]
        below = [f"not __fish_seen_subcommand_from {' '.join(command.verbs)}"] if command.verbs else []
        when = "; and ".join([*seen, *below])
        for name, text in command.verbs.items():
            yield f"complete -c gcodec -n '{when}' -a {name} -d '{text}'"
        for option in command.options:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            value = f" -x -a '{' '.join(option.choices)}'" if option.choices else " -r" if option.value else ""
            yield f"complete -c gcodec -n '{when}' {names}{value} -d '{option.text}'"
        if command.choices:
            yield f"complete -c gcodec -n '{when}' -x -a '{' '.join(command.choices)}'"


SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
