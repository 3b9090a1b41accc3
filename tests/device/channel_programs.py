"""Checks of whole kernels of one's own: fused, in Triton, registered, timed."""

from __future__ import annotations

from typing import Any

from channel_rank import Rank, check, example


@check
def matmul(r: Rank) -> Any:
    """A product whose tiles are all-reduced as they finish."""
    module, comm, torch = example("gpu/matmul_all_reduce"), r.open(), r.torch
    m, n, k = (128, 128, 256) if r.share else (512, 1024, 1024)
    made = torch.Generator("cuda").manual_seed(r.rank)
    a = torch.randn(m, k, device="cuda", generator=made)
    b = torch.randn(k, n, device="cuda", generator=made)
    c = torch.zeros(m, n, device="cuda")
    fused = module.MatmulAllReduce(comm, m, n)
    want = (a.double() @ b.double()).float()
    torch.cuda.synchronize()
    comm.all_reduce(want)
    r.together()
    for _ in range(3):
        fused(a, b, c)
    r.together()
    comm.check()
    worst = float((c - want).abs().max())
    assert worst < 1e-2, worst
    everybody = comm.all_gather(c)
    torch.cuda.synchronize()
    assert bool((everybody == c).all()), "ranks differ in their last bits"
    return {"worst": worst}


@check
def triton_all_reduce(r: Rank) -> Any:
    """The hand-written all_reduce in Triton: fresh data, a graph, all ranks alike."""
    module, comm, torch = example("gpu/triton_all_reduce"), r.open(), r.torch
    count = 5001
    x, out = (torch.zeros(count, device="cuda") for _ in range(2))
    made = module.make(comm, count)
    data = [
        torch.randn(count, device="cuda", generator=_seeded(torch, q))
        for q in range(r.n)
    ]
    want = torch.zeros(count, device="cuda")
    for part in data:
        want += part
    x.copy_(data[r.rank])
    r.together()
    for _ in range(3):
        out.fill_(-1)
        module.run(made, x, out)
        r.together()
        comm.check()
        assert torch.equal(out, want), f"{out[:4]}, want {want[:4]}"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.run(made, x, out)
    r.together()
    for _ in range(5):
        out.fill_(-1)
        graph.replay()
        r.together()
        assert torch.equal(out, want), f"replayed: {out[:4]}, want {want[:4]}"
    comm.check()
    return {"count": count}


def _seeded(torch: Any, seed: int) -> Any:
    return torch.Generator("cuda").manual_seed(seed)


@check
def triton_signals(r: Rank) -> Any:
    """Signals in Triton on even ranks, in CUDA C++ on odd ones: one protocol."""
    comm, torch = r.open(), r.torch
    made = comm.channels(2 * 64 * 8)
    out, rounds = r.zeros(64), 6 if r.share else 100
    text = example("gpu/ping_pong").SOURCE
    cuda = made.kernel(text, "ping_pong", threads=64)
    wrong = r.zeros(2)
    if r.rank == 0:
        triton_ping(made.pointer, out, 0, compile_only=True)
    r.together()
    if r.rank == 0:
        triton_ping(made.pointer, out, rounds)
    elif r.rank == 1:
        cuda(made.pointer, rounds, 64 * 8, wrong)
    r.together()
    comm.check()
    assert wrong.tolist() == [0, 0], wrong.tolist()
    last = 1000 * (rounds - 1) + torch.arange(64, device="cuda")
    assert r.rank != 0 or torch.equal(out, last), f"{out[:4]}, want {last[:4]}"
    return {"rounds": rounds}


def triton_ping(table: int, out: Any, rounds: int, compile_only: bool = False) -> None:
    """Play rank 0 of the ping-pong; `compile_only`: no rounds."""
    from triton_kernels import ping

    ping[(1,)](table, out, 0 if compile_only else rounds, num_warps=2)


@check
def registered(r: Rank) -> Any:
    """A registered kernel gives its program's bits, in graphs and mixed with others."""
    example("write_a_kernel")
    comm, torch = r.open(), r.torch
    found = 0
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        for count in (1, 1003, 20_000):
            for op in ("sum", "max"):
                x = torch.randint(-99, 99, (count,), device="cuda").to(dtype) / 4
                x = x.to(dtype) + r.rank
                mine, theirs = x.clone(), x.clone()
                comm.all_reduce(mine, op=op, algorithm="all_reduce/one_hop")
                comm.all_reduce(theirs, op=op, algorithm="all_reduce/one_shot")
                r.together()
                comm.check()
                assert torch.equal(mine, theirs), f"{dtype} {count} {op}"
                found += 1
    x = torch.ones(1000, device="cuda")
    out = torch.zeros_like(x)
    graph = torch.cuda.CUDAGraph()
    comm.all_reduce(x, out=out, algorithm="all_reduce/one_hop")
    comm.all_gather(x)
    r.together()
    with torch.cuda.graph(graph):
        for _ in range(3):
            comm.all_reduce(x, out=out, algorithm="all_reduce/one_hop")
            comm.all_gather(x)
    r.together()
    for turn in range(5):
        x.fill_(turn + 1)
        graph.replay()
        comm.all_reduce(x.clone())
        r.together()
        comm.check()
        assert bool((out == r.n * (turn + 1)).all()), f"replay {turn}: {out[:4]}"
    return {"cases": found}


@check
def registered_times(r: Rank) -> Any:
    """Microseconds of a call in graphs: the registered kernel, and what is chosen."""
    if r.share:
        return "kernels take turns on one GPU: no time means anything"
    example("write_a_kernel")
    comm, torch = r.open(), r.torch
    answer = {}
    for nbytes in (1 << 10, 1 << 14, 1 << 16):
        x = torch.zeros(nbytes // 2, device="cuda", dtype=torch.bfloat16)
        for name in ("all_reduce/one_hop", None):
            answer[f"{nbytes} {name or 'default'}"] = _graph_us(r, comm, x, name)
    return answer


def _graph_us(r: Rank, comm: Any, x: Any, name: str | None) -> float:
    torch, calls = r.torch, 100
    for _ in range(3):
        comm.all_reduce(x, algorithm=name)
    r.together()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            comm.all_reduce(x, algorithm=name)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    samples = []
    for _ in range(7):
        r.together()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3 / calls)
    return round(sorted(samples)[3], 2)
