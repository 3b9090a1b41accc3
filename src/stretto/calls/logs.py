"""What was chosen, told by Python's logging, for whoever asks with STRETTO_LOG.

It is said once per kind of call: one like those before says and costs nothing.
"""

from __future__ import annotations

import functools
import logging
import os
import warnings

__all__ = ["logger"]

_VARIABLE = "STRETTO_LOG"
_LEVELS = {"": 0, "info": logging.INFO, "debug": logging.DEBUG}


@functools.cache
def logger() -> logging.Logger:
    """Return the logger `stretto`, with the level that STRETTO_LOG says."""
    found = logging.getLogger("stretto")
    given = os.environ.get(_VARIABLE, "")
    if given.lower() not in _LEVELS:
        warnings.warn(
            f"{_VARIABLE}={given!r}; want info or debug. Nothing is logged",
            RuntimeWarning,
            stacklevel=2,
        )
    elif level := _LEVELS[given.lower()]:
        found.setLevel(level)
        if not found.hasHandlers():  # else the program says where logs go
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            found.addHandler(handler)
    return found
