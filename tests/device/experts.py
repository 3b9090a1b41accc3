"""Experts on GPUs: dispatch and combine, bit for bit as on CPUs, eager and in graphs.

    python tests/device/experts.py --ranks 2 --out DIR [--share] [--only WORDS]
        [--replays N]

`--share` puts all ranks on one GPU, where kernels take turns: slow, and enough to test
what is said. What CPUs give is compared with the definition elsewhere.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "src"), str(HERE)]
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"

from channel_rank import (  # noqa: E402
    SHORT_S,
    Rank,
    checked,
    raised,
    report,
    words,
)

from stretto.errors import CallError, CommunicationError  # noqa: E402

CHECKS: dict[str, Any] = {}
REPLAYS = {"many": 200}
KINDS = (
    {"layout": "expert", "align": 16, "quantise": "fp8_128"},
    {"layout": "expert", "order": "k"},
    {"layout": "expert", "dtype": "float32", "placement": "odd"},
    {"layout": "token", "dtype": "float16", "quantise": "fp8_128_pow2"},
    {"layout": "token"},
    {"layout": "rank", "quantise": "fp8_128"},
    {"layout": "rank", "dtype": "float32"},
    {"layout": "expert", "align": 16, "quantise": "fp8_128", "max_tokens": 200},
    {"layout": "expert", "order": "k", "max_tokens": 200},
    {"layout": "rank", "quantise": "fp8_128", "max_tokens": 200},
    {"layout": "rank", "dtype": "float32", "max_tokens": 200},
)
"""With more tokens than go as packets, too."""


def check(function: Any) -> Any:
    """Register a check under its name."""
    CHECKS[function.__name__] = function
    return function


def opened(r: Rank, kind: dict[str, Any], most: int = 40) -> tuple[Any, Any]:
    """Return experts on GPUs and the same on CPUs."""
    how = {"dtype": "bfloat16", "hidden": 512, "num_experts": 16, "top_k": 4,
           "max_tokens": most, **kind}  # fmt: skip
    if how.get("placement") == "odd":
        how["placement"] = [(e * e + 1) % r.n for e in range(16)]
    gpu = r.comm.experts(**how, device="cuda", blocks=32)  # ranks may share a GPU
    return gpu, r.comm.experts(**how)


def inputs(r: Rank, ep: Any, seed: int, tokens: int) -> tuple[Any, Any, Any]:
    """Return this rank's tokens, ids and weights, on the CPU."""
    g, torch = ep.geometry, r.torch
    made = torch.Generator().manual_seed(100 * seed + r.rank)
    x = torch.randn((tokens, g.hidden), generator=made) * 3
    ids = torch.randint(-1, g.num_experts, (tokens, g.top_k), generator=made)
    if seed % 5 == 4:
        ids[:] = seed % g.num_experts
    weights = torch.rand((tokens, g.top_k), generator=made)
    return x.to(getattr(torch, g.dtype)), ids, weights


def same(r: Rank, got: Any, want: Any, what: str) -> None:
    """Compare bits."""
    a, b = (t.cpu().reshape(-1).clone().view(r.torch.uint8) for t in (got, want))
    assert got.shape == want.shape, f"{what}: {got.shape}, want {want.shape}"
    assert r.torch.equal(a, b), f"{what}: {int((a != b).sum())} bytes differ"


def compare(r: Rank, ep: Any, sent: Any, want: Any, what: str) -> None:
    """Compare what a dispatch brought with what it brings on CPUs."""
    g = ep.geometry
    assert sent.counts_host() == want.counts_host(), f"{what}: counts"
    same(r, sent.sources, want.sources, f"{what}: sources")
    pairs = [("rows", sent.rows, want.rows)]
    if g.quantise:
        pairs.append(("scales", sent.scales, want.scales))
    for name, got, due in pairs:
        if g.layout == "rank":
            for q, count in enumerate(want.sources.tolist()):
                same(r, got[q, :count], due[q, :count], f"{what}: {name} of {q}")
        else:
            same(r, got[: len(due)], due, f"{what}: {name}")
    lines = list(range(len(want.ids)))
    if g.layout == "rank":
        counts = want.sources.tolist()
        lines = [q * g.max_tokens + i for q, c in enumerate(counts) for i in range(c)]
    same(r, sent.ids[lines], want.ids, f"{what}: ids")
    same(r, sent.weights[lines], want.weights, f"{what}: weights")


def rows_for(r: Rank, sent: Any, want: Any, seed: int, dtype: Any) -> tuple[Any, Any]:
    """Return rows to combine: on the GPU with more room, and on the CPU."""
    made = r.torch.Generator().manual_seed(7 + seed * 31 + r.rank)
    there = r.torch.randn(tuple(sent.rows.shape), generator=made).to(dtype)
    here = there if want.rows.dim() == 3 else there[: len(want.rows)]
    return there.cuda(), here.contiguous()


@check
def eager(r: Rank) -> Any:
    """All layouts, orders and types; ranks with different numbers of tokens."""
    r.open()
    for kind in KINDS:
        ep, cpu = opened(r, kind)
        for seed, tokens in enumerate((40, 0, 17, 1, 33)):
            mine = (tokens + 13 * r.rank) % 41
            x, ids, weights = inputs(r, ep, seed, mine)
            sent = ep.dispatch(x.cuda(), ids.cuda(), weights.cuda())
            want = cpu.dispatch(x, ids, weights)
            what = f"{kind} {seed}"
            compare(r, ep, sent, want, what)
            rows, here = rows_for(r, sent, want, seed, x.dtype)
            out = ep.combine(rows, sent)
            same(r, out, cpu.combine(here, want), f"{what}: combined")
    r.comm.check()
    return {"kinds": len(KINDS)}


def captured(r: Rank, ep: Any, tokens: int, *, combines: bool) -> Any:
    """Return a graph, its inputs and outputs."""
    torch = r.torch
    x, ids, weights = (one.cuda() for one in inputs(r, ep, 0, tokens))
    ep.combine(torch.zeros_like(ep.dispatch(x, ids, weights).rows),
               ep.dispatch(x, ids, weights))  # fmt: skip
    r.together()
    graph, out = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph):
        sent = ep.dispatch(x, ids, weights)
        if combines:
            out = ep.combine(sent.rows * 2, sent)
    return graph, (x, ids, weights), sent, out


def replayed(r: Rank, kind: dict[str, Any], *, combines: bool) -> int:
    """Replay graphs of two sizes in turn, with other ids each time; return how many."""
    ep, cpu = opened(r, {**kind, "quantise": None})
    graphs = [captured(r, ep, t, combines=combines) for t in (24, 8 + r.rank)]
    wants = []
    for at in range(10):
        x, ids, weights = inputs(r, ep, at, len(graphs[at % 2][1][0]))
        sent = cpu.dispatch(x, ids, weights)
        out = cpu.combine(sent.rows * 2, sent)
        wants.append((x.cuda(), ids.cuda(), weights.cuda(), sent, out.cuda()))
    wrong = r.torch.zeros(1, dtype=r.torch.int64, device="cuda")
    for turn in range(REPLAYS["many"]):
        at = (turn * 7) % 10
        graph, given, sent, out = graphs[at % 2]
        for target, source in zip(given, wants[at][:3], strict=True):
            target.copy_(source)
        graph.replay()
        if combines:
            wrong += (out != wants[at][4]).any()
        if turn % 50 == 0 or not combines:
            r.torch.cuda.synchronize()
            r.comm.check()
            compare(r, ep, sent, wants[at][3], f"{kind} replay {turn}")
    assert not int(wrong), f"{kind}: {int(wrong)} replays are wrong"
    r.comm.check()
    return REPLAYS["many"]


@check
def graphs(r: Rank) -> Any:
    """Whole layers, replayed with other ids."""
    r.open()
    kinds = (KINDS[i] for i in (1, 2, 4, 6, 8, 10))
    return sum(replayed(r, kind, combines=True) for kind in kinds)


@check
def graphs_of_dispatches(r: Rank) -> Any:
    """Dispatches alone: rows by rank lie in the same memory at each replay."""
    r.open()
    before, REPLAYS["many"] = REPLAYS["many"], min(60, REPLAYS["many"])
    try:
        return sum(replayed(r, KINDS[i], combines=False) for i in (2, 6, 10))
    finally:
        REPLAYS["many"] = before


@check
def started(r: Rank) -> Any:
    """On a stream of their own, with other work between."""
    r.open()
    ep, cpu = opened(r, {"layout": "expert"})
    x, ids, weights = inputs(r, ep, 3, 20)
    want = cpu.dispatch(x, ids, weights)
    due = cpu.combine(want.rows, want)
    for _ in range(10):
        under_way = ep.start_dispatch(x.cuda(), ids.cuda(), weights.cuda())
        beside = r.torch.ones(1 << 20, device="cuda").sum()
        sent = under_way.wait()
        compare(r, ep, sent, want, "started")
        back = ep.start_combine(sent.rows, sent)
        beside += r.torch.ones(1 << 20, device="cuda").sum()
        same(r, back.wait(), due, "started combine")
        assert 2 << 20 == int(beside)
    return {"calls": 10}


def refused(r: Rank, spoil: Any) -> str:
    """Return what is raised where rank 1 passes something else."""
    r.open(deadline_s=SHORT_S)
    ep, _ = opened(r, {"layout": "expert"})
    x, ids, weights = (one.cuda() for one in inputs(r, ep, 0, 20))
    r.together()
    if r.rank == 1:
        x, ids, weights = spoil(x, ids, weights)
    began = time.monotonic()
    try:
        if x is not None:
            ep.dispatch(x, ids, weights)
        r.torch.cuda.synchronize()
        while time.monotonic() - began < 3 * SHORT_S + 2:
            r.comm.check()
            time.sleep(0.02)
    except (CallError, CommunicationError) as e:
        assert r.torch.ones(9, device="cuda").sum().item() == 9, "the device is gone"
        return f"{type(e).__name__}: {e}"
    raise AssertionError("nothing was raised")


@check
def a_bad_id(r: Rank) -> Any:
    """One that is no expert, on the device."""

    def spoil(x: Any, ids: Any, weights: Any) -> Any:
        ids[7, 2] = 99
        return x, ids, weights

    said = refused(r, spoil)
    assert "rank 1: dispatch: choice 30 is 99; want experts 0 to 15" in said, said
    return said


@check
def too_many_tokens(r: Rank) -> Any:
    """More than there is room for: refused by who passes them, heard by all."""
    said = refused(
        r, lambda x, ids, w: (x.repeat(3, 1), ids.repeat(3, 1), w.repeat(3, 1))
    )
    assert "rank 1: dispatch: 60 tokens; want at most max_tokens=40" in said, said
    return said


@check
def an_absent_rank(r: Rank) -> Any:
    """Named at the deadline; the device stays usable."""
    said = refused(r, lambda *_: (None, None, None))
    assert "rank 1" in said or "ranks [1]" in said, said
    return said


@check
def another_call(r: Rank) -> Any:
    """Rank 1 sums where the others dispatch: both are named at the deadline."""
    r.open(deadline_s=SHORT_S)
    ep, _ = opened(r, {"layout": "expert"})
    x, ids, weights = (one.cuda() for one in inputs(r, ep, 0, 20))
    some = r.torch.ones(1000, device="cuda")
    r.comm.all_reduce(some)
    r.together()

    def differ() -> None:
        if r.rank == 1:
            r.comm.all_reduce(some)
        else:
            ep.dispatch(x, ids, weights)

    said = raised(r, differ)
    assert "dispatch of 4 experts" in said, said
    assert "all_reduce" in said, said
    return said


def work(world: Any, names: list[str], share: bool, out: str, replays: int) -> Any:
    """Run the checks on one rank."""
    REPLAYS["many"] = replays
    return checked(world, CHECKS, names, share, Path(out) / "experts")


def main() -> int:
    """Spawn the ranks and report."""
    parser = words(__doc__)
    parser.add_argument("--replays", type=int, default=200)
    args = parser.parse_args()
    return report(work, CHECKS, args, args.replays, deadline_s=60.0)


if __name__ == "__main__":
    sys.exit(main())
