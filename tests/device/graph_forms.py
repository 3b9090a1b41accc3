"""Graphs of all forms that hold our calls: right, or refused with an error.

    python tests/device/graph_forms.py --ranks 2 --out DIR [--share] [--only WORDS]

Conditional bodies, child graphs, graphs for launches by the device, several streams in
one capture, a graph that outlives its communicator. By the driver's calls alone. Loops
want WHILE_CUBIN, a file made of while_node.cu; without it they say so.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "src"), str(HERE)]
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"

from channel_rank import SHORT_S, Rank, checked, report, words  # noqa: E402

from stretto.errors import StrettoError  # noqa: E402

CHECKS: dict[str, Any] = {}
COUNTS = (16, 5000, 3_000_001)
"""Packets, staged bulk, and what is larger than a tile."""
REPLAYS = 20


def check(function: Any) -> Any:
    """Register a check under its name."""
    CHECKS[function.__name__] = function
    return function


def ask(name: str, *args: Any) -> Any:
    """Make a call of the driver."""
    from cuda.bindings import driver

    error, *found = getattr(driver, name)(*args)
    assert int(error) == 0, f"{name}: {error}"
    return found[0] if len(found) == 1 else found


class Calls:
    """Calls of a few sizes on one stream, their arrays, and what they are to give."""

    def __init__(self, r: Rank, deadline_s: float = 15.0) -> None:
        self.r, self.comm = r, r.open(deadline_s)
        self.stream = r.torch.cuda.Stream()
        self.arrays = [r.zeros(n, r.torch.float32) for n in COUNTS]
        for _ in range(2):
            self.make()
        r.together()

    def make(self) -> None:
        """Make them."""
        with self.r.torch.cuda.stream(self.stream):
            for x in self.arrays:
                self.comm.all_reduce(x)

    def fill(self, seed: int) -> float:
        """Give every rank its elements; return what each sum is to be."""
        for x in self.arrays:
            x.fill_(seed + self.r.rank + 1)
        self.r.together()
        return sum(seed + q + 1 for q in range(self.r.n))

    def expect(self, want: float, what: str) -> None:
        """Compare all of it."""
        self.r.torch.cuda.synchronize()
        self.comm.check()
        for x in self.arrays:
            wrong = int((x != want).sum())
            assert not wrong, f"{what}: {wrong} of {len(x)}, {x[0]} for {want}"


@contextlib.contextmanager
def captured(calls: Calls, graph: Any) -> Iterator[None]:
    """Capture the calls' stream into a graph that is there."""
    from cuda.bindings import driver

    stream = driver.CUstream(calls.stream.cuda_stream)
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    ask("cuStreamBeginCaptureToGraph", stream, graph, None, None, 0, mode)
    yield
    ask("cuStreamEndCapture", stream)


def replays(calls: Calls, graph: Any, times: int = 1, flags: int = 0) -> None:
    """Replay a graph on inputs that change; each call of it is made so many times."""
    from cuda.bindings import driver

    made = ask("cuGraphInstantiate", graph, flags)
    stream = driver.CUstream(calls.stream.cuda_stream)
    if flags:
        ask("cuGraphUpload", made, stream)
    for seed in range(REPLAYS):
        want = calls.fill(seed)
        ask("cuGraphLaunch", made, stream)
        for _ in range(times - 1):
            want *= calls.r.n
        calls.expect(want if times else seed + calls.r.rank + 1, f"replay {seed}")
        if seed % 3 == 0:
            want = calls.fill(seed)
            calls.make()
            calls.expect(want, f"by itself {seed}")
    ask("cuGraphExecDestroy", made)


def conditional(graph: Any, value: int, after: Any = None) -> Any:
    """Add a node whose body runs where its condition is true; return the body."""
    return conditioned(graph, value, after=after)[1][0]


def conditioned(
    graph: Any, value: int, kind: str = "IF", bodies: int = 1, after: Any = None
) -> tuple[Any, list[Any]]:
    """Add a node with bodies; return the handle of its condition, and these."""
    from cuda.bindings import driver

    context = ask("cuCtxGetCurrent")
    assign = 1  # CU_GRAPH_COND_ASSIGN_DEFAULT: in every launch anew
    handle = ask("cuGraphConditionalHandleCreate", graph, context, value, assign)
    said = driver.CUgraphNodeParams()
    said.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    said.conditional.handle = handle
    kinds = driver.CUgraphConditionalNodeType
    said.conditional.type = getattr(kinds, f"CU_GRAPH_COND_TYPE_{kind}")
    said.conditional.size = bodies
    said.conditional.ctx = context
    before = None if after is None else [after]
    ask("cuGraphAddNode", graph, before, None, 0 if after is None else 1, said)
    return handle, [said.conditional.phGraph_out[i] for i in range(bodies)]


@check
def bodies_that_run(r: Rank) -> Any:
    """In the body of an IF that is true: each replay makes the calls."""
    calls, graph = Calls(r), ask("cuGraphCreate", 0)
    with captured(calls, conditional(graph, 1)):
        calls.make()
    replays(calls, graph)
    return {"replays": REPLAYS}


@check
def bodies_that_do_not_run(r: Rank) -> Any:
    """In the body of an IF that is false on all ranks: nothing is done, nor awaited."""
    calls, graph = Calls(r), ask("cuGraphCreate", 0)
    with captured(calls, conditional(graph, 0)):
        calls.make()
    replays(calls, graph, times=0)
    return {"replays": REPLAYS}


@check
def bodies_of_a_switch(r: Rank) -> Any:
    """In two bodies of a SWITCH: the one that is meant makes its calls, once."""
    calls = Calls(r)
    for value, times in ((0, 1), (1, 2), (7, 0)):  # seven: there is none
        graph = ask("cuGraphCreate", 0)
        _, bodies = conditioned(graph, value, "SWITCH", 2)
        for many, body in enumerate(bodies, 1):
            with captured(calls, body):
                for _ in range(many):
                    calls.make()
        replays(calls, graph, times=times)
    return {"replays": 3 * REPLAYS}


@check
def bodies_of_a_loop(r: Rank) -> Any:
    """In the body of a WHILE: calls go on until what they sum is large enough.

    All ranks see the same sum, so they leave the loop in the same turn.
    """
    from cuda.bindings import driver

    cubin = os.environ.get("WHILE_CUBIN")
    if not cubin:
        return {"not run": "no WHILE_CUBIN; see while_node.cu"}
    calls, graph = Calls(r), ask("cuGraphCreate", 0)
    module = ask("cuModuleLoadData", Path(cubin).read_bytes())
    function = ask("cuModuleGetFunction", module, b"go_on")
    handle, (body,) = conditioned(graph, 1, "WHILE")
    limit, stream = 1000.0, driver.CUstream(calls.stream.cuda_stream)
    turns = r.zeros(1, r.torch.int32)
    with captured(calls, body):
        calls.make()
        values = (int(handle), calls.arrays[0].data_ptr(), limit, turns.data_ptr())
        kinds = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_float, ctypes.c_void_p)
        ask("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, (values, kinds), 0)
    made = ask("cuGraphInstantiate", graph, 0)
    counts = []
    for seed in range(REPLAYS):
        want, many = calls.fill(seed * seed), 1
        turns.zero_()
        r.together()
        ask("cuGraphLaunch", made, stream)
        while want < limit:
            want, many = want * r.n, many + 1
        calls.expect(want, f"replay {seed}, {many} turns")
        assert int(turns) == many, f"{int(turns)} turns for {many}"
        counts.append(many)
        if seed % 3 == 0:
            want = calls.fill(seed)
            calls.make()
            calls.expect(want, f"by itself {seed}")
    ask("cuGraphExecDestroy", made)
    return {"turns": counts}


@check
def bodies_between_calls(r: Rank) -> Any:
    """Calls, then a body that runs, in one graph, one after the other."""
    calls, graph = Calls(r), ask("cuGraphCreate", 0)
    child = ask("cuGraphCreate", 0)
    with captured(calls, child):
        calls.make()
    first = ask("cuGraphAddChildGraphNode", graph, None, 0, child)
    with captured(calls, conditional(graph, 1, after=first)):
        calls.make()
    replays(calls, graph, times=2)
    return {"replays": REPLAYS}


@check
def child_graphs(r: Rank) -> Any:
    """A graph of calls, twice within another one, one after the other."""
    calls, child = Calls(r), ask("cuGraphCreate", 0)
    with captured(calls, child):
        calls.make()
    graph = ask("cuGraphCreate", 0)
    first = ask("cuGraphAddChildGraphNode", graph, None, 0, child)
    ask("cuGraphAddChildGraphNode", graph, [first], 1, child)
    replays(calls, graph, times=2)
    return {"replays": REPLAYS}


@check
def for_launches_by_the_device(r: Rank) -> Any:
    """Instantiated so that kernels may launch it; launched by the host here."""
    from cuda.bindings import driver

    calls, graph = Calls(r), ask("cuGraphCreate", 0)
    with captured(calls, graph):
        calls.make()
    flag = driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
    try:
        replays(calls, graph, flags=int(flag))
    except AssertionError as e:
        return {"refused": str(e)}
    return {"replays": REPLAYS}


@check
def several_streams_in_one_capture(r: Rank) -> Any:
    """Four branches, calls on each, joined: they follow one another, or run beside."""
    torch, comm = r.torch, r.open()
    streams = [torch.cuda.Stream() for _ in range(4)]
    arrays = [r.zeros(n, torch.float32) for n in (16, 5000, 70_000, 1_000_000)]
    for stream, x in zip(streams, arrays, strict=True):
        with torch.cuda.stream(stream):
            comm.all_reduce(x)
            comm.all_reduce(x)
    r.together()
    graph, main = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=main):
        for stream, x in zip(streams, arrays, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                comm.all_reduce(x)
                comm.all_reduce(x, "max")
        for stream in streams:
            main.wait_stream(stream)
    for seed in range(REPLAYS):
        for x in arrays:
            x.fill_(seed + r.rank + 1)
        r.together()
        graph.replay()
        torch.cuda.synchronize()
        comm.check()
        want = sum(seed + q + 1 for q in range(r.n))
        for x in arrays:
            assert bool((x == want).all()), (seed, len(x), float(x[0]), want)
    return {"replays": REPLAYS}


@check
def z_a_graph_outlives_its_communicator(r: Rank) -> Any:
    """Replayed after it was closed: CUDA's error, never a hang. It is the last check.

    The GPU is of no use to this process then: who closes destroys graphs before.
    """
    calls = Calls(r, deadline_s=SHORT_S)
    graph = r.torch.cuda.CUDAGraph()
    with r.torch.cuda.graph(graph, stream=calls.stream):
        calls.make()
    calls.fill(1)
    graph.replay()
    calls.expect(sum(q + 2 for q in range(r.n)), "while it was open")
    calls.comm.close()
    r.comm = None
    begun, said = time.monotonic(), ""
    try:
        graph.replay()
        r.torch.cuda.synchronize()
    except (RuntimeError, StrettoError) as e:
        said = f"{type(e).__name__}: {str(e).splitlines()[0]}"
    took = round(time.monotonic() - begun, 2)
    alive = True
    try:
        alive = r.torch.ones(1000, device="cuda").sum().item() == 1000
    except RuntimeError as e:
        alive = str(e).splitlines()[0]
    assert said, "nothing was said"
    assert took < 3 * SHORT_S, f"it took {took} s"
    return {"said": said, "seconds": took, "device": alive}


def work(world: Any, names: list[str], share: bool, out: str) -> Any:
    """Run the checks on one rank."""
    return checked(world, CHECKS, names, share, Path(out) / "graph_forms")


def main() -> int:
    """Spawn the ranks and report."""
    return report(work, CHECKS, words(__doc__).parse_args(), deadline_s=60.0)


if __name__ == "__main__":
    sys.exit(main())
