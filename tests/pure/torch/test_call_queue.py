"""Started calls run once, in order, by whoever waits, or by the queue's thread."""

import threading
import time
from datetime import timedelta

import pytest
from tests.waiting import until

torch = pytest.importorskip("torch")

from stretto.errors import CollectiveTimeout, PeerLost  # noqa: E402
from stretto.torch.call_queue import CallQueue  # noqa: E402


@pytest.fixture
def queue():
    one = CallQueue("test")
    yield one
    one.close()


def test_who_waits_runs_the_call_and_those_before_it(queue):
    """No thread is handed anything: both calls run in the thread that waits."""
    queue._thread = threading.current_thread()  # no other is started
    ran = []
    works = [queue.start(lambda k=k: ran.append(k), []) for k in range(3)]
    assert works[1].wait()
    assert [0, 1] == ran
    assert [True, True, False] == [w.is_completed() for w in works]
    queue.finish()
    assert [0, 1, 2] == ran
    assert works[2].wait()
    assert [0, 1, 2] == ran
    queue._thread = None


def test_the_thread_runs_what_nobody_waits_for(queue):
    """A call that was started ends although its rank does something else."""
    ran = []
    queue.start(lambda: ran.append(threading.current_thread()), [])
    until(lambda: ran)
    assert ran[0] is not threading.current_thread()


def test_the_thread_is_woken_after_it_fell_asleep(queue):
    """A call that is started then is run as well."""
    ran = []
    queue.start(lambda: ran.append(1), [])
    until(lambda: queue._asleep)
    queue.start(lambda: ran.append(2), [])
    until(lambda: len(ran) == 2)


def test_a_future_is_completed_by_whoever_ran_the_call(queue):
    """There is one Future for a call, asked for before its end or after."""
    gate = threading.Event()
    queue.start(gate.wait, [])
    x = torch.ones(2)
    work = queue.start(lambda: x.mul_(3), [x])
    future = work.get_future()
    assert work.get_future() is future
    assert not future.done()
    gate.set()
    assert [3.0, 3.0] == future.wait()[0].tolist()
    late = queue.start(lambda: None, [x])
    late.wait()
    assert late.get_future().done()


def test_what_hangs_on_a_future_may_start_calls_and_wait_for_them(queue):
    """PowerSGD's hook does so, in the thread that completed the Future."""
    x = torch.ones(1)

    def more(future):
        return queue.start(lambda: x.add_(1), [x]).get_future().wait()[0]

    chained = queue.start(lambda: None, [x]).get_future().then(more)
    assert 2.0 == chained.wait().item()


def test_an_error_belongs_to_those_who_wait_for_its_call(queue):
    """The call behind it ends well; every wait and the Future raise the error."""

    def fail():
        raise PeerLost("rank 1 died")

    bad, good = queue.start(fail, []), queue.start(lambda: None, [])
    future = bad.get_future()
    assert good.wait()
    for _ in range(2):
        with pytest.raises(PeerLost, match="rank 1 died") as caught:
            bad.wait()
        assert isinstance(caught.value, torch.distributed.DistBackendError)
    assert not bad.is_success()
    assert bad.exception() is caught.value
    with pytest.raises(RuntimeError, match="rank 1 died"):
        future.wait()


@pytest.mark.parametrize("asked", ["before", "after"])
def test_a_future_with_an_error_has_it_for_c_plus_plus_too(queue, asked):
    """DDP's reducer asks what is below Python's Future; so does another Work of it."""

    def fail():
        raise PeerLost("rank 1 died")

    work = queue.start(fail, [torch.ones(1)])
    if asked == "after":
        queue.finish()
    below = torch._C._distributed_c10d._create_work_from_future(work.get_future())
    with pytest.raises(RuntimeError, match="PeerLost: rank 1 died"):
        below.get_future().wait()


def test_a_wait_with_a_timeout_ends_in_time_and_may_be_repeated(queue):
    """The call goes on, and a later wait sees its end."""
    gate = threading.Event()
    work = queue.start(gate.wait, [])
    with pytest.raises(CollectiveTimeout, match=r" Timed out .*after 0\.05 s"):
        work.wait(timedelta(seconds=0.05))
    gate.set()
    assert work.wait(timedelta(seconds=5))
    assert work.wait(timedelta(0))  # c10d's way to say: no limit


def test_an_interrupt_ends_the_wait_and_the_call(queue):
    """It reaches the thread that waits, and the call counts as ended."""
    queue._thread = threading.current_thread()

    def interrupt():
        raise KeyboardInterrupt

    work = queue.start(interrupt, [])
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    assert work.is_completed()
    queue._thread = None


def test_many_threads_that_wait_run_every_call_once(queue):
    """Four threads run 400 calls in the order of their start."""
    ran = []
    works = [queue.start(lambda k=k: ran.append(k), []) for k in range(400)]
    threads = [
        threading.Thread(target=lambda t=t: [w.wait() for w in works[t::4]])
        for t in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert list(range(400)) == ran


def test_closing_runs_what_was_started():
    """No call is lost when its group ends."""
    queue, ran = CallQueue("test"), []
    work = queue.start(lambda: ran.append(1), [])
    queue.close()
    assert [1] == ran
    assert work.is_success()


def test_what_is_discarded_is_told_and_never_runs():
    """Whoever waits for it, by the Work or the Future, gets the error."""
    queue, ran = CallQueue("test"), []
    gate, entered = threading.Event(), threading.Event()
    queue.start(lambda: (entered.set(), gate.wait()), []).get_future()
    assert entered.wait(20), "the thread is in it"
    work = queue.start(lambda: ran.append(1), [])
    future = queue.start(lambda: ran.append(2), []).get_future()
    queue.discard(PeerLost("aborted"))
    gate.set()
    with pytest.raises(PeerLost, match="aborted"):
        work.wait()
    with pytest.raises(RuntimeError, match="aborted"):
        future.wait()
    assert [] == ran


def test_calls_may_be_discarded_while_the_thread_runs_them():
    """Each either runs or is told; none is lost between the two."""
    for _ in range(100):
        queue, ran = CallQueue("test"), []
        works = [queue.start(lambda n=n, to=ran: to.append(n), []) for n in range(30)]
        queue.hurry(works[-1])
        queue.discard(PeerLost("aborted"))
        until(lambda works=works: all(one.is_over for one in works))
        told = [one for one in works if one.exception() is not None]

        assert len(works) == len(ran) + len(told)


def test_a_process_that_ends_waits_for_started_calls_so_long():
    """What can end in time does; what is stuck holds the process no longer."""
    queue = CallQueue("test")
    work = queue.start(lambda: None, [])
    queue.leave(5.0)
    assert work.is_success()
    stuck, gate = CallQueue("test"), threading.Event()
    stuck.start(gate.wait, [])
    begin = time.monotonic()
    stuck.leave(0.1)
    assert 0.1 <= time.monotonic() - begin < 4
    gate.set()
