"""UCX's calls in a row, compiled: what a program in C would do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.fabric.hop.ucx.engine import status_of
from stretto.fabric.jit.atomics import call_c, compiled, load, load_acquire
from stretto.fabric.jit.words import Words


class _Word(Words):
    WORKER = 0
    END_POINT = 1
    KEY = 2
    PUT = 3
    GET = 4
    FLUSH = 5
    PROGRESS = 6
    CHECK = 7
    FREE = 8
    PARAMETERS = 9
    REST = 10
    """Room for parameters that say nothing."""
    END = 42


_WORKER, _END_POINT, _KEY = 0, 8, 16
_IN_PROGRESS = 1
_LAST_ERROR = -100


def words_of(ucp: Any, handles: tuple[int, int, int]) -> NDArray[np.int64]:
    """Return what the calls need to know, as words."""
    words = np.zeros(_Word.END, np.int64)
    words[: len(handles)] = handles
    for word, name in (
        (_Word.PUT, "ucp_put_nbx"),
        (_Word.GET, "ucp_get_nbx"),
        (_Word.FLUSH, "ucp_ep_flush_nbx"),
        (_Word.PROGRESS, "ucp_worker_progress"),
        (_Word.CHECK, "ucp_request_check_status"),
        (_Word.FREE, "ucp_request_free"),
    ):
        words[word] = ucp.address(name)
    words[_Word.PARAMETERS] = words[_Word.REST :].ctypes.data
    return words


@compiled("int64(int64,int64)")
def _awaited(words: int, request: int) -> int:
    """Progress until a request is done; return how it ended."""
    if request == 0:
        return 0
    if _LAST_ERROR <= request < 0:
        return request
    while True:
        status = status_of(call_c(load(words + _Word.CHECK.at), request))
        if status != _IN_PROGRESS:
            call_c(load(words + _Word.FREE.at), request)
            return status
        call_c(load(words + _Word.PROGRESS.at), load(words + _WORKER))


@compiled("int64(int64,int64,int64,int64,int64)")
def _one(words: int, is_get: int, local: int, nbytes: int, remote: int) -> int:
    call = load(words + _Word.GET.at) if is_get else load(words + _Word.PUT.at)
    request = call_c(
        call,
        load(words + _END_POINT),
        local,
        nbytes,
        remote,
        load(words + _KEY),
        load(words + _Word.PARAMETERS.at),
    )
    if _LAST_ERROR <= request < 0:
        return request
    if request != 0:  # it ends by itself, and is then forgotten
        call_c(load(words + _Word.FREE.at), request)
    return 0


@compiled("int64(int64,int64,int64,int64)")
def moved(words: int, table: int, count: int, is_get: int) -> int:
    """Put or get `count` pieces, (here, bytes, there) each, and flush them."""
    for nth in range(count):
        row = table + 24 * nth
        wrong = _one(words, is_get, load(row), load(row + 8), load(row + 16))
        if wrong:
            return wrong
    point, parameters = load(words + _END_POINT), load(words + _Word.PARAMETERS.at)
    flush = call_c(load(words + _Word.FLUSH.at), point, parameters)
    return _awaited(words, flush)


@compiled("int64(int64,int64,int64)")
def said(words: int, local: int, remote: int) -> int:
    """Put a word."""
    return _one(words, 0, local, 8, remote)


@compiled("int64(int64,int64,int64,int64)")
def heard(words: int, word: int, want: int, looks: int) -> int:
    """Progress until a word is so large, so many times at most; return whether."""
    for _ in range(looks):
        if load_acquire(word) >= want:
            return 1
        call_c(load(words + _Word.PROGRESS.at), load(words + _WORKER))
    return 0
