"""Sums of tensors that are known by where they lie: made again, and never wrongly."""

from __future__ import annotations

import sys

import pytest
from cuda_fakes import on_ranks

torch = pytest.importorskip("torch")

from cuda_tensors import read_as_on_gpu  # noqa: E402

from stretto.calls import Communicator  # noqa: E402
from stretto.executors.cuda.codegen.abi import Kernel  # noqa: E402
from stretto.executors.cuda.device import driver  # noqa: E402
from stretto.executors.cuda.launching.kernels import Loaded  # noqa: E402
from stretto.torch import known_places  # noqa: E402
from stretto.torch.known_places import KnownPlaces  # noqa: E402
from stretto.trace.rings import RingWord  # noqa: E402


@pytest.fixture(autouse=True)
def tensors_on_gpu(monkeypatch):
    read_as_on_gpu(monkeypatch)
    monkeypatch.setattr(driver, "_torch", [lambda ordinal: 0])


def alone(fake, work):
    """Run on the first of two ranks, with what counts its launches."""

    def run(group):
        comm = Communicator(group, executor="cuda")
        if group.rank == 0:
            kernel = Kernel(text="one", ranks=(0,), grid=2, threads=160)
            load = lambda plan, call, **_: Loaded(None, 7, kernel)  # noqa: E731
            comm._session("cuda").load_call = load
            work(comm)
        group.exchange({})

    on_ranks(fake, 2, run)


def learnt(comm, x):
    """Return what knows a call on a tensor, which has been made."""
    known = KnownPlaces(comm)
    comm.all_reduce(x, "sum")
    known.learn(x, 0)
    return known


def test_another_tensor_at_the_same_place_is_launched_again(fake):
    """Whatever its shape, and however often: by no other way than the known one."""

    def work(comm):
        x = torch.zeros(4, 8)
        known = learnt(comm, x)
        (again,) = known.calls.values()
        before = len(fake.launches)
        for other in (x, x.view(32), torch.nn.Parameter(x), x[:], x):
            assert again(other)
        assert before + 5 == len(fake.launches)
        places_of = {launch[3] for launch in fake.launches[before:]}
        assert 1 == len(places_of)

    alone(fake, work)


CHANGED = {
    "element type": lambda x: x.view(torch.int32),
    "size": lambda x: x[:2],
    "strides": lambda x: x.t(),
    "sign": torch._neg_view,
    "class": lambda x: x.as_subclass(type("Odd", (torch.Tensor,), {})),
}


@pytest.mark.parametrize("change", CHANGED)
def test_what_is_not_alike_is_examined(fake, change):
    """Nothing is launched for it, though it begins at that place."""

    def work(comm):
        x = torch.zeros(4, 8)
        (again,) = learnt(comm, x).calls.values()
        other, before = CHANGED[change](x), len(fake.launches)
        assert other.data_ptr() == x.data_ptr()
        assert not again(other)
        assert again(x)
        assert before + 1 == len(fake.launches)

    alone(fake, work)


def test_a_tensor_that_changes_in_place_is_examined(fake):
    """It is still the same object, of other strides or at another place."""

    def work(comm):
        x = torch.zeros(4, 4)
        x += torch.arange(4.0)
        known = learnt(comm, x)
        (again,) = known.calls.values()
        x.t_()
        assert not again(x)
        x.t_()
        assert again(x)
        x.resize_(2, 2)
        assert not again(x)

    alone(fake, work)


def test_places_are_forgotten_when_calls_must_be_examined(fake):
    """After a registration they are gone; of a broken communicator nothing is known."""

    def work(comm):
        x = torch.zeros(16)
        known = learnt(comm, x)
        (again,) = known.calls.values()
        comm._calls.clear()  # as `register` does
        assert {} == known.calls
        comm.all_reduce(x, "sum")
        comm._group.broken[0] = 1
        comm._choose_table()  # as whoever breaks it does
        assert not again(x)
        comm._group.broken[0] = 0

    alone(fake, work)


def test_only_so_many_places_are_kept_and_not_those_that_come_once(fake, monkeypatch):
    """The table is emptied when it is full; most new places are not even looked at."""
    monkeypatch.setattr(known_places, "_MOST", 12)

    def work(comm):
        known = KnownPlaces(comm)
        tensors = [torch.zeros(16) for _ in range(80)]
        sizes = []
        for x in tensors:
            comm.all_reduce(x, "sum")
            known.learn(x, 0)
            sizes.append(len(known.calls))
        assert max(sizes) <= 12
        assert 8 <= sizes[7]
        assert sizes[30] < 14

    alone(fake, work)


def test_calls_are_noted_by_compiled_code_once_it_is_there(fake, monkeypatch):
    """Launches that were prepared before, too, and the calls that are known."""

    def work(comm):
        numba = sys.modules.pop("numba", None)
        x = torch.zeros(16)
        try:
            known = learnt(comm, x)
        finally:
            if numba is not None:
                sys.modules["numba"] = numba
        (launch,) = comm._launches.values()
        ring = comm._session("cuda").recorded.ring
        slow, noted = launch.note, ring.words[RingWord.HEAD]
        pytest.importorskip("numba")
        comm._hear_renewed()
        comm.all_reduce(x, "sum")
        assert launch.note is not slow
        assert {} == known.calls
        known.learn(x, 0)
        (again,) = known.calls.values()
        assert again(x)
        assert noted + 2 == ring.words[RingWord.HEAD]

    alone(fake, work)
