"""Memory given back and taken again, between calls, graphs and kernels that know it."""

from __future__ import annotations

import time
from typing import Any

from stage import Stage, stage

from stretto.errors import CallError

COUNTS = (3, 5001, 1 << 20)
TURNS = 3
MB = 1 << 20


class Graph:
    """A captured graph of a sum that is staged, and of one on registered memory."""

    def __init__(self, s: Stage) -> None:
        self.x = s.full(70_001, 1.0)
        made = s.comm.empty((1 << 20,), "float32", device=s.device)
        self.shared = s.torch.from_dlpack(made)
        self.shared.fill_(1.0)
        self.graph: Any = None
        self._run(s)
        s.sync()
        if s.device == "cpu":
            return
        self.graph = s.torch.cuda.CUDAGraph()
        with s.torch.cuda.graph(self.graph):
            self._run(s)

    def _run(self, s: Stage) -> None:
        s.comm.all_reduce(self.x)
        s.comm.all_reduce(self.shared)

    def is_right(self, s: Stage, turn: int) -> bool:
        """Replay it on new values, and compare."""
        self.x.fill_(turn + s.rank)
        self.shared.fill_(2 * turn + s.rank)
        if self.graph is None:
            self._run(s)
        else:
            self.graph.replay()
        s.sync()
        total = s.n * (s.n - 1) // 2
        return bool(
            (self.x == s.n * turn + total).all()
            and (self.shared == 2 * s.n * turn + total).all()
        )


def _calls_are_right(s: Stage, turn: int) -> bool:
    """Make calls of known kinds and of a new one, a message, and a quantised sum."""
    right, total = True, s.n * (s.n - 1) / 2
    for count in (*COUNTS, 40_000 + turn):
        x = s.full(count, float(s.rank + turn))
        right &= bool((s.comm.all_reduce(x.clone()) == s.n * turn + total).all())
        every = s.comm.all_gather(x).reshape(s.n, count)
        due = s.torch.arange(s.n, device=s.device) + turn
        right &= bool((every == due[:, None]).all())
    x = s.full(4096, float(turn), "bfloat16")
    right &= bool((s.comm.all_reduce(x, wire="int8_128") == s.n * turn).all())
    if s.rank == 0:
        s.comm.send(s.full(9000, turn + 0.5), 1)
    elif s.rank == 1:
        right &= bool((s.comm.recv(s.full(9000, -1.0), 0) == turn + 0.5).all())
    s.sync()
    return right


def _spoil(s: Stage, nbytes: int) -> None:
    """Use that much of what is free, so that it holds something else."""
    if s.device != "cpu":
        s.torch.full((nbytes,), 0xA5, dtype=s.torch.uint8, device=s.device)
        s.torch.cuda.synchronize()
        s.torch.cuda.empty_cache()


def _free(s: Stage) -> int:
    s.torch.cuda.empty_cache()
    return int(s.torch.cuda.mem_get_info()[0])


@stage
def suspended(s: Stage) -> None:
    """Calls, graphs and arrays are right after it; the GPU had the memory meanwhile."""
    held = s.torch.from_dlpack(s.comm.empty((1000,), "int32", device=s.device))
    held.fill_(s.rank)
    graph = Graph(s)
    s.expect(_calls_are_right(s, 0), "calls before it")
    kind = "cpu" if s.device == "cpu" else "cuda"
    for turn in range(1, TURNS + 1):
        s.expect(graph.is_right(s, turn), f"graph, turn {turn}")
        s.comm.barrier()
        free = _free(s) if kind == "cuda" else 0
        before, began = s.comm.memory()[kind], time.monotonic()
        s.comm.suspend()
        slept = time.monotonic()
        after = s.comm.memory()[kind]
        if kind == "cuda":
            given = before["staging"] + before["registered"]
            gained = _free(s) - free
            s.expect(gained >= given, f"{gained} bytes free, of {given}")
            s.expect("staging" not in after, f"{after}")
            _spoil(s, given)
            s.said["given_mb"], s.said["kept_mb"] = given // MB, after["control"] // MB
        woken = time.monotonic()
        s.comm.resume()
        s.said["suspend_ms"] = round(1e3 * (slept - began), 1)
        s.said["resume_ms"] = round(1e3 * (time.monotonic() - woken), 1)
        s.expect(bool((held == s.rank).all()), "registered memory")
        s.expect(graph.is_right(s, turn + 5), f"graph after turn {turn}")
        s.expect(_calls_are_right(s, turn), f"calls after turn {turn}")
    if kind == "cuda":
        _no_memory(s, held)


def _no_memory(s: Stage, held: Any) -> None:
    """Rank 0 has something else in the memory; all hear of it, and try again."""
    s.comm.suspend()
    taken = []
    if s.rank == 0:
        for nbytes in (1 << 30, 64 * MB, 16 * MB):
            while _free(s) > nbytes + 32 * MB:
                at = s.torch.empty(nbytes, dtype=s.torch.uint8, device="cuda")
                taken.append(at)
    said = ""
    try:
        s.comm.resume()
    except CallError as e:
        said = str(e)
    s.expect("resume: rank 0: " in said, f"no memory: {said!r}")
    taken.clear()
    s.torch.cuda.empty_cache()
    s.comm.resume()
    s.expect(bool((held == s.rank).all()), "registered memory, tried twice")
    s.expect(_calls_are_right(s, 9), "calls after no memory")
