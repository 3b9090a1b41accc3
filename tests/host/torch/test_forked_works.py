"""Works of a torch group that a forked child has inherited refuse, and never hang."""

import os
import signal
import threading

import pytest
import torch

from stretto.torch.call_queue import CallQueue

pytestmark = [pytest.mark.host, pytest.mark.timeout(60)]


@pytest.fixture
def group():
    """Yield a queue, a call of it that is running, and one that waits."""
    gate, begun, queue = threading.Event(), threading.Event(), CallQueue("group")

    def call():
        begun.set()
        assert gate.wait(20)

    works = [queue.start(call, [torch.ones(1)]) for _ in range(2)]
    runner = threading.Thread(target=works[0].wait)
    runner.start()
    assert begun.wait(20)
    yield queue, works
    gate.set()
    runner.join(20)
    works[1].wait()
    queue.close()


@pytest.mark.parametrize("nth", [0, 1, 2])
@pytest.mark.parametrize(
    "do",
    [
        lambda work: work.wait(),
        lambda work: work.result(),
        lambda work: work.get_future().wait(),
    ],
    ids=["wait", "result", "future"],
)
def test_a_work_refuses_in_a_child(group, nth, do):
    """One that runs, one that waits, and one that the child would start."""
    queue, works = group
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        try:
            queue.forget(RuntimeError("forked"))
            assert nth == 2 or works[nth].is_completed()
            do(works[nth] if nth < 2 else queue.start(int, []))
        except RuntimeError as e:
            os._exit(0 if "forked" in str(e) else 1)
        finally:
            os._exit(2)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert not works[nth % 2].is_completed()
