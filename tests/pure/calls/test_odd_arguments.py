"""Every verb, every argument, everything odd: an error of ours, and nothing is lost."""

import inspect
import math
import warnings
from contextlib import suppress

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.nightly import nightly
from tests.pure.calls.test_arguments import Alone

import stretto
from stretto.errors import DeviceError, StrettoError
from stretto.fabric.address import socket_path
from stretto.fabric.meeting.environment import find_place


class Text(str):
    """A text of one's own kind."""

    __slots__ = ()


class Number(int):
    """A number of one's own kind."""


class Array(np.ndarray):
    """An array of one's own kind."""


class NeverEqual:
    """It cannot be a part of a key, and must not be compared."""

    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError("compared")


class RefusesDlpack:
    """It says that it is an array, and is none."""

    def __dlpack__(self, *args, **options):
        raise RuntimeError("no view")

    def __dlpack_device__(self):
        return (1, 0)


class FromNowhere:
    """An array without memory."""

    __array_interface__ = {  # noqa: RUF012 - it is what NumPy reads
        "version": 3,
        "shape": (4,),
        "typestr": "<f4",
        "data": (0, False),
    }


class OnNoDevice:
    """An array on a GPU, without memory."""

    __cuda_array_interface__ = FromNowhere.__array_interface__


def frozen():
    """Return an array that cannot be written."""
    array = np.ones(4, np.float32)
    array.flags.writeable = False
    return array


NUMBERS = [None, True, False, 0, -1, 1, 2.5, math.nan, math.inf, -math.inf, 1j]
NUMBERS += [1 << 70, -(1 << 70), 10**400, Number(0), np.float32(1.5), np.float64("nan")]
NUMBERS += [np.int64(0), np.int64(-3), np.uint8(1), np.bool_(True)]
TEXTS = ["", "x", "sum", "\ud800", "x" * 5000, "0", Text("sum"), "float16", "O", "U"]
TEXTS += [b"\xff", bytearray(b"ab"), memoryview(b"abcd"), "all_reduce/ring nonsense"]
MANY = [[], [1], ["a"], (), (1,), ("a",), ("all_reduce/ring", 3), {}, {"a": 1}, set()]
MANY += [frozenset([1]), range(3), slice(1), ((0, 9),), ((0, 0), (0, 0)), [(0, "x")]]
ARRAYS = [np.array(1), np.array([]), np.array(["a"]), np.array([None, 1], object)]
ARRAYS += [np.ones(3, "datetime64[s]"), np.ones((2, 2))[:, 0], np.zeros((2, 0))]
ARRAYS += [
    np.ones(4, np.float32).view(Array),
    np.ma.ones(4),
    np.ones(4, ">f4"),
    frozen(),
]
ARRAYS += [np.array((1, 2.0), "i4,f4"), np.broadcast_to(np.float32(1), (4,))]
THINGS = [object(), print, int, NeverEqual(), RefusesDlpack(), FromNowhere(), Ellipsis]
THINGS += [
    OnNoDevice(),
    np.dtype("f4"),
    np.float32,
    stretto,
    ValueError("x"),
    lambda: 1,
]
ODD = [*NUMBERS, *TEXTS, *MANY, *ARRAYS, *THINGS]

MADE = {
    "x": lambda: np.ones(4, np.float32),
    "out": lambda: np.ones(4, np.float32),
    "array": lambda: np.ones(4, np.float32),
    "pairs": lambda: ((0, 0),),
    "counts": lambda: (4,),
    "shape": lambda: 3,
    "to": lambda: 0,
    "source": lambda: 0,
    "color": lambda: 0,
    "nbytes": lambda: 64,
    "collective": lambda: "all_reduce",
    "count": lambda: 4,
    "value": lambda: 1,
    "values": lambda: [1],
    "shift": lambda: 1.0,
    "period": lambda: 10.0,
}
VERBS = sorted(
    name
    for name in dir(stretto.Communicator)
    if name[0] != "_" and callable(getattr(stretto.Communicator, name))
    if name not in ("close", "check", "experts", "refuse")
)
"""But for those of rooms above: one opens a room, and one is what such a room breaks a
communicator by."""


def parameters(verb):
    """Return the names of a verb's arguments, and which of them must be given."""
    function = getattr(stretto.Communicator, verb.removesuffix("_async"))
    found = list(inspect.signature(function).parameters.values())[1:]
    found = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed = [p.name for p in found if p.default is p.empty]
    if verb.startswith("scatter") and not verb.endswith("_object"):
        needed.append("x")
    return [p.name for p in found], needed


@pytest.fixture
def comm():
    """Return the communicator of one rank."""
    with stretto.Communicator(Alone(), profiles=None) as one:
        yield one


def call(comm, verb, odd):
    """Call a verb with odd arguments; return the error of ours, if there was one."""
    _, needed = parameters(verb)
    options = {name: MADE[name]() for name in needed if name in MADE} | odd
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = getattr(comm, verb)(**options)
            if verb.endswith("_async"):
                result.wait()
    except StrettoError as e:
        return e
    if isinstance(result, stretto.Communicator):
        result.close()
    return None


def check(comm):
    """Check that the communicator works as before."""
    x = np.full(4, 3.0, np.float32)
    assert [3.0] * 4 == comm.all_reduce(x).tolist()


@pytest.mark.parametrize("verb", nightly(VERBS, 4))
def test_whatever_is_given_the_error_is_ours(verb):
    """Not Python's, nor NumPy's; it is short, and names the verb; all goes on."""
    comm = stretto.Communicator(Alone(), profiles=None)
    for name in parameters(verb)[0]:
        for odd in ODD:
            try:
                error = call(comm, verb, {name: odd})
            except Exception as e:
                pytest.fail(f"{verb}({name}={odd!r:.60}): {type(e).__name__}: {e}")
            was_revoked = verb == "revoke" and error is None
            if was_revoked or isinstance(error, DeviceError):  # no GPU: all know
                comm = stretto.Communicator(Alone(), profiles=None)
            elif error is not None:
                assert len(str(error)) < 6000
                assert "rank 0" in str(error) or name in str(error), error
            check(comm)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_odd_arguments_together(comm, data):
    """Several at once."""
    verb = data.draw(
        st.sampled_from(
            [v for v in VERBS if parameters(v)[0] and v not in ("channels", "revoke")]
        )
    )
    names = st.sampled_from(parameters(verb)[0])
    odd = data.draw(st.dictionaries(names, st.integers(0, len(ODD) - 1), max_size=4))
    call(comm, verb, {name: ODD[index] for name, index in odd.items()})
    check(comm)


def test_a_place_of_any_kind_is_read_or_refused():
    """Whatever is given to `connect`."""
    for name in ("rank", "num_ranks", "address"):
        for odd in ODD:
            place = {"rank": 0, "num_ranks": 1, "address": "job"} | {name: odd}
            try:
                found = find_place(**place)
                socket_path(found.job)
            except StrettoError:
                continue
            assert found.num_ranks >= 1


def test_a_function_of_any_kind_is_traced_or_refused():
    """Whatever is decorated, used in an epilogue, or bound to one."""
    plain = stretto.epilogue(lambda y, bias: y + bias)
    comm = stretto.Communicator(Alone(), profiles=None)
    for odd in ODD:
        for use in (
            lambda odd=odd: stretto.epilogue(odd),
            lambda odd=odd: stretto.epilogue(lambda y: y * odd),
            lambda odd=odd: plain(bias=1.0, row=odd),
            lambda odd=odd: comm.all_reduce(
                np.ones(4, np.float32), epilogue=plain(bias=odd)
            ),
            lambda odd=odd: stretto.algorithm(odd),
            lambda odd=odd: stretto.algorithm("all_reduce/own", split=odd),
            lambda odd=odd: stretto.algorithm("all_reduce/own", members=odd),
            lambda odd=odd: stretto.algorithm("all_reduce/own")(print).build(odd),
        ):
            with suppress(StrettoError):
                use()
    check(comm)
