"""What callers hand in: arrays of any library, read the same way.

In: whatever has the buffer protocol, DLPack or an interface of its own. Out: where it
lies, of which type and shape, or one sentence that says why not. Never: a copy that the
caller does not see.
"""

from stretto.arrays.array_readers import place_of, read_array
from stretto.arrays.capsules import contiguous, read_capsule
from stretto.arrays.operands import CPU, GPU, Operand, fresh, host_view, on_gpu, operand
from stretto.arrays.view import (
    CUDA_DEVICE,
    address,
    dense,
    gpu_view,
    packed_view,
    pointer,
    require_near,
)

__all__ = [
    "CPU",
    "CUDA_DEVICE",
    "GPU",
    "Operand",
    "address",
    "contiguous",
    "dense",
    "fresh",
    "gpu_view",
    "host_view",
    "on_gpu",
    "operand",
    "packed_view",
    "place_of",
    "pointer",
    "read_array",
    "read_capsule",
    "require_near",
]
