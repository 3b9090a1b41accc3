"""What is in shared memory by name: ours has none, so whatever is new was lost.

Tests run beside one another: what other libraries name there is not counted.
"""

from __future__ import annotations

import os

_OF_OTHERS = (
    "sm_segment.",  # Open MPI
    "vader_segment.",  # Open MPI before 5
    "nccl-",
    "psm_",  # Python's multiprocessing
    "sem.",  # POSIX semaphores
    "torch_",
    "ucx_shm_",
)


def shared_names() -> set[str]:
    """Return the names of shared memory that no other library is known to give."""
    names = os.listdir("/dev/shm")  # noqa: PTH208 - of this very moment, and fast
    return {name for name in names if not name.startswith(_OF_OTHERS)}
