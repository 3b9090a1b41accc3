"""Arrays of our own as others see them, and arrays of others as we do."""

import ctypes
import gc
import weakref

import pytest

from stretto.arrays import packed_view
from stretto.errors import CallError
from stretto.executors.cuda.device import arrays
from stretto.executors.cuda.device.arrays import DeviceArray

_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
_open = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_USED = b"used_dltensor"


def made():
    return DeviceArray(4096, (2, 3), "bfloat16", 0, lambda: None)


def test_a_capsule_that_nobody_takes_over_lets_its_array_go():
    """Who only looks at it, as a call does, takes nothing over."""
    before, array = len(arrays._exported), made()
    for _ in range(10):
        array.__dlpack__()
    assert before == len(arrays._exported)
    gone = weakref.ref(array)
    del array
    gc.collect()
    assert gone() is None


def test_a_capsule_that_was_taken_over_keeps_its_array():
    """Until the deleter is called, by whoever renamed it."""
    array = made()
    capsule = array.__dlpack__()
    gone = weakref.ref(array)
    address = _open(capsule, b"dltensor")
    managed = arrays._DLManagedTensor.from_address(address)
    _rename(capsule, _USED)
    del array, capsule
    gc.collect()
    assert gone() is not None
    managed.deleter(ctypes.pointer(managed))
    assert gone() is None


class Strided:
    """An array with strides of its own."""

    def __init__(self, shape, strides):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f4",
            "strides": strides,
            "data": (4096, False),
        }


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((1, 6), (4000, 4)), ((6, 1), (4, 400)), ((0, 6), (4, 4)), ((2, 3), (12, 4))],
)
def test_strides_of_axes_that_are_not_walked_may_be_anything(shape, strides):
    """As slices of one row have them."""
    assert 4096 == packed_view(Strided(shape, strides)).start


@pytest.mark.parametrize("strides", [(4, 8), (16, 4), (12, -4), (0, 4)])
def test_elements_that_lie_apart_are_refused(strides):
    """No launch copies."""
    with pytest.raises(CallError, match="want it contiguous"):
        packed_view(Strided((2, 3), strides))
