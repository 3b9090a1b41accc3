"""One turn of a loop over descriptors: wait, then call what is registered for each."""

from __future__ import annotations

import selectors

__all__ = ["dispatch"]


def dispatch(selector: selectors.BaseSelector, timeout_s: float | None) -> None:
    """Wait until something stirs, at most so long, and call the data of its keys.

    A callback may unregister and close what stirred in the same turn: that is passed
    over, also where its number already stands for something else.
    """
    for key, _ in selector.select(timeout_s):
        current = selector.get_map().get(key.fd)
        if current is not None and current.data is key.data:
            key.data()
