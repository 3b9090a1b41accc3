"""Ranks of one host that sleep are woken; and ranks of one machine share its cores."""

import select
from pathlib import Path

import numpy as np
import pytest

from stretto.executors.cpu.peers.crowding import is_crowded, where
from stretto.executors.cpu.shared.slab import ASLEEP, LINE, Slab, SlabLayout
from stretto.executors.cpu.shared.wakers import Wakers
from stretto.executors.cpu.words import Common, Header

AT = Header.END.at


class Pair:
    """Rank 0, that signals, and rank 1 beside it, that may sleep."""

    def __init__(self):
        self.memory = np.zeros((2, 4 * LINE // 8), dtype=np.int64)
        self.flag = np.zeros(8, dtype=np.int64)
        slabs = {}
        for rank in (0, 1):
            slabs[rank] = Slab.__new__(Slab)
            slabs[rank].address = self.memory[rank].ctypes.data
        self.wakers = [Wakers(), Wakers()]
        self.words = [np.zeros(int(Common.END), dtype=np.int64) for _ in (0, 1)]
        numbers = {rank: one.number for rank, one in enumerate(self.wakers)}
        for rank, one in enumerate(self.wakers):
            one.connect(self.words[rank], rank, slabs, numbers)
        self.table = np.zeros(64, dtype=np.int64)
        self.table[Header.SESSION] = self.words[0].ctypes.data
        words = [2, 0, self.flag.ctypes.data, 5, 1]
        self.table[Header.END : Header.END + len(words)] = words

    def asleep(self, value=None):
        if value is not None:
            self.memory[1, ASLEEP // 8] = value
        return int(self.memory[1, ASLEEP // 8])

    def woken(self):
        return bool(select.select([self.wakers[1].number], [], [], 0)[0])

    def close(self):
        for one in self.wakers:
            one.close()


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


def test_a_signal_wakes_who_sleeps_and_nobody_else(pair):
    """The flag is up first; a rank that is awake costs no call of the system."""
    made = pytest.importorskip("stretto.executors.cpu.running.instructions")
    signal, call = made.signal, int(pair.table.ctypes.data)
    signal(call, call + AT, 1)
    assert not pair.woken()

    pair.asleep(1)
    signal(call, call + AT, 2)

    assert (2 << 20) + 5 == pair.flag[0]
    assert pair.woken()
    assert 0 == pair.asleep()


def test_who_lies_down_looks_once_more(pair):
    """And who rises forgets that it was woken."""
    made = pytest.importorskip("stretto.executors.cpu.running.instructions")
    mine = int(pair.words[1].ctypes.data)
    assert not made.lie_down(mine)
    assert made.lie_down(mine)
    signal, call = made.signal, int(pair.table.ctypes.data)
    signal(call, call + AT, 1)
    made.arise(mine)

    assert not pair.woken()
    assert 0 == pair.asleep()


def test_where_somebody_cannot_be_woken_nobody_sleeps_for_long():
    """Then there is no table, and ranks take naps."""
    words = np.zeros(int(Common.END), dtype=np.int64)
    one = Wakers()
    one.connect(words, 0, {0: object(), 1: object()}, {0: one.number})
    one.close()

    assert 0 == words[Common.WAKERS]


def test_what_is_closed_is_closed(pair):
    """Descriptors are given back, those of peers, too."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    pair.close()

    assert before - 4 == len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    ("machines", "cores", "hosts", "crowded"),
    [
        ("aa", ([0], [1]), (0, 0), False),
        ("aa", ([0], [0]), (0, 0), True),
        ("aaaa", ([0, 1],) * 4, (0, 0, 1, 1), True),
        ("aabb", ([0, 1],) * 4, (0, 0, 1, 1), False),
        (["", "", "", ""], ([0, 1],) * 4, (0, 0, 1, 1), False),
        (["", "", ""], ([0, 1],) * 3, (0, 0, 0), True),
    ],
)
def test_ranks_share_the_cores_of_a_machine(machines, cores, hosts, crowded):
    """Containers of one machine are hosts of their own, and share its cores."""
    said = [{"machine": m, "cores": c} for m, c in zip(machines, cores, strict=True)]

    assert crowded == is_crowded(0, said, hosts)
    assert where()["cores"]


def test_flags_and_what_says_that_a_rank_sleeps_lie_apart():
    """No line of a slab has two meanings."""
    layout = SlabLayout(num_ranks=2)

    assert ASLEEP + 8 <= 4 * LINE <= layout.flags
