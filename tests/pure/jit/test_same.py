"""Arrays that compiled code tells apart, and builtins that it makes."""

import gc
import random
import sys

import numpy as np
import pytest

same = pytest.importorskip("stretto.fabric.jit.same")


def test_arrays_lie_where_they_are_read():
    """Here they do; elsewhere Python looks at them."""
    assert same.usable()


def changes(array, rng):
    """Change an array in place, or not; return whether it is another array now."""
    before = array.shape, array.dtype, array.flags.num
    match rng.randrange(5):
        case 0:
            array.setflags(write=not array.flags.writeable)
        case 1 if array.flags.c_contiguous:
            array.shape = rng.choice([(6,), (2, 3), (3, 2), (1, 6, 1)])
        case 2:
            array.dtype = rng.choice(["<f4", "<i4", ">f4"])
    return before


@pytest.mark.filterwarnings("ignore:Setting the:DeprecationWarning")  # NumPy 2.5
@pytest.mark.parametrize("by", ["shape", "size"])
def test_an_array_is_the_same_until_something_changes(by):
    """As Python's own properties say."""
    rng = random.Random(by)
    arrays = [np.zeros(6, np.float32), np.zeros((2, 3), np.float32).T]
    for turn in range(400):
        x, out = rng.choice(arrays), rng.choice([*arrays, None])
        told = same.same_arrays(x, by, out, "size")
        shape, dtype, flags = x.shape, x.dtype, x.flags.num
        was = out is None or (id(out.dtype), out.flags.num)
        kept = x.dtype, None if out is None else out.dtype
        changes(x, rng)
        if out is not None:
            changes(out, rng)
        want = x.dtype is dtype and x.flags.num == flags
        want &= by == "size" or x.shape == shape
        want &= out is None or (id(out.dtype), out.flags.num) == was
        del kept
        assert told(x, out) is want, turn
        assert told(rng.choice([None, x.copy(), x[:], 6]), out) is False
        assert told(x, x.copy()) is False


def test_a_new_array_where_one_lay_is_another():
    """Its address is the same, so often enough."""
    met = 0
    for _ in range(50):
        x = np.zeros(6)
        told, at = same.same_arrays(x, "shape", None, "nothing"), id(x)
        del x
        x = np.zeros(6)
        met += id(x) == at
        assert told(x, None) is False
    assert met


def test_what_a_builtin_gives_is_owned_and_it_lets_go_of_what_it_held():
    """References are counted by hand there."""
    x, out = np.zeros(6), np.zeros(6)
    counted = x, out, True, False
    gc.collect()
    before = [sys.getrefcount(one) for one in counted]
    told = same.same_arrays(x, "size", out, "size")
    for _ in range(10_000):
        told(x, out)
        told(out, x)
    del told
    gc.collect()
    after = [sys.getrefcount(one) for one in counted]
    assert all(abs(a - b) < 5000 for a, b in zip(before, after, strict=True))


def test_a_builtin_takes_two_arguments():
    """Others are an error, and no walk through memory."""
    told = same.same_arrays(np.zeros(6), "size", None, "size")
    for wrong in ((), (1,), (1, 2, 3)):
        with pytest.raises(TypeError):
            told(*wrong)
    with pytest.raises(TypeError):
        told(1, out=2)
