"""Checks of torch_ops.py that only a GPU can fail: graphs, streams, the host's time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tests.device.torch_times import host_times
from tests.host.torch_ops.checks import check, seeded
from tests.host.torch_ops.fusions import (
    CLOSE,
    HIDDEN,
    LlamaRMSNorm,
    Model,
    Row,
    by_ours,
    gloo,
)

import stretto.torch as st
from stretto.torch.operators import matmuls, norms, overlapping
from stretto.torch.serving import sglang, vllm

REPLAYS, STREAMS, CALLS = 30, 50, 400
EPS = 1e-6


def steps(b: Any) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return calls, and what they read; each returns all that it makes."""
    g, rows, hidden = st.named(b.comm), 4 * b.n, 256
    x = b.draw(rows, hidden, dtype=torch.bfloat16)[b.rank]
    residual, weight = b.randn(rows, hidden).bfloat16(), b.randn(hidden).bfloat16()
    large = b.draw(512 * b.n, 1024, dtype=torch.bfloat16)[b.rank]
    w = b.randn(1024, 512).bfloat16()
    norm = (x, residual, weight)

    def in_place(x: Any, residual: Any, weight: Any) -> Any:
        y, total = x.clone(), residual.clone()
        return st.all_reduce_rmsnorm_(y, total, weight, EPS, g), total

    def fp8(*given: Any) -> Any:
        out, scale, total = st.all_reduce_rmsnorm_fp8(*given, EPS, g)
        return out.float() * scale, total

    return {
        "all_reduce": (lambda x: st.all_reduce(x, "sum", g), (x,)),
        "large all_reduce": (lambda x: st.all_reduce(x, "sum", g), (large,)),
        "all_gather": (lambda x: st.all_gather(x, g), (x,)),
        "reduce_scatter": (lambda x: st.reduce_scatter(x, "sum", g), (x,)),
        "all_to_all": (lambda x: st.all_to_all(x, g), (x,)),
        "all_to_all axes": (lambda x: st.all_to_all(x, g, split=1), (x,)),
        "broadcast": (lambda x: st.broadcast(x, 1, g), (x,)),
        "permute": (lambda x: st.permute(x, [(0, 1), (1, 0)], g), (x,)),
        "norm": (lambda *a: st.all_reduce_rmsnorm(*a, EPS, g), norm),
        "norm in place": (in_place, norm),
        "norm of 8 bits": (fp8, norm),
        "gather, matmul": (lambda x: st.all_gather_matmul(x, w, g), (large,)),
        "matmul, scatter": (lambda x: st.matmul_reduce_scatter(x, w, g), (large,)),
    }


def flat(made: Any) -> list[Any]:
    """Return what a call made as a list."""
    return list(made) if isinstance(made, tuple) else [made]


@check
def replayed_graphs(b: Any) -> None:
    """A graph of every call gives what the call gives, on inputs that change."""
    if b.device.type == "cpu":
        return
    for what, (call, given) in steps(b).items():
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(2):
                call(*given)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                made = flat(call(*given))
            wrong = torch.zeros((), device="cuda")
            for turn in range(REPLAYS):
                given[0].mul_(-1 if turn % 2 else -0.5)
                want = flat(call(*given))
                graph.replay()
                for one, other in zip(made, want, strict=True):
                    wrong += (one != other).any()
                if turn % 8 == 7:
                    given[0].normal_(generator=_seeded(b, turn))
        torch.cuda.synchronize()
        b.true(f"{what}: {int(wrong)} of {REPLAYS} replays differ", int(wrong) == 0)


def _seeded(b: Any, turn: int) -> Any:
    return torch.Generator("cuda").manual_seed(100 * turn + b.rank)


@check
def matmuls_at_once(b: Any) -> None:
    """What is moved in parts gives what is moved as a whole."""
    if b.device.type == "cpu":
        return
    made = steps(b)
    limit, how = matmuls.OVERLAP_FROM, overlapping.HOW
    with torch.no_grad():
        for what in ("gather, matmul", "matmul, scatter"):
            call, given = made[what]
            for overlapping.HOW in ("whole", "ring"):
                matmuls.OVERLAP_FROM = 0
                got, want = [], []
                for turn in range(20):
                    given[0].normal_(generator=_seeded(b, turn))
                    got.append(call(*given))
                matmuls.OVERLAP_FROM = 1 << 60
                for turn in range(20):
                    given[0].normal_(generator=_seeded(b, turn))
                    want.append(call(*given))
                for one, other in zip(got, want, strict=True):
                    b.same(f"{what}, {overlapping.HOW}", one, other, 0.05)
    matmuls.OVERLAP_FROM, overlapping.HOW = limit, how


@check
def large_norms(b: Any) -> None:
    """A norm beyond what is one kernel is close to the one that is."""
    if b.device.type == "cpu":
        return
    limit = norms.FUSED_UP_TO
    x = b.draw(512, 4096, dtype=torch.bfloat16)[b.rank]
    residual, weight = b.randn(512, 4096).bfloat16(), b.randn(4096).bfloat16()
    made: list[Any] = []
    for norms.FUSED_UP_TO in (0, 1 << 40):
        made += [
            st.all_reduce_rmsnorm(x, left, weight, EPS, b.comm)
            for left in (residual, None)
        ]
    norms.FUSED_UP_TO = limit
    for got, want in zip(made[:2], made[2:], strict=True):
        b.same("norm", got[0], want[0], 0.05)
        b.same("sum", got[1], want[1], 0.02)


@check
def fifty_streams(b: Any) -> None:
    """Fifty streams in one order of calls, of any kind, wait for nobody's settings."""
    if b.device.type == "cpu":
        return
    made, drawn = steps(b), random.Random(5)
    names = [n for n in made if "matmul" not in n]
    with torch.no_grad():
        want = {n: flat(made[n][0](*made[n][1])) for n in names}
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in range(STREAMS)]
        due = []
        for _ in range(CALLS):
            name = drawn.choice(names)
            with torch.cuda.stream(drawn.choice(streams)):
                due.append((name, flat(made[name][0](*made[name][1]))))
        torch.cuda.synchronize()
    wrong = [name for name, got in due if not all(map(torch.equal, got, want[name]))]
    b.true(f"{len(wrong)} of {CALLS} calls differ: {wrong[:5]}", not wrong)


@check
def fused_models_in_graphs(b: Any) -> None:
    """A fused model is captured; its replay is the model, on inputs that change."""
    if b.device.type == "cpu":
        return
    gloo(b)
    group = dist.new_group(backend="stretto")

    def reduce(x: Any) -> Any:
        dist.all_reduce(x, group=group)
        return x

    kind = torch.bfloat16
    plain = Model(b.rank, kind, LlamaRMSNorm, reduce).eval()
    fused = st.fuse(Model(b.rank, kind, LlamaRMSNorm, reduce).eval(), group)
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        x = b.randn(16, 64).to(kind)
        for _ in range(2):
            plain(x), fused(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            both = plain(x), fused(x)
        for turn in range(10):
            x.normal_(generator=torch.Generator("cuda").manual_seed(turn))
            graph.replay()
            torch.cuda.synchronize()
            b.same("plain", both[0], plain(x), 1e-6)
            b.same("fused", both[1], fused(x), 1e-6)
            b.same("both", both[0], both[1], 0.06)
    b.true(str(fused.fusion), fused.fusion.calls >= 4 * 13)
    dist.destroy_process_group(group)


class Plain(torch.nn.Module):
    """Layers that sum nothing over ranks beside one that does."""

    def __init__(self, rank: int, kind: Any) -> None:
        super().__init__()
        nn, h = torch.nn, HIDDEN
        self.up, self.norm = nn.Linear(h, 2 * h, dtype=kind), nn.LayerNorm(h)
        self.norm.to(kind)
        self.down, self.rms = (
            nn.Linear(2 * h, h, dtype=kind),
            nn.RMSNorm(h, eps=1e-5, dtype=kind),
        )
        self.row = Row(rank, kind, by_ours)
        for at, p in enumerate(self.parameters()):
            if p is not self.row.weight:  # that one is this rank's own
                p.data.copy_(seeded(at, *p.shape) / HIDDEN**0.5)

    def forward(self, x: Any) -> Any:
        y = self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        total = self.row(self.rms(x + y))
        return y, self.rms(x + y), total * 1, self.norm(total + y)


@check
def plain_layers_bit_for_bit(b: Any) -> None:
    """What is left alone is what it was, beside a layer that holds back its sum.

    Two compilations may choose other matmuls, so there numbers are close.
    """
    gloo(b)
    for kind in (torch.float32, torch.bfloat16):
        plain, other = (Plain(b.rank, kind).eval() for _ in "12")
        fused, compiled = st.fuse(other, b.comm), None
        if b.device.type == "cuda":
            torch._dynamo.reset()
            compiled = st.fuse(plain, compile=True, dynamic=False)
        with torch.no_grad():
            for rows in (1, 7, 64):
                x = b.randn(rows, HIDDEN).to(kind)
                want = plain(x.clone())
                for nth, (one, due) in enumerate(
                    zip(fused(x.clone()), want, strict=True)
                ):
                    same = torch.equal(one * 1, due)
                    b.true(f"{kind}, {rows} rows: result {nth} differs", same)
                for one, due in zip(
                    compiled(x) if compiled is not None else (), want, strict=False
                ):
                    b.same(f"{kind}, {rows} rows, compiled", one, due, CLOSE[kind])
        b.true(f"{kind}: {fused.fusion}", fused.fusion.layers == 1)


@check
def engines_in_graphs(b: Any) -> None:
    """Engines' all_reduces are captured as the engines do it."""
    if b.device.type == "cpu":
        return
    gloo(b)
    group = dist.new_group(backend="gloo")
    device = torch.device("cuda", torch.cuda.current_device())
    xs = b.draw(8, 64, dtype=torch.bfloat16)
    total = torch.stack(xs).float().sum(0).bfloat16()
    for make in (vllm.CustomAllreduce, sglang.CustomAllReduceV2):
        custom, x = make(group, device), xs[b.rank].clone()
        with custom.capture():
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                custom.custom_all_reduce(x)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                out = custom.custom_all_reduce(x)
        for scale in (1.0, -2.0):
            x.copy_(xs[b.rank]).mul_(scale)
            graph.replay()
            torch.cuda.synchronize()
            b.same(make.__name__, out, total * scale, 0.03)
        custom.close()


@check
def compiled_with_graphs(b: Any) -> None:
    """Inductor's own CUDA graphs hold fused operators; nothing is left to be fused."""
    if b.device.type == "cpu":
        return
    try:
        import triton  # noqa: F401
    except ImportError:
        b.said = {"skipped": "no Triton"}
        return
    gloo(b)
    model = Model(b.rank, torch.bfloat16, LlamaRMSNorm, by_ours).eval()
    torch._dynamo.reset()
    fused = st.fuse(model, compile=True, options={"triton.cudagraphs": True})
    with torch.no_grad():
        for turn in range(5):
            x = b.randn(16, 64).bfloat16()
            torch.compiler.cudagraph_mark_step_begin()
            b.same(f"turn {turn}", fused(x).clone(), model(x), 0.06)
    b.true(str(fused.fusion), fused.fusion.fused == 4)


@check
def host_time(b: Any) -> None:
    """Says what a call costs the host: enqueued, not waited for."""
    if b.device.type == "cpu":
        return
    gloo(b)
    group = dist.new_group(backend="stretto")
    b.said = {"us": host_times(group)}
    dist.destroy_process_group(group)
