"""A kernel behind another stream: four calls of the driver in one builtin of Python.

The driver is called by its addresses, and without the interpreter's lock: what starts
a call often does so between launches of its own, on a processor that is busy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stretto.executors.cuda.device.driver import ask
from stretto.fabric.jit.atomics import call_c, compiled, load
from stretto.fabric.jit.builtins import (
    DATA,
    bad_argument,
    builtin,
    held_item,
    integer,
    let_go,
    number,
    raised,
    take_back,
)
from stretto.fabric.jit.words import Words


class BehindWord(Words):
    """Words of one kernel on one stream."""

    RECORD = 0
    """Addresses of the driver's functions."""
    WAIT = 1
    LAUNCH = 2
    STREAM = 3
    CONFIG = 4
    FUNCTION = 5
    END = 6


_NUMBER = 0xFFFFFFFF
"""Of a word that C returned, what an `int` is."""


@compiled("int64(int64,int64,int64,int64)")
def _enqueue(words: int, event: int, caller: int, arguments: int) -> int:
    """Return 0, or the driver's error number: below 0 where the kernel is launched."""
    stream = load(words + BehindWord.STREAM.at)
    error = call_c(load(words + BehindWord.RECORD.at), event, caller) & _NUMBER
    if error == 0:
        error = call_c(load(words + BehindWord.WAIT.at), stream, event, 0) & _NUMBER
    if error == 0:
        config = load(words + BehindWord.CONFIG.at)
        function = load(words + BehindWord.FUNCTION.at)
        launch = load(words + BehindWord.LAUNCH.at)
        error = call_c(launch, config, function, arguments, 0) & _NUMBER
    if error == 0:
        error = -(call_c(load(words + BehindWord.RECORD.at), event, stream) & _NUMBER)
    return error


@compiled("int64(int64,int64,int64)", nogil=False)
def _behind(held: int, given: int, count: int) -> int:
    """Enqueue the kernel; see `behind` for what is given."""
    if count != 3:
        bad_argument()
        return 0
    event, caller = integer(load(given)), integer(load(given + 8))
    arguments = integer(load(given + 16))
    if raised():
        return 0
    words = load(held_item(held, 0) + DATA)
    gil = let_go()
    error = _enqueue(words, event, caller, arguments)
    take_back(gil)
    return number(error)


def behind(stream: int, config: int, function: int) -> Callable[[int, int, int], int]:
    """Return what enqueues a kernel on `stream`.

    Called with an event, another stream and the address of the kernel's arguments:
    behind what that stream was given so far. The event is then one of the kernel's end.
    It returns 0, or the driver's error number: below 0 where the kernel is launched.
    """
    words = np.zeros(BehindWord.END, np.int64)
    for word, name in (
        (BehindWord.RECORD, b"cuEventRecord"),
        (BehindWord.WAIT, b"cuStreamWaitEvent"),
        (BehindWord.LAUNCH, b"cuLaunchKernelEx"),
    ):
        words[word] = int(ask("cuGetProcAddress", name, 11080, 0)[0])
    words[BehindWord.STREAM] = stream
    words[BehindWord.CONFIG], words[BehindWord.FUNCTION] = config, function
    return builtin(_behind, (words, None))
