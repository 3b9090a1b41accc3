"""Registered arrays: shared by what they are, staged where they cannot be."""

from __future__ import annotations

import ctypes

import pytest
from cuda_fakes import GRAIN, on_ranks
from tests.stand_ins import Elements as Tensor

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError
from stretto.executors import Call
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.device.space import REGISTERED
from stretto.executors.cuda.launching.kernels import Loaded
from stretto.executors.cuda.session import CudaSession
from stretto.executors.cuda.words import PARAMS
from stretto.program import algorithms


def value(address):
    """Return a byte of memory."""
    return ctypes.c_uint8.from_address(address)


@pytest.mark.parametrize(
    ("kind", "nbytes"), [("malloc", 5000), ("pieces", 5000), ("pieces", 3 * GRAIN)]
)
def test_peers_reach_a_registered_array_wherever_it_begins(fake, kind, nbytes):
    """Every rank's begins elsewhere in its allocation; views have equal offsets."""

    def work(group):
        session = CudaSession(group)
        inner = 512 * group.rank
        start = fake.foreign(nbytes + 4096, kind) + inner
        array = Tensor(start, nbytes)
        shared = session.register(array)
        last = session.offset(Tensor(start + nbytes - 1, 1))
        value(start + nbytes - 1).value = group.rank + 1
        group.exchange({})
        seen = [
            value(session.space.peer_address(q, last)).value
            for q in range(group.num_ranks)
        ]
        outside = session.offset(Tensor(start + nbytes, 1)), session.space.offset(16)
        group.exchange({})
        session.close()
        return shared, last, seen, outside

    first = (True, REGISTERED + nbytes - 1, [1, 2, 3], (None, None))

    assert [first] * 3 == on_ranks(fake, 3, work)
    assert not fake.opened


def test_attributes_that_bindings_do_not_know_are_asked_of_the_driver(
    fake, monkeypatch
):
    """Some releases of the bindings cannot say where a mapping begins."""
    known = type(fake).cuPointerGetAttribute

    def older(self, attribute, address):
        if "MAPPING" in attribute.name:
            raise TypeError(f"Unsupported attribute: {attribute.name}")
        return known(self, attribute, address)

    monkeypatch.setattr(type(fake), "cuPointerGetAttribute", older)

    def work(group):
        session = CudaSession(group)
        array = Tensor(fake.foreign(3 * GRAIN, "pieces"), 3 * GRAIN)
        shared = session.register(array)
        session.close()
        return shared

    assert [True, True] == on_ranks(fake, 2, work)


def test_an_array_that_reaches_past_what_was_registered_is_staged(fake):
    """Peers would reach past it, too; a larger registration of the memory serves."""

    def work(group):
        session = CudaSession(group)
        start = fake.foreign(1 << 20, "malloc")
        session.register(Tensor(start, 4096))
        few = [
            session.offset(Tensor(start + at, n))
            for at, n in ((0, 4096), (0, 4097), (96, 4000), (96, 4001), (0, 1 << 20))
        ]
        session.register(Tensor(start, 8192))
        more = [session.offset(Tensor(start, n)) for n in (4096, 8192, 8193)]
        room = session.empty((100,), "uint8")
        last = Tensor(session.slab.base + session.slab.nbytes - 8, 8)
        own = [session.offset(room), session.offset(last)]
        last.count = 9
        own.append(session.offset(last))
        group.exchange({})
        session.close()
        return few, more, [offset is not None for offset in own]

    few = [REGISTERED, None, REGISTERED + 96, None, None]
    more = [2 * REGISTERED, 2 * REGISTERED, None]

    assert [(few, more, [True, True, False])] * 2 == on_ranks(fake, 2, work)


def test_what_one_rank_cannot_share_stays_staged_on_all(fake):
    """No error: calls on it are staged, with the same results."""

    def work(group):
        session = CudaSession(group)
        kind = "malloc" if group.rank else "pieces"
        start = fake.foreign(4096, kind)
        group.exchange({})
        fake.private = True
        shared = session.register(Tensor(start, 4096))
        fake.private = False
        offset = session.offset(Tensor(start, 4096))
        session.close()
        return shared, offset

    assert [(False, None)] * 2 == on_ranks(fake, 2, work)
    assert not fake.opened


def test_what_a_peer_cannot_map_stays_staged_on_all(fake):
    """One rank fails to open a handle: nobody uses it, and the others close theirs."""
    opens = fake.cuIpcOpenMemHandle

    def refuse(handle, flags):
        if fake.who.rank == 1:
            return fake.CUresult.CUDA_ERROR_NOT_SUPPORTED, None
        return opens(handle, flags)

    fake.cuIpcOpenMemHandle = refuse

    def work(group):
        session = CudaSession(group)
        shared = session.register(Tensor(fake.foreign(4096, "malloc"), 4096))
        session.close()
        return shared

    assert [False] * 3 == on_ranks(fake, 3, work)
    assert not fake.opened


def test_an_address_that_is_used_again_is_not_the_same_array(fake):
    """Identity is the allocation's number: the address alone says nothing."""

    def work(group):
        session = CudaSession(group)
        start = fake.foreign(4096, "malloc")
        array = Tensor(start, 4096)
        before = session.register(array), session.offset(array)
        fake.replace(start)
        after = session.offset(array)
        again = session.register(array), session.offset(array)
        group.exchange({})
        session.close()
        return before, after, again

    found = ((True, REGISTERED), None, (True, 2 * REGISTERED))

    assert [found] * 2 == on_ranks(fake, 2, work)


def test_a_deregistered_array_is_closed_everywhere_before_it_may_be_freed(fake):
    """Handles are opened once for two arrays of one allocation, and closed once."""

    def work(group):
        session = CudaSession(group)
        start = fake.foreign(8192, "malloc")
        arrays = [Tensor(start, 4096), Tensor(start + 4096, 4096)]
        for array in arrays:
            assert session.register(array)
        group.exchange({})
        opened = len(fake.opened)
        group.exchange({})
        session.deregister(arrays[0])
        left = [session.offset(a) for a in arrays]
        group.exchange({})
        session.deregister(arrays[1])
        answer = opened, left, len(fake.opened)
        group.exchange({})
        session.close()
        return answer

    assert [(2, [None, 2 * REGISTERED], 0)] * 2 == on_ranks(fake, 2, work)


def test_arrays_of_different_sizes_are_refused(fake):
    """register() is collective."""

    def work(group):
        session = CudaSession(group)
        with pytest.raises(CallError, match=r"register\(\) of \[100, 101\] bytes"):
            session.register(Tensor(fake.foreign(4096, "malloc"), 100 + group.rank))
        session.close()

    on_ranks(fake, 2, work)


def test_a_launch_forgets_what_was_registered(fake):
    """After deregister the same address is refused; registered anew it is elsewhere."""
    plan = verify_plan(
        lower(
            verify(algorithms.get("all_gather/one_shot").build(2)),
            Schedule.parse("push bulk zero_copy"),
        )
    )

    def work(group):
        session = CudaSession(group)
        kernel = Kernel(text="any", ranks=(0,), grid=1, threads=64)
        session.load_call = lambda plan, call, **_: Loaded(None, 5, kernel)
        launch = session.prepare(plan, Call(dtype="uint8", counts=(512, 512)))
        start = fake.foreign(4096, "malloc")
        x, out = Tensor(start, 512), Tensor(start + 1024, 1024)
        whole = Tensor(start, 4096)

        def launched():
            """Return both ranks' parameters, before any of them forgets its own."""
            launch(x, out, stream=1)
            group.exchange({})
            last = [address for *_, address in fake.launches[-2:]]
            heads = {ctypes.string_at(address, PARAMS.itemsize) for address in last}
            group.exchange({})
            return heads

        session.register(whole)
        before = launched()
        session.deregister(whole)
        with pytest.raises(CallError, match="not registered memory"):
            launch(x, out, stream=1)
        session.register(whole)
        after = launched()
        session.close()
        return before.isdisjoint(after)

    assert [True] * 2 == on_ranks(fake, 2, work)


def test_peers_arrays_are_what_they_write_themselves(fake):
    """Of our own memory and of registered memory; a part of an array has parts."""

    def work(group):
        session = CudaSession(group)
        start = fake.foreign(4096, "malloc")
        session.register(Tensor(start, 4096))
        room = session.empty((3, 5), "float32")
        found = []
        for array in (room, Tensor(start + 64, 60)):
            at = getattr(array, "pointer", array.data_ptr() if array is not room else 0)
            value(at + 7).value = group.rank + 1
            group.exchange({})
            peers = session.peers(array)
            found.append([value(one.pointer + 7).value for one in peers])
            assert peers[group.rank].pointer == at
            assert {60} == {one.nbytes for one in peers}
        with pytest.raises(CallError, match="that peers do not reach"):
            session.peers(Tensor(start + 64, 1 << 20))
        group.exchange({})
        session.close()
        return found

    assert [[[1, 2, 3]] * 2] * 3 == on_ranks(fake, 3, work)
