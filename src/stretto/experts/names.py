"""Names of experts, which graphs hold instead of them."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from stretto.errors import CallError

__all__ = ["found", "named"]

_by_name: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def named(experts: Any) -> str:
    """Return a text that stands for experts as long as they live."""
    name = f"experts {next(_numbers)}"
    _by_name[name] = experts
    return name


def found(name: str) -> Any:
    """Return the experts that a text stands for."""
    experts = _by_name.get(name)
    if experts is None:
        raise CallError(f"{name!r} are no longer there; want a graph compiled anew")
    return experts
