"""Calls of an earlier generation: prepared ones are refused, captured ones fault."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cuda_fakes import on_ranks

torch = pytest.importorskip("torch")

from cuda_tensors import read_as_on_gpu  # noqa: E402

from stretto.errors import CommunicatorBroken  # noqa: E402
from stretto.executors.cuda.codegen.abi import Kernel  # noqa: E402
from stretto.executors.cuda.device import driver, memory  # noqa: E402
from stretto.executors.cuda.device.ranges import MOST_LEFT  # noqa: E402
from stretto.executors.cuda.launching.kernels import Loaded  # noqa: E402
from stretto.runtime.calls import Communicator  # noqa: E402

KERNEL = Kernel(text="one", ranks=(0,), grid=2, threads=160)


@pytest.fixture(autouse=True)
def tensors_on_gpu(monkeypatch):
    read_as_on_gpu(monkeypatch)
    monkeypatch.setattr(driver, "_torch", [lambda ordinal: 0])


@pytest.fixture
def freed(fake, monkeypatch):
    """Return the ranges of addresses that the driver is given back."""
    found, free = [], fake.cuMemAddressFree

    def note(start, nbytes):
        found.append(start)
        return free(start, nbytes)

    monkeypatch.setattr(fake, "cuMemAddressFree", note, raising=False)
    return found


def opened(group):
    """Return a communicator of "a" and "b" with a session, whose calls are launches."""
    comm = Communicator(group, executor="cuda")
    comm._who = ("a", "b")
    session = comm._session("cuda")
    session.load_call = lambda plan, call, **_: Loaded(None, 7, KERNEL)
    return comm, session


def change(comm, now):
    """Go on with others, as a generation that has begun would have it."""
    comm._go_on(now)
    session = comm._sessions["cuda"]
    session.load_call = lambda plan, call, **_: Loaded(None, 7, KERNEL)
    return session


@pytest.mark.parametrize("now", [("a", "c"), ("a", "b")], ids=["others", "the same"])
def test_a_call_that_was_prepared_for_earlier_ranks_is_examined_anew(fake, now):
    """Nothing is launched of the old session, whose memory has gone."""

    def work(group):
        comm, old = opened(group)
        x = torch.zeros(4, 8)
        comm.all_reduce(x)
        again = comm.repeated_in_place(x)
        (launch,) = comm._launches.values()
        assert again()
        new = change(comm, now)
        group.exchange({})
        before = len(fake.launches)
        group.exchange({})
        assert not again()
        for call in (launch.repeat(x.data_ptr(), x.data_ptr()), lambda: launch(x, x)):
            with pytest.raises(
                CommunicatorBroken, match="ranks that there are no more"
            ):
                call()
        group.exchange({})
        assert before == len(fake.launches)
        group.exchange({})
        comm.all_reduce(x)  # a fault of the old one is none of this one
        assert comm.repeated_in_place(x)()
        comm.check()
        group.exchange({})
        assert before + 4 == len(fake.launches)
        group.exchange({})
        return old is new

    assert [False, False] == on_ranks(fake, 2, work)


def test_what_a_graph_has_of_an_earlier_session_lies_nowhere(fake, freed):
    """Nor does anything come to lie there: a replay faults, and waits for nobody."""

    def work(group):
        comm, old = opened(group)
        x = torch.zeros(4, 8)
        comm.all_reduce(x)
        ranges = [*old.slab.peers]
        new = change(comm, ("a", "c"))
        comm.all_reduce(x)
        group.exchange({})
        with fake.lock:
            mapped = [start for start, _, _ in fake.maps]
        size = memory.RANGE_BYTES
        found = [s for s in mapped for base in ranges if base <= s < base + size]
        near = [b for b in new.slab.peers for a in ranges if abs(a - b) < size]
        group.exchange({})
        left = [base for base in ranges if base in freed]
        comm.close()
        return found, near, left, all(base in freed for base in new.slab.peers)

    assert [([], [], [], True)] * 2 == on_ranks(fake, 2, work)


def closed(device, monkeypatch, *reserved):
    """Close a slab whose addresses stay; return which were given back for it."""
    given = []
    monkeypatch.setattr(memory, "hosts_of", lambda group: (0, 0))
    monkeypatch.setattr(memory, "attempt", lambda name, *of: given.append((name, *of)))
    slab = memory.Slab(device, SimpleNamespace(rank=0, num_ranks=2))
    slab._reserved = list(reserved)
    slab.keeps_addresses = True
    slab.close()
    return [of[0] for name, *of in given if name == "cuMemAddressFree"]


def test_addresses_of_the_oldest_sessions_are_given_back(fake, monkeypatch):
    """There are so many: a job that changes every minute goes on for years."""
    device, gone = driver.open_device(0), []
    for nth in range(200):
        gone += closed(device, monkeypatch, 2 * nth, 2 * nth + 1)
    assert list(range(400 - MOST_LEFT)) == gone


def test_each_gpu_keeps_addresses_of_its_own_sessions(fake, monkeypatch):
    """However often it is opened; and nothing of another's is given back for them."""
    fake.who.rank = 0
    one = driver.open_device(0)
    assert one is driver.open_device(0)
    fake.who.rank = 1
    other = driver.open_device(0)
    assert one is not other
    assert one.uuid != other.uuid
    assert [] == closed(one, monkeypatch, *range(MOST_LEFT))
    assert [] == closed(other, monkeypatch, 1000)
    assert [0] == closed(one, monkeypatch, 1001)
