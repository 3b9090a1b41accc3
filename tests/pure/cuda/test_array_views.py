"""What a launch reads of arrays on GPUs."""

from __future__ import annotations

import numpy as np
import pytest
from tests.stand_ins import TensorLike

from stretto.arrays import packed_view, pointer
from stretto.errors import CallError
from stretto.executors.cuda.device.arrays import DeviceArray


class Strided(TensorLike):
    """A tensor whose elements do not lie one after the other."""

    def data_ptr(self):
        return 4096

    def is_contiguous(self):
        return False


def test_arrays_that_are_not_contiguous_are_refused():
    """A kernel sees one run of elements."""
    with pytest.raises(CallError, match="contiguous"):
        pointer(Strided())


def test_an_array_off_the_gpu_is_refused_with_what_is_wanted():
    """NumPy arrays say which device they are on."""
    with pytest.raises(CallError, match="want a GPU"):
        packed_view(np.zeros(4))
    with pytest.raises(CallError, match="__cuda_array_interface__"):
        packed_view(object())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
def test_our_arrays_are_read_back_through_dlpack(dtype):
    """What we export we can read, address and size."""

    class Stranger:
        """The same array, seen through DLPack alone."""

        def __init__(self, array):
            self.__dlpack__ = array.__dlpack__
            self.__dlpack_device__ = array.__dlpack_device__

    array = DeviceArray(4096, (3, 5), dtype, 0, lambda: None)

    assert packed_view(array)[:2] == packed_view(Stranger(array))[:2]
