"""What can be searched: one file a problem, or an entry point of `stretto.problems`."""

from __future__ import annotations

import inspect
from typing import Any

from stretto.errors import CallError
from stretto.registry import Registry
from stretto.search.evolve.problem import Problem

__all__ = ["kind_of", "problem", "problems"]

problems: Registry[object] = Registry("problem", __name__, group="stretto.problems")
"""Modules that offer a class of `Problem` as OFFER, or such classes."""


def kind_of(name: str) -> type[Problem[Any]]:
    """Return the class of a problem."""
    return problems.offered_class(name, Problem)


def problem(name: str, **arguments: Any) -> Problem[Any]:
    """Return a problem with its arguments, such as a trace and a size."""
    kind = kind_of(name)
    known = inspect.signature(kind).parameters
    for key in arguments:
        if key not in known:
            raise CallError(
                f"problem {name} has no {key!r}: want {', '.join(known) or 'none'}"
            )
    missing = [
        key for key, one in known.items()
        if one.default is inspect.Parameter.empty and key not in arguments
    ]  # fmt: skip
    if missing:
        raise CallError(f"problem {name} needs {', '.join(missing)}")
    return kind(**arguments)
