"""What arguments beside arrays must be: one description each, and one way to refuse.

In: who calls, a name, what was given. Out: the value in one form. Never: an error of
Python's own, or a guess. Calls that are known by their arguments do not come here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from stretto import executors
from stretto.errors import CallError, UnknownNameError, is_interruption
from stretto.fabric.patience import MOST_RANKS
from stretto.program import collectives
from stretto.program.collectives import DTYPES
from stretto.runtime.choice.beside import Beside
from stretto.runtime.choice.select import parse_pin

_MOST_BYTES = 1 << 47
_MOST_SPELT = 60


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: what is wanted, in words, and how it is read.

    `read` returns the value, or raises when that is not what was given.
    """

    want: str
    read: Callable[[Any], Any]


def is_whole(given: Any) -> bool:
    """Return whether that is a whole number; True and False are none."""
    return isinstance(given, Integral) and not isinstance(given, bool | np.bool_)


def _whole(least: int, most: int) -> Callable[[Any], int]:
    def number(given: Any) -> int:
        if not is_whole(given) or not least <= int(given) <= most:
            raise ValueError
        return int(given)

    return number


def _shape(given: Any) -> tuple[int, ...]:
    parts = np.ravel(np.asarray(given, dtype=object)).tolist()
    sizes = tuple(_whole(0, _MOST_BYTES)(n) for n in parts)
    if math.prod(sizes) > _MOST_BYTES:
        raise ValueError
    return sizes


def _dtype(given: Any) -> str:
    if given is None:
        raise ValueError
    name = str(given).removeprefix("torch.")
    if not isinstance(given, str) and name == str(given):
        name = np.dtype(given).name
    if name not in DTYPES:
        raise UnknownNameError.among("dtype", name, DTYPES)
    return name


def _text(known: Callable[[str], object]) -> Callable[[Any], str]:
    def name(given: Any) -> str:
        if not isinstance(given, str):
            raise TypeError
        known(given)
        return given

    return name


def _yes_or_no(given: Any) -> bool:
    if not isinstance(given, bool | np.bool_):
        raise TypeError
    return bool(given)


def _words(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    given.encode()
    return str(given)


def _pin(given: Any) -> Any:
    hash(given)
    if given is not None and not isinstance(given, Beside):
        parse_pin(given)
    return given


def _pairs(given: Any) -> tuple[tuple[Any, Any], ...]:
    return tuple((source, target) for source, target in given)


ARGUMENTS = {
    "shape": Argument(
        f"whole numbers, none negative, and at most {_MOST_BYTES} in all", _shape
    ),
    "dtype": Argument("the name of an element type, such as 'float32'", _dtype),
    "device": Argument("the name of an executor, such as 'cpu'", _text(executors.get)),
    "collective": Argument("the name of a collective", _text(collectives.get)),
    "count": Argument("a whole number of elements", _whole(0, _MOST_BYTES)),
    "registered": Argument("True or False", _yes_or_no),
    "flag": Argument("True or False", _yes_or_no),
    "why": Argument("a text", _words),
    "name": Argument("a text", _words),
    "n": Argument(f"a whole number of ranks, 1 to {MOST_RANKS}", _whole(1, MOST_RANKS)),
    "pickle": Argument("True or False", _yes_or_no),
    "values": Argument("a list of values, one for every rank", list),
    "nbytes": Argument("a whole number of bytes, at least 1", _whole(1, _MOST_BYTES)),
    "blocks": Argument("a whole number, at least 1", _whole(1, 1 << 20)),
    "max_count": Argument(
        "the most elements that any rank has for any other, the same on every rank, "
        "as counts are on the GPU",
        _whole(1, _MOST_BYTES),
    ),
    "color": Argument("a whole number or None", _whole(1 - (1 << 63), (1 << 63) - 1)),
    "key": Argument("a whole number", _whole(1 - (1 << 63), (1 << 63) - 1)),
    "algorithm": Argument("a name such as 'all_reduce/ring push packets'", _pin),
    "pairs": Argument("pairs of ranks: ((source, target), ...)", _pairs),
}
"""By name: an argument is the same wherever it is taken."""


def read(where: str, name: str, given: Any) -> Any:
    """Return an argument's value; CallError says who gave what, and what is wanted."""
    described = ARGUMENTS[name]
    try:
        return described.read(given)
    except UnknownNameError as e:
        raise UnknownNameError(f"{where}: {name}={spell(given)}: {e}") from None
    except Exception as e:  # whatever Python, NumPy or the object has against it
        if is_interruption(e):
            raise
        text = f"{where}: {name}={spell(given)}; want {described.want}"
        raise CallError(text) from None


def spell(given: Any) -> str:
    """Return what was given, in a few characters, whatever it is."""
    try:
        text = repr(given)
    except Exception as e:
        if is_interruption(e):
            raise
        text = f"an odd {type(given).__name__}"
    return text if len(text) <= _MOST_SPELT else text[: _MOST_SPELT - 3] + "..."


def odd(rank: int, key: tuple[Any, ...]) -> CallError:
    """Return the error of a call by an argument that may change."""
    what = "an argument may change"
    for given in key[3:]:
        try:
            hash(given)
        except TypeError:
            what = f"{str(given)[:60]} is a {type(given).__name__}"
            break
    return CallError(
        f"rank {rank}: {key[0]}: {what}; want a name, a number, a tuple or None, which "
        "stay what they are"
    )


def as_whole(number: Any) -> int | None:
    """Return a whole number; None: it is none, or one that may change, as a tensor.

    Calls are known by their arguments the next time.
    """
    return int(number) if isinstance(number, Integral) else None
