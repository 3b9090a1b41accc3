"""What a call does once it is warm: one launch, and nothing that could wait."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from cuda_fakes import OK, on_ranks
from tests.stand_ins import TensorLike

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError, CollectiveTimeout
from stretto.executors import Call, Session
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.device import driver
from stretto.executors.cuda.launching.kernels import Loaded
from stretto.executors.cuda.launching.launch import KEPT
from stretto.executors.cuda.session import CudaSession
from stretto.executors.cuda.words import PARAMS
from stretto.program import algorithms
from stretto.program.collectives import Operator
from stretto.runtime.calls.known import Again, KnownForm, by_arrays
from stretto.runtime.calls.requests.layout import MISS


class Tensor(TensorLike):
    """What a GPU tensor answers."""

    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


def proved(name, words):
    """Return a proved plan of two ranks."""
    program = algorithms.get(name).build(2)
    return verify_plan(lower(verify(program), Schedule.parse(words)))


@pytest.fixture
def asked(fake, monkeypatch):
    """Return the names of driver functions, as rank 0 asks for them."""
    import sys

    names = []
    ask = driver.ask

    def noted(name, *args):
        if getattr(fake.who, "rank", 0) == 0:
            names.append((name, args))
        return ask(name, *args)

    for name, module in list(sys.modules.items()):
        if name.startswith("stretto.executors.cuda.") and hasattr(module, "ask"):
            monkeypatch.setattr(module, "ask", noted)
    return names


def quiet_watch(session):
    """Stop the watcher: it asks the driver too, at its own times."""
    session.watch._stop.set()
    session.watch._thread.join()


@pytest.mark.parametrize(
    ("name", "words", "registered"),
    [
        ("all_reduce/one_shot", "push packets staged", False),
        ("all_gather/one_shot", "push bulk zero_copy", True),
    ],
)
def test_a_warm_call_is_one_launch(fake, asked, name, words, registered):
    """No allocation, no loading, no other driver call, nothing said to peers."""

    def work(group):
        session = CudaSession(group)
        quiet_watch(session)
        kernel = Kernel(text="any", ranks=(0,), grid=1, threads=64)
        session.load_call = lambda plan, call, **_: Loaded(None, 5, kernel)
        counts = (64,) if "reduce" in name else (64, 64)
        call = Call(dtype="uint8", op=Operator.SUM, counts=counts)
        launch = session.prepare(proved(name, words), call)
        x, out = Tensor(4096), Tensor(8192)
        if registered:
            x, out = session.empty((64,), "uint8"), session.empty((128,), "uint8")
        launch(x, out, stream=5)
        group.exchange({})
        before, launches = len(asked), len(fake.launches)
        group.exchange({})
        said = []
        group.exchange, exchange = (lambda *a: said.append(a)), group.exchange
        for _ in range(100):
            launch(x, out, stream=5)
        group.exchange = exchange
        group.exchange({})
        done = len(asked) - before, len(fake.launches) - launches, said
        group.exchange({})
        session.close()
        return done

    assert [(0, 200, [])] * 2 == on_ranks(fake, 2, work)


def test_a_repeated_call_launches_what_the_call_did(fake):
    """By the address that it knew; what was forgotten is packed anew."""

    def work(group):
        session = CudaSession(group)
        kernel = Kernel(text="any", ranks=(0,), grid=1, threads=64)
        session.load_call = lambda plan, call, **_: Loaded(None, 5, kernel)
        call = Call(dtype="uint8", op=Operator.SUM, counts=(64,))
        plan = proved("all_reduce/one_shot", "push packets staged")
        launch, x = session.prepare(plan, call), Tensor(4096)
        group.exchange({})
        if group.rank == 0:
            again = launch.repeat(4096, 4096)
            launch(x, x)
            again()
            assert fake.launches[0] == fake.launches[1]
            launch.forget()
            again()
            assert fake.launches[0][:3] == fake.launches[2][:3]
            session.watch.fault = CollectiveTimeout("rank 1 is missing")
            with pytest.raises(CollectiveTimeout, match="rank 1"):
                again()
            session.watch.fault = None
        group.exchange({})
        session.close()

    on_ranks(fake, 2, work)


@pytest.mark.parametrize(
    ("name", "words", "shares"),
    [
        ("all_reduce/one_shot", "push packets staged", False),
        ("all_gather/one_shot", "push bulk zero_copy", True),
    ],
)
def test_arrays_that_lie_elsewhere_in_every_call_are_launched_where_they_lie(
    fake, name, words, shares
):
    """Parameters are written over when there are many; none are lost, none mixed."""
    places = 3 * KEPT

    def work(group):
        session = CudaSession(group)
        kernel = Kernel(text="any", ranks=(0,), grid=1, threads=64)
        session.load_call = lambda plan, call, **_: Loaded(None, 5, kernel)
        call = Call(dtype="uint8", counts=(64,) if "reduce" in name else (64, 64))
        launch = session.prepare(proved(name, words), call)
        room = session.empty((128 * places,), "uint8")
        group.exchange({})
        if group.rank == 0:
            bytes_of = []
            for i in (*range(places), 0, places - 1):
                at = room.pointer + 128 * i
                launch(at, at, stream=5)
                raw = ctypes.string_at(fake.launches[-1][3], PARAMS.itemsize)
                head = np.frombuffer(raw, PARAMS)[0]
                bytes_of.append(raw)
                own, peer = (int(head["output"][q]) for q in range(2))
                assert at == own == int(head["input"][0])
                offset = session.offset_at(at, 1)
                assert peer == (session.space.peer_address(1, offset) if shares else 0)
            assert bytes_of[0] == bytes_of[-2]
            assert bytes_of[places - 1] == bytes_of[-1]
            (arguments,) = launch._streams.values()
            assert KEPT == len(arguments.kept)
            if shares:
                launch.forget()
                for _ in range(3):
                    with pytest.raises(CallError, match="not registered memory"):
                        launch(4096, 8192, stream=5)
                assert not arguments.kept
        group.exchange({})
        session.close()

    on_ranks(fake, 2, work)


def test_a_tensor_that_changed_is_not_repeated():
    """Its memory may be another, or its size, with the object the same."""
    torch = pytest.importorskip("torch")
    calls = []

    class Bound(Session):
        def repeated(self, launch, source, target):
            return lambda: calls.append((source, target))

    x = torch.zeros(8)
    again = Again(
        session=Bound(),
        launch=lambda x, out: calls.append("launch"),
        broke=lambda e: e,
        form=KnownForm(reads=True, writes=True, in_place=True),
    )
    known = by_arrays(again, x, None, 4096, 0)

    assert known(x, None) is x
    assert [(4096, 4096)] == calls
    assert known(torch.zeros(8), None) is MISS
    x.set_(torch.zeros(8))
    assert known(x, None) is MISS
    assert [(4096, 4096)] == calls


def test_a_new_plan_is_loaded_while_none_of_our_kernels_is_in_flight(fake, asked):
    """Loading may wait for the device, and the device for a peer."""
    fake.cuModuleLoadData = lambda image: (OK, 1)
    fake.cuModuleGetFunction = lambda module, name: (OK, 2)
    fake.cuFuncLoad = lambda function: (OK,)
    fake.cuModuleUnload = lambda module: (OK,)
    fake.cuOccupancyMaxActiveBlocksPerMultiprocessor = lambda *a: (OK, 8)

    def work(group):
        session = CudaSession(group)
        quiet_watch(session)
        call = Call(dtype="float32", op=Operator.SUM, counts=(64,))
        words = "push packets staged threads=32"
        one = session.prepare(proved("all_reduce/one_shot", words), call)
        for stream in (5, 6):
            one(Tensor(4096), Tensor(8192), stream=stream)
        start = len(asked)
        session.prepare(proved("all_reduce/two_shot", words), call)
        wanted = ("cuCtxSynchronize", "cuModuleLoadData", "cuFuncLoad")
        names = [name for name, _ in asked[start:] if name in wanted]
        session.close()
        return names

    (found,) = on_ranks_one(fake, work)

    assert ["cuCtxSynchronize", "cuModuleLoadData", "cuFuncLoad"] == found


def on_ranks_one(fake, work):
    """Run on rank 0 of two, whose peer only opens its session."""

    def both(group):
        if group.rank == 0:
            return work(group)
        session = CudaSession(group)
        session.close()
        return None

    return [r for r in on_ranks(fake, 2, both) if r is not None]


def test_a_second_process_compiles_nothing(monkeypatch, tmp_path):
    """What one start has compiled, the next finds on disk."""
    from stretto.executors.cuda.codegen import compile as compiler
    from stretto.executors.cuda.codegen.generate import kernel_of

    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path))
    plan = proved("all_gather/one_shot", "push packets staged threads=32")
    kernels = [kernel_of(plan, rank=r, dtype="int8") for r in range(2)]
    first = compiler.compile_all(kernels, arch=(9, 0), threads=2)

    def refuse(*_, **__):
        raise AssertionError("it compiled")

    monkeypatch.setattr(compiler, "build", refuse)

    assert first == compiler.compile_all(kernels, arch=(9, 0))
