"""Sums of tensors that are known by where they lie: made again, and never wrongly."""

from __future__ import annotations

import pytest
from cuda_fakes import on_ranks

torch = pytest.importorskip("torch")

from cuda_tensors import read_as_on_gpu  # noqa: E402

from stretto.executors.cuda.codegen.abi import Kernel  # noqa: E402
from stretto.executors.cuda.device import driver  # noqa: E402
from stretto.executors.cuda.launching.kernels import Loaded  # noqa: E402
from stretto.runtime.calls import Communicator  # noqa: E402
from stretto.runtime.calls import known as known_calls  # noqa: E402
from stretto.torch.known_places import KnownPlaces  # noqa: E402


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


def places(known):
    """Return the calls that are known by places, of all that are known."""
    return [call for key, call in known.calls.items() if type(key[0]) is int]


def place_of(known):
    """Return the one call that is known by its place."""
    (again,) = places(known)
    return again


def test_another_tensor_at_the_same_place_is_launched_again(fake):
    """Whatever its shape, and however often: by no other way than the known one."""

    def work(comm):
        x = torch.zeros(4, 8)
        known = learnt(comm, x)
        again = place_of(known)
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
        again = place_of(learnt(comm, x))
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
        again = place_of(known)
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
        again = place_of(known)
        comm._calls.clear()  # as `register` does
        assert {} == known.calls
        comm.all_reduce(x, "sum")
        comm._group.broken[0] = 1
        comm._choose_table()  # as whoever breaks it does
        assert not again(x)
        comm._group.broken[0] = 0

    alone(fake, work)


def test_places_that_come_once_are_not_even_looked_at(fake, monkeypatch):
    """Most of them; and what is known of calls, places among it, has one limit."""
    monkeypatch.setattr(known_calls, "MOST", 60)

    def work(comm):
        known = KnownPlaces(comm)
        tensors = [torch.zeros(16) for _ in range(80)]
        sizes = []
        for x in tensors:
            comm.all_reduce(x, "sum")
            known.learn(x, 0)
            sizes.append(len(places(known)))
            assert 60 >= len(known.calls)
        assert [8] * 73 == sizes[7:]

    alone(fake, work)


@pytest.mark.parametrize("buckets", [6, 8, 16, 24])
def test_places_that_come_again_are_known(fake, buckets):
    """From the second round on, however many take turns, as the buckets of DDP do."""

    def work(comm):
        known = KnownPlaces(comm)
        for _ in range(9):  # others came before
            once = torch.zeros(16)
            comm.all_reduce(once, "sum")
            known.learn(once, 0)
        tensors = [torch.zeros(16) for _ in range(buckets)]
        for x in tensors * 2:
            comm.all_reduce(x, "sum")
            known.learn(x, 0)
        assert {(x.data_ptr(), 0) for x in tensors} <= set(known.calls)

    alone(fake, work)
