"""Print what makes a shell complete this command: bash, zsh or fish.

    eval "$(stretto completion bash)"               in ~/.bashrc
    eval "$(stretto completion zsh)"                in ~/.zshrc, after compinit
    stretto completion fish | source                in ~/.config/fish/config.fish

Verbs, their actions, their options, and the values that an option may have come from
the parser; names of algorithms and machines from the catalogues. The script that is
printed starts no process.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stretto import topology
from stretto.cli.options import below
from stretto.program import algorithms

_SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join((__doc__ or "").split("\n")[2:5])
    parser.add_argument("shell", choices=_SHELLS, help="which shell")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from stretto.cli import parser  # which asks this file for its options

    places = list(_places(parser(), ()))
    print(_fish(places) if args.shell == "fish" else _bash(places, args.shell))
    return 0


@dataclass(frozen=True, slots=True)
class _Place:
    """What may follow some words of the command line."""

    path: tuple[str, ...]
    words: dict[str, str]
    """Each with what it is, in a line."""
    values: dict[str, tuple[str, ...]]
    """By option, where they are known."""


def _places(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[_Place]:
    words: dict[str, str] = {}
    values: dict[str, tuple[str, ...]] = {}
    for action in parser._actions:
        about = "" if action.help == argparse.SUPPRESS else (action.help or "")
        if isinstance(action, argparse._SubParsersAction):
            told = {one.dest: one.help or "" for one in action._choices_actions}
            words |= {name: told.get(name, "") for name in action.choices}
            continue
        known = _known(action)
        words |= dict.fromkeys(action.option_strings, about)
        if action.option_strings:
            values |= {word: known for word in action.option_strings if known}
        else:
            words |= dict.fromkeys(known, "")
    inner = below(parser)
    words |= {name: one.description or "" for name, one in inner.items() if path}
    yield _Place(path, words, values)
    for name, one in inner.items():
        yield from _places(one, (*path, name))


def _known(action: argparse.Action) -> tuple[str, ...]:
    """Return the values that an argument may have, where there is a list of them."""
    if action.choices is not None:
        return tuple(map(str, action.choices))
    if action.dest == "algorithm" and not action.option_strings:
        return tuple(algorithms.names())
    return tuple(topology.names()) if action.dest == "machine" else ()


def _bash(places: list[_Place], shell: str) -> str:
    """Return a function for bash; zsh runs the same with its bashcompinit."""
    paths = {" ".join(place.path) for place in places if place.path}
    cases, valued = [], []
    for place in places:
        path = " ".join(place.path)
        cases.append(f"    {shlex.quote(path)}) words={_quoted(place.words)} ;;")
        for option, known in place.values.items():
            key = shlex.quote(f"{path}:{option}")
            valued.append(f"    {key}) words={_quoted(known)} ;;")
    lines = [
        *(["autoload -U +X bashcompinit && bashcompinit"] * (shell == "zsh")),
        "_stretto() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" last="${COMP_WORDS[COMP_CWORD-1]}"',
        '  local path="" next words word i',
        "  for ((i = 1; i < COMP_CWORD; i++)); do",
        '    word="${COMP_WORDS[i]}"; next="${path:+$path }$word"',
        f'    case "$next" in {"|".join(map(shlex.quote, sorted(paths)))})',
        '      path="$next" ;; esac',
        "  done",
        '  case "$path" in',
        *cases,
        "  esac",
        '  case "$path:$last" in',
        *valued,
        "  esac",
        '  COMPREPLY=($(compgen -W "$words" -- "$cur"))',
        "}",
        "complete -o default -F _stretto stretto",
    ]
    return "\n".join(lines)


def _quoted(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))


def _fish(places: list[_Place]) -> str:
    lines = []
    for place in places:
        seen = "; and ".join(f"__fish_seen_subcommand_from {w}" for w in place.path)
        below = [p.path[-1] for p in places if p.path[:-1] == place.path and p.path]
        if below:
            inner = f"not __fish_seen_subcommand_from {' '.join(below)}"
            seen = f"{seen}; and {inner}" if seen else inner
        when = "complete -c stretto"
        when += f" -n {shlex.quote(seen)}" if seen else ""
        for word, about in place.words.items():
            known = place.values.get(word, ())
            more = f" -x -a {_quoted(known)}" if known else ""
            told = " ".join(about.replace("%%", "%").split())
            tail = f" -d {shlex.quote(told)}" if told else ""
            lines.append(f"{when} {_flag(word)}{more}{tail}")
    return "\n".join(lines)


def _flag(word: str) -> str:
    """Return how fish calls a long option, a short one, or a word."""
    if word.startswith("--"):
        return f"-l {word[2:]}"
    return f"-s {word[1:]}" if word.startswith("-") else f"-a {word}"
