"""Slabs and the heap, in one process."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
from tests.held import held, left_since

from stretto.errors import (
    CallError,
    CollectiveMismatch,
    CommunicationError,
)
from stretto.executors import Group
from stretto.executors.cpu.shared.heap import Heap
from stretto.executors.cpu.shared.slab import (
    LINE,
    MAX_LANES,
    MAX_SLOT,
    PACKET_REGION,
    Slab,
    SlabLayout,
    slot_class,
)
from stretto.executors.cpu.sharing import OwnSlab, _map_all
from stretto.executors.cpu.words import Common
from stretto.fabric.memory import create_file


class OneRank(Group):
    """A group of one; `say` changes what the others are taken to have said."""

    rank, num_ranks, deadline_s = 0, 1, 1.0
    broken = np.zeros(1, np.int64)

    def exchange(self, payload, fds=()):
        return [(payload, tuple(fds))]

    def fail(self, waiting_for, where, *, mismatch="", refused=""):
        return CollectiveMismatch(mismatch)


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 128, 129, 4096, MAX_SLOT])
def test_a_slot_class_is_the_smallest_that_holds(nbytes):
    """Classes are 64 bytes and its doublings."""
    size = LINE << slot_class(nbytes)

    assert size >= nbytes
    assert size == LINE or size // 2 < nbytes


def test_nothing_in_a_slab_overlaps():
    """Flags, each class of slots at each parity, and staging follow one another."""
    places = SlabLayout(num_ranks=3)
    flags = [
        places.flag(rank, lane, to)
        for rank in range(3)
        for lane in range(MAX_LANES)
        for to in range(MAX_LANES)
    ]
    regions = [
        places.packets(c, p) for c in range(slot_class(MAX_SLOT) + 1) for p in (0, 1)
    ]

    assert [LINE] * (len(flags) - 1) == np.diff(flags).tolist()
    assert flags[-1] + LINE == regions[0]
    assert [PACKET_REGION] * (len(regions) - 1) == np.diff(regions).tolist()
    assert regions[-1] + PACKET_REGION == places.stage(0)
    assert places.stage(1) < places.stage(2) <= places.nbytes


def new_slab():
    """Return a slab of one rank."""
    places = SlabLayout(num_ranks=1)
    fd = create_file(places.nbytes)
    slab = Slab(places, fd, 1)
    os.close(fd)
    return slab


def test_a_catalogue_names_calls_and_forgets_the_oldest():
    """A fingerprint is answered with its text; unknown ones with what is known."""
    slab = new_slab()
    for number in range(1, 301):
        slab.register(number, f"call number {number}")

    assert "call number 300" == slab.describe(300)
    assert "call number 46" == slab.describe(46)
    assert "a call that left no name (fingerprint 0x2d)" == slab.describe(45)
    assert "a call that left no name (fingerprint 0x0)" == slab.describe(0)


def test_a_text_too_long_is_cut():
    """A catalogue entry has room for 240 characters."""
    slab = new_slab()
    slab.register(5, "x" * 1000)

    assert "x" * 240 == slab.describe(5)


class TwoRanks(OneRank):
    num_ranks = 2
    most_ranks = 2


def a_peers(group, mine, have, *, of, number, new=False):
    """Return what a rank has of its peer's slab, which has told of it, and its mark."""
    parts = [({"slab": n, "heap": {"new": new and bool(r)}}, (of[r],)) for r, n in
             enumerate((mine.number, number))]  # fmt: skip
    found = _map_all(group, mine, parts, [mine.slab, have], [None, None])[1]
    return found, found.exchange()[0]


def slab_file(layout, mark):
    """Return the file of somebody's slab, who has begun so many exchanges."""
    fd = create_file(layout.nbytes)
    Slab(layout, fd, 1).begin_exchange(mark, "x")
    return fd


def test_a_peers_slab_is_mapped_anew_where_it_is_another_one():
    """As its number tells, or its layout; else it stays, whatever file comes with it.

    A rank that had made room was left behind by a fault: the others hear it again.
    """
    group = TwoRanks()
    mine = OwnSlab(group, np.zeros(int(Common.END), np.int64))
    small, large = SlabLayout(num_ranks=2), SlabLayout(num_ranks=4)
    fds = [slab_file(layout, k) for k, layout in enumerate((small, small, large), 1)]
    told = {number: (mine.fd, fd) for number, fd in enumerate(fds, 1)}
    first, mark = a_peers(group, mine, None, of=told[1], number=1)
    assert 1 == mark
    at = first.address
    assert (first, 1) == a_peers(group, mine, first, of=told[2], number=1)
    assert (first, 2) == a_peers(group, mine, first, of=told[2], number=2)
    assert (first, 1) == a_peers(group, mine, first, of=told[1], number=2, new=True)
    assert at == first.address  # tables that name it stay true
    group.most_ranks, before = 4, mine.number
    mine.make_room()
    assert (large, before + 1) == (mine.slab.layout, mine.number)
    later, mark = a_peers(group, mine, first, of=(mine.fd, fds[2]), number=2)
    assert (large, 3) == (later.layout, mark)
    mine.make_room()
    assert before + 1 == mine.number
    mine.close()
    for fd in fds:
        os.close(fd)


def new_heap(group):
    """Return a heap whose ranks have met."""
    heap = Heap(group)
    said = {**heap.said(), "new": True}
    heap.renew([None] * group.num_ranks, [said] * group.num_ranks)
    return heap


def test_registered_arrays_are_aligned_apart_and_reused():
    """Dead blocks are used again, at the next collective allocation."""
    heap = new_heap(OneRank())
    one = heap.empty((3,), np.dtype("float32"))
    two = heap.empty((100, 100), np.dtype("complex128"))
    first = one.ctypes.data

    assert (100, 100) == two.shape
    assert 0 == first % 128
    assert 0 == two.ctypes.data % 4096
    one[:], two[:] = 1, 2
    assert (one == 1).all()

    view = one[1:]
    del one
    gc.collect()
    other = heap.empty((3,), np.dtype("float32"))
    assert other.ctypes.data != first
    del view
    gc.collect()
    assert heap.empty((3,), np.dtype("float32")).ctypes.data == first


def test_a_heap_grows_and_keeps_its_place():
    """What is handed out stays where it is when the heap grows."""
    heap = new_heap(OneRank())
    small = heap.empty((10,), np.dtype("int64"))
    small[:] = 3
    large = heap.empty((1 << 20,), np.dtype("float64"))
    large[:] = 4

    assert (small == 3).all()
    assert heap.nbytes >= large.nbytes
    assert 0 <= large.ctypes.data - heap.addresses[0] < heap.nbytes


def test_an_empty_array_has_a_place_too():
    """Zero elements are still registered memory."""
    heap = new_heap(OneRank())

    assert (0, 4) == heap.empty((0, 4), np.dtype("float32")).shape


def test_different_allocations_are_a_mismatch():
    """Everybody must ask for as much."""

    class Other(OneRank):
        def exchange(self, payload, fds=()):
            other = {**payload, "empty": "(1,) int8, cpu", "withdrawn": []}
            return [(payload, ()), (other, ())]

    said = r"rank 0: \(10,\) float32, cpu; rank 1: \(1,\) int8, cpu"
    with pytest.raises(CollectiveMismatch, match=said):
        Heap(Other()).empty((10,), np.dtype("float32"))


def test_another_version_is_refused():
    """Ranks whose slabs mean something else are told to use one version."""
    from stretto.executors.cpu import open_session

    class Older(OneRank):
        def exchange(self, payload, fds=()):
            return [({**payload, "abi": 0}, tuple(fds))]

    with pytest.raises(CommunicationError, match="run the same version of stretto"):
        open_session(Older())


class TwoThatGrow(OneRank):
    """This rank, and one that may have no room."""

    num_ranks, why = 2, ""

    def exchange(self, payload, fds=()):
        theirs = payload | ({"why": self.why} if "grow" in payload else {})
        return [(payload, ()), (theirs, tuple(map(os.dup, fds)))]


def test_a_heap_that_cannot_grow_is_as_it_was():
    """What is too large is refused, here or by another rank, and nothing is broken."""
    group = TwoThatGrow()
    heap = new_heap(group)
    small = heap.empty((10,), np.dtype(np.int8))
    used, before = heap.nbytes, held()

    with pytest.raises(CallError, match=r"rank 0: .* bytes asked for in all, want at"):
        heap.empty((1 << 40,), np.dtype(np.int8))
    group.why = "no room"
    with pytest.raises(CallError, match="empty: rank 1: no room"):
        heap.empty((used,), np.dtype(np.int8))

    assert used == heap.nbytes
    assert [] == left_since(before)
    group.why = ""
    assert (used,) == heap.empty((used,), np.dtype(np.int8)).shape
    assert (10,) == small.shape
