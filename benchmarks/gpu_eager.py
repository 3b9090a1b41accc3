"""Eager calls from Python, by what they are given: arrays seen before, and new ones.

    python benchmarks/gpu_eager.py --ranks 2 --out FILE.json

all_reduce of 1 KB (and an all_gather), back to back, with one synchronisation at the
end: microseconds a call, of which the caller's thread spent `cpu_us`; `make_us` is what
making the arrays takes without the call. Sums are of integers and in place, so an array
tells whether every call on it was made. A kind that fails is a row that says why. With
`--device cpu` the program tests itself, on any machine. It ends after `--seconds`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"

import numpy as np  # noqa: E402

import stretto  # noqa: E402
from stretto.bench.machine import commit  # noqa: E402

COUNT = 256
"""Elements of four bytes: 1 KB."""
ROWS = 2000
"""Places that arrays lie at in turn: more than a launch keeps parameters for."""
CALLS, BATCHES = 400, 7
WARM = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a call is given, again and again."""

    name: str
    make: Callable[[int], Any]
    """Returns what turn i is given."""
    call: Callable[[Any], Any]
    wrong: Callable[[int], str]
    """Says what is wrong after so many turns."""


class Rank:
    """One rank's part of the measurement."""

    def __init__(self, comm: Any, device: str) -> None:
        import torch

        self.comm, self.device, self.torch = comm, device, torch
        if device == "cuda":
            torch.cuda.set_device(comm.rank)
            torch.zeros(1, device="cuda")

    def settle(self) -> None:
        """Wait for the GPU, and raise what our kernels have met."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        self.comm.check()

    def rows(self, count: int = ROWS) -> Any:
        """Return rows of the rank and the row's number, in one allocation."""
        torch = self.torch
        column = torch.arange(count, dtype=torch.int32) * 8 + self.comm.rank + 1
        return column[:, None].expand(count, COUNT).contiguous().to(self.device)

    def due(self, count: int, turns: int) -> Any:
        """Return what the rows hold when each turn took the next one."""
        n = self.comm.num_ranks
        first = [sum(8 * i + r + 1 for r in range(n)) for i in range(count)]
        mine = [8 * i + self.comm.rank + 1 for i in range(count)]
        times = [turns // count + (i < turns % count) for i in range(count)]
        values = [
            first[i] * pow(n, times[i] - 1, 1 << 32) if times[i] else mine[i]
            for i in range(count)
        ]
        return np.array([v % (1 << 32) for v in values], np.uint32).view(np.int32)

    def in_rows(self, base: Any, turns: int) -> str:
        """Return how rows differ from what is due."""
        got, want = base.cpu().numpy(), self.due(len(base), turns)
        bad = np.flatnonzero((got != want[:, None]).any(axis=1))
        return f"{bad.size} of {len(got)} rows, the first {bad[0]}" if bad.size else ""

    # What calls are given.

    def reduced(
        self, name: str, base: Any, make: Callable[[int], Any], **options: Any
    ) -> Kind:
        """Return all_reduces in place of rows of a base."""
        reduce = self.comm.all_reduce
        return Kind(
            name=name,
            make=make,
            call=lambda x: reduce(x, **options),
            wrong=lambda turns: self.in_rows(base, turns),
        )

    def tensors(self) -> Iterator[Kind]:
        """Yield the kinds of PyTorch's tensors."""
        one, base, registered = self.rows(1), self.rows(), self.rows()
        same = one[0]
        yield self.reduced("the same tensor", one, lambda i: same)
        yield self.reduced("views of a base", base, lambda i: base[i % ROWS])
        if self.device == "cuda" and self.comm.register(registered):
            yield self.reduced(
                "views of registered memory", registered, lambda i: registered[i % ROWS]
            )
        yield self.results()
        yield self.gathered()

    def results(self) -> Kind:
        """Return all_reduces of what another operation has just made."""
        one, last = self.rows(1)[0], []

        def call(x: Any) -> None:
            last[:] = [self.comm.all_reduce(x)]

        return Kind(
            name="results of x + 0",
            make=lambda i: one + 0,
            call=call,
            wrong=lambda turns: self.in_rows(last[0][None], 1),
        )

    def gathered(self) -> Kind:
        """Return all_gathers that make their results."""
        one, last, n = self.rows(1)[0], [], self.comm.num_ranks

        def call(x: Any) -> None:
            last[:] = [self.comm.all_gather(x)]

        def wrong(turns: int) -> str:
            got = last[0].cpu().numpy()
            good = (got == np.arange(1, n + 1)[:, None]).all()
            return "" if good else f"an all_gather of {got[:, 0].tolist()}"

        return Kind(
            name="all_gather, out made", make=lambda i: one[:], call=call, wrong=wrong
        )

    def ours(self) -> Iterator[Kind]:
        """Yield the kinds of our own arrays, which are zero-copy."""
        if self.device == "cpu":
            return
        arrays = [self.comm.empty(COUNT, "int32", device="cuda") for _ in range(8)]
        for name, number in (("the same of comm.empty()", 1), ("8 of comm.empty()", 8)):
            given, views = arrays[:number], []
            for array, row in zip(given, self.rows(number), strict=True):
                views.append(self.torch.from_dlpack(array))
                views[-1].copy_(row)
            yield Kind(
                name=name,
                make=lambda i, given=given: given[i % len(given)],
                call=self.comm.all_reduce,
                wrong=lambda turns, views=views: self.in_rows(
                    self.torch.stack(views), turns
                ),
            )

    def cupy(self) -> Iterator[Kind]:
        """Yield the kinds of CuPy's arrays."""
        import cupy

        one, base = self.rows(1), self.rows()
        same, rows = cupy.from_dlpack(one)[0], cupy.from_dlpack(base)
        yield self.reduced("the same of CuPy", one, lambda i: same)
        yield self.reduced("views of CuPy's", base, lambda i: rows[i % ROWS])

    def numba(self) -> Iterator[Kind]:
        """Yield the kinds of Numba's device arrays."""
        from numba import cuda

        one, base = self.rows(1), self.rows(64)
        same = cuda.as_cuda_array(one[0])
        rows = [cuda.as_cuda_array(base[i]) for i in range(64)]
        yield self.reduced("the same of Numba", one, lambda i: same)
        yield self.reduced("64 of Numba", base, lambda i: rows[i % 64])

    def raw(self) -> Iterator[Kind]:
        """Yield bfloat16 as Numba shows it: raw bytes, which we are told are that."""
        from numba import cuda

        torch, comm = self.torch, self.comm
        one = torch.full((COUNT,), comm.rank + 1, dtype=torch.bfloat16, device="cuda")
        same = cuda.as_cuda_array(one)

        def wrong(turns: int) -> str:
            good = bool((one == comm.num_ranks).all())
            return "" if good else f"a largest of {float(one[0])}"

        yield Kind(
            name="bfloat16 of Numba, dtype=",
            make=lambda i: same,
            call=lambda x: comm.all_reduce(x, "max", dtype="bfloat16"),
            wrong=wrong,
        )

    # Times.

    def measure(self, kind: Kind) -> dict[str, Any]:
        """Return a kind's row."""
        make, call, turn = kind.make, kind.call, 0
        whole, cpu, made = [], [], []
        for batch in range(-WARM, BATCHES):
            calls = 5 if batch < 0 else CALLS
            self.settle()
            start = time.perf_counter()
            for i in range(turn, turn + calls):
                call(make(i))
            enqueued = time.perf_counter()
            self.settle()
            end = time.perf_counter()
            turn += calls
            if batch >= 0:
                cpu.append((enqueued - start) / calls * 1e6)
                whole.append((end - start) / calls * 1e6)
        for _ in range(3):
            start = time.perf_counter()
            for i in range(CALLS):
                make(i)
            made.append((time.perf_counter() - start) / CALLS * 1e6)
            self.settle()
        return {
            "kind": kind.name,
            "us": round(statistics.median(whole), 2),
            "least_us": round(min(whole), 2),
            "cpu_us": round(statistics.median(cpu), 2),
            "make_us": round(min(made), 2),
            "wrong": kind.wrong(turn),
        }


def work(comm: Any, device: str, out: str, told: dict[str, Any]) -> int:
    """Measure every kind on one rank; rank 0 writes after each. Return what failed."""
    rank, rows = Rank(comm, device), []
    sources = [rank.tensors, rank.ours]
    if device == "cuda":
        sources += [rank.cupy, rank.numba, rank.raw]
    for source in sources:
        try:
            for kind in source():
                rows.append(rank.measure(kind))
                write(comm, rows, out, told)
        except Exception as e:  # the next kinds are measured all the same
            why = f"{type(e).__name__}: {e}"
            missing = isinstance(e, ImportError)
            rows.append({"kind": source.__name__, "wrong": "" if missing else why})
            rows[-1]["missing" if missing else "failed"] = why
            write(comm, rows, out, told)
    return sum(bool(row["wrong"]) for row in rows)


def write(
    comm: Any, rows: list[dict[str, Any]], out: str, told: dict[str, Any]
) -> None:
    """Print the last row and write all, on rank 0; others tell what went wrong."""
    row = rows[-1]
    if comm.rank:
        if row["wrong"]:
            print(f"rank {comm.rank}: {row}", file=sys.stderr, flush=True)
        return
    print(json.dumps(row), flush=True)
    document = {**told, "rows": rows}
    Path(out).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Measure; the exit status says whether anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=int, default=60)
    args = parser.parse_args()
    signal.alarm(args.seconds)  # ranks die with their parent
    told = {
        "command": f"python benchmarks/gpu_eager.py --ranks {args.ranks}",
        "commit": commit(),
        "python": platform.python_version(),
        "device": args.device,
        "nbytes": 4 * COUNT,
    }
    failed = stretto.spawn(
        work, args.device, args.out, told, num_ranks=args.ranks, deadline_s=20.0
    )
    return int(any(failed))


if __name__ == "__main__":
    raise SystemExit(main())
