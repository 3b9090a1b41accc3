"""Time what Python adds to a small call: a communicator whose executor does nothing.

    python benchmarks/call_cost.py [OUTPUT.json]

The time of calling the empty launcher is taken off. The goal is 1.2 us a call.
"""

import itertools
import json
import platform
import sys
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from stretto.bench.machine import commit
from stretto.executors import Group, Session
from stretto.executors.cuda.device.arrays import DeviceArray
from stretto.fabric.jit.same import same_arrays
from stretto.runtime.calls import Communicator
from stretto.runtime.calls.runner import CallRunner

CALLS, REPEATS = 500, 2_000
GOAL_US = 1.2


class Nothing(Session):
    """An executor's session that moves nothing."""

    def offset(self, array: Any) -> None:
        """Return that nothing is registered."""

    def offset_at(self, address: int, nbytes: int) -> None:
        """Return that nothing is registered."""

    def same_arrays(self, *known: Any) -> Any:
        """Tell NumPy arrays apart as the CPU's session does."""
        return same_arrays(*known)

    def prepare(self, plan: Any, call: Any) -> Callable[[Any, Any], None]:
        """Return a launcher that does nothing."""

        def launch(x: Any, out: Any) -> None:
            pass

        return launch


class Alone(Group):
    """Rank 0 of 2, without the other."""

    rank, num_ranks, deadline_s = 0, 2, 1.0
    broken = np.zeros(1, np.int64)

    def subgroup(self, name: str, members: tuple[int, int]) -> "Alone":
        """Return a channel's group."""
        return self


def microseconds(call: Callable[[], Any]) -> float:
    """Return the least time of a call over several repeats."""
    call()
    call()
    return min(timeit.repeat(call, number=CALLS, repeat=REPEATS)) / CALLS * 1e6


def calls(comm: Communicator) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield names and calls on arrays seen before."""
    x, out = np.ones(256, np.float32), np.ones(256, np.float32)
    grid, both = np.ones((2, 128), np.float32), np.ones((2, 256), np.float32)
    yield "all_reduce in place", lambda: comm.all_reduce(x)
    yield "all_reduce out=", lambda: comm.all_reduce(x, out=out)
    yield "all_reduce, two axes", lambda: comm.all_reduce(grid)
    yield "all_reduce, new object", lambda: comm.all_reduce(x[:])
    yield "all_reduce, two new ones", lambda: comm.all_reduce(x[:], out=out[:])
    yield "all_gather out=", lambda: comm.all_gather(x, out=both)
    yield "all_gather, new array", lambda: comm.all_gather(x)
    yield "all_to_all out=", lambda: comm.all_to_all(x, out=out)
    counts, matrix = (256, 256), (128, 128, 128, 128)
    yield "all_gather_v", lambda: comm.all_gather_v(x, counts, out=both)
    yield "all_to_all_v", lambda: comm.all_to_all_v(x, matrix, out=out)
    yield "send", lambda: comm.send(x, 1)
    yield "recv", lambda: comm.recv(x, 1)
    yield "broadcast", lambda: comm.broadcast(x)
    yield "barrier", lambda: comm.barrier()
    yield from calls_of_tensors(comm)
    yield from calls_on_gpu(comm)


def calls_of_tensors(comm: Communicator) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls on CPU tensors, known and new; `detach` makes a new one in 0.3 us."""
    try:
        import torch
    except ModuleNotFoundError:
        return
    tensor, both = torch.ones(256), torch.ones((2, 256))
    one, other = both.unbind()
    new = torch.Tensor.detach
    yield "all_reduce of a tensor", lambda: comm.all_reduce(tensor)
    yield "all_gather of a tensor, out=", lambda: comm.all_gather(tensor, out=both)
    yield "making a tensor", lambda: new(tensor)
    yield "all_reduce, new tensor", lambda: comm.all_reduce(new(tensor))
    yield (
        "all_reduce, two new tensors",
        lambda: comm.all_reduce(new(one), out=new(other)),
    )
    yield "all_gather, making a tensor", lambda: comm.all_gather(new(tensor))


def calls_on_gpu(comm: Communicator) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls on what answers as other libraries' arrays on a GPU do."""
    cupy, numba = LikeCupy(1 << 20), LikeNumba(1 << 20)
    ours = DeviceArray(1 << 20, (256,), "float32", 0, lambda: None)
    yield "all_reduce, as CuPy's", lambda: comm.all_reduce(cupy)
    yield "all_reduce, as Numba's", lambda: comm.all_reduce(numba)
    yield "all_reduce of comm.empty()", lambda: comm.all_reduce(ours)
    turns = itertools.cycle(
        DeviceArray(1 << 20, (256,), "float32", 0, lambda: None) for _ in range(1000)
    )
    yield "all_reduce, 1,000 in turn", lambda: comm.all_reduce(next(turns))


class LikeCupy:
    """What CuPy's arrays answer, without memory."""

    def __init__(self, at: int) -> None:
        self.shape, self.dtype, self.nbytes = (256,), np.dtype("float32"), 1024
        self.data = SimpleNamespace(ptr=at, device_id=0)
        self.flags = SimpleNamespace(c_contiguous=True)
        self.__cuda_array_interface__ = _face(at)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the DLPack device."""
        return 2, 0


LikeCupy.__module__ = "cupy"


class LikeNumba:
    """What Numba's device arrays answer: a dictionary, made each time."""

    def __init__(self, at: int) -> None:
        self.at, self.shape, self.strides = at, (256,), (4,)
        self.dtype = np.dtype("float32")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Return where it lies and how."""
        return _face(self.at)


def _face(at: int) -> dict[str, Any]:
    return {
        "shape": (256,),
        "strides": None,
        "data": (at, False),
        "typestr": "<f4",
        "stream": None,
        "version": 3,
    }


def main() -> None:
    """Print the table, and write it when a file is named."""
    session = Nothing()
    CallRunner._session = lambda self, name: self._sessions.setdefault(name, session)
    comm = Communicator(Alone(), profiles={})
    launch = Nothing().prepare(None, None)
    x = np.ones(256, np.float32)
    empty_us = microseconds(lambda: launch(x, x))
    rows = [
        {"call": name, "us": round(microseconds(call) - empty_us, 3)}
        for name, call in calls(comm)
    ]
    for row in rows:
        print(f"{row['call']:28} {row['us']:.2f} us")
    report = {
        "command": "python benchmarks/call_cost.py",
        "commit": commit(),
        "python": platform.python_version(),
        "goal_us": GOAL_US,
        "rows": rows,
    }
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
