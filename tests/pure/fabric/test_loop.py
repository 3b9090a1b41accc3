"""The loop: it serves on, whatever is done in it and to it."""

import os
import threading
import time
import weakref

import pytest
from tests.held import held, left_since
from tests.waiting import until

from stretto.errors import RendezvousError
from stretto.fabric import loop as module
from stretto.fabric.loop import Loop

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def loop():
    """A loop that a test turns itself; what faults belong to nothing it prints."""
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def running():
    """A loop that a thread turns."""
    made = Loop("stretto-tested")
    made.start()
    yield made
    made.stop()
    assert made.join(10)


def test_what_was_cancelled_is_kept_by_nobody(loop):
    """Neither what was to be called, nor, of many, the times."""

    class Task:
        def __call__(self):
            raise AssertionError("it was cancelled")

    tasks = [Task() for _ in range(1000)]
    seen = [weakref.ref(task) for task in tasks]
    timers = [loop.at(time.monotonic() + 3600, task) for task in tasks]
    for timer in timers[1:]:
        timer.cancel()
    del tasks, timers, timer
    for _ in range(1000):
        loop.at(time.monotonic() + 3600, Task()).cancel()
    first, *others = seen

    assert first() is not None
    assert all(one() is None for one in others)
    assert len(loop._timers) < 200


@pytest.fixture
def pipes():
    """Two pipes in which something waits; whoever closes an end says so."""
    made = [os.pipe() for _ in range(2)]
    for _, end in made:
        os.write(end, b"x")
    left = {number for pair in made for number in pair}
    yield made, left
    for number in left:
        os.close(number)


@pytest.mark.parametrize("anew", [False, True])
def test_what_was_closed_in_the_same_turn_is_passed_over(loop, pipes, anew):
    """Also where its number stands for something else by then."""
    made, left = pipes
    ends = [reader for reader, _ in made]
    heard = []

    def read(mine, other):
        heard.append(os.read(mine, 1))
        loop.unwatch(other)
        if anew:
            os.dup2(made[0][1], other)
            loop.watch(other, lambda: heard.append(0))
        else:
            os.close(other)
            left.discard(other)

    for mine, other in (ends, ends[::-1]):
        loop.watch(mine, lambda m=mine, o=other: read(m, o))
    loop.step(1.0)
    assert [b"x"] == heard


def test_a_number_that_was_closed_unsaid_is_of_its_next_owner(loop, pipes):
    """Whoever forgets to unwatch keeps nobody else from being watched."""
    made, _ = pipes
    (one, _), (two, _) = made
    heard = []
    loop.watch(one, lambda: heard.append("old"))
    os.dup2(two, one)
    loop.watch(one, lambda: heard.append(os.read(one, 1)))
    loop.step(1.0)
    assert [b"x"] == heard


def fail():
    raise RuntimeError("odd")


@pytest.mark.parametrize("kind", ["watch", "at", "call"])
@pytest.mark.parametrize("owned", [True, False])
def test_a_fault_ends_what_it_belongs_to(loop, pipes, monkeypatch, kind, owned):
    """Its owner is told, or it is printed and what stirs is watched no more."""
    (one, _), (two, _) = pipes[0]
    told, printed, heard = [], [], []
    monkeypatch.setattr(threading, "excepthook", printed.append)
    fault = told.append if owned else None

    def owner(error):
        told.append(error)
        loop.unwatch(one)

    if kind == "watch":
        loop.watch(one, fail, fault=owner if owned else None)
    elif kind == "at":
        loop.at(0.0, fail, fault)
    else:
        loop.call(fail, fault)
    loop.watch(two, lambda: heard.append(0))
    for _ in range(3):
        loop.step(0.0)
    assert ["odd"] == [str(e) for e in told] if owned else 1 == len(printed)
    assert 3 == len(heard)


def test_an_owner_that_fails_as_well_ends_nothing_else(loop, monkeypatch):
    """Both are named, and the next task is done."""
    printed, done = [], []
    monkeypatch.setattr(threading, "excepthook", printed.append)
    loop.call(fail, lambda error: 1 / 0)
    loop.call(lambda: done.append(1))
    loop.step(0.0)
    assert [ZeroDivisionError] == [said.exc_type for said in printed]
    assert [1] == done


def test_who_turns_it_himself_may_want_faults(loop):
    """As the parent of ranks does, who has somebody to tell."""

    def again(error):
        raise error

    loop.on_fault = again
    loop.call(fail)
    with pytest.raises(RuntimeError, match="odd"):
        loop.step(0.0)


def test_what_is_due_is_called_in_order_and_once(loop):
    """What was cancelled is not, and keeps nobody awake."""
    called, now = [], time.monotonic()
    for after in (0.03, 0.01, 0.02):
        loop.at(now + after, lambda after=after: called.append(after))
    loop.at(now + 0.005, lambda: called.append("cancelled")).cancel()
    loop.at(now + 30.0, lambda: called.append("late"))
    until(lambda: loop.step(10.0) or len(called) == 3)
    loop.step(0.05)
    assert [0.01, 0.02, 0.03] == called


def test_other_threads_wake_it(running):
    """For a task, and for a time before all that it waits for."""
    ran = threading.Event()
    running.at(time.monotonic() + 50, fail)
    running.call(lambda: ran.set() if running.is_here else None)
    assert ran.wait(20)
    ran.clear()
    running.at(time.monotonic() + 0.01, ran.set)
    assert ran.wait(20)


def test_a_turn_that_fails_by_itself_is_not_the_last(monkeypatch):
    """As what it does before it sleeps may."""
    printed, ran = [], threading.Event()
    monkeypatch.setattr(threading, "excepthook", printed.append)

    class Odd(Loop):
        def before_sleep(self, now, wait):
            return fail() if not printed else wait

    loop = Odd()
    loop.start()
    loop.call(ran.set)
    assert ran.wait(20)
    loop.stop()
    assert loop.join(10)
    assert 1 == len(printed)


def test_it_ends_and_gives_back_what_it_has():
    """Its thread calls what is last, closes, and only then says so."""
    before, said = held(), []
    loop = Loop()
    loop.on_end = lambda: said.append(loop._is_closed)
    over = []
    loop.start(lambda: bool(over), lambda: said.append(loop._is_closed))
    loop.call(lambda: over.append(1))
    assert loop.join(10)
    loop.wake()
    loop.close()
    assert [False, True] == said
    assert [] == left_since(before)


def test_a_forked_child_takes_nothing_from_its_parent(running, pipes):
    """What the child forgets is watched in the parent as before."""
    reader, writer = pipes[0][0]
    heard = threading.Event()
    os.read(reader, 1)
    running.watch(reader, lambda: (os.read(reader, 1), heard.set()))
    running._waking.acquire()  # by another thread, when the process forks
    pid = os.fork()
    if not pid:
        running.unwatch(reader)
        running.wake()
        os._exit(7)
    running._waking.release()
    assert 7 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(writer, b"x")
    assert heard.wait(20)


def test_who_wakes_a_loop_that_ends_writes_to_no_other_file():
    """A number of its descriptor that was given away is another's."""
    raised = []

    def wake(loop, over):
        try:
            while not over.is_set():
                loop.wake()
        except OSError as e:
            raised.append(e)

    for _ in range(60):
        loop, over = Loop(), threading.Event()
        threads = [threading.Thread(target=wake, args=(loop, over)) for _ in range(3)]
        loop.start()
        for thread in threads:
            thread.start()
        loop.stop()
        assert loop.join(10)
        others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(8)]
        loop.wake()
        over.set()
        for thread in threads:
            thread.join(10)
        for number in others:
            with pytest.raises(BlockingIOError):
                os.eventfd_read(number)
            os.close(number)

    assert [] == raised


def test_it_can_be_had_without_eventfd(monkeypatch):
    """Elsewhere a pipe wakes it, however often it is rung."""
    monkeypatch.delattr(module.os, "eventfd")
    loop, ran = Loop(), []
    for _ in range(100_000):
        loop.wake()
    loop.call(lambda: ran.append(1))
    loop.step(0.0)
    loop.close()
    assert [1] == ran


def test_a_thread_that_ends_before_it_begins_is_not_awaited(monkeypatch):
    """The system started it, and then there was no memory for it."""
    monkeypatch.setattr(module, "_BEGINS_S", 0.05)
    thread = threading.Thread(target=lambda: None)
    thread._bootstrap = lambda: None

    with pytest.raises(RendezvousError, match=r"has not begun.*ulimit -v"):
        module.start_thread(thread)


def test_a_thread_that_begins_is_like_any_other():
    """It is joined, and known as alive until then."""
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    module.start_thread(thread)

    assert thread.is_alive()
    go.set()
    thread.join(20)
    assert not thread.is_alive()
