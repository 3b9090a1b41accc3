"""What DLPack says of arrays, read without taking them over."""

import numpy as np

from stretto.arrays import read_capsule
from stretto.executors.cuda.device.arrays import DeviceArray


def test_a_capsule_says_what_an_array_is():
    """Types, strides and offsets, of our own arrays and of PyTorch's, too."""
    for name in ("int8", "uint64", "float16", "complex128", "bool"):
        array = np.ones((3, 4), name)
        found = read_capsule(Wrapped(array))
        assert (name, (3, 4), array.ctypes.data) == found[:3]
        assert (array.nbytes, True, 0, ()) == found[3:]
    corner = read_capsule(Wrapped(np.ones((4, 4))[1:, :2]))
    assert (False, (4, 1)) == (corner.contiguous, corner.strides)
    assert read_capsule(Wrapped(np.ones((4, 4))[1:2, :2])).contiguous
    for name in ("bfloat16", "float32"):
        found = read_capsule(DeviceArray(4096, (2, 3), name, 0, lambda: None))
        assert (name, (2, 3), 4096) == found[:3]


class Wrapped:
    """A NumPy array that takes a stream."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream):
        return self.array.__dlpack__()
