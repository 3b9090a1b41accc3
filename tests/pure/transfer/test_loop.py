"""An engine's thread: who wakes it, and when it is gone."""

import os
import threading

import pytest

from stretto.transfer.engine.loop import Loop

ROUNDS, WAKERS = 60, 3


def test_who_wakes_a_thread_that_ends_writes_to_no_other_file():
    """A number of its descriptor that was given away is another's."""
    raised = []

    def wake(loop, until):
        try:
            while not until.is_set():
                loop.wake()
        except OSError as e:
            raised.append(e)

    for _ in range(ROUNDS):
        loop, over = Loop("ends", 0.0), threading.Event()
        threads = [
            threading.Thread(target=wake, args=(loop, over)) for _ in range(WAKERS)
        ]
        loop.start()
        for thread in threads:
            thread.start()
        loop.is_over = True
        loop.wake()
        loop._thread.join(10)
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


def test_a_forked_child_wakes_nobody():
    """It has no such thread, and its descriptors' numbers are other files'."""
    loop = Loop("forked", 0.0)
    loop.start()
    loop._waking.acquire()  # by another thread, when the process forks
    pid = os.fork()
    if pid == 0:
        threading.Thread(
            target=lambda: (loop.forget(), loop.wake(), os._exit(7))
        ).start()
        threading.Event().wait(5)
        os._exit(1)
    loop._waking.release()
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    loop.is_over = True
    loop.wake()
    loop._thread.join(10)

    assert 7 == ended
