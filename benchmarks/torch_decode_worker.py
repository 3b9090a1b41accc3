"""One rank of torch_decode.py: a model for each variant, checked and timed."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch_llama  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch_llama import (  # noqa: E402
    SHAPES,
    Model,
    Place,
    RowParallelLinear,
    Weights,
    reference,
)

ONE_SHOT_UP_TO = 512 << 10
"""Bytes up to which torch's one-shot kernel is taken, beyond that its two-shot one."""
SAMPLE_S = 0.04


class SymmetricRow(nn.Module):
    """A row-parallel layer by torch's symmetric memory, without multicast."""

    def __init__(self, weight: Tensor, buffer: Tensor, name: str) -> None:
        super().__init__()
        self.weight, self.buffer, self.name = weight, buffer, name

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum; the matmul writes into symmetric memory."""
        rows, hidden = x.shape[0], self.weight.shape[0]
        y = self.buffer[: rows * hidden].view(rows, hidden)
        torch.mm(x, self.weight.t(), out=y)
        ops = torch.ops.symm_mem
        if y.nbytes <= ONE_SHOT_UP_TO:
            return ops.one_shot_all_reduce(y, "sum", self.name)
        return ops.two_shot_all_reduce_(y, "sum", self.name)


class Rank:
    """The process: its groups, weights and variants."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.rank, self.ranks = args, args.rank, args.ranks
        self.is_gpu = args.device == "cuda"
        self.device = torch.device("cpu")
        if self.is_gpu:
            at = 0 if args.share else self.rank
            torch.cuda.set_device(at)
            self.device = torch.device("cuda", at)
            torch.backends.cuda.matmul.allow_tf32 = False
        torch.set_num_threads(max(1, (os.cpu_count() or 2) // self.ranks))
        import stretto.torch  # noqa: F401

        baseline = "nccl" if self.is_gpu and not args.share else "gloo"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if baseline == "nccl" else "gloo",
            init_method=f"file://{args.meet}",
            rank=self.rank,
            world_size=self.ranks,
        )
        self.baseline = baseline
        self.control = dist.new_group(backend="gloo")
        self.groups: dict[str, Any] = {baseline: dist.group.WORLD}
        shape = SHAPES[args.shape]
        layers = args.layers or shape.layers
        self.shape = type(shape)(**{**vars(shape), "layers": layers})
        self.dtype = torch.bfloat16
        self.weights = Weights(
            self.shape, self.rank, self.ranks, self.device, self.dtype
        )
        most = max([4, *args.batches])
        kv = most, shape.kv_heads // self.ranks, args.context, shape.head
        gen = torch.Generator(self.device).manual_seed(50 + self.rank)

        def cache() -> Tensor:
            made = torch.empty(kv, device=self.device, dtype=self.dtype)
            return made.normal_(generator=gen)

        self.keys = [cache() for _ in range(layers)]
        self.values = [cache() for _ in range(layers)]
        self.models: dict[str, Callable[..., Tensor]] = {}

    def agree(self, wrong: str) -> str:
        """Return what is wrong on any rank; all come here."""
        said: list[Any] = [None] * self.ranks
        dist.all_gather_object(said, wrong, group=self.control)
        return "; ".join(f"rank {r}: {w}" for r, w in enumerate(said) if w)

    def slowest(self, times: list[float]) -> list[float]:
        """Return each sample's longest time over ranks."""
        said: list[Any] = [None] * self.ranks
        dist.all_gather_object(said, times, group=self.control)
        return [max(one) for one in zip(*said, strict=True)]

    # Variants.

    def make(self, variant: str) -> None:
        """Make the model of a variant."""
        base, *how = variant.split("+")
        if base == "symm":
            self.models[variant] = Model(self.weights, self.symmetric_row())
            return
        if base == "stretto" and base not in self.groups:
            self.groups[base] = dist.new_group(backend="stretto")
        group = self.groups[base]
        row = functools.partial(RowParallelLinear, group=group)
        model: Any = Model(self.weights, row)
        if how == ["fused"]:
            from stretto.torch.fusing import fuse

            model = fuse(model, group)
            if model.fusion.fused != 2 * self.shape.layers + 1:
                raise RuntimeError(f"fuse: {model.fusion}")
        elif how == ["compiled"]:
            model = torch.compile(model, fullgraph=True, dynamic=False)
        elif how == ["fused", "compiled"]:
            from stretto.torch.fusing import fuse

            model = fuse(model, compile=True, fullgraph=True, dynamic=False)
        elif how:
            raise ValueError(f"no variant {variant!r}")
        self.models[variant] = model

    def symmetric_row(self) -> Callable[[Tensor], nn.Module]:
        """Return what makes row-parallel layers on torch's symmetric memory."""
        import torch.distributed._symmetric_memory as symm_mem

        rows = max([*self.args.batches, *self.args.prefill, 4])
        buffer = symm_mem.empty(
            rows * self.shape.hidden, dtype=self.dtype, device=self.device
        )
        name = dist.group.WORLD.group_name
        symm_mem.rendezvous(buffer, name)
        return lambda weight: SymmetricRow(weight, buffer, name)

    # Inputs and checks.

    def tokens(self, count: int) -> Tensor:
        """Return token numbers, the same on all ranks."""
        gen = torch.Generator().manual_seed(count)
        drawn = torch.randint(0, self.shape.vocab, (count,), generator=gen)
        return drawn.to(self.device)

    def place(self, count: int, *, prefill: bool) -> Place:
        """Return where tokens are."""
        if prefill:
            positions = torch.arange(count, device=self.device)
            return Place.at(positions, self.shape.head, self.dtype)
        last = torch.full((count,), self.args.context - 1, device=self.device)
        made = Place.at(last, self.shape.head, self.dtype)
        made.keys, made.values = self.keys, self.values
        return made

    def errors(self) -> dict[str, Any]:
        """Return each variant's distance from float32, of the largest logit's size."""
        tokens, place = self.tokens(4), self.place(4, prefill=False)
        group = self.groups[self.baseline]
        want = reference(self.weights, tokens, place, group)
        found: dict[str, Any] = {}
        for variant in list(self.models):
            wrong, off = "", [0.0, 0.0]
            try:
                got = self.models[variant](tokens, place).float()
                self.settle()
                gap = got - want
                off = [
                    (gap.norm() / want.norm()).item(),
                    (gap.abs().max() / want.abs().max()).item(),
                ]
            except Exception as e:
                wrong = f"{type(e).__name__}: {e}"[:1500]
            wrong = self.agree(wrong)
            if wrong:
                found[variant] = {"failed": wrong}
                del self.models[variant]
                continue
            rms, most = self.slowest(off)
            found[variant] = {"relative": rms, "largest": most}
        return found

    def settle(self) -> None:
        """Wait for the device."""
        if self.is_gpu:
            torch.cuda.synchronize()

    # Times.

    def steps(
        self, kind: str, count: int
    ) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
        """Return a step of each variant, and what cannot be had."""
        tokens, place = self.tokens(count), self.place(count, prefill=kind == "prefill")
        torch_llama.BY_TRITON = kind != "eager"
        found, failed = {}, {}
        for variant, model in self.models.items():
            step = functools.partial(model, tokens, place)
            wrong = ""
            try:
                for _ in range(3):
                    step()
                self.settle()
                if kind == "graph":
                    step = self.captured(step)
                    step()
                    self.settle()
            except Exception as e:
                wrong = f"{type(e).__name__}: {e}"[:1500]
            wrong = self.agree(wrong)
            if wrong:
                failed[variant] = wrong
            else:
                found[variant] = step
        return found, failed

    def captured(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """Return the replay of a step's graph."""
        stream = self.stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self.settle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, pool=self.pool()):
            step()
        return graph.replay

    @functools.lru_cache  # noqa: B019  (one rank a process)
    def pool(self) -> Any:
        """Return the memory that graphs share; they are replayed in turn."""
        return torch.cuda.graph_pool_handle()

    @functools.lru_cache  # noqa: B019
    def stream(self) -> Any:
        """Return the stream that graphs are captured on."""
        return torch.cuda.Stream()

    def took(self, step: Callable[[], Any], turns: int) -> float:
        """Return microseconds a step."""
        dist.barrier(group=self.control)
        if not self.is_gpu:
            began = time.perf_counter()
            for _ in range(turns):
                step()
            return (time.perf_counter() - began) * 1e6 / turns
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        step()
        begin.record()
        for _ in range(turns):
            step()
        end.record()
        self.settle()
        return begin.elapsed_time(end) * 1e3 / turns

    def case(self, kind: str, count: int) -> dict[str, Any]:
        """Return one row of the table: all variants, in turn."""
        steps, failed = self.steps(kind, count)
        turns = 1
        if steps:
            first = self.slowest([self.took(s, 2) for s in steps.values()])
            turns = max(2, min(300, int(SAMPLE_S * 1e6 / max(1.0, min(first)))))
        times: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(self.args.repeats):
            names = list(steps) if turn % 2 == 0 else list(steps)[::-1]
            for name in names:
                times[name].append(self.took(steps[name], turns))
        medians, spread = {}, {}
        for name in steps:
            slowest = self.slowest(times[name])
            medians[name] = round(statistics.median(slowest), 2)
            spread[name] = round(max(slowest) - min(slowest), 2)
        return {
            "kind": kind, "tokens": count, "turns": turns, "us": medians,
            "spread": spread, "failed": failed,
        }  # fmt: skip


@torch.no_grad()
def main() -> int:
    """Run all cases; rank 0 writes after each."""
    parser = argparse.ArgumentParser()
    for name in ("rank", "ranks", "layers", "context", "repeats"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("device", "shape", "meet", "answers"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--share", action="store_true")
    parser.add_argument("--variants", nargs="+")
    parser.add_argument("--kinds", nargs="+")
    parser.add_argument("--batches", nargs="+", type=int)
    parser.add_argument("--prefill", nargs="*", type=int)
    parser.add_argument("--time-budget", type=float)
    args = parser.parse_args()
    began = time.monotonic()
    rank = Rank(args)
    failed = {}
    for variant in args.variants:
        wrong = ""
        try:
            rank.make(variant)
        except Exception as e:
            wrong = f"{type(e).__name__}: {e}"[:1500]
        wrong = rank.agree(wrong)
        if wrong:
            failed[variant] = wrong
            rank.models.pop(variant, None)
    said = {"failed": failed, "errors": rank.errors(), "rows": []}
    said["layers"], said["torch"] = rank.shape.layers, torch.__version__
    if rank.is_gpu:
        said["gpu"] = torch.cuda.get_device_name()
    sizes = {"prefill": args.prefill}
    for kind in args.kinds:
        for count in sizes.get(kind, args.batches):
            late = time.monotonic() - began > args.time_budget
            if rank.agree("late" if late else ""):
                said["cut"] = f"no time left at {kind} {count}"
                break
            row = rank.case(kind, count)
            said["rows"].append(row)
            if args.rank == 0:
                print(f"[{time.monotonic() - began:6.1f}] {row}", flush=True)
                Path(args.answers).write_text(json.dumps(said))
    if args.rank == 0:
        Path(args.answers).write_text(json.dumps(said))
    dist.barrier(group=rank.control)
    with contextlib.suppress(Exception):
        rank.models.clear()
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
