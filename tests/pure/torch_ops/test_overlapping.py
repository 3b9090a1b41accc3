"""Matmuls beside copies: what waits for what, on two ranks made of stand-ins.

Operations on streams are followed by vector clocks, as on GPUs: a stream is in order,
an event carries its order elsewhere, and a barrier joins all ranks. Two operations on
the same memory, one of which writes, must be in order.
"""

import itertools
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from stretto.torch.operators import overlapping  # noqa: E402

RANKS, ROWS = 3, 4


class World:
    """All that was enqueued: (rank, memory, whether it writes, when, what)."""

    def __init__(self):
        self.done, self.barriers = [], {}
        self.number = itertools.count()


class Stream:
    """One of a rank: a clock, by stream."""

    def __init__(self, rank, name):
        self.rank, self.name, self.clock, self.count = rank, name, {}, 0
        self.cuda_stream = id(self)

    def enqueue(self, *touched):
        self.count += 1
        self.clock = {**self.clock, (self.rank, self.name): self.count}
        for memory, writes in touched:
            entry = (memory, writes, dict(self.clock), (self.rank, self.name))
            self.rank_world.done.append(entry)

    def wait_stream(self, other):
        self.wait_event(other.record_event())

    def record_event(self):
        return dict(self.clock)

    def wait_event(self, event):
        for stream, count in event.items():
            self.clock[stream] = max(count, self.clock.get(stream, 0))


class Rank:
    """The driver of one rank: runs a call until it comes to a barrier."""

    def __init__(self, world, rank):
        self.world, self.rank = world, rank
        self.main, self.copies = Stream(rank, "main"), Stream(rank, "copies")
        self.other = Stream(rank, "other")
        for one in (self.main, self.copies, self.other):
            one.rank_world = world
        self.now, self.visits = self.main, 0


def run(world, calls):
    """Run every rank's calls, to their barriers in turn, as generators would."""
    gate = threading.Barrier(RANKS)
    lock, joined, wrong = threading.Lock(), {}, []

    def one(rank):
        try:
            calls(rank, barrier)
        except BaseException as e:
            wrong.append(e)
            gate.abort()

    def barrier(rank):
        with lock:
            merged = joined.setdefault(rank.visits, {})
            for stream, count in rank.now.clock.items():
                merged[stream] = max(count, merged.get(stream, 0))
        gate.wait(20)
        rank.now.wait_event(joined[rank.visits])
        rank.visits += 1

    threads = [
        threading.Thread(target=one, args=(Rank(world, r),)) for r in range(RANKS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


def races(world):
    """Return pairs of operations on one memory, of which one writes, in no order."""
    found = []
    for (m1, w1, c1, s1), (m2, w2, c2, s2) in itertools.combinations(world.done, 2):
        if m1 != m2 or not (w1 or w2) or s1 == s2:
            continue
        before = c2.get(s1, 0) >= c1[s1]
        after = c1.get(s2, 0) >= c2[s2]
        if not before and not after:
            found.append((m1, s1, s2))
    return found


class Memory:
    """Parts of memory of one name, each of so many rows."""

    dtype = "bfloat16"

    def __init__(self, rank, name, parts):
        self.rank, self.name, self.parts = rank, name, list(parts)
        self.shape = ROWS * len(self.parts), 4

    @property
    def names(self):
        return [(self.name, q) for q in self.parts]

    def __getitem__(self, at):
        some = self.parts[at.start // ROWS : at.stop // ROWS]
        return Memory(self.rank, self.name, some)

    def split(self, rows):
        assert rows == ROWS, "parts are split into parts"
        return [Memory(self.rank, self.name, [q]) for q in self.parts]

    def view(self, *_):
        return self

    def element_size(self):
        return 2

    def new_empty(self, rows, _):
        name = self.rank.rank, "new", next(self.rank.world.number)
        return Memory(self.rank, name, range(rows // ROWS))

    def copy_(self, source):
        reads = [(name, False) for name in source.names]
        self.rank.now.enqueue(*reads, *[(name, True) for name in self.names])

    def sum(self, _):
        self.rank.now.enqueue(*[(name, False) for name in self.names])
        return self


@pytest.fixture
def stand_in(monkeypatch):
    """Let the module use stand-ins, of the rank of the thread that asks."""
    mine = threading.local()

    @contextmanager
    def stream(one):
        before, mine.rank.now = mine.rank.now, one
        yield
        mine.rank.now = before

    def mm(x, w, out):
        sources = [(name, False) for name in x.names]
        mine.rank.now.enqueue(*sources, *[(name, True) for name in out.names])

    fake = SimpleNamespace(
        mm=mm,
        cuda=SimpleNamespace(
            current_stream=lambda: mine.rank.now,
            is_current_stream_capturing=lambda: False,
            stream=stream,
        ),
    )
    monkeypatch.setattr(overlapping, "torch", fake)
    return mine


def room_of(rank, barrier):
    """Return a room: this rank's array, and everybody's by the same names."""
    room = overlapping._Room.__new__(overlapping._Room)
    room.stream, room._last = rank.copies, None

    def arrays(comm, like, shape):
        parts = range(shape[0] // ROWS)
        every = [Memory(rank, ("room", q), parts) for q in range(RANKS)]
        return every[rank.rank], every

    room.arrays, room.barrier = arrays, lambda comm: barrier(rank)
    return room


def gather(comm, rank, turn):
    x = Memory(rank, (rank.rank, "x", turn), [0])
    y = Memory(rank, (rank.rank, "y", turn), range(RANKS))
    overlapping.gather_then_multiply(comm, x, None, y, None)


def scatter(comm, rank, turn):
    x = Memory(rank, (rank.rank, "x", turn), range(RANKS))
    overlapping.multiply_then_scatter(comm, x, None, [ROWS, 4])


@pytest.mark.parametrize("how", ["whole", "each"])
@pytest.mark.parametrize("streams", [1, 2])
def test_nothing_is_written_that_others_still_use(stand_in, monkeypatch, how, streams):
    """Calls of both kinds after one another, on one stream or two."""
    world = World()
    monkeypatch.setattr(overlapping, "HOW", how)
    rooms = {}
    monkeypatch.setattr(overlapping, "_room_of", lambda comm: rooms[comm.rank])

    def calls(rank, barrier):
        stand_in.rank = rank
        rooms[rank.rank] = room_of(rank, barrier)
        comm = SimpleNamespace(num_ranks=RANKS, rank=rank.rank)
        for turn in range(6):
            rank.now = rank.main if streams == 1 or turn % 2 else rank.other
            (gather if turn in (0, 1, 4) else scatter)(comm, rank, turn)

    run(world, calls)

    assert len(world.done) > 100
    assert [] == races(world)


@pytest.mark.parametrize("call", [gather, scatter])
@pytest.mark.parametrize("nth", [0, 1])
def test_each_barrier_is_needed(stand_in, monkeypatch, nth, call):
    """Without either the clocks see a race: they would."""
    world, rooms = World(), {}
    monkeypatch.setattr(overlapping, "HOW", "whole")
    monkeypatch.setattr(overlapping, "_room_of", lambda comm: rooms[comm.rank])

    def calls(rank, barrier):
        stand_in.rank = rank
        room = rooms[rank.rank] = room_of(rank, barrier)
        visits = itertools.count()

        def some(comm):
            if next(visits) % 2 != nth:
                barrier(rank)

        room.barrier = some
        comm = SimpleNamespace(num_ranks=RANKS, rank=rank.rank)
        for turn in range(3):
            call(comm, rank, turn)

    run(world, calls)

    assert races(world)
