"""Compiled functions called past Numba's look at what their arguments are."""

import numpy as np
import pytest

pytest.importorskip("numba")

from stretto.fabric.jit.atomics import compiled, direct


@compiled("int64(int64,int64)")
def _less(a, b):
    return a - b


@compiled("int64(int64,int64)", nogil=False)
def _less_locked(a, b):
    return a - b


@pytest.mark.parametrize("function", [_less, _less_locked])
def test_a_direct_call_is_the_same_call(function):
    """With addresses as large as they come, and NumPy's whole numbers."""
    call = direct(function)
    large = (1 << 63) - 1
    assert large - 5 == call(large, 5)
    assert -7 == call(np.int64(-2), 5)
    with pytest.raises(TypeError):
        call(1)
    with pytest.raises(TypeError):
        call(object(), 2)
