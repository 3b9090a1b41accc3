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
from tests.nightly import nightly

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
    """Rows of memory of one name."""

    dtype, nbytes, is_cuda = "bfloat16", 0, False

    def __init__(self, rank, name, rows):
        self.rank, self.name, self.rows = rank, name, list(rows)
        self.shape = len(self.rows), 4

    @property
    def names(self):
        return [(self.name, row) for row in self.rows]

    def __getitem__(self, at):
        return Memory(self.rank, self.name, self.rows[at])

    def split(self, rows):
        some = range(0, len(self.rows), rows)
        return [self[start : start + rows] for start in some]

    def view(self, *_):
        return self

    def element_size(self):
        return 2

    def new_empty(self, rows, _):
        name = self.rank.rank, "new", next(self.rank.world.number)
        return Memory(self.rank, name, range(rows))

    def touch(self, sources, writes):
        reads = [(name, False) for one in sources for name in one.names]
        self.rank.now.enqueue(*reads, *[(name, True) for name in writes])

    def copy_(self, source):
        self.touch([source], self.names)

    def addmm_(self, x, _):
        self.touch([x, self], self.names)

    def sum(self, _):
        self.touch([self], [])
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
        out.touch([x], out.names)

    def addmm(before, x, w, out):
        out.touch([before, x], out.names)

    fake = SimpleNamespace(
        mm=mm,
        addmm=addmm,
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
        every = [Memory(rank, ("room", q), range(shape[0])) for q in range(RANKS)]
        return every[rank.rank], every

    room.arrays, room.barrier = arrays, lambda comm: barrier(rank)
    return room


def gather(comm, rank, turn):
    x = Memory(rank, (rank.rank, "x", turn), range(ROWS))
    y = Memory(rank, (rank.rank, "y", turn), range(RANKS * ROWS))
    overlapping.gather_then_multiply(comm, x, None, y, None)


def scatter(comm, rank, turn):
    x = Memory(rank, (rank.rank, "x", turn), range(RANKS * ROWS))
    overlapping.multiply_then_scatter(comm, x, None, [ROWS, 4])


@pytest.mark.parametrize("how", ["whole", "ring"])
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


BARRIERS = [
    *((call, "whole", 2, nth) for call in (gather, scatter) for nth in range(2)),
    *((scatter, "ring", 5, nth) for nth in (1, 2, 3, 4)),
]
"""Calls, how, how many barriers each has, and the one that is left out."""


@pytest.mark.parametrize(("call", "how", "count", "nth"), BARRIERS)
def test_each_barrier_is_needed(stand_in, monkeypatch, nth, count, how, call):
    """Without it the clocks see a race: they would.

    Of a ring among three, the first is for two ranks: who has come to the second knows
    that everybody has ended the call before.
    """
    world, rooms = World(), {}
    monkeypatch.setattr(overlapping, "HOW", how)
    monkeypatch.setattr(overlapping, "_room_of", lambda comm: rooms[comm.rank])

    def calls(rank, barrier):
        stand_in.rank = rank
        room = rooms[rank.rank] = room_of(rank, barrier)
        visits = itertools.count()

        def some(comm):
            if next(visits) % count != nth:
                barrier(rank)

        room.barrier = some
        comm = SimpleNamespace(num_ranks=RANKS, rank=rank.rank)
        for turn in range(3):
            call(comm, rank, turn)

    run(world, calls)

    assert races(world)


def at_once(monkeypatch, how, ranks):
    """Let streams do at once what they are given; return where ranks meet."""
    gate = threading.Barrier(ranks)
    stream = SimpleNamespace(
        cuda_stream=1, wait_stream=lambda _: None, wait_event=lambda _: None,
        record_event=lambda: None,
    )  # fmt: skip

    @contextmanager
    def on(_):
        yield

    cuda = SimpleNamespace(
        current_stream=lambda: stream,
        is_current_stream_capturing=lambda: False,
        stream=on,
    )
    fake = SimpleNamespace(
        mm=torch.mm, addmm=torch.addmm, cuda=cuda, Size=torch.Size, empty=torch.empty
    )
    monkeypatch.setattr(overlapping, "torch", fake)
    monkeypatch.setattr(overlapping, "HOW", how)
    shared = [torch.full((1 << 16,), torch.nan) for _ in range(ranks)]

    def room(rank):
        made = overlapping._Room.__new__(overlapping._Room)
        made.stream, made._last = stream, None

        def arrays(comm, like, shape):
            size = torch.Size(shape).numel()
            every = [one[:size].view(shape) for one in shared]
            return every[rank], every

        made.arrays, made.barrier = arrays, lambda comm: gate.wait(20)
        return made

    rooms = {rank: room(rank) for rank in range(ranks)}
    monkeypatch.setattr(overlapping, "_room_of", lambda comm: rooms[comm.rank])
    return gate


@pytest.mark.parametrize("how", ["", "whole", "ring"])
@pytest.mark.parametrize(
    ("ranks", "rows"), nightly(itertools.product((3, 2, 4), (5, 1, 300)), 4)
)
def test_every_way_computes_the_product(monkeypatch, how, ranks, rows):
    """With streams that do at once what they are given, on a CPU's memory."""
    gate = at_once(monkeypatch, how, ranks)
    gen = torch.Generator().manual_seed(rows)
    parts = [torch.randn(rows, 8, generator=gen) for _ in range(ranks)]
    wholes = [torch.randn(ranks * rows, 8, generator=gen) for _ in range(ranks)]
    ws = [torch.randn(8, 6, generator=gen) for _ in range(ranks)]
    measured = SimpleNamespace(in_a_ring_from=1 << 40)
    got, wrong = {}, []

    def calls(rank):
        comm = SimpleNamespace(num_ranks=ranks, rank=rank, measured=lambda: measured)
        try:
            for _ in range(3):
                y = torch.full((ranks * rows, 6), torch.nan)
                whole = torch.full((ranks * rows, 8), torch.nan)
                overlapping.gather_then_multiply(comm, parts[rank], ws[rank], y, whole)
                x = wholes[rank].view(ranks, rows, 8)
                out = overlapping.multiply_then_scatter(comm, x, ws[rank], [rows, 6])
            got[rank] = y, whole, out.clone()
        except BaseException as e:
            wrong.append(e)
            gate.abort()

    threads = [threading.Thread(target=calls, args=(r,)) for r in range(ranks)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong
    whole = torch.cat(parts)
    total = sum(x @ w for x, w in zip(wholes, ws, strict=True))
    for rank in range(ranks):
        assert torch.equal(whole, got[rank][1])
        torch.testing.assert_close(got[rank][0], whole @ ws[rank])
        torch.testing.assert_close(got[rank][2], total.split(rows)[rank])
