"""Started calls on GPUs: behind what made their arrays, and in graphs."""

from __future__ import annotations

from stage import Stage, stage

from stretto.errors import CallError

SLOW = 20_000_000
"""GPU cycles that a producer takes: a call that does not wait for it is seen."""


@stage
def started(s: Stage) -> None:
    """On a stream of the caller's whose work is not done when the call is started."""
    if s.device == "cpu":
        return
    torch, n = s.torch, s.n
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    x, seen = s.full(70001, 0), s.full(70001, 0)
    torch.cuda.synchronize()
    for turn in range(3):
        with torch.cuda.stream(side):
            x.zero_()
            torch.cuda._sleep(SLOW)
            x.fill_(s.rank + turn)
            work = s.comm.all_reduce_async(x)
        with torch.cuda.stream(other):
            work.wait()
            seen.copy_(x)
        work.wait(20)
        s.expect(work.is_done, "is_done after wait(20)")
        other.synchronize()
        want = sum(range(n)) + n * turn
        s.expect(bool((seen == want).all()), f"{turn=}: {seen[:2]}, want {want}")
    s.sync()


@stage
def started_transfers(s: Stage) -> None:
    """Everybody sends first, then receives: nobody waits for the other's receive."""
    n, me = s.n, s.rank
    x, got = s.full(4099, me + 1), s.full(4099, 0)
    for _ in range(3):
        works = [s.comm.send_async(x, to=(me + 1) % n)]
        works.append(s.comm.recv_async(got, source=(me - 1) % n))
        for work in works:
            work.wait(20)
        s.sync()
        s.expect(bool((got == (me - 1) % n + 1).all()), f"received {got[:2]}")
        got.fill_(0)
        s.sync()


@stage
def started_in_graphs(s: Stage) -> None:
    """A captured start is replayed; the host cannot wait for it."""
    if s.device == "cpu":
        return
    torch = s.torch
    x, seen = s.full(4096, 1), s.full(4096, 0)
    s.comm.all_reduce(x)
    s.sync()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work = s.comm.all_reduce_async(x)
        work.wait()
        seen.copy_(x)
        s.expect(not work.is_done, "a captured call is done")
        try:
            work.wait(1)
            s.expect(False, "the host waited for a captured call")
        except CallError as e:
            s.expect("captured" in str(e), str(e))
    for turn in range(3):
        x.fill_(turn)
        s.sync()
        s.comm.barrier()
        graph.replay()
        s.sync()
        s.expect(bool((seen == turn * s.n).all()), f"{turn=}: {seen[:2]}")
