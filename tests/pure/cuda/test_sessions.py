"""Sessions over a driver made of host memory: slabs, offsets, what is refused."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from cuda_fakes import GRAIN, OK, on_ranks, view
from tests.stand_ins import Elements as Tensor

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import DeviceError, StrettoError
from stretto.executors import Call, cuda
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.launching.kernels import Loaded
from stretto.executors.cuda.session import CudaSession
from stretto.executors.cuda.words import PARAMS
from stretto.program import algorithms

SLAB = str(64 << 20)
"""Bytes, in place of a gigabyte more than is needed: this memory is the host's."""


def test_peers_see_each_others_memory_at_the_same_offset(fake):
    """What rank q writes at an offset is read there by everybody."""

    def work(group):
        session = CudaSession(group)
        mine = session.empty((100,), "uint8")
        view(mine)[:] = group.rank + 1
        group.exchange({})
        seen = [
            ctypes.c_uint8.from_address(
                session.space.peer_address(q, session.offset(mine))
            ).value
            for q in range(group.num_ranks)
        ]
        group.exchange({})
        session.close()
        return seen

    assert [[1, 2, 3]] * 3 == on_ranks(fake, 3, work)


def test_a_slab_grows_and_stays_where_it_was(fake):
    """Large arrays add memory; earlier addresses stay good."""

    def work(group):
        session = CudaSession(group)
        small = session.empty((10,), "float32")
        view(small)[:] = 7
        large = session.empty((80 << 20,), "uint8")
        view(large)[-1] = 9
        offsets = session.offset(small), session.offset(large)
        kept = bool((view(small) == 7).all())
        group.exchange({})
        session.close()
        return offsets, kept

    first, *others = on_ranks(fake, 2, work)

    assert first[1]
    assert [first] == others


def test_memory_is_given_again_only_when_all_ranks_let_go(fake):
    """A rank that still holds its part keeps everybody's."""

    def work(group):
        session = CudaSession(group)
        one = session.empty((1000,), "uint8")
        start = session.offset(one)
        if group.rank == 0:
            del one
        second = session.offset(session.empty((1000,), "uint8"))
        one = None
        third = session.offset(session.empty((1000,), "uint8"))
        group.exchange({})
        session.close()
        return second == start, third == start

    assert [(False, True)] * 2 == on_ranks(fake, 2, work)


def test_without_file_descriptors_legacy_ipc_serves(fake, monkeypatch):
    """Where cuMem is refused, one allocation is shared by its IPC handle."""
    monkeypatch.setenv("STRETTO_CUDA_SLAB_BYTES", SLAB)
    fake.vmm = False

    def work(group):
        session = CudaSession(group)
        mine = session.empty((4,), "uint8")
        view(mine)[:] = 40 + group.rank
        group.exchange({})
        other = session.space.peer_address(1 - group.rank, session.offset(mine))
        seen = ctypes.c_uint8.from_address(other).value
        group.exchange({})
        kind = session.slab.kind
        session.close()
        return kind, seen

    assert [("ipc", 41), ("ipc", 40)] == on_ranks(fake, 2, work)


def test_descriptors_are_closed_whatever_becomes_of_them(fake, monkeypatch):
    """Rank 1 cannot share by descriptors: legacy IPC serves; rank 0's are closed."""
    monkeypatch.setenv("STRETTO_CUDA_SLAB_BYTES", SLAB)
    create = fake.cuMemCreate

    def refuse(nbytes, properties, flags):
        if fake.who.rank == 1:
            return fake.CUresult.CUDA_ERROR_NOT_SUPPORTED, None
        return create(nbytes, properties, flags)

    fake.cuMemCreate = refuse

    def work(group):
        exchange = group.exchange

        def marked(payload, fds=()):
            """Give descriptors that can be told from all others."""
            said = exchange(payload, fds)
            return [(m, tuple(map(as_received, received))) for m, received in said]

        group.exchange = marked
        session = CudaSession(group)
        group.exchange({})
        kind = session.slab.kind
        session.close()
        return kind

    given = []

    def as_received(fd):
        os.close(fd)
        given.append(os.memfd_create("received"))
        return given[-1]

    kinds = on_ranks(fake, 2, work)
    links = [Path(f"/proc/self/fd/{fd}") for fd in given]

    assert ["ipc", "ipc"] == kinds
    assert given
    assert not [
        at for at in links if at.is_symlink() and "received" in str(at.readlink())
    ]


def test_what_cannot_be_unmapped_keeps_nothing_else(fake):
    """Closing goes on: the addresses are given back, and the rest."""

    def work(group):
        session = CudaSession(group)
        session.register(Tensor(fake.foreign(3 * GRAIN, "pieces"), 3 * GRAIN))
        group.exchange({})
        freed = []
        if group.rank == 0:
            free = fake.cuMemAddressFree
            fake.cuMemUnmap = lambda *_: (fake.CUresult.CUDA_ERROR_UNKNOWN,)
            fake.cuMemAddressFree = lambda *a: freed.append(a[0]) or free(*a)
            session.close()
            del fake.cuMemUnmap, fake.cuMemAddressFree
        group.exchange({})
        if group.rank == 1:
            session.close()
        return len(freed)

    assert [3, 0] == on_ranks(fake, 2, work)


def test_two_ranks_on_one_gpu_is_an_error_that_names_them(fake):
    """A waiting kernel would keep its peer from running."""
    fake.uuids = {0: 5, 1: 6, 2: 5}

    with pytest.raises(DeviceError, match=r"ranks \[0, 2\] use one GPU"):
        on_ranks(fake, 3, CudaSession)


def test_what_a_session_will_stand_on_is_known_before_it_is_opened(fake, monkeypatch):
    """The GPU that it takes; none where ranks may share one, or there is none."""

    def work(group):
        before = cuda.stands_on()
        return before, CudaSession(group).device.uuid, cuda.stands_on()

    monkeypatch.setenv("LOCAL_RANK", "0")
    for found in on_ranks(fake, 2, work):
        assert 1 == len({*found})
    monkeypatch.setenv("STRETTO_CUDA_SHARE_GPU", "1")
    assert ["", ""] == on_ranks(fake, 2, lambda group: cuda.stands_on())
    monkeypatch.delenv("STRETTO_CUDA_SHARE_GPU")
    fake.visible = 0
    fake.cuCtxGetCurrent = lambda: (OK, 0)
    with pytest.raises(DeviceError, match="no CUDA device is visible"):
        cuda.stands_on()


@pytest.mark.parametrize(
    "asked", [((11,), "uint8"), ((5, 2), "uint8"), ((10,), "int8"), ((5,), "int16")]
)
def test_empty_of_another_array_is_an_error(fake, asked):
    """empty() is collective: of as many bytes, too, shape and type are everybody's."""

    def work(group):
        shape, dtype = asked if group.rank else ((10,), "uint8")
        return CudaSession(group).empty(shape, dtype)

    with pytest.raises(StrettoError, match=r"rank 0: \(10,\) uint8, cuda; rank 1: "):
        on_ranks(fake, 2, work)


def test_two_ranks_that_only_transfer_stage_less(fake):
    """Every pair that sends has a session; launches know their halves' size."""
    program = algorithms.get("permute/direct").build(2, pairs=((0, 1),))
    words = "push bulk staged blocks=32 tile_bytes=1048576"
    plan = verify_plan(lower(verify(program), Schedule.parse(words)))

    def work(group, transfers):
        group.only_transfers = transfers
        session = CudaSession(group)
        kernel = Kernel(text="any", ranks=(0,), grid=1, threads=64)
        session.load_call = lambda plan, call, **_: Loaded(None, 5, kernel)
        launch = session.prepare(plan, Call(dtype="int8", counts=(64 << 20,) * 2))
        packed = (
            launch.parts[0]
            .packed(session.regions[0])[: PARAMS.itemsize]
            .view(PARAMS)[0]
        )
        group.exchange({})
        found = (
            session.slab.nbytes,
            int(packed["stage_half"]),
            launch.parts[0].where.tile,
        )
        session.close()
        return found

    (whole, half, tile), _ = on_ranks(fake, 2, lambda group: work(group, False))
    (part, less, smaller), _ = on_ranks(fake, 2, lambda group: work(group, True))

    assert (half, less) == (1 << 20, 1 << 18)
    assert 32 * smaller <= less < 32 * tile <= half
    assert part < whole - 2 * 2 * 2 * (half - less) + GRAIN


def states(fake, monkeypatch, **by_stream):
    """Let streams answer whether they capture; return what is waited for."""
    names, waited = fake.CUstreamCaptureStatus, []
    errors = fake.CUresult
    answers = {
        "active": (errors.CUDA_SUCCESS, names.CU_STREAM_CAPTURE_STATUS_ACTIVE),
        "implicit": (errors.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, None),
        "gone": (errors.CUDA_ERROR_INVALID_HANDLE, None),
    }
    plain = errors.CUDA_SUCCESS, names.CU_STREAM_CAPTURE_STATUS_NONE

    def ask(stream):
        return answers.get(by_stream.get(f"s{int(stream)}", ""), plain)

    def wait(stream):
        waited.append(int(stream))
        return (errors.CUDA_SUCCESS,)

    def wait_for_all():
        waited.append("all")
        return (errors.CUDA_SUCCESS,)

    monkeypatch.setattr(fake, "cuStreamIsCapturing", ask, raising=False)
    monkeypatch.setattr(fake, "cuStreamSynchronize", wait, raising=False)
    monkeypatch.setattr(fake, "cuCtxSynchronize", wait_for_all, raising=False)
    return waited


@pytest.mark.parametrize(
    ("streams", "waits"),
    [
        ({}, ["all"]),
        ({"s7": "active"}, [0, 8]),
        ({"s0": "implicit"}, [7, 8]),
        ({"s7": "gone"}, ["all"]),
        ({"s7": "gone", "s8": "active"}, [0]),
    ],
)
def test_loading_waits_for_all_that_may_run(fake, monkeypatch, streams, waits):
    """Graphs are replayed on streams that we do not know; a capture is not spoiled."""
    monkeypatch.setenv("STRETTO_CUDA_STREAMS", "4")

    def work(group):
        session = CudaSession(group)
        for stream in (7, 8):
            session.flags.of(stream)
        waited = states(fake, monkeypatch, **streams)
        with session.quiet():
            found = sorted(waited, key=str)
        session.close()
        return found

    assert [waits] == on_ranks(fake, 1, work)


def test_a_stream_that_is_gone_is_not_asked_again(fake, monkeypatch):
    """Until a new stream has its handle."""

    def work(group):
        session = CudaSession(group)
        session.flags.of(7)
        states(fake, monkeypatch, s7="gone")
        with session.quiet():
            gone = set(session.flags._gone)
        asked = []
        monkeypatch.setattr(
            fake, "cuStreamIsCapturing", lambda s: asked.append(int(s)) or (0, 0)
        )
        with session.quiet():
            pass
        before = list(asked)
        session.flags.of(7)
        with session.quiet():
            pass
        session.close()
        return gone, before, sorted(asked)

    assert [({7}, [0], [0, 0, 7])] == on_ranks(fake, 1, work)


def test_multicast_switched_on_is_refused(fake, monkeypatch):
    """Whoever switches NVLink multicast on does not get a session."""
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")

    with pytest.raises(DeviceError, match="NCCL_NVLS_ENABLE=0"):
        on_ranks(fake, 2, CudaSession)
