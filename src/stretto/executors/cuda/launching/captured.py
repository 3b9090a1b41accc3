"""Launches into a graph: placed as soon as the kernel before them has begun.

A launch behind one of our kernels is placed when that kernel says so (stream.cuh).
Other people's kernels say nothing, and a launch behind them is placed when they end: it
comes 0.45 us later then (2 H200). In a graph an edge can say it in their stead: it
starts where all blocks of the kernel before *have begun* (its launch-order port). From
then on nothing can keep that kernel from ending, whatever our blocks hold.

That is safe because of what a kernel of ours does before `after_earlier_work` returns:
it reads its parameters and writes its own shared memory, nothing else. That wait is for
the *end* of the kernel before, and for all it wrote.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

CAPTURING = 1
"""CU_STREAM_CAPTURE_STATUS_ACTIVE."""
SINCE = 12030
"""The first driver whose graphs have edges of this kind."""


class Capture:
    """What a stream that is being captured will launch after."""

    def __init__(self, driver: Any) -> None:
        self._driver = weakref.ref(driver)
        self._status = ctypes.c_int()
        self._count = ctypes.c_size_t()
        self._nodes = ctypes.POINTER(ctypes.c_void_p)()
        self._edges = ctypes.POINTER(ctypes.c_uint64)()
        self._graph = ctypes.c_void_p()
        self._number = ctypes.c_uint64()
        self._told = [
            ctypes.byref(one)
            for one in (
                *(self._status, self._number, self._graph),
                *(self._nodes, self._edges, self._count),
            )
        ]
        self._ours: set[int] = set()
        self.loosened = 0
        """Launches that begin with the kernel before them."""
        self._ask = _question(driver)

    def ours(self, function: int) -> None:
        """Tell that a kernel is one of ours, which says by itself when to go on."""
        self._ours.add(function)

    def loosen(self, stream: int) -> bool:
        """Let the next launch of a capture begin when the kernel before it has begun.

        Returns whether it will. It does where exactly one kernel is before it in the
        graph, and that is not ours.
        """
        if self._ask is None or not _may_be_captured():
            return False  # nearly always, so it is asked in a tenth of a microsecond
        if self._ask(stream, *self._told):
            return False
        if self._status.value != CAPTURING or self._count.value != 1:
            return False
        if self._edges and self._edges[0]:
            return False  # somebody has said already how this edge is
        driver = self._driver()
        assert driver is not None, "it was there to be asked"
        node = driver.CUgraphNode(self._nodes[0])
        error, kind = driver.cuGraphNodeGetType(node)
        if int(error) or kind != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            return False
        error, said = driver.cuGraphKernelNodeGetParams(node)
        if int(error) or self._ours & {int(said.func), int(said.kern)}:
            return False
        edge = driver.CUgraphEdgeData()
        edge.from_port = int(driver.CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER)
        kinds = driver.CUgraphDependencyType
        edge.type = int(kinds.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
        flags = driver.CUstreamUpdateCaptureDependencies_flags
        (error,) = driver.cuStreamUpdateCaptureDependencies(
            driver.CUstream(stream),
            [node],
            [edge],
            1,
            int(flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES),
        )
        self.loosened += not int(error)
        return not int(error)


_captures: weakref.WeakKeyDictionary[Any, Capture] = weakref.WeakKeyDictionary()


def capture_of(driver: Any) -> Capture:
    """Return what all launches through a driver have in common."""
    found = _captures.get(driver)
    if found is None:
        found = _captures[driver] = Capture(driver)
    return found


_torch: list[Callable[[], bool]] = []
"""How to ask torch whether it captures, once torch is there."""


def _may_be_captured() -> bool:
    """Return whether torch captures its stream; without torch, that somebody may.

    Whoever has torch and captures without it has launches that begin when the kernel
    before them ends, as outside graphs: no fault, and no launch pays for the question.
    """
    if not _torch:
        torch = sys.modules.get("torch")
        asked = getattr(getattr(torch, "_C", None), "_cuda_isCurrentStreamCapturing", 0)
        if not isinstance(asked, BuiltinFunctionType):
            return True
        _torch.append(asked)
    return _torch[0]()


def _question(driver: Any) -> Callable[..., int] | None:
    """Return `cuStreamGetCaptureInfo`, or None where edges have no ports."""
    if not hasattr(driver, "CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER"):
        return None
    error, address, _ = driver.cuGetProcAddress(b"cuStreamGetCaptureInfo", SINCE, 0)
    if int(error) or not int(address):
        return None
    pointer = ctypes.c_void_p
    found: Any = ctypes.CFUNCTYPE(ctypes.c_int, *[pointer] * 7)(int(address))
    return found  # type: ignore[no-any-return]
