"""Ranks whose GPUs are pretended: tensors lie on the host, streams and graphs are ours.

What runs is the CPU executor; what is tested is everything around it.
"""

import time
import types
from dataclasses import replace

import torch

from stretto.bench.measuring import precompile
from stretto.bench.peers import _arrays, gloo
from stretto.bench.ranks import run
from stretto.bench.tune import job
from stretto.runtime.calls import Communicator

warmed = []


class Event:
    """A point in time."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self, stream=None):
        self.at = time.perf_counter()

    def elapsed_time(self, other):
        return (other.at - self.at) * 1e3


class Graph:
    """Runs what was called meanwhile, again: the calls themselves are remembered."""

    recording = None

    def capture_begin(self, capture_error_mode):
        assert "thread_local" == capture_error_mode
        self.calls = Graph.recording = []

    def capture_end(self):
        Graph.recording = None

    def replay(self):
        for call in self.calls:
            call()


class Stream:
    """There is only one."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


CUDA = types.SimpleNamespace(
    is_available=lambda: True,
    device_count=lambda: 2,
    current_device=lambda: 0,
    set_device=lambda index: None,
    get_device_capability=lambda: (9, 0),
    synchronize=lambda: None,
    set_stream=lambda stream: None,
    stream=lambda stream: stream,
    Event=Event,
    CUDAGraph=Graph,
    Stream=Stream,
)


class Torch:
    """PyTorch, as if it had GPUs."""

    cuda = CUDA

    def __getattr__(self, name):
        found = getattr(torch, name)
        if name not in ("zeros", "ones", "empty", "empty_like"):
            return found
        return lambda *args, device=None, **options: found(*args, **options)


def remembered(self, call, calls):
    """Capture: calls are told to the graph, and made at once too."""
    graph = self._torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    for _ in range(calls):
        Graph.recording.append(call)
    graph.capture_end()
    return graph.replay


def pretend():
    """Let this rank believe that it has a GPU."""
    _arrays.require_torch = Torch
    _arrays._SIDE, _arrays._COPY_BYTES, _arrays._FLUSH_BYTES = 16, 1 << 20, 1 << 20
    _arrays.GpuArrays.capture = remembered
    empty = Communicator.empty
    Communicator.empty = lambda self, shape, dtype="float32", device="cpu": empty(
        self, shape, dtype
    )
    precompile.cuda = types.SimpleNamespace(
        warm=lambda plan, call, **how: {
            f"{plan.value.digest} {call}": lambda: warmed.append(how["arch"])
        }
    )


def raw_work(comm, task, say):
    """Be a rank whose arrays' library has no bfloat16: it shows raw bytes, as |V2."""
    pretend()
    _arrays._viewer = lambda kind: lambda t: t.view(torch.uint16).numpy().view("V2")
    gloo.Gloo.DEVICES = ("cpu", "cuda")
    return run.work(comm, task, say)


def work(comm, task, say):
    """Be a rank of `stretto bench`, in every mode, and of `stretto tune`."""
    pretend()
    found = {}
    for mode in task.options["modes"]:
        one = replace(
            task, cold=mode == "cold", mode="blocking" if mode == "cold" else mode
        )
        found[mode] = run.work(comm, one, say)
    tuned = job.work(comm, replace(task, mode="graph"), say)
    return {"modes": found, "tuned": tuned, "warmed": len(warmed)}
