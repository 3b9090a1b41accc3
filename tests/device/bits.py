"""Bits on GPUs: of a row whatever its batch, of eight shards on any number of ranks.

    python tests/device/bits.py --ranks 2 --out DIR [--share] [--rows N] [--only WORDS]

What is due is added by PyTorch in the documented order, on the same GPU: each rank
draws what all have. Times are of a graph of 20 calls in place, the median of 20
replays, of the slowest rank, beside the sum that is chosen otherwise.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "src"), str(HERE)]
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"

from channel_rank import Rank, checked, report, words  # noqa: E402
from quantised import same, timed  # noqa: E402

from stretto import shards  # noqa: E402

CHECKS: dict[str, Any] = {}
HOW = {"rows": 1_000_000}
KINDS, WIDTH, ALL = ("float32", "bfloat16", "float16"), 16, 8
SIZES = tuple(1 << k for k in range(10, 29, 2))


def check(function: Any) -> Any:
    """Register a check under its name."""
    CHECKS[function.__name__] = function
    return function


def drawn(r: Rank, number: int, shape: tuple[int, ...], kind: str) -> Any:
    """Return what a rank or a shard has: numbers that round, and cancel."""
    made = r.torch.Generator("cuda").manual_seed(77 + number)
    x = r.torch.randn(shape, generator=made, device="cuda")
    powers = r.torch.randint(-6, 7, shape, generator=made, device="cuda")
    return (x * 2.0**powers).to(getattr(r.torch, kind))


def batches(r: Rank, rows: int) -> Any:
    """Yield where batches of many sizes lie among rows, all rows at once among them."""
    made = r.torch.Generator().manual_seed(5)
    for many in (1, 2, 3, 7, 64, 1000, 9000, 100_000, rows):
        first = int(r.torch.randint(0, rows - many + 1, (1,), generator=made))
        yield slice(first, first + many)


@check
def rows_in_any_batch(r: Rank) -> Any:
    """In rank order, rounded once: plain, registered, captured, in place and not."""
    torch, comm, rows, cases = r.torch, r.open(), HOW["rows"], 0
    for kind in KINDS:
        parts = [drawn(r, q, (rows, WIDTH), kind) for q in range(r.n)]
        want = parts[0].float()
        for part in parts[1:]:
            want = want + part.float()
        want, mine = want.to(parts[0].dtype), parts[r.rank]
        for some in batches(r, rows):
            x, shape = mine[some].clone(), (some.stop - some.start, WIDTH)
            where = f"{kind} {some}"
            got = comm.all_reduce(x, out=torch.empty_like(x), bits="invariant")
            same(r, got, want[some], f"{where}, not in place")
            comm.all_reduce(x, bits="invariant")
            same(r, x, want[some], where)
            held = torch.from_dlpack(comm.empty(shape, kind, device="cuda"))
            held.copy_(mine[some])
            comm.all_reduce(held, bits="invariant")
            same(r, held, want[some], f"{where}, registered")
            x.copy_(mine[some])
            r.together()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                comm.all_reduce(x, bits="invariant")
            x.copy_(mine[some])
            graph.replay()
            same(r, x, want[some], f"{where}, captured")
            cases += 4
    return {"rows": rows, "cases": cases}


@check
def shards_on_these_ranks(r: Rank) -> Any:
    """The tree of eight shards, whole and in parts, captured, and of a matmul."""
    torch, comm, each, cases = r.torch, r.open(), ALL // r.n, 0
    for kind in KINDS:
        for rows in (8, 1000, HOW["rows"] // 8):
            shape = (rows, WIDTH)
            parts = [drawn(r, s, shape, kind) for s in range(ALL)]
            level = parts
            while len(level) > 1:
                pairs = zip(level[::2], level[1::2], strict=True)
                level = [(a.float() + b.float()).to(a.dtype) for a, b in pairs]
            (want,) = level
            mine = torch.stack(parts[r.rank * each : (r.rank + 1) * each])
            where = f"{kind} {rows}"
            same(r, shards.all_reduce(comm, mine), want, where)
            got = shards.reduce_scatter(comm, mine)
            here = slice(r.rank * (rows // r.n), (r.rank + 1) * (rows // r.n))
            same(r, got, want[here], f"{where}, in parts")
            r.together()
            out, graph = torch.empty_like(want), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                shards.all_reduce(comm, mine, out=out)
            out.zero_()
            graph.replay()
            same(r, out, want, f"{where}, captured")
            cases += 3
    return {"cases": cases}


@check
def matmuls_on_these_ranks(r: Rank) -> Any:
    """Each eighth of k is the same matmul everywhere: of float32, bfloat16, float16."""
    import stretto.torch as st

    comm, each, cases = r.open(), ALL // r.n, 0
    for kind in KINDS:
        for rows, k, columns in ((16, 512, 256), (200, 4096, 1024), (1024, 8192, 4096)):
            x = drawn(r, 1, (rows, k), kind)
            w = drawn(r, 2, (k, columns), kind)
            eighth = k // ALL
            cuts = [slice(i, i + eighth) for i in range(0, k, eighth)]
            want = shards.add_pairs([x[:, c].contiguous() @ w[c] for c in cuts])
            mine = slice(r.rank * each * eighth, (r.rank + 1) * each * eighth)
            a, b = x[:, mine], w[mine]
            same(r, st.matmul_all_reduce(a, b, comm), want, f"{kind} {k}")
            turned = b.t().contiguous().t()
            rows_here = slice(r.rank * (rows // r.n), (r.rank + 1) * (rows // r.n))
            got = st.matmul_reduce_scatter(a, turned, comm, shards=ALL)
            same(r, got, want[rows_here], f"{kind} {k}, in parts")
            cases += 2
    return {"cases": cases}


@check
def times(r: Rank) -> Any:
    """Of bfloat16, by size and promise, in turns; what was chosen."""
    torch, found, comm = r.torch, {}, r.open()
    for nbytes in SIZES:
        x = torch.randn(nbytes // 2, device="cuda", dtype=torch.bfloat16)
        row: dict[str, Any] = {}
        for _ in range(3):
            for bits in ("any", "invariant", "pairs"):
                took = timed(r, lambda b=bits, x=x: comm.all_reduce(x, "avg", bits=b))
                row.setdefault(bits, []).append(took)
        row = {bits: sorted(took)[1] for bits, took in row.items()}
        for bits in ("any", "invariant", "pairs"):
            how = {"device": "cuda", "bits": bits}
            row[f"{bits} by"] = comm.explain(
                "all_reduce", nbytes // 2, "bfloat16", **how
            )
        found[f"{nbytes >> 10} KB"] = row
        if r.rank == 0:
            print(json.dumps({f"{nbytes >> 10} KB": row}), flush=True)
    return found


def work(world: Any, names: list[str], share: bool, out: str, rows: int) -> Any:
    """Run the checks on one rank."""
    HOW["rows"] = rows
    return checked(world, CHECKS, names, share, Path(out) / "bits")


def main() -> int:
    """Spawn the ranks and report."""
    parser = words(__doc__)
    parser.add_argument("--rows", type=int, default=HOW["rows"])
    args = parser.parse_args()
    return report(work, CHECKS, args, args.rows, deadline_s=60.0)


if __name__ == "__main__":
    sys.exit(main())
