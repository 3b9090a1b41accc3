"""A prepared kernel: what is packed, what is launched, what a record says."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from cuda.bindings import driver as real
from cuda_fakes import OK, on_ranks
from tests.stand_ins import TensorLike

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError, CollectiveMismatch, CollectiveTimeout, PlanError
from stretto.executors import Call
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.flags.regions import HALVES, fit
from stretto.executors.cuda.launching import kernels as launch_module
from stretto.executors.cuda.launching.kernels import Loaded
from stretto.executors.cuda.session import CudaSession
from stretto.executors.cuda.words import PARAMS, RECORD
from stretto.program import algorithms
from stretto.program.collectives import Operator

PACKETS = "push packets staged blocks=2 threads=128"
ZERO_COPY = "pull bulk zero_copy blocks=2 threads=128"


def proved(name, ranks, schedule):
    """Return a proved plan."""
    program = algorithms.get(name).build(ranks)
    return verify_plan(lower(verify(program), Schedule.parse(schedule)))


def without_compiler(session):
    """Let a session load kernels without compiling them."""

    def load(plan, call, **_):
        kernel = Kernel(text=plan.plan.name, ranks=(0,), grid=2, threads=160)
        return Loaded(None, 7, kernel)

    session.load_call = load


def launched(fake):
    """Return the parameters of the last launch."""
    _, shape, stream, address = fake.launches[-1]
    raw = ctypes.string_at(address, PARAMS.itemsize)
    return shape, stream, np.frombuffer(raw, PARAMS)[0]


def test_a_staged_launch_packs_own_arrays_and_everybodys_staging(fake):
    """Peers' arrays are nobody's business when the plan stages."""

    def work(group):
        session = CudaSession(group)
        without_compiler(session)
        call = Call(dtype="float32", op=Operator.SUM, counts=(100,))
        launch = session.prepare(proved("all_reduce/one_shot", 2, PACKETS), call)
        if group.rank == 0:
            launch(Tensor(4096), Tensor(8192), stream=5)
            launch(Tensor(4096), Tensor(8192), stream=5)
            shape, stream, head = launched(fake)
            same = fake.launches[-1][3] == fake.launches[-2][3]
            answer = (shape, stream, same, list(head["input"][:2]), head["tiles"])
            bases = [int(b) for b in head["control"][:2]]
            assert bases == [
                b + session.flags.of(5).region.control for b in session.slab.peers
            ]
            assert head["fingerprint"]
            assert head["deadline_ns"] == 20_000_000_000
        else:
            answer = None
        group.exchange({})
        session.close()
        return answer

    answer, _ = on_ranks(fake, 2, work)

    assert ([2, 1, 1, 160, 1, 1, 0], 5, True, [4096, 0], 1) == answer


@pytest.mark.parametrize("schedule", [PACKETS, "push engine zero_copy"])
def test_an_array_on_another_gpu_is_refused(fake, schedule):
    """A kernel that touched it would end the context; both GPUs are named."""

    def work(group):
        session = CudaSession(group)
        without_compiler(session)
        call = Call(dtype="float32", op=Operator.SUM, counts=(100,) * 2)
        launch = session.prepare(proved("all_gather/one_shot", 2, schedule), call)
        near, far = session.empty((200,), "float32"), Far(8192)
        if group.rank == 0:
            for x, out in ((far, near), (near, far)):
                with pytest.raises(CallError, match=r"a Far on GPU 7.*on GPU 0"):
                    launch(x, out, stream=5)
            assert not fake.launches
        group.exchange({})
        session.close()

    on_ranks(fake, 2, work)


@pytest.mark.parametrize(("setting", "early"), [(None, True), ("0", False)])
def test_a_launch_may_begin_before_the_kernel_before_it_ends(
    fake, monkeypatch, setting, early
):
    """It waits on the device then (stream.cuh); a setting switches that off."""
    if setting is not None:
        monkeypatch.setenv("STRETTO_CUDA_EARLY", setting)
    kernel = Kernel(text="any", ranks=(0,), grid=3, threads=64)
    arguments = (ctypes.c_void_p * 1)(4096)

    assert Loaded(None, 7, kernel).launch(9, ctypes.addressof(arguments)) == 0
    assert fake.launches[-1] == (7, [3, 1, 1, 64, 1, 1, 0], 9, 4096)
    assert fake.early[-1] is early


def test_a_zero_copy_launch_packs_peers_arrays_and_marks_their_offsets(fake):
    """Other offsets are another call: peers would be told."""

    def work(group):
        session = CudaSession(group)
        without_compiler(session)
        call = Call(dtype="float32", op=Operator.SUM, counts=(100,))
        launch = session.prepare(proved("all_reduce/two_shot", 2, ZERO_COPY), call)
        arrays = [session.empty((100,), "float32") for _ in range(3)]
        found = []
        for x, out in ((arrays[0], arrays[1]), (arrays[0], arrays[2])):
            if group.rank == 0:
                launch(x, out, stream=5)
                _, _, head = launched(fake)
                peers = session.slab.peers
                assert list(head["output"][:2]) == [
                    p + session.offset(out) for p in peers
                ]
                found.append(int(head["fingerprint"]))
        with pytest.raises(CallError, match="not registered memory"):
            launch(arrays[0], Tensor(4096), stream=5)
        group.exchange({})
        session.close()
        return found

    (one, other), _ = on_ranks(fake, 2, work)

    assert one != other


def test_a_leaf_without_an_output_makes_the_same_call_as_the_root(fake):
    """Only where peers reach, offsets must be alike: roll calls compare marks."""

    def work(group):
        session = CudaSession(group)
        without_compiler(session)
        call = Call(dtype="float32", op=Operator.SUM, counts=(100, 100))
        plan = proved("gather/flat", 2, "pull bulk zero_copy")
        launch = session.prepare(plan, call)
        x, out = session.empty((100,), "float32"), session.empty((200,), "float32")
        marks = []
        for root in (True, False):  # the same rank in turn: launches have one list
            if group.rank == 0:
                launch(x, out if root else None, stream=5)
                _, _, head = launched(fake)
                assert list(head["input"][:2]) == [
                    p + session.offset(x) for p in session.slab.peers
                ]
                marks.append(int(head["fingerprint"]))
        group.exchange({})
        session.close()
        return marks

    (one, other), _ = on_ranks(fake, 2, work)

    assert one == other


def test_a_record_is_raised_at_the_next_call(fake):
    """It names who was absent, in which step of which algorithm."""

    def work(group):
        session = CudaSession(group)
        without_compiler(session)
        call = Call(dtype="float32", op=Operator.SUM, counts=(100,))
        launch = session.prepare(proved("all_reduce/one_shot", 2, PACKETS), call)
        launch(Tensor(4096), Tensor(8192), stream=5)
        group.exchange({})
        if group.rank == 0:
            head = launched_of(fake, session)
            record = np.zeros(1, RECORD)
            record["kind"], record["step"], record["peer"] = 1, 1, 1
            record["absent"], record["fingerprint"] = 2, head["fingerprint"]
            record["state"] = 2
            ctypes.memmove(session.watch.record, record.tobytes(), RECORD.itemsize)
            with pytest.raises(CollectiveTimeout) as caught:
                launch(Tensor(4096), Tensor(8192), stream=5)
        group.exchange({})
        session.close()
        return str(caught.value) if group.rank == 0 else ""

    text, _ = on_ranks(fake, 2, work)

    assert "all_reduce/one_shot" in text
    assert "ranks [1] did not enter" in text
    assert "step 1 (" in text


def launched_of(fake, session):
    """Return the parameters of this session's last launch."""
    for _, _, _, address in reversed(fake.launches):
        head = np.frombuffer(ctypes.string_at(address, PARAMS.itemsize), PARAMS)[0]
        if int(head["record"]) == session.watch.record:
            return head
    raise AssertionError("nothing was launched")


def loads(fake):
    """Let a driver load kernels of which an SM holds one block."""
    fake.cuModuleLoadData = lambda image: (OK, 1)
    fake.cuModuleGetFunction = lambda module, name: (OK, 2)
    fake.cuFuncLoad = lambda function: (OK,)
    fake.cuOccupancyMaxActiveBlocksPerMultiprocessor = lambda *a: (OK, 1)


def test_more_blocks_than_fit_are_refused(fake):
    """All blocks wait for each other, so all must be resident."""
    loads(fake)

    def work(group):
        session = CudaSession(group)
        kernel = Kernel(text="", ranks=(0,), grid=133, threads=1024)
        with pytest.raises(PlanError, match=r"133 blocks .* holds 132 at once"):
            launch_module.load(session.device, kernel, b"")
        session.close()

    on_ranks(fake, 1, work)


def test_clusters_are_counted_whole(fake):
    """A cluster lies on one group of SMs: 132 SMs need not hold 33 clusters of 4."""
    loads(fake)
    widths, asked = real.CUfunction_attribute, []

    def cluster(attribute, function):
        return OK, 4 * (attribute == widths.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH)

    def clusters(function, config):
        asked.append((config.gridDimX, config.blockDimX, config.sharedMemBytes))
        return OK, 32

    fake.cuFuncGetAttribute = cluster
    fake.cuOccupancyMaxActiveClusters = clusters

    def work(group):
        session = CudaSession(group)
        fits = Kernel(text="", ranks=(0,), grid=128, threads=1024)
        launch_module.load(session.device, fits, b"")
        with pytest.raises(PlanError, match=r"132 blocks .* holds 128 at once"):
            launch_module.load(session.device, replace(fits, grid=132), b"")
        session.close()

    on_ranks(fake, 1, work)

    assert [(128, 1024, 0), (132, 1024, 0)] == asked


def test_tiles_shrink_until_staging_fits():
    """Any count is served with a fixed amount of staging."""
    plan = proved("all_gather/one_shot", 4, "push bulk staged blocks=64").value
    sizes = np.full(4, 64 << 20, np.int64)
    found = fit(plan, sizes, 4)

    assert found.tile * 4 * 64 * max(plan.stage_units) <= HALVES["stage"]
    assert found.tiles > 1


@pytest.mark.parametrize(("itemsize", "grain"), [(1, 1), (4, 1), (4, 5120), (16, 1)])
def test_no_tile_is_larger_than_a_slice_can_say(itemsize, grain):
    """Its bytes are 32 bits in a kernel, whatever a schedule asks for."""
    words = f"push bulk zero_copy blocks=2 tile_bytes={1 << 40}"
    plan = proved("all_gather/one_shot", 2, words).value
    part = (24 << 30) // (itemsize * grain) + 1
    found = fit(plan, np.full(2, part, np.int64), itemsize, grain=grain)

    assert found.tile * itemsize < 1 << 32
    assert part * grain <= found.tile * found.tiles * 2
    assert found.tiles < 8, "and no smaller than it must be"


class Tensor(TensorLike):
    """What torch tensors answer."""

    def __init__(self, address, contiguous=True):
        self.address, self.contiguous = address, contiguous

    def data_ptr(self):
        return self.address

    def is_contiguous(self):
        return self.contiguous


class Far(Tensor):
    """A tensor on another GPU."""

    def __dlpack_device__(self):
        return 2, 7


def test_a_mismatch_is_its_own_error(fake):
    """Ranks that called different things are told so, not that somebody is late."""

    def work(group):
        session = CudaSession(group)
        record = np.zeros(1, RECORD)
        record["kind"], record["differ"], record["state"] = 2, 2, 2
        ctypes.memmove(session.watch.record, record.tobytes(), RECORD.itemsize)
        with pytest.raises(CollectiveMismatch, match="called something else"):
            session.check()
        session.close()

    on_ranks(fake, 1, work)


def test_plans_for_other_numbers_of_ranks_are_refused(fake):
    """A plan is for exactly so many ranks."""

    def work(group):
        session = CudaSession(group)
        plan = proved("all_reduce/one_shot", 3, PACKETS)
        with pytest.raises(PlanError, match="is for 3 ranks"):
            session.prepare(plan, Call(dtype="float32", counts=(8,)))
        session.close()

    on_ranks(fake, 1, work)


@pytest.mark.parametrize("known", [False, True])
def test_who_comes_while_another_thread_launches_is_refused(fake, known):
    """Packed parameters stay as they are until a launch has copied them."""

    def work(group):
        session = CudaSession(group)
        without_compiler(session)
        call = Call(dtype="float32", op=Operator.SUM, counts=(100,))
        launch = session.prepare(proved("all_reduce/one_shot", 2, PACKETS), call)
        heard = []
        if group.rank == 0:
            launch(4096, 8192, stream=0)
            before = launch._launch

            def breaks_in(handle, packed):
                heard.append(session.inside())
                with pytest.raises(CallError, match="one thread at a time"):
                    launch(4096, 8192, stream=0)
                with pytest.raises(CallError, match="one thread at a time"):
                    session.repeated(launch, 4096, 8192)()
                return before(handle, packed)

            launch._launch = breaks_in
            again = session.repeated(launch, 4096, 8192)
            again() if known else launch(4096, 8192, stream=0)
            launch._launch = before
            launch(4096, 8192, stream=0)
            heard.append(session.inside())
        group.exchange({})
        session.close()
        return heard, len(fake.launches)

    (heard, launches), _ = on_ranks(fake, 2, work)
    assert [1, 0] == heard
    assert 3 == launches
