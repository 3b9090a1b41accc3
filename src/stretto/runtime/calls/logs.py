"""What was chosen, told by Python's logging, for whoever asks with STRETTO_LOG.

It is said once per kind of call: one like those before says and costs nothing.
"""

from __future__ import annotations

import functools
import logging
import os
import warnings
from typing import Any

from stretto.arrays import CPU
from stretto.executors import Call
from stretto.runtime.choice.beside import Beside
from stretto.runtime.choice.bits import ANY
from stretto.runtime.choice.question import Choice, Question
from stretto.runtime.choice.select import Pin

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


def say_quantised(
    call: Call, device: str, wire: str, num_ranks: int, rank: int
) -> None:
    """Log that a kind of call is quantised on the wire, as `say_chosen` does."""
    level = logging.DEBUG if rank else logging.INFO
    logger().log(
        level,
        "rank %d of %d: all_reduce of %d elements, %s %s, on %s: wire %s (%s)",
        rank,
        num_ranks,
        call.counts[0],
        call.dtype,
        call.op.value,
        device,
        wire,
        "by one kernel" if device != CPU else "in two exchanges of bytes",
    )


def say_memory(comm: Any, what: str, before: int, after: int) -> None:
    """Log what a communicator holds once it has given memory back, or taken it."""
    logger().log(
        logging.DEBUG if comm.rank else logging.INFO,
        "rank %d of %d: %s: it holds %.1f MB%s",
        comm.rank,
        comm.num_ranks,
        what,
        after / 1e6,
        f", and held {before / 1e6:.1f}" if before else "",
    )


def say_chosen(
    asked: Question, call: Call, pin: Pin, choice: Choice, rank: int
) -> None:
    """Log what serves a kind of call: rank 0 at info, the others at debug."""
    level = logging.DEBUG if rank else logging.INFO
    log = logger()
    if not log.isEnabledFor(level):
        return
    log.log(
        level,
        "rank %d of %d: %s of %d bytes, %s %s, on %s, arrays %s, %s: %s (%s%s)",
        rank,
        asked.num_ranks,
        asked.collective,
        asked.nbytes,
        call.dtype,
        call.op.value,
        asked.executor,
        asked.memory,
        "in place" if asked.in_place else "out of place",
        choice,
        "pinned" if pin and not isinstance(pin, Beside) else "chosen",
        "" if asked.bits == ANY else f", bits {asked.bits}",
    )
