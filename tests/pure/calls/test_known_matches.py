"""A communicator that has seen many calls answers each as one that has seen none."""

import random

import numpy as np
import pytest

from stretto import executors
from stretto.errors import StrettoError
from stretto.runtime.calls import Communicator

same_arrays = pytest.importorskip("stretto.fabric.jit.same").same_arrays
torch = pytest.importorskip("torch")
STARTS = 0, 24, 48, 96, 100, 102, 300, 512, 536, 752
SHAPES = (6,), (2, 3), (3, 2), (3, 6), (18,), (1, 6), (0,), (0, 6), (), (3, 1)
TYPES = "float32", "float32", "float32", "int32", "uint16", "bool", ">f4", "V2"
TORCH_TYPES = "float32", "float32", "bfloat16", "uint16", "float8_e5m2", "complex64"
ROOM = 512
"""Where memory that peers reach begins, in bytes of the pool."""


class Session(executors.Session):
    """A session on the CPU that moves nothing and says what it was launched with."""

    def __init__(self, pool):
        self.start, self.nbytes, self.told = pool.ctypes.data, pool.nbytes, []

    def offset(self, array):
        return self.offset_at(array.ctypes.data, array.nbytes)

    def offset_at(self, address, nbytes):
        at = address - self.start - ROOM
        return at if 0 <= at < self.nbytes - ROOM else None

    def prepare(self, plan, call):
        how = plan.value.name, str(plan.value.schedule), call

        def launch(x, out):
            self.told.append((*how, self._place(x), self._place(out)))

        return launch

    def _place(self, array):
        """Return where in the pool an array lies, or that it lies elsewhere."""
        if array is None or not array.size:
            return None if array is None else 0
        assert array.flags.c_contiguous
        at = array.ctypes.data - self.start
        inside = 0 <= at < self.nbytes
        return at if inside else "elsewhere", array.nbytes, array.dtype.itemsize

    def close(self):
        pass


class Compiled(Session):
    """The same, whose arrays are told apart by compiled code."""

    def same_arrays(self, x, x_by, out, out_by):
        return same_arrays(x, x_by, out, out_by)


class Group(executors.Group):
    """Rank 1 of 3, alone."""

    rank, num_ranks, deadline_s = 1, 3, 1.0
    broken = np.zeros(1, np.int64)


def communicator(session):
    made = Communicator(Group(), executor="", profiles={})
    made._sessions["cpu"] = session
    return made


def numpy_array(pool, rng):
    """Return an array of NumPy's in the pool, or what is made of one."""
    shape, dtype = rng.choice(SHAPES), np.dtype(rng.choice(TYPES))
    start = rng.choice(STARTS)
    made = pool[start : start + int(np.prod(shape)) * dtype.itemsize]
    made = made.view(dtype).reshape(shape)
    twist = rng.randrange(12)
    if twist == 0:
        made = made.T
    elif twist == 1 and made.ndim:
        made = made[::-1]
    elif twist == 2:
        made.setflags(write=False)
    elif twist == 3:
        made = made.view(np.recarray)
    elif twist == 4 and dtype.kind in "fiu":
        made = memoryview(made)
    return made


class Wrapped(torch.Tensor):
    """A tensor of a class of somebody's own."""


def tensor(pool, rng):
    """Return a tensor in the pool, of one sort or another."""
    shape, dtype = rng.choice(SHAPES), getattr(torch, rng.choice(TORCH_TYPES))
    start = rng.choice([at for at in STARTS if not at % dtype.itemsize])
    raw = torch.from_numpy(pool)[start : start + int(np.prod(shape)) * dtype.itemsize]
    made = raw.view(dtype).reshape(shape)
    twist = rng.randrange(10)
    if twist == 0 and made.ndim:
        made = made.transpose(0, -1)
    elif twist == 1:
        made = torch.nn.Parameter(made, requires_grad=dtype == torch.float32)
    elif twist == 2 and dtype == torch.float32:
        made = made._neg_view()
    elif twist == 3:
        made = made.as_subclass(Wrapped)
    elif twist == 4:
        made = made.to("meta")
    return made


def change(array, pool, rng):
    """Change an array in place, as people do."""
    if type(array) is np.ndarray and rng.randrange(2):
        array.setflags(write=not array.flags.writeable)
    elif type(array) is np.ndarray and array.size == 6 and array.flags.c_contiguous:
        array.shape = rng.choice([(6,), (2, 3), (3, 2)])
    elif type(array) is torch.Tensor and array.ndim == 2 and rng.randrange(2):
        array.t_()
    elif type(array) is torch.Tensor and array.device.type == "cpu":
        start = 4 * rng.randrange(400)
        array.data = torch.from_numpy(pool)[start : start + 24].view(torch.float32)


def calls(rng):
    """Return a maker of calls: a verb, and its arguments but for arrays."""
    said = {
        "all_reduce": {"op": ("sum", "max", "avg")},
        "reduce": {"root": (0, 1, True)},
        "broadcast": {"root": (0, 1)},
        "all_gather": {},
        "gather": {"root": (0, 1)},
        "reduce_scatter": {"op": ("sum", "min")},
        "scatter": {"root": (0, 1)},
        "all_to_all": {"split": (0, 1), "concat": (0, 1)},
        "permute": {"pairs": (((0, 1), (1, 0)), ([1, 2],), ((0, 2),), [(0, 1)])},
        "all_gather_v": {"counts": ((6, 6, 6), [1, 6, 2], (0, 0, 0))},
        "gather_v": {"counts": ((6, 6, 6), ([6], 6, 6)), "root": (0, 1)},
        "scatter_v": {"counts": ((6, 6, 6), (9, 3, 6)), "root": (0, 1)},
        "reduce_scatter_v": {"counts": ((6, 6, 6), (9, 3, 6))},
    }
    dtypes = None, None, None, "bfloat16", "float32"

    def make():
        verb = rng.choice(list(said))
        options = {name: rng.choice(values) for name, values in said[verb].items()}
        return verb, {**options, "dtype": rng.choice(dtypes)}

    return make


def answer(comm, session, verb, x, out, options):
    """Return what a call gave: an error's words, or a result and its launch."""
    before = len(session.told)
    try:
        got = getattr(comm, verb)(x, out=out, **options)
    except StrettoError as e:
        assert before == len(session.told)
        return type(e), str(e)
    except Exception as e:
        return type(e), str(e)
    launched = session.told[before:]
    if got is x or got is out or got is None:
        return "x" if got is x else "out", launched
    return type(got), tuple(got.shape), str(got.dtype), launched


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("kind", "seed", "turns"), [(Session, 0, 1200), (Compiled, 1, 1200)]
)
def test_what_was_seen_before_changes_no_answer(kind, seed, turns):
    """Verbs, arguments and arrays at random, some changed in place; each call twice."""
    rng, pool = random.Random(seed), np.zeros(2048, np.uint8)
    session, call = kind(pool), calls(rng)
    known = communicator(session)

    def array(*others):
        sorts = numpy_array, tensor, lambda *_: rng.choice((*old, None, *others))
        return rng.choice(sorts)(pool, rng)

    old = [numpy_array(pool, rng) for _ in range(5)]
    old += [*(tensor(pool, rng) for _ in range(5)), torch.ones(3, 3)]
    for _ in range(turns):
        verb, options = call()
        x = array()
        out = array(x, x, x, None, None, None)
        new = communicator(session)
        wanted = answer(new, session, verb, x, out, options)
        for _ in range(2):
            got = answer(known, session, verb, x, out, options)
            assert wanted == got, (verb, type(x), x, type(out), out, options)
        change(rng.choice(old), pool, rng)
