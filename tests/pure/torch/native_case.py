"""Checks of the compiled part of a group, on a GPU that is pretended; see test_native.

    python native_case.py LIBRARY

In a process of its own: PyTorch takes the pretended GPU for a real one.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import sys
import threading
import weakref
from collections import deque

import pytest
import torch
import torch.distributed as dist

from stretto.torch.known_places import NATIVE

SIDE = 42


def load(name, path):
    """Return a module of the library, which has several."""
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader(name, loader)
    )
    loader.exec_module(module)
    return module


group, fakes = (load(name, sys.argv[1]) for name in ("group", "fakes"))


class Work(dist.Work):
    """What Python gives."""

    def __init__(self):
        dist.Work.__init__(self)


class Group(dist.ProcessGroup):
    """A group that says what is left to Python."""

    def __init__(self):
        group.init(self, 1, 2)
        self._places, self._calls, self._lock = {}, deque(), threading.RLock()
        self.left = []

    def allreduce(self, tensors, opts):
        """Be what Python would do."""
        self.left.append(tensors[0])
        return Work()


class Call:
    """A sum that is known: what it is given, and what it answers."""

    def __init__(self, count=8):
        self.group, self.x = Group(), fakes.tensor(count, torch.float32)
        self.given, self.answer, self.heard = [], True, 0
        self.failed = None
        self.know()

    def know(self):
        """Make it known once more, or anew."""
        place = group.Place(self.again, self.hear, self.fail, self.x, SIDE)
        self.group._places[self.x.data_ptr(), NATIVE] = place

    def again(self, event, caller):
        """Be launched."""
        self.given.append((event, caller))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def hear(self):
        """Have met nothing, or something."""
        self.heard += 1
        if self.failed is not None:
            raise self.failed

    def fail(self, error):
        """Raise as PyTorch knows it."""
        raise RuntimeError(f"as torch: {error}")

    def sum(self, x=None, *, started=True):
        """Sum from C++; return the work, and whether Python was asked."""
        self.group.left.clear()
        work = fakes.sum(self.group, [self.x if x is None else x], started)
        return work, bool(self.group.left)


def check_a_known_sum_is_begun_and_python_asked_nothing():
    """Its event is made on the group's stream, and given with the legacy one."""
    one = Call()
    fakes.told()
    work, left = one.sum()
    assert not left
    ((event, caller),) = one.given
    assert caller == 0
    assert fakes.told() == [f"record {event} {SIDE}"]
    assert isinstance(work, dist.Work)
    assert [t.data_ptr() for t in work.result()] == [one.x.data_ptr()]
    assert not work.is_completed()
    fakes.pass_all()
    assert work.is_completed()
    fakes.forget_passed()


def check_a_wait_holds_the_callers_stream_and_raises_what_was_met():
    """On whichever stream that is now."""
    one = Call()
    work, _ = one.sum()
    event = one.given[0][0]
    fakes.told()
    work.wait()
    fakes.use_stream(5)
    work.synchronize()
    fakes.use_stream(0)
    assert fakes.told() == [f"block {event} 0", f"block {event} 5"]
    assert one.heard == 2
    one.failed = RuntimeError("rank 1 is late")
    with pytest.raises(RuntimeError, match="as torch: rank 1 is late"):
        work.wait()


def check_its_future_is_complete_behind_the_call():
    """What follows waits for the group's stream; asked twice, it is one."""
    one = Call()
    work, _ = one.sum()
    fakes.told()
    future = work.get_future()
    assert all(said.endswith(f" {SIDE}") for said in fakes.told())
    assert future.done()
    assert [t.data_ptr() for t in future.value()] == [one.x.data_ptr()]
    work.get_future()
    assert not fakes.told()


def check_what_is_summed_is_held_until_the_gpu_has_passed_it():
    """The event then serves again, unless somebody may still ask for it."""
    one = Call()
    held = weakref.ref(one.x)
    first, _ = one.sum()
    second, _ = one.sum()
    del second
    events = [event for event, _ in one.given]
    assert len(set(events)) == 2
    y, one.x = one.x, fakes.tensor(8, torch.float32)
    one.group._places[one.x.data_ptr(), NATIVE] = one.group._places[
        y.data_ptr(), NATIVE
    ]
    del y
    gc.collect()
    fakes.pass_all()
    third, _ = one.sum()
    assert one.given[-1][0] == events[1]  # the first's is still asked for
    del first
    assert held() is None
    fakes.forget_passed()
    del third


def check_what_is_not_known_is_left_to_python():
    """Another size, type, order, operator, stream; calls that wait; a busy group."""
    one = Call()
    assert one.sum(fakes.tensor(8, torch.float32))[1]
    for odd in (
        ((4,), (1,), torch.float32, False),
        ((8,), (1,), torch.int32, False),
        ((4, 2), (1, 4), torch.float32, False),
        ((8,), (1,), torch.float32, True),
    ):
        assert one.sum(fakes.alias(one.x, *odd))[1], odd
    assert one.sum(started=False)[1]
    fakes.use_stream(5)
    assert one.sum()[1]
    fakes.use_stream(0)
    one.group._calls.append("waits")
    assert one.sum()[1]
    one.group._calls.clear()
    busy, done = threading.Event(), threading.Event()

    def hold():
        with one.group._lock:
            busy.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    busy.wait(30)
    assert one.sum()[1]
    done.set()
    thread.join()
    places, one.group._places = one.group._places, {}  # other algorithms, for a while
    assert one.sum()[1]
    one.group._places = places
    with torch.autograd.profiler.profile():
        assert one.sum()[1]
    assert not one.given
    assert not one.sum(fakes.alias(one.x, (2, 4), (4, 1), torch.float32, False))[1]


def check_what_cannot_be_begun_is_left_to_python_and_a_fault_is_raised():
    """The group is not held afterwards, and the event serves again."""
    one = Call()
    one.answer = False
    assert one.sum()[1]
    one.answer = ValueError("no rank 3")
    with pytest.raises(RuntimeError, match="as torch: no rank 3"):
        one.sum()
    free = []
    thread = threading.Thread(
        target=lambda: free.append(one.group._lock.acquire(blocking=False))
    )
    thread.start()
    thread.join()
    assert free == [True]
    one = Call()
    one.answer = False
    one.sum()
    one.answer = True
    one.sum()
    assert one.given[0] == one.given[1]


def check_python_begins_it_as_well():
    """As DDP does; what it cannot begin is None."""
    one = Call()
    assert group.begin(one.group, one.x, 0) is not None
    assert group.begin(one.group, one.x, 1) is None
    assert not one.group.left


def check_a_group_goes_and_holds_nothing():
    """Also where the last that knows a place has no interpreter's lock."""
    one = Call()
    held, known = weakref.ref(one.x), weakref.ref(one)
    work, _ = one.sum()
    one.group._places.clear()
    works = [work]
    del work, one
    gc.collect()
    assert known() is not None  # its place is the work's
    fakes.drop(works.pop())
    gc.collect()
    assert known() is None
    assert held() is None


def main():
    """Run all."""
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
            print("right", name)


if __name__ == "__main__":
    main()
