"""Random calls on several streams and communicators, some in random graphs.

    python tests/device/soak.py --ranks 2 --calls 100000 --seconds 200 --out DIR

Two communicators of the same ranks, three streams, and calls drawn from a seed: a verb,
a type, an operator, a size, in place or not, which communicator, which stream. One in
eight is a graph of up to six calls, replayed up to thirty times on fresh data. Whole
numbers are sent, so that every sum is exact, and every element of every result is
compared on the GPU. `--share` puts all ranks on one GPU, `--device cpu` on none.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "src"), str(HERE)]
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{HERE}:{os.environ.get('PYTHONPATH', '')}"

from calls import Case, invoke, warm  # noqa: E402

COUNTS = (1, 37, 1000, 4096, 70001, 1 << 19)
DTYPES = ("float32", "bfloat16", "int32")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
EVERY = (
    *REDUCING,
    "all_gather",
    "all_to_all",
    "permute",
    "broadcast",
    "gather",
    "scatter",
)
STREAMS = 3
WINDOW = 400
"""How many calls there are between two looks at what was wrong."""


def cases(n: int) -> list[Case]:
    """Return every kind of call that may be drawn."""
    pairs = tuple((r, (r + 1) % n) for r in range(n))
    found = []
    for name in EVERY:
        for dtype in DTYPES:
            for count in COUNTS:
                for op in ("sum", "max") if name == "all_reduce" else ("sum",):
                    params: dict[str, Any] = {}
                    if name in ROOTED:
                        params = {"root": n - 1}
                    elif name == "permute":
                        params = {"pairs": pairs}
                    found.append(
                        Case(
                            collective=name,
                            num_ranks=n,
                            count=count,
                            dtype=dtype,
                            op=op,
                            params=params,
                        )
                    )
    return found


class Soak:
    """One rank's part: the communicators, the streams, and what was wrong."""

    def __init__(self, comm: Any, torch: Any, device: str) -> None:
        self.torch, self.device, self.n, self.rank = (
            torch,
            device,
            comm.num_ranks,
            comm.rank,
        )
        self.comms = [comm.split(0), comm.split(0)]
        self.index = torch.arange(
            self.n * max(COUNTS), device=device, dtype=torch.int32
        )
        self.slots = torch.zeros(WINDOW + 64, device=device, dtype=torch.int64)
        self.names: list[str] = []
        self.wrong: list[str] = []
        self.made: Counter[str] = Counter()
        gpu = device != "cpu"
        self.streams = [torch.cuda.Stream() for _ in range(STREAMS)] if gpu else [None]

    def on(self, stream: Any) -> Any:
        """Return what makes a stream the current one."""
        if stream is None:
            return contextlib.nullcontext()
        return self.torch.cuda.stream(stream)

    def values(
        self, rank: int, count: int, turn: Any, case: Case, first: int = 0
    ) -> Any:
        """Return a rank's input; `turn` is a number, or a tensor of a graph."""
        whole = self.index[first : first + count] * 7 + 13 * rank + turn
        return (whole % 17 - 8).to(getattr(self.torch, case.dtype))

    def given(self, case: Case, turn: Any) -> Any:
        """Return my input, or None where this rank has none."""
        if (
            case.collective in ("broadcast", "scatter")
            and self.rank != case.params["root"]
        ):
            return None
        parts = (
            self.n
            if case.collective in ("reduce_scatter", "all_to_all", "scatter")
            else 1
        )
        return self.values(self.rank, parts * case.count, turn, case)

    def due(self, case: Case, turn: Any) -> Any:
        """Return my output, from every rank's input; None where it has none."""
        name, n, count, me = case.collective, self.n, case.count, self.rank
        root = case.params.get("root", me)
        if name in ("reduce", "gather") and me != root:
            return None

        def of(q: int, part: int = 0) -> Any:
            return self.values(q, count, turn, case, part * count)

        if name in ("all_reduce", "reduce", "reduce_scatter"):
            part = me if name == "reduce_scatter" else 0
            total = of(0, part)
            for q in range(1, n):
                other = of(q, part)
                total = (
                    self.torch.maximum(total, other)
                    if case.op == "max"
                    else total + other
                )
            return total
        if name in ("all_gather", "gather"):
            return self.torch.cat([of(q) for q in range(n)])
        if name == "all_to_all":
            return self.torch.cat([of(q, me) for q in range(n)])
        if name == "permute":
            return of((me - 1) % n)
        return of(root, me if name == "scatter" else 0)

    def call(self, drawn: random.Random, case: Case, turn: Any, slot: int) -> None:
        """Make a call on the current stream, and compare what came there too."""
        comm = self.comms[drawn.randrange(len(self.comms))]
        in_place = drawn.random() < 0.4 and case.collective in ("all_reduce", "permute")
        x, want = self.given(case, turn), self.due(case, turn)
        out = x if in_place else None
        if want is not None and not in_place:
            out = self.torch.empty_like(want)
            out.fill_(99)
        invoke(comm, case, x, out)
        if want is not None:
            self.slots[slot] += (out != want).sum()

    def draw(self, drawn: random.Random, kinds: list[Case], turn: int) -> int:
        """Make a call, or a graph of some, on one of the streams; return how many."""
        stream = drawn.choice(self.streams)
        if stream is None or drawn.random() < 7 / 8:
            case = drawn.choice(kinds)
            self.note(f"{case}")
            with self.on(stream):
                self.call(drawn, case, turn, len(self.names) - 1)
            self.made["eager"] += 1
            return 1
        picked = [drawn.choice(kinds) for _ in range(drawn.randint(1, 6))]
        times = drawn.randint(1, 30)
        self.note(f"graph of {[str(c) for c in picked]}, {times} times")
        slot, seed = len(self.names) - 1, drawn.random()
        with self.on(stream):
            now = self.torch.full((), turn, device=self.device, dtype=self.torch.int32)
            again = random.Random(seed)
            for case in picked:  # what a kind needs is made before it is captured
                self.call(again, case, turn, slot)
        stream.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=stream):
            again = random.Random(seed)
            for case in picked:
                self.call(again, case, now, slot)
            now += 5
        with self.on(stream):
            for _ in range(times):
                graph.replay()
        self.keep.append(graph)
        self.made["graphs"] += 1
        self.made["in graphs"] += times * len(picked)
        return (times + 1) * len(picked)

    def note(self, text: str) -> None:
        """Give what comes next a slot."""
        self.names.append(text)

    def look(self) -> None:
        """Wait for all, and keep the names of what was wrong."""
        if self.device != "cpu":
            self.torch.cuda.synchronize()
        for slot, bad in enumerate(self.slots.tolist()):
            if bad:
                self.wrong.append(f"{bad} elements: {self.names[slot]}")
        self.slots.zero_()
        self.names.clear()
        self.keep: list[Any] = []


def work(
    comm: Any, device: str, calls: int, seconds: float, seed: int
) -> dict[str, Any]:
    """Soak one rank; all draw the same, and stop at the same call."""
    import torch

    if device != "cpu":
        torch.cuda.set_device(
            0 if os.environ.get("STRETTO_CUDA_SHARE_GPU") else comm.rank
        )
    s, kinds = Soak(comm, torch, device), cases(comm.num_ranks)
    drawn, done, turn, began = random.Random(seed), 0, 0, time.monotonic()
    s.look()
    late = torch.zeros(1)
    while done < calls and not late.item():
        until = len(s.names) + WINDOW
        while len(s.names) < until and done < calls:
            turn += 1
            done += s.draw(drawn, kinds, turn % 1000)
        s.look()
        late[0] = time.monotonic() - began > seconds or bool(s.wrong)
        comm.all_reduce(late, "max")
        if comm.rank == 0:
            took = time.monotonic() - began
            print(f"{done} calls, {took:.0f} s, {len(s.wrong)} wrong", flush=True)
    for each in s.comms:
        each.close()
    took = time.monotonic() - began
    return {"calls": done, "seconds": round(took, 1), "wrong": s.wrong[:20], **s.made}


def main() -> int:
    """Compile, spawn the ranks, and report."""
    import stretto

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument(
        "--seconds", type=float, default=200.0, help="of calls, at most"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--share", action="store_true", help="one GPU for all ranks")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args()
    for name in ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS"):
        os.environ[name] = "1"
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    if args.share:
        os.environ["STRETTO_CUDA_SHARE_GPU"] = "1"
    compiled = (0, 0.0)
    if args.device != "cpu":
        compiled = warm(cases(args.ranks))
    words = (args.device, args.calls, args.seconds, args.seed)
    said = stretto.spawn(work, *words, num_ranks=args.ranks, deadline_s=10.0)
    document = {
        "kernels": compiled[0],
        "compile_s": round(compiled[1], 1),
        "ranks": said,
    }
    Path(args.out).mkdir(parents=True, exist_ok=True)
    (Path(args.out) / "soak.json").write_text(json.dumps(document, indent=1))
    print(json.dumps(document, indent=1))
    return 1 if any(row["wrong"] for row in said) else 0


if __name__ == "__main__":
    sys.exit(main())
