"""Handlers of signals wait until what is being compiled is whole."""

import signal
import threading

import pytest

from stretto.fabric.jit import handlers
from stretto.fabric.jit.handlers import held_back

ALL = [signal.SIGINT, signal.SIGALRM, signal.SIGUSR1]


class Alarm(Exception):
    """Of a handler."""


@pytest.fixture
def came():
    """Return what handlers were called with, of all signals."""
    seen = []
    before = {n: signal.signal(n, lambda n, frame: seen.append(n)) for n in ALL}
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


def test_handlers_run_when_the_block_has_ended_and_are_there_again(came):
    """Each once, however often its signal came."""
    with held_back():
        for number in (*ALL, *ALL):
            signal.raise_signal(number)
        inside = list(came)
    assert [] == inside
    assert ALL == came
    signal.raise_signal(signal.SIGALRM)
    assert [*ALL, signal.SIGALRM] == came


def test_what_a_handler_raises_comes_out_behind_the_block(came):
    """And what was made in it is whole."""

    def alarm(number, frame):
        raise Alarm

    signal.signal(signal.SIGALRM, alarm)
    made = []

    def make():
        with held_back():
            signal.raise_signal(signal.SIGALRM)
            made.append("whole")

    with pytest.raises(Alarm):
        make()
    assert ["whole"] == made
    with pytest.raises(Alarm):
        signal.raise_signal(signal.SIGALRM)


def test_a_handler_that_is_set_meanwhile_stays(came):
    """Also in blocks within blocks."""
    mine = []
    with held_back():
        with held_back():
            signal.raise_signal(signal.SIGUSR1)
        signal.signal(signal.SIGALRM, lambda n, frame: mine.append(n))
        assert [] == came
    signal.raise_signal(signal.SIGALRM)
    assert [signal.SIGUSR1] == came
    assert [signal.SIGALRM] == mine


def test_other_threads_leave_handlers_alone(came, monkeypatch):
    """Nothing is run in them, and only the main thread may set any."""
    monkeypatch.setattr(handlers, "_set", None)

    def work():
        with held_back():
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_functions_are_compiled_while_handlers_raise(monkeypatch):
    """At any time: each function is whole, and no destructor complains."""
    pytest.importorskip("numba")
    from numba.core.compiler import CompileResult

    from stretto.fabric.jit.atomics import compiled

    def alarm(number, frame):
        raise Alarm

    rebuild = CompileResult._rebuild

    def interrupted(*args):
        signal.raise_signal(signal.SIGALRM)
        return rebuild(*args)

    def add(a, b):
        return a + b

    compiled("int64(int64,int64)")(add)  # it is kept from now on
    monkeypatch.setattr(CompileResult, "_rebuild", interrupted)
    before = signal.signal(signal.SIGALRM, alarm)
    try:
        with pytest.raises(Alarm):
            compiled("int64(int64,int64)")(add)
    finally:
        signal.signal(signal.SIGALRM, before)
    monkeypatch.setattr(CompileResult, "_rebuild", rebuild)
    assert 5 == compiled("int64(int64,int64)")(add)(2, 3)
