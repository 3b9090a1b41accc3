"""Words and numbers of the command line: known ones, bounded, each with its help."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

_MOST = (1 << 31) - 1
_MOST_S = 1e9
_FILES = "FILE", "RUN", "JOBS", "DAGS", "BENCH.json", "FILE.py:NAME"
"""What arguments are called that name a file, and are read as text."""
_NUMBER = re.compile(r"[0-9]{0,12}(?:[0-9]\.?|\.[0-9]{1,20})(?:e-?[0-9]{1,3})?")
_COUNT = re.compile(r"[0-9]{1,10}")


def count(text: str) -> int:
    """Return a whole number of an option, written in plain digits."""
    if _COUNT.fullmatch(text) and int(text) <= _MOST:
        return int(text)
    raise argparse.ArgumentTypeError(
        f"{text[:40]!r}; want a whole number from 0 to {_MOST}"
    )


def seconds(text: str) -> float:
    """Return a number of an option that is not whole: of seconds, or a share."""
    if _NUMBER.fullmatch(text) and float(text) <= _MOST_S:
        return float(text)
    raise argparse.ArgumentTypeError(
        f"{text[:40]!r}; want a number from 0 to {_MOST_S:g}"
    )


_TYPES = {int: count, float: seconds}


def bounded(parser: argparse.ArgumentParser) -> None:
    """Take the bounded forms of all numbers, whatever a verb's options say."""
    for inner in below(parser).values():
        bounded(inner)
    for action in parser._actions:
        if action.type in _TYPES:
            action.type = _TYPES[action.type]


def described(parser: argparse.ArgumentParser) -> None:
    """Have the help of every action begin with what the list of actions says of it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for told in action._choices_actions:
                about, inner = told.help or "", action.choices[told.dest]
                inner.description = (
                    inner.description or f"{about[:1].upper()}{about[1:]}."
                )
                described(inner)


class CommandParser(argparse.ArgumentParser):
    """Answers a word that it does not know with the nearest that it knows.

    A verb that takes any words may have `actions` that have options and help of their
    own, when one of them is the first word.
    """

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.actions: dict[str, CommandParser] = {}

    def action(self, name: str, about: str) -> CommandParser:
        """Return the parser of what follows a first word."""
        prog = f"{self.prog} {name}"
        made = self.actions[name] = CommandParser(prog=prog, description=about)
        return made

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words, or have an action parse those behind it."""
        inner = self.actions.get(args[0]) if args else None
        if inner is None:
            return super().parse_known_args(args, namespace)
        found, unknown = inner.parse_known_args(args[1:], namespace)
        for name, value in {**self._defaults, **inner._defaults}.items():
            setattr(found, name, value)
        found.parser = inner
        return found, unknown

    def _get_values(self, action: argparse.Action, words: list[str]) -> Any:
        """Read what is given; an empty name is no file, and not as if none were given.

        So says who writes `--db "$RUN"` where there is no such variable.
        """
        if "" in words and (action.type is Path or action.metavar in _FILES):
            raise argparse.ArgumentError(action, "''; want the name of a file")
        return super()._get_values(action, words)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and what may have been meant."""
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong:
            known = [word.strip("' ") for word in wrong[2].split(",")]
            message += _nearest(wrong[1], known)
        elif unknown := re.search(r"unrecognized arguments: (--\S+)", message):
            word, known = unknown[1].partition("=")[0], self.options()
            if word in known:  # of another action
                message += f"; {word} is an option of another action"
            else:
                message += _nearest(word, known)
        super().error(message)

    def options(self) -> list[str]:
        """Return the options of this parser, and of those beneath it."""
        found = [word for action in self._actions for word in action.option_strings]
        for inner in below(self).values():
            found += inner.options()
        return found


def below(parser: argparse.ArgumentParser) -> dict[str, CommandParser]:
    """Return the parsers of the words that may come next, by word."""
    found: dict[str, CommandParser] = dict(getattr(parser, "actions", {}))
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


def _nearest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {near[0]}?" if near else ""
