"""Calls on arrays never seen before, but like earlier ones: served, and still safe."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
from tests.stand_ins import TensorLike

from stretto import executors
from stretto.arrays import array_readers as readers_module
from stretto.arrays import read_array
from stretto.errors import CallError
from stretto.executors.cuda.device.arrays import DeviceArray
from stretto.runtime.calls import known

ROOM = 1 << 60
"""Where memory that peers reach begins."""


class Cupy:
    """What CuPy's arrays answer; `data` is where they lie."""

    def __init__(self, at, shape=(6,), dtype="float32", *, device=0, c=True):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.nbytes = int(np.prod(shape)) * self.dtype.itemsize
        self.data = SimpleNamespace(ptr=at, device_id=device)
        self.flags = SimpleNamespace(c_contiguous=c)

    def __dlpack_device__(self):
        return 2, self.data.device_id

    @property
    def __cuda_array_interface__(self):
        strides = None if self.flags.c_contiguous else (2 * self.dtype.itemsize,)
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "strides": strides,
            "data": (self.data.ptr, False),
            "version": 3,
        }


Cupy.__module__ = "cupy"


class Numba:
    """What Numba's device arrays answer: the interface of CUDA arrays alone."""

    def __init__(self, at, shape=(6,), dtype="float32", **_):
        self.at, self.shape, self.dtype = at, shape, np.dtype(dtype)

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "strides": None,
            "data": (self.at, False),
            "version": 3,
        }


class Dlpack:
    """What speaks DLPack alone: a CPU array's capsule, said to be of a GPU."""

    def __init__(self, at, shape=(6,), dtype="float32", **_):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = (ctypes.c_uint8 * size).from_address(at)
        self.array = np.frombuffer(memory, dtype).reshape(shape)

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, stream=None):
        assert -1 == stream
        return self.array.__dlpack__()


def ours(at, shape=(6,), dtype="float32", *, device=0):
    """Return an array of `comm.empty()`."""
    return DeviceArray(at, shape, dtype, device, lambda: None)


class Tensor(TensorLike):
    """What a GPU tensor answers, and nothing else: it must not be asked."""

    is_cuda, device = True, "cuda:0"

    def __init__(self, at, shape=(6,), dtype="float32", **_):
        self.at, self.shape, self.dtype = at, shape, f"torch.{dtype}"
        self.nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize

    def __dlpack_device__(self):
        return 2, 0

    def is_contiguous(self):
        return True

    def is_conj(self):
        return False

    is_neg = is_conj

    def data_ptr(self):
        return self.at

    def numel(self):
        return int(np.prod(self.shape))

    def detach(self):
        return self

    def new_empty(self, shape):
        return Tensor(1 << 20, tuple(shape), self.dtype[6:])


KINDS = [Cupy, Numba, Dlpack, ours, Tensor]


class Session(executors.Session):
    """A GPU's session that moves nothing and remembers what it was asked."""

    def __init__(self):
        self.prepared, self.launched, self.memories = [], [], []

    def offset(self, array):
        return (
            None
            if isinstance(array, np.ndarray)
            else self.offset_at(*read_array(array)[2:])
        )

    def offset_at(self, address, nbytes):
        return address - ROOM if address >= ROOM else None

    def prepare(self, plan, call):
        self.prepared.append((plan.value, call))
        memory = plan.value.schedule.memory

        def launch(x, out):
            self.launched.append((x, out))
            self.memories.append(memory)

        return launch

    def close(self):
        pass


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setitem(readers_module._readers, Tensor, readers_module._tensor)
    return Session()


@pytest.mark.parametrize("make", KINDS)
def test_arrays_never_seen_before_are_launched_by_their_addresses(
    comm, session, blind, make
):
    """Each call on other ones, in place, into another, and into one that holds them."""
    first, whole = make(4096), make(8192, (3, 6))
    comm.all_reduce(first)
    comm.all_gather(first, out=whole)
    comm.all_gather(make(8192 + 24), out=whole)
    blind()
    for i in range(1, 140):  # every so many calls, arrays are made known themselves
        x, out = make(4096 * i), make(1 << 22, (3, 6))
        for _ in range(3):
            assert comm.all_reduce(x) is x
            assert (4096 * i,) * 2 == session.launched[-1]
        assert comm.all_gather(x, out=out) is out
        assert (4096 * i, 1 << 22) == session.launched[-1]
        part = make((1 << 22) + 24)  # rank 1's part
        assert comm.all_gather(part, out=out) is out
        assert ((1 << 22) + 24, 1 << 22) == session.launched[-1]

    assert {"all_reduce", "all_gather"} == {p.collective for p, _ in session.prepared}


@pytest.mark.parametrize("make", KINDS)
def test_what_differs_in_what_matters_is_examined(comm, session, make):
    """Size, shape, type, registration and overlap; errors are as they were."""
    for _ in range(2):
        comm.all_reduce(make(4096), out=make(8192))
        comm.reduce_scatter(make(4096), out=make(8192, (2,)))
    with pytest.raises(CallError, match=r"out has 5 elements"):
        comm.all_reduce(make(4096), out=make(8192, (5,)))
    with pytest.raises(CallError, match=r"first axis, 2, is not divisible"):
        comm.reduce_scatter(make(4096, (2, 3)), out=make(8192, (2,)))
    with pytest.raises(CallError, match=r"out has int32, x has float32"):
        comm.all_reduce(make(4096), out=make(8192, dtype="int32"))
    with pytest.raises(CallError, match=r"out overlaps x, \+4 bytes"):
        comm.all_reduce(make(4096), out=make(4100))


@pytest.mark.parametrize("make", KINDS)
def test_arrays_are_zero_copy_when_all_are_registered(comm, session, make):
    """Each call asks anew; of two launches, the right one serves it."""
    pin, apart = "all_reduce/two_shot", 4096
    places = [(apart, 2 * apart), (apart, ROOM), (ROOM, ROOM + apart), (ROOM, apart)]
    for _ in range(2):
        for source, target in places:
            comm.all_reduce(make(source), out=make(target), algorithm=pin)

    memories = [plan.schedule.memory for plan, _ in session.prepared]
    assert ["staged", "zero_copy"] == memories
    assert ["staged", "staged", "zero_copy", "staged"] * 2 == session.memories
    assert places == session.launched[4:]


def test_peers_reach_of_an_array_is_asked_once_a_call(comm, session, monkeypatch):
    """What was read to know the call by is what an algorithm is chosen by."""
    asked, here = [], session.offset_at
    monkeypatch.setattr(
        session, "offset_at", lambda at, nbytes: asked.append(at) or here(at, nbytes)
    )
    pin, calls = "all_reduce/two_shot", []
    for at, memory in ((ROOM, "zero_copy"), (4096, "staged")):
        calls += [(at, None, memory), (at, ROOM + 4096, memory), (at, 8192, "staged")]
    for at, to, memory in calls:
        asked.clear()
        comm._calls.clear()
        out = None if to is None else Tensor(to)
        comm.all_reduce(Tensor(at), out=out, algorithm=pin)
        assert memory == session.memories[-1]
        assert [at] + [to] * (to is not None) == asked
    x = Tensor(ROOM)
    comm.all_reduce(x, out=x, algorithm=pin)
    assert "zero_copy" == session.memories[-1]
    comm.all_gather(Tensor(ROOM), algorithm="all_gather/one_shot")  # makes its output

    assert "staged" == session.memories[-1]


def test_a_strided_array_is_refused_after_one_that_was_not(comm):
    """CuPy's say so by a flag, others by strides."""
    comm.all_reduce(Cupy(4096))

    assert read_array(Cupy(4096, c=False)) is None
    assert readers_module._interface(Cupy(4096, c=False)) is None


def test_arrays_on_another_gpu_are_another_kind(comm):
    """An executor looks at the device of the first of a kind alone."""
    for make in (Cupy, ours):
        assert read_array(make(4096))[1] != read_array(make(4096, device=1))[1]


@pytest.mark.parametrize("make", [Cupy, Numba])
@pytest.mark.parametrize("dtype", ["V2", "uint16"])
def test_raw_bits_of_a_library_without_the_type_are_named_by_the_caller(
    comm, session, make, dtype
):
    """Numba shows a bfloat16 of PyTorch's as |V2; float8 as |V1."""
    for at in (4096, 8192):
        comm.all_reduce(make(at, dtype=dtype), dtype="bfloat16")
        assert (at, at) == session.launched[-1] or at == 4096

    assert ["bfloat16"] == [call.dtype for _, call in session.prepared]
    with pytest.raises(CallError, match=r"type \|V2, raw .* pass dtype='bfloat16'$"):
        comm.all_reduce(make(4096, dtype="V2"))
    with pytest.raises(CallError, match=r"\|V1.*dtype='float8_e4m3fn' or dtype='floa"):
        comm.all_reduce(make(4096, dtype="V1"), dtype="bfloat16")
    with pytest.raises(CallError, match=r"elements of type \|V3; want one of"):
        comm.all_reduce(make(4096, dtype="V3"), dtype="bfloat16")
    with pytest.raises(CallError, match=r"elements of type >f4; want one of"):
        comm.all_reduce(make(4096, dtype=">f4"))


def test_a_result_is_made_anew_in_each_call(comm, session, blind):
    """Of the first of its kind, only the shape is remembered."""
    for at in (4096, 8192, 12288):
        made = comm.all_gather(Tensor(at))
        assert (3, 6) == made.shape
        assert (at, 1 << 20) == session.launched[-1] or at == 4096
        blind()


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def places(session):
    """Return where the arrays of the last launch lie."""
    return [a.ctypes.data for a in session.launched[-1]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "bool"])
def test_tensors_on_the_cpu_are_launched_as_arrays_over_their_memory(
    torch, comm, session, blind, dtype
):
    """Also those that want gradients, and types that NumPy lacks."""
    op = "max" if dtype == "bool" else "sum"
    for turn in range(140):
        x = torch.ones(8).to(getattr(torch, dtype))[2:]
        x.requires_grad_(dtype == "float32")
        assert comm.all_reduce(x, op) is x
        assert [x.data_ptr()] * 2 == places(session)
        made = comm.all_gather(x)
        assert (3, 6) == made.shape
        assert [x.data_ptr(), made.data_ptr()] == places(session)
        assert x.dtype == made.dtype
        if not turn:
            blind()

    assert session.launched[-1][0].dtype.itemsize == x.element_size()


def test_tensors_that_are_no_plain_memory_are_examined(torch, comm):
    """Conjugates, sparse ones, those of no device, and misaligned ones."""
    for _ in range(2):
        comm.all_reduce(torch.ones(4, dtype=torch.complex64))
    lazy = torch.ones(4, dtype=torch.complex64).conj()
    with pytest.raises(CallError, match="conjugated or negated when it is read"):
        comm.all_reduce(lazy)
    raw = torch.frombuffer(bytearray(41), dtype=torch.uint8)[1:]
    others = (
        torch.ones(4).to_sparse(),
        torch.ones(4, device="meta"),
        torch.ones(4, 4).T,
        torch.frombuffer(raw.numpy(), dtype=torch.float32),
    )

    assert [None] * 4 == [read_array(one) for one in others]


def test_a_lazy_tensor_on_a_gpu_is_refused(comm, session, monkeypatch):
    """Its memory holds the conjugates of what it says."""
    monkeypatch.setattr(Tensor, "is_conj", lambda self: True)

    with pytest.raises(CallError, match="conjugated or negated when it is read"):
        comm.all_reduce(Tensor(4096))
    assert [] == session.launched


def test_a_tensor_whose_memory_was_replaced_is_launched_where_it_lies(torch, comm):
    """The tensor is the same, and known; its storage is not."""
    session, x, out = comm._sessions["cpu"], torch.ones(6), torch.ones(6)
    for _ in range(20):
        for changed in (x, out, None):
            comm.all_reduce(x)
            assert [x.data_ptr()] * 2 == places(session)
            comm.all_reduce(x, out=out)
            assert [x.data_ptr(), out.data_ptr()] == places(session)
            if changed is not None:
                changed.data = torch.ones(6)


def test_a_tensor_that_was_transposed_or_resized_in_place_is_examined(torch, comm):
    """Its identity and its memory are as before."""
    for out in (None, torch.zeros(3, 3)):
        x = torch.zeros(3, 3)
        for _ in range(2):
            comm.all_reduce(x, out=out)
        x.t_()
        comm.all_reduce(x, out=out)
        assert x.data_ptr() != places(comm._sessions["cpu"])[0]
        x.t_()
        x.resize_(2, 2)
        if out is not None:
            with pytest.raises(CallError, match="out has 9 elements"):
                comm.all_reduce(x, out=out)
        else:
            comm.all_reduce(x)
            assert 4 == comm._sessions["cpu"].launched[-1][0].size


def test_arrays_that_come_again_are_soon_known_themselves(comm, session):
    """Two of a kind in turn, as in any program with two buffers."""
    pair = np.ones(6), np.ones(6)
    for _ in range(200):
        for x in pair:
            comm.all_reduce(x)

    arrays = {key[1] for key in comm._calls if type(key[1]) is int}
    assert arrays == {id(x) for x in pair}


def test_the_table_of_known_calls_stays_small(comm, session, monkeypatch):
    """Arrays that are seen once do not fill it; one that is full is begun anew."""
    kinds = set()
    for _ in range(2000):
        comm.all_reduce(np.ones(6))
        kinds |= {key[0] for key in comm._calls}
    assert {"all_reduce"} == kinds
    assert 40 >= len(comm._calls)
    monkeypatch.setattr(known, "MOST", 50)
    for i in range(200):
        x = np.ones(6 + i)
        for _ in range(2):
            assert comm.all_reduce(x) is x
        assert 50 >= len(comm._calls)
    assert (206 - 1,) == session.launched[-1][0].shape
