"""What was chosen, told by Python's logging, for whoever asks with STRETTO_LOG.

It is said once per kind of call: one like those before says and costs nothing.
"""

from __future__ import annotations

import functools
import logging
import os
import warnings

from stretto.calls.keys import LaunchKey
from stretto.choice.beside import Beside
from stretto.choice.select import Choice

__all__ = ["logger", "say_chosen"]

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


def say_chosen(
    kind: LaunchKey, nbytes: int, choice: Choice, rank: int, num_ranks: int
) -> None:
    """Log what serves a kind of call: rank 0 at info, the others at debug."""
    level = logging.DEBUG if rank else logging.INFO
    log = logger()
    if not log.isEnabledFor(level):
        return
    place = "in place" if kind.in_place else "out of place"
    log.log(
        level,
        "rank %d of %d: %s of %d bytes, %s %s, on %s, arrays %s, %s: %s (%s)",
        rank,
        num_ranks,
        kind.collective,
        nbytes,
        kind.dtype,
        kind.op.value,
        kind.device,
        kind.memory,
        place,
        choice,
        "pinned" if kind.pin and not isinstance(kind.pin, Beside) else "chosen",
    )
