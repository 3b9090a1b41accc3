"""Experts on GPUs with all but the GPU: kernels run on this CPU, ranks are threads."""

import contextlib
import ctypes
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cuda_emulate_experts import ENTRY, SHARED, geometry, random_case
from cuda_emulate_own import Handles, build

torch = pytest.importorskip("torch")

from stretto.errors import CallError  # noqa: E402
from stretto.experts.experts import Experts  # noqa: E402
from stretto.experts.gpu import GpuDispatched, GpuExperts, enqueued  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

RANKS, BLOCKS, THREADS = 2, 2, 64


class World:
    """What ranks that are threads share: channels, and a kernel's launch for all."""

    def __init__(self, folder):
        self.folder, self.sets, self.lock = folder, {}, threading.Lock()
        self.barrier, self.calls, self.library = threading.Barrier(RANKS), {}, None

    def handles(self, number, nbytes):
        with self.lock:
            if number not in self.sets:
                self.sets[number] = Handles(RANKS, nbytes, blocks=BLOCKS)
            return self.sets[number]

    def launch(self, name, rank, call):
        self.calls[rank] = call
        if self.barrier.wait() == 0:
            every = (type(call) * RANKS)(*(self.calls[r] for r in range(RANKS)))
            getattr(self.library, name)(every, RANKS, BLOCKS, THREADS, 0)
        self.barrier.wait()


class Channels:
    """As `comm.channels`, of one rank."""

    def __init__(self, world, rank, number, nbytes):
        self.world, self.rank = world, rank
        self.handles = world.handles(number, nbytes)
        self.buffer = self.handles.buffers[rank]
        self.pointer = self.handles.memory[rank].ctypes.data
        self.epochs = self.handles.epochs(rank)

    def kernel(self, text, symbol, *, threads, options=()):
        # g++ contracts nothing here; a GPU's compiler does unless it is told.
        assert "--fmad=false" in options, "sums would not be CPUs' bits"
        with self.world.lock:
            if self.world.library is None:
                folder = self.world.folder
                self.world.library = build(SHARED + text, folder, ENTRY)
        name = symbol.removeprefix("stretto_")
        return lambda call: self.world.launch(name, self.rank, call)


class Comm:
    """As a communicator, of one rank."""

    num_ranks = RANKS

    def __init__(self, world, rank):
        self.world, self.rank, self.made = world, rank, 0

    def channels(self, nbytes, *, blocks, name):
        self.made += 1
        return Channels(self.world, self.rank, self.made, nbytes)

    def barrier(self):
        self.world.barrier.wait()

    def refuse(self, why):
        return CallError(f"rank {self.rank}: {why}")

    def check(self):
        pass


def experts(world, rank, g):
    """Return experts whose engine is that of GPUs."""
    made = object.__new__(Experts)
    made.comm, made.geometry, made.check = Comm(world, rank), g, False
    made.engine = GpuExperts(made.comm, g, blocks=BLOCKS, threads=THREADS)
    return made


def as_tensor(array):
    """Return a tensor of an array, bfloat16 too."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def one_rank(world, rank, g, cases, made):
    """Dispatch and combine some cases; return what came, as bytes."""
    ep, found = experts(world, rank, g), []
    for case, rows in zip(cases, made, strict=True):
        given = [as_tensor(part[rank]) for part in (case.xs, case.ids, case.weights)]
        sent = ep.dispatch(*given)
        real = [i for i, one in enumerate(case.lines(rank)) if one is not None]
        flat = sent.rows.view(torch.uint8).reshape(-1, g.row_bytes)[real]
        room = torch.zeros(sent.rows.shape, dtype=as_tensor(rows[rank]).dtype)
        room.view(-1, g.hidden)[: len(rows[rank])] = as_tensor(rows[rank])
        out = ep.combine(room, sent)
        found.append((bits(flat), sent.counts_host(), bits(out)))
    with pytest.raises(CallError, match="want at most max_tokens=9"):
        ep.dispatch(
            as_tensor(cases[0].xs[0][:1]).repeat(12, 1),
            torch.zeros(12, g.top_k, dtype=torch.int64),
        )
    with pytest.raises(CallError, match=rf"dispatch: x is list; want T x {g.hidden}"):
        ep.dispatch([1.0], given[1])
    with pytest.raises(CallError, match="dispatch: tensors that autograd follows"):
        ep.dispatch(given[0].float().requires_grad_(), *given[1:])
    return found


@pytest.mark.parametrize("kind", [
    {"layout": "rank", "dtype": "bfloat16"},
    {"layout": "expert", "order": "k"},
    pytest.param({"layout": "token"}, marks=pytest.mark.slow),
])  # fmt: skip
def test_the_host_side_of_gpus_gives_the_definition(tmp_path, monkeypatch, kind):
    """Sizes, addresses, halves: what the kernels are told by Python."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    g, rng = geometry(RANKS, **kind), np.random.default_rng(8)
    cases = [random_case(g, rng, t) for t in ((9, 2), (0, 5), (7, 9))]
    made = [
        [
            rng.standard_normal((len(c.lines(r)), g.hidden)).astype(c.xs[0].dtype)
            for r in range(RANKS)
        ]
        for c in cases
    ]
    world = World(tmp_path)
    with ThreadPoolExecutor(RANKS) as pool:
        each = list(
            pool.map(lambda r: one_rank(world, r, g, cases, made), range(RANKS))
        )

    for r, found in enumerate(each):
        for (rows, counts, out), case, given in zip(found, cases, made, strict=True):
            real = [i for i, one in enumerate(case.lines(r)) if one is not None]
            assert case.dispatched(r)[0][real].tobytes() == rows
            assert [len(one) for one in case.expert_rows(r)] == counts
            assert case.combined(r, given, g.order).tobytes() == out


def test_parameters_are_as_long_as_the_kernels_think(tmp_path):
    """Fields of Python's structures and of C's."""
    from stretto.experts.texts import CombineCall, DispatchCall

    assert 16 * 8 + 4 * 4 == ctypes.sizeof(DispatchCall)
    assert 14 * 8 + 2 * 4 == ctypes.sizeof(CombineCall)


class Recorded(torch.Tensor):
    """Tells which streams it was recorded for."""

    def record_stream(self, stream):
        self.streams = [*getattr(self, "streams", ()), stream]


class Side:
    """As an engine whose operations go on a stream of their own."""

    def aside(self):
        return "side"

    def follow(self):
        pass


def test_what_is_given_to_a_started_call_is_nobody_elses_until_it_ends(monkeypatch):
    """Temporaries are freed at once, and PyTorch gives their memory away.

    Then a dispatch read what came there: also of a dispatch that is combined.
    """
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "current")
    x, ids, weights, words, rows, scales, out = (
        torch.zeros(3).as_subclass(Recorded) for _ in range(7)
    )
    sent = object.__new__(GpuDispatched)
    sent.geometry = geometry(RANKS, layout="expert")
    sent.own_ids, sent.own_weights, sent.words = ids, weights, words
    sent.rows, sent.scales = rows, scales

    wait = enqueued(Side(), lambda *given: out, x, sent, None)

    given = [x, ids, weights, words, rows, scales]
    assert [["side"]] * 6 == [one.streams for one in given]
    assert wait() is out
    assert ["current"] == out.streams
