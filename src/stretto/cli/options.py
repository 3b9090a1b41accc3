"""Numbers of the command line: whole, bounded, and never a traceback later on."""

from __future__ import annotations

import argparse
import re

_MOST = (1 << 31) - 1
_MOST_S = 1e9
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
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                bounded(inner)
        elif action.type in _TYPES:
            action.type = _TYPES[action.type]
