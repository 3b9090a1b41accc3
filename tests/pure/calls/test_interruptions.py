"""A signal's handler may raise wherever Python looks for signals: nothing hides it.

Python looks when a function begins and when one written in C returns. A profile
function is called at just these places, and raises here as a handler does.
"""

import gc
import random
import signal
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import stretto
from stretto.compiler.plan import Schedule
from stretto.errors import is_interruption
from stretto.executors import Group
from stretto.program import algorithms
from stretto.runtime.choice import Choice, Question, plans


class Alarm(Exception):
    """Of the user's."""


def handler(number, frame):
    """Raise, as handlers of time limits do."""
    raise Alarm


class Handler:
    """The same, in other shapes."""

    def method(self, number, frame):
        """Raise."""
        raise Alarm

    def any(self, *given):
        """Raise."""
        raise Alarm

    def __call__(self, number, frame):
        """Raise from deeper down."""
        odd_number()


def events_of(call, nth=None):
    """Return how many chances a handler has in a call; raise at the nth."""
    seen = 0

    def chance(frame, event, arg):
        nonlocal seen
        if event in ("call", "c_return"):
            seen += 1
            if seen == nth:
                sys.setprofile(None)
                handler(signal.SIGALRM, sys._getframe())

    before = signal.signal(signal.SIGALRM, handler)
    gc.disable()  # Python hides what is raised while it collects
    sys.setprofile(chance)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    return seen


def odd_number():
    """Raise what a handler raises, without one."""
    raise Alarm


SHAPES = (
    handler, Handler().method, Handler().any, Handler(), partial(Handler().any, "more"),
    lambda number, frame: odd_number(),
)  # fmt: skip


@pytest.mark.parametrize("made", SHAPES)
def test_what_a_handler_raises_is_told_from_what_code_raises(made):
    """By what is installed, whatever shape it has."""
    before = signal.signal(signal.SIGUSR1, made)
    try:
        with pytest.raises(Alarm) as interrupted:
            signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(Alarm) as raised:
            odd_number()
        assert is_interruption(interrupted.value)
        assert not is_interruption(raised.value)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_without_memory_an_error_is_what_it_is(monkeypatch):
    """Whoever asks is about to deal with it, and must not meet another."""

    def lacking(number):
        raise MemoryError

    monkeypatch.setattr(signal, "getsignal", lacking)

    assert not is_interruption(MemoryError())


class Alone(Group):
    """Rank 0 of 1, which exchanges with itself."""

    rank, num_ranks, deadline_s = 0, 1, 1.0
    broken = np.zeros(1, np.int64)
    abandoned = ""

    def exchange(self, payload, fds=(), *, tag=""):
        """Return its own part."""
        return [(payload, ())]

    def split(self, color, key):
        """Return no group."""

    def abandon(self, how, error=None):
        """Keep what the others would hear."""
        self.abandoned = how


def by_the_long_way(comm, x):
    """Make a call that is known, but not by its arrays."""
    comm._calls.clear()
    comm.all_reduce(x)


def kept(call, into):
    """Make a call, and drop its result later: Python hides what finalizers raise."""
    into.append(call())


CALLS = {
    "all_reduce": lambda comm: partial(by_the_long_way, comm, np.ones(4, np.float32)),
    "empty": lambda comm: partial(kept, partial(comm.empty, [2, 3], "float32"), []),
    "split": lambda comm: partial(comm.split, None, 0),
    "explain": lambda comm: partial(comm.explain, "all_reduce", 4),
}


@pytest.mark.parametrize("verb", CALLS)
def test_an_interrupted_call_raises_that_and_leaves_nobody_inside(verb):
    """Wherever it comes: then all is as before, or the others have been told."""
    group = Alone()
    comm = stretto.Communicator(group, profiles=None)
    call = CALLS[verb](comm)
    call()
    every = range(1, events_of(call) + 1)
    for nth in random.Random(0).sample(every, min(len(every), 120)):
        with pytest.raises(Alarm):
            events_of(call, nth)
        if comm._fault is not None:
            assert "raised Alarm" in group.abandoned, nth
            comm.close()
            group = Alone()
            comm = stretto.Communicator(group, profiles=None)
            call = CALLS[verb](comm)
            call()
        comm.barrier()
    comm.close()


FLAT = Choice(algorithms.get("reduce/flat"), Schedule(protocol="packets"))
ASKED = Question(
    executor="cpu", collective="reduce", num_ranks=8, nbytes=8, params=(("root", 0),)
)


def chosen():
    """Return whether there is such a plan, asked for the first time."""
    plans.proved_program.cache_clear()
    plans._proved.cache_clear()
    return plans.works(FLAT, replace(ASKED, num_ranks=2))


def chosen_of_kept():
    """Return the same of a plan that another process has proved."""
    plans._proved.cache_clear()
    return plans.works(FLAT, ASKED)


def test_an_interruption_is_no_reason_to_prove_anew(tmp_path, monkeypatch):
    """Nor to delete what is kept: nothing is wrong with it."""
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path))
    assert chosen_of_kept()
    (path,) = (tmp_path / "proved").iterdir()
    before = path.stat().st_ino
    many, raised = events_of(chosen_of_kept), 0  # the first time there are more
    for nth in random.Random(3).sample(range(1, many + 1), 60):
        try:
            assert events_of(chosen_of_kept, nth) < nth, "nobody kept it for himself"
        except Alarm:
            raised += 1

    assert raised > 30
    assert chosen_of_kept()
    assert path.stat().st_ino == before


def test_an_interruption_is_no_reason_to_choose_another_plan():
    """Ranks choose by themselves: who took another one would call something else."""
    assert chosen()
    build = partial(algorithms.get("reduce/flat").build, 2, root=0)
    every = range(1, events_of(build) + 1)
    for nth in random.Random(1).sample(every, 60):
        with pytest.raises(Alarm):
            events_of(build, nth)
    every = range(1, events_of(chosen) + 1)
    for nth in random.Random(2).sample(every, 30):
        with pytest.raises(Alarm):
            events_of(chosen, nth)
    assert chosen()
