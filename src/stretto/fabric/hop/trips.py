"""The loops of `measure`, compiled."""

from __future__ import annotations

from stretto.fabric.hop.base import PutCall, SignalCall
from stretto.fabric.jit.atomics import call, compiled, load, load_acquire, store
from stretto.fabric.jit.libc import NO_WAIT, now_ns, recv, send
from stretto.fabric.jit.words import Words


class TripWord(Words):
    """Words of the arguments of trips by a hop."""

    PUT = 0
    """A put's, and a signal's."""
    SIGNAL = PUT + PutCall.END
    CALLS = SIGNAL + SignalCall.END
    """The hop's, as `Calls` has them."""
    CLOCK = CALLS + 6
    """Two words for the time."""
    END = CLOCK + 2


@compiled("int64(int64)")
def _now_into(words: int) -> int:
    """Return the time; the word at the address is used for it, and the next kept."""
    after = load(words + 8)
    now = now_ns(words)
    store(words + 8, after)
    return now


@compiled("int64(int64,int64,int64,int64,int64)")
def by_hop(arguments: int, memory: int, begins: int, times: int, rounds: int) -> int:
    """Time round trips through a hop; the words of its calls follow its arguments."""
    calls, clock = arguments + TripWord.CALLS.at, arguments + TripWord.CLOCK.at
    context, put, signal = load(calls), load(calls + 8), load(calls + 16)
    progress, told = load(calls + 24), arguments + TripWord.SIGNAL.at
    for nth in range(rounds):
        begun = now_ns(clock)
        if not begins:
            while load_acquire(memory) <= nth:
                call(progress, context, 0)
        elif load(arguments + PutCall.NBYTES.at):
            while not call(put, context, arguments):
                call(progress, context, 0)
        store(told + SignalCall.VALUE.at, nth + 1)
        while not call(signal, context, told):
            call(progress, context, 0)
        if begins:
            while load_acquire(memory) <= nth:
                call(progress, context, 0)
        store(times + 8 * nth, now_ns(clock) - begun)
    return rounds


@compiled("int64(int64,int64,int64,int64,int64,int64)")
def by_socket(
    sock: int, memory: int, nbytes: int, begins: int, times: int, rounds: int
) -> int:
    """Time round trips on a bare socket that is not blocking."""
    for nth in range(rounds):
        clock = times + 8 * nth
        at, stop = 0, nbytes if begins else 1
        begun = 0
        if begins:
            begun = _now_into(clock)
        else:
            while at < nbytes:
                got = recv(sock, memory + at, nbytes - at, NO_WAIT)
                if got > 0:
                    at += got
            at = 0
        while at < stop:
            sent = send(sock, memory + at, stop - at, NO_WAIT)
            if sent > 0:
                at += sent
        if begins:
            while recv(sock, memory, 1, NO_WAIT) < 1:
                pass
            store(clock, _now_into(clock) - begun)
    return rounds
