"""Quantised sums on GPUs: bit for bit as on CPUs, in graphs; and what they take.

    python tests/device/quantised.py --ranks 2 --out DIR [--share] [--only WORDS]
        [--blocks 64x512,256x256]

What CPUs give is compared with the definition elsewhere. Times are of a graph of 20
calls in place, the median of 20 replays, of the slowest rank; beside them a sum in
bfloat16 as it is chosen.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import json
import os
import statistics
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

from stretto.errors import CommunicationError  # noqa: E402
from stretto.quantised import gpu  # noqa: E402

CHECKS: dict[str, Any] = {}
HOW: dict[str, Any] = {"blocks": []}
COUNTS = (1, 127, 512, 1000, 100_003, 1 << 20, 3_000_001)
WIRES = ("fp8_128", "int8_128")
SIZES = (64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
CALLS, REPLAYS = 20, 20


def check(function: Any) -> Any:
    """Register a check under its name."""
    CHECKS[function.__name__] = function
    return function


def given(r: Rank, count: int, kind: str, seed: int) -> Any:
    """Return this rank's elements, on the CPU: of sizes that differ."""
    made = r.torch.Generator().manual_seed(1000 * seed + r.rank)
    x = r.torch.randn(count, generator=made)
    x *= 10.0 ** r.torch.randint(-3, 3, (count,), generator=made)
    return x.to(getattr(r.torch, kind))


@check
def bits(r: Rank) -> Any:
    """All types, wires and operators; sizes in any order; aligned or not."""
    r.open()
    cases = 0
    for seed, count in enumerate((*COUNTS, *COUNTS[::-1])):
        for kind in ("float32", "bfloat16", "float16"):
            for wire in WIRES:
                op = "avg" if seed % 2 else "sum"
                x = given(r, count + 1, kind, seed)[seed % 2 :][:count]
                want = r.comm.all_reduce(x.clone(), op, wire=wire)
                held = r.torch.zeros(count + 1, dtype=x.dtype, device="cuda")
                got = held[seed % 2 :][:count]
                got.copy_(x)
                r.comm.all_reduce(got, op, wire=wire)
                same(r, got, want, f"{kind} {wire} {count} {op}")
                cases += 1
    return {"cases": cases}


def same(r: Rank, got: Any, want: Any, what: str) -> None:
    """Compare bits."""
    a, b = (t.cpu().clone().view(r.torch.uint8) for t in (got, want))
    assert r.torch.equal(a, b), f"{what}: {int((a != b).sum())} bytes differ"


@check
def graphs(r: Rank) -> Any:
    """Replayed with other elements each time; two sizes in turns."""
    torch, comm, made = r.torch, r.open(), []
    for count in (5000, 300_000):
        x = torch.zeros(count, dtype=torch.bfloat16, device="cuda")
        comm.all_reduce(x, wire="fp8_128")
        r.together()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            comm.all_reduce(x, wire="fp8_128")
        made.append((count, x, graph))
    for seed in range(50):
        count, x, graph = made[seed % 2]
        mine = given(r, count, "bfloat16", seed)
        x.copy_(mine)
        graph.replay()
        same(r, x, comm.all_reduce(mine, wire="fp8_128"), f"replay {seed}")
    return {"replays": 50}


@check
def an_absent_rank(r: Rank) -> Any:
    """The others leave at the deadline; it is named, and the GPU stays usable."""
    comm = r.open(deadline_s=SHORT_S)
    x = r.torch.ones(4096, device="cuda")
    comm.all_reduce(x, wire="int8_128")
    r.together()
    if r.rank == r.n - 1:
        time.sleep(2 * SHORT_S)
        return None
    said = ""
    try:
        comm.all_reduce(x, wire="int8_128")
        r.torch.cuda.synchronize()
        comm.check()
    except CommunicationError as e:
        said = f"{type(e).__name__}: {e}"
    assert f"rank {r.n - 1}" in said, said or "nobody was missed"
    return said


@check
def another_sum(r: Rank) -> Any:
    """Of another wire, size or type, or no such sum: all are told what each called."""
    said: dict[str, Any] = {}
    for what, mine, other in OTHERS:
        is_plain = "wire" not in other
        comm = r.open(deadline_s=SHORT_S if is_plain else 30.0)
        for how in (mine, other):  # both are known, as in a program that mixes them up
            called(r, comm, **{**how, "count": how["count"] + 1})
        for how in (mine, other):
            called(r, comm, **how)
        r.together()
        began = time.monotonic()
        text = raised(r, lambda c=comm, h=other if r.rank else mine: called(r, c, **h))
        took = time.monotonic() - began
        want = [f"wire={h['wire']}" for h in (mine, other) if "wire" in h]
        want += [f"all_reduce of {h['count']} " for h in (mine, other) if "wire" in h]
        assert all(word in text for word in want), f"{what}: {text}"
        assert is_plain or took < 10, f"{what}: after {took:.1f} s"
        said[what] = text
        comm.close()
        r.comm = None
        r.together()
    return said


OTHERS = (
    ("wire", {"count": 1000, "wire": "fp8_128"}, {"count": 1000, "wire": "int8_128"}),
    ("size", {"count": 1000, "wire": "fp8_128"}, {"count": 1001, "wire": "fp8_128"}),
    (
        "type",
        {"count": 1000, "wire": "fp8_128"},
        {"count": 1000, "wire": "fp8_128", "kind": "bfloat16"},
    ),
    ("none", {"count": 1000, "wire": "fp8_128"}, {"count": 1000}),
)


def called(r: Rank, comm: Any, *, count: int, kind: str = "float32", **how: Any) -> Any:
    """Call a sum."""
    x = r.torch.ones(count, dtype=getattr(r.torch, kind), device="cuda")
    return comm.all_reduce(x, **how)


@check
def times(r: Rank) -> Any:
    """By size, wire and blocks, beside bfloat16 as it is."""
    torch, found = r.torch, {}
    for nbytes in SIZES:
        row: dict[str, float] = {}
        x = torch.randn(nbytes // 2, device="cuda", dtype=torch.bfloat16)
        comm = r.open()
        row["bf16"] = timed(r, lambda c=comm, x=x: c.all_reduce(x, "avg"))
        held = comm.empty((nbytes // 2,), "bfloat16", device="cuda")
        inside = torch.from_dlpack(held)
        inside.copy_(x)
        row["bf16 registered"] = timed(
            r, lambda c=comm, y=inside: c.all_reduce(y, "avg")
        )
        for blocks in HOW["blocks"]:
            gpu.BLOCKS, gpu.THREADS = blocks
            again = r.world.split(0, deadline_s=15.0)
            for wire in WIRES:
                row[f"{wire}, {blocks[0]}x{blocks[1]}"] = timed(
                    r, lambda c=again, x=x, w=wire: c.all_reduce(x, "avg", wire=w)
                )
            again.close()
        comm.close()
        r.comm = None
        found[f"{nbytes >> 10} KB"] = row
        if r.rank == 0:
            print(json.dumps({f"{nbytes >> 10} KB": row}), flush=True)
    return found


def timed(r: Rank, work: Any) -> float:
    """Return microseconds of one call, of the slowest rank."""
    torch, said = r.torch, []
    for _ in range(3):
        work()
    r.together()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            work()
    for _ in range(REPLAYS):
        r.together()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        said.append(begin.elapsed_time(end) * 1e3 / CALLS)
    mine = r.world.all_gather(torch.tensor([statistics.median(said)]))
    return round(float(mine.max()), 2)


def work(world: Any, names: list[str], share: bool, out: str, blocks: Any) -> Any:
    """Run the checks on one rank."""
    HOW["blocks"] = blocks
    return checked(world, CHECKS, names, share, Path(out) / "quantised")


def main() -> int:
    """Spawn the ranks and report."""
    parser = words(__doc__)
    parser.add_argument("--blocks", default=f"{gpu.BLOCKS}x{gpu.THREADS}")
    args = parser.parse_args()
    blocks = [tuple(map(int, b.split("x"))) for b in args.blocks.split(",")]
    return report(work, CHECKS, args, blocks, deadline_s=60.0)


if __name__ == "__main__":
    sys.exit(main())
