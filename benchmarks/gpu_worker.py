"""One rank of one peer set: prepares a collective, checks it, times it in a graph.

The parent (gpu_peers.py) writes one JSON command a line and reads one answer.
Whatever goes wrong is an answer too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

import torch  # noqa: E402

LARGEST = 1 << 30


class Case:
    """One collective at one size: arrays, expected values, how it is called."""

    def __init__(self, worker: Worker, collective: str, nbytes: int) -> None:
        self.collective, self.nbytes, self.worker = collective, nbytes, worker
        n = worker.ranks
        count = nbytes // 2
        part = count // n
        self.n_in = part if collective == "all_gather" else count
        self.n_out = part if collective == "reduce_scatter" else count

    def data(self, rank: int) -> Any:
        """Return a rank's input, the same wherever it is asked for."""
        gen = torch.Generator("cuda").manual_seed(977 * rank + self.nbytes % 9973)
        return torch.randn(
            self.n_in, generator=gen, device="cuda", dtype=torch.bfloat16
        )

    def error(self, out: Any) -> str:
        """Return what is wrong with an output, or nothing."""
        n, me = self.worker.ranks, self.worker.rank
        part = self.nbytes // 2 // n
        if self.collective in ("all_gather", "all_to_all"):
            for q in range(n):
                theirs = self.data(q)
                if self.collective == "all_to_all":
                    theirs = theirs[me * part : (me + 1) * part]
                if not torch.equal(out[q * part : (q + 1) * part], theirs):
                    return f"part {q} is wrong"
            return ""
        total = None
        for q in range(n):
            theirs = self.data(q)
            if self.collective == "reduce_scatter":
                theirs = theirs[me * part : (me + 1) * part]
            total = theirs.float() if total is None else total.add_(theirs)
        off = (out.float() - total).abs_().sub_(total.abs().mul_(0.03)).max().item()
        return "" if off < 0.06 else f"off by {off:.3f}"


class Worker:
    """What every peer set does the same way."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.rank, self.ranks = args.rank, args.ranks
        torch.cuda.set_device(args.rank)
        torch.zeros(1, device="cuda")
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.kept: dict[str, Any] = {}
        self.largest = args.largest
        self.open(args)

    def open(self, args: argparse.Namespace) -> None:
        """Connect to the other ranks."""
        raise NotImplementedError

    def call(self, case: Case, variant: str) -> tuple[Any, Any, Any]:
        """Return input, output, and a function that enqueues the collective."""
        raise NotImplementedError

    def settle(self) -> None:
        """Raise what the GPU met."""
        torch.cuda.synchronize()

    def prepare(self, collective: str, nbytes: int, variant: str) -> dict[str, Any]:
        """Check one variant, eagerly and replayed, and capture what is timed."""
        case = Case(self, collective, nbytes)
        x, out, enqueue = self.call(case, variant)
        x.copy_(case.data(self.rank))
        if out is not x:
            out.view(torch.int16).fill_(0x7FA5)
        self.settle()
        enqueue()
        self.settle()
        wrong = case.error(out)
        calls = 10 if nbytes <= 16 << 20 else 2
        once = calls if out is not x else 1  # in place, only one call can be checked
        graph = self.capture(enqueue, once)
        x.copy_(case.data(self.rank))
        if out is not x:
            out.view(torch.int16).fill_(0x7FA5)
        self.settle()
        graph.replay()
        self.settle()
        wrong = wrong or case.error(out)
        checksum = int(out.view(torch.int16).sum(dtype=torch.int64).item())
        if once != calls:
            graph = self.capture(enqueue, calls)
        self.kept[f"{collective} {nbytes} {variant}"] = (graph, calls, enqueue)
        return {"wrong": wrong, "checksum": checksum}

    def capture(self, enqueue: Any, calls: int) -> Any:
        """Return a graph of several calls."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(calls):
                enqueue()
        finally:
            graph.capture_end()
        return graph

    def time(self, collective: str, nbytes: int, variant: str, replays: int) -> Any:
        """Return microseconds a call, the mean over some replays."""
        graph, calls, _ = self.kept[f"{collective} {nbytes} {variant}"]
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        graph.replay()
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        self.settle()
        return {"us": begin.elapsed_time(end) * 1e3 / (replays * calls)}

    def drop(self) -> dict[str, Any]:
        """Forget what was prepared."""
        torch.cuda.synchronize()
        self.kept.clear()
        return {}

    def reset(self) -> dict[str, Any]:
        """Start anew after a fault."""
        return self.drop()


class Ours(Worker):
    """stretto: variants are `algorithm|schedule`, or `algorithm|schedule|patch`."""

    def open(self, args: argparse.Namespace) -> None:
        """Open a session."""
        from gpu_group import ChildGroup

        self.group = ChildGroup(args.rank, args.ranks, args.fd, deadline_s=4.0)
        self.session: Any = None
        self.plans: dict[str, Any] = {}
        self.reset()

    def reset(self) -> dict[str, Any]:
        """Open a new session, with arrays of its own."""
        from stretto.executors.cuda import open_session

        self.kept.clear()
        if self.session is not None:
            self.registered = []
            self.session.close()
        self.group.broken[0] = 0
        self.session = open_session(self.group)
        count = self.largest // 2
        made = [self.session.empty((count,), "bfloat16") for _ in range(2)]
        self.registered = [torch.from_dlpack(one) for one in made]
        return {}

    def _plan(self, variant: str) -> Any:
        from stretto.compiler.lower import lower
        from stretto.compiler.plan import Schedule
        from stretto.compiler.verify import verify, verify_plan
        from stretto.program import algorithms

        if variant not in self.plans:
            name, schedule = variant.split("|")[:2]
            program = algorithms.get(name).build(self.ranks)
            plan = lower(verify(program), Schedule.parse(schedule))
            self.plans[variant] = verify_plan(plan)
        return self.plans[variant]

    def call(self, case: Case, variant: str) -> tuple[Any, Any, Any]:
        """Return the arrays and the call."""
        from gpu_patches import applied

        from stretto.executors import Call
        from stretto.program import collectives
        from stretto.program.collectives import Operator, Shape

        plan = self._plan(variant)
        kind = collectives.get(case.collective)
        parts = kind.num_parts(Shape(num_ranks=self.ranks, split=plan.value.split))
        whole = case.nbytes // 2
        each = whole if parts == 1 and kind.splits_whole else whole // self.ranks
        call = Call(dtype="bfloat16", op=Operator.SUM, counts=(each,) * parts)
        with applied(variant.split("|")[2] if variant.count("|") > 1 else "base"):
            launch = self.session.prepare(plan, call)
        x = self.registered[0][: case.n_in]
        out = self.registered[1][: case.n_out]
        return x, out, lambda: launch(x, out)

    def settle(self) -> None:
        """Raise what the GPU met."""
        torch.cuda.synchronize()
        self.session.check()


def main() -> None:
    """Answer commands until there are none."""
    parser = argparse.ArgumentParser()
    for name in ("rank", "ranks", "fd", "answers", "largest"):
        parser.add_argument(f"--{name}", type=int, default=-1)
    parser.add_argument("--kind")
    parser.add_argument("--meet")
    args = parser.parse_args()
    answers = os.fdopen(args.answers, "w")

    def answer(said: dict[str, Any]) -> None:
        print(json.dumps(said), file=answers, flush=True)

    kinds: dict[str, Any] = {"ours": Ours}
    if args.kind.startswith("fused_"):
        from gpu_fused_worker import FUSED

        kinds.update(FUSED)
    if args.kind.startswith("serving_"):
        from gpu_serving_worker import SERVING

        kinds.update(SERVING)
    try:
        worker = kinds[args.kind](args)
        answer({"ready": True})
    except Exception as e:
        answer({"error": f"{type(e).__name__}: {e}\n{traceback.format_exc()[-600:]}"})
        return
    for line in sys.stdin:
        command = json.loads(line)
        verb = command.pop("verb")
        try:
            answer(getattr(worker, verb)(**command))
        except Exception as e:
            where = traceback.format_tb(e.__traceback__)[-1].strip()
            answer({"error": f"{type(e).__name__}: {e} [{where}]"[:900]})


if __name__ == "__main__":
    main()
