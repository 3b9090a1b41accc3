"""Arrays that look like others, and are not: none is taken for one seen before."""

import weakref

import numpy as np
import pytest

from stretto import executors
from stretto.arrays import GPU, operand, read_array
from stretto.errors import CallError
from stretto.runtime.calls import Communicator


class Faced:
    """An array on a GPU as JAX shows its own: by two protocols, and a type."""

    def __init__(self, dtype="float32", *, typestr=None, device=(2, 0), shape=(6,)):
        self.dtype = np.dtype(dtype)
        self.face = {
            "shape": shape,
            "typestr": typestr or self.dtype.str,
            "data": (4096, False),
        }
        self.device = device

    @property
    def __cuda_array_interface__(self):
        return self.face

    def __dlpack_device__(self):
        return self.device


def test_types_that_a_typestr_confuses_are_told_apart():
    """A float8 and an int4 are both V1 to it: one is refused after the other, too."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    names = "float8_e4m3fn", "float8_e4m3fnuz", "int4"
    seen = [
        read_array(Faced(getattr(ml_dtypes, name), typestr="<V1")) for name in names
    ]

    assert 3 == len({alike for _, alike, _, _ in seen})


def test_what_lies_on_a_cpu_is_not_taken_for_an_array_on_a_gpu():
    """Pinned memory, and NumPy's arrays over it, have the interface of GPUs, too."""

    class Mapped(np.ndarray):
        __cuda_array_interface__ = Faced().face

    mapped = np.zeros(6, np.float32).view(Mapped)
    assert read_array(mapped) is None
    assert read_array(Faced(device=(3, 0))) is None
    assert GPU == read_array(Faced(device=(13, 0)))[0]


def test_a_shape_may_be_a_list():
    """It is a part of what calls are known by."""
    assert read_array(Faced(shape=[2, 3]))[1] == read_array(Faced(shape=(2, 3)))[1]


def test_tensors_of_other_classes_are_examined():
    """The interface of GPUs says nothing of conjugated ones."""
    torch = pytest.importorskip("torch")

    class Mine(torch.Tensor):
        __cuda_array_interface__ = Faced().face

        def __dlpack_device__(self):
            return 2, 0

    assert read_array(torch.ones(6).as_subclass(Mine)) is None


def test_tensors_without_memory_are_refused():
    """Their storage was given back, as sharded training does; or they stand for more.

    A kernel would read from address 0, and break the GPU's context.
    """
    torch = pytest.importorskip("torch")
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)

    class OnGpu:
        dtype, shape, data_ptr = torch.float32, (4,), freed.data_ptr
        is_contiguous, numel = freed.is_contiguous, freed.numel
        element_size = freed.element_size

        def __dlpack_device__(self):
            return 2, 0

    for one in (freed, OnGpu()):
        with pytest.raises(CallError, match="no memory to hold them"):
            operand(one, "x", written=True, dtype=None)
        assert read_array(one) is None
    assert 0 == operand(torch.ones(0), "x", written=True, dtype=None).count


class Session(executors.Session):
    """A session that moves nothing and counts launches."""

    launched = 0

    def offset(self, array):
        return None

    def offset_at(self, address, nbytes):
        return None

    def prepare(self, plan, call):
        def launch(x, out):
            self.launched += 1

        return launch

    def close(self):
        pass


class Group(executors.Group):
    """Rank 1 of 3, alone."""

    rank, num_ranks, deadline_s = 1, 3, 1.0
    broken = np.zeros(1, np.int64)


@pytest.fixture
def session():
    return Session()


@pytest.fixture
def comm(session):
    made = Communicator(Group(), executor="", profiles={})
    made._sessions["cpu"] = session
    return made


def test_a_result_that_lies_nowhere_is_not_launched(comm, session):
    """Under a mode of PyTorch's that makes tensors without memory."""
    fakes = pytest.importorskip("torch._subclasses.fake_tensor")
    torch = pytest.importorskip("torch")
    x = torch.ones(6)
    comm.all_gather(x)
    with (
        fakes.FakeTensorMode(allow_non_fake_inputs=True),
        pytest.raises(CallError),
    ):
        comm.all_gather(x)
    comm.all_gather(x)

    assert 2 == session.launched


def test_an_array_that_was_made_read_only_is_refused(comm, session):
    """It is the very same array, and was written to before."""
    x, out = np.ones(6), np.ones(6)
    for given in ({}, {"out": out}):
        comm.all_reduce(x, **given)
        comm.all_reduce(x, **given)
    x.setflags(write=False)
    out.setflags(write=False)
    for given in ({}, {"out": out}):
        with pytest.raises(CallError, match="read-only"):
            comm.all_reduce(x, **given)

    assert 4 == session.launched


@pytest.mark.parametrize("number", ["1", 1.0, 0.5, None, "tensor"])
def test_ranks_and_axes_are_whole_numbers(comm, session, number):
    """Rank 1 would not know itself in a word, and be launched without an array.

    A tensor is a number, too, but may be another when the call is known by it.
    """
    if number == "tensor":
        number = pytest.importorskip("torch").tensor(1)
    with pytest.raises(CallError, match="want a rank below 3"):
        comm.broadcast(np.ones(6), root=number)
    with pytest.raises(CallError, match="want an axis below 2"):
        comm.all_to_all(np.ones((3, 3)), split=number)
    assert not session.launched
    for one in (1, True, np.int8(1)):
        comm.broadcast(np.ones(6), root=one)
        comm.all_to_all(np.ones((3, 3)), split=one)


def test_no_call_keeps_its_arrays(comm):
    """Neither those that are known themselves, nor those known by their kind."""
    torch = pytest.importorskip("torch")
    for make in (lambda: np.ones(6), lambda: torch.ones(6)):
        for _ in range(130):
            x, out = make(), make()
            comm.all_reduce(x)
            comm.all_reduce(x, out=out)
            result = comm.all_gather(x)
            dead = [weakref.ref(one) for one in (x, out, result)]
            del x, out, result
            assert [None] * 3 == [ref() for ref in dead]
