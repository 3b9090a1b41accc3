"""One rank of torch_decode.py: a model for each variant, checked and timed."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch_llama
from torch import Tensor, nn
from torch_llama import (
    SHAPES,
    Model,
    Place,
    RowParallelLinear,
    Weights,
    linear,
    reference,
)
from torch_ranks import Ranks, inner  # first: it finds the library

ONE_SHOT_UP_TO = 512 << 10
"""Bytes up to which torch's one-shot kernel is taken, beyond that its two-shot one."""


class SymmetricRow(nn.Module):
    """A row-parallel layer by torch's symmetric memory, without multicast."""

    def __init__(self, weight: Tensor, buffer: Tensor, name: str) -> None:
        super().__init__()
        self.weight, self.buffer, self.name = weight, buffer, name

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum; the matmul writes into symmetric memory."""
        rows, hidden = x.shape[0], self.weight.shape[0]
        y = self.buffer[: rows * hidden].view(rows, hidden)
        linear(x, self.weight, y)
        ops = torch.ops.symm_mem
        if y.nbytes <= ONE_SHOT_UP_TO:
            return ops.one_shot_all_reduce(y, "sum", self.name)
        return ops.two_shot_all_reduce_(y, "sum", self.name)


class Rank(Ranks):
    """The process, its weights and variants."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
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
        self.by_triton = False

    def choose(self) -> dict[str, Any]:
        """Choose kernels for steps of few tokens; say what is not to be had."""
        if not self.is_gpu or self.args.kernels == "torch":
            return {}
        from torch_llama_choice import Chooser

        chooser = Chooser(self, self.weights)
        _, wrong = self.tried(chooser.check)
        self.by_triton = torch_llama.BY_TRITON = not wrong
        if wrong:
            chooser.said["failed"]["all, so PyTorch's are taken"] = wrong
            return chooser.said
        chooser.choose({4, *self.args.batches}, self.keys, self.values)
        return chooser.said

    # Variants.

    def make(self, variant: str) -> None:
        """Make the model of a variant."""
        base, *how = variant.split("+")
        if base == "symm":
            self.models[variant] = Model(self.weights, self.symmetric_row())
            return
        group = self.group(base)
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
            model = self.models[variant]
            got, wrong = self.tried(functools.partial(model, tokens, place))
            if wrong:
                found[variant] = {"failed": wrong}
                del self.models[variant]
                continue
            gap = got.float() - want
            off = [
                (gap.norm() / want.norm()).item(),
                (gap.abs().max() / want.abs().max()).item(),
            ]
            rms, most = self.slowest(off)
            found[variant] = {"relative": rms, "largest": most}
        return found

    # Times.

    def profiled(self, count: int) -> dict[str, Any]:
        """Return the kernels of one step of each variant: calls, microseconds."""
        steps, _ = self.steps("graph", count)
        found = {}
        for variant, step in steps.items():
            made, wrong = self.tried(lambda step=step: self.kernels(step))
            found[variant] = wrong or made
        return found

    def kernels(self, step: Callable[[], Any]) -> list[dict[str, Any]]:
        """Return the kernels of a step, those of most time first."""
        kinds = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profile:
            step()
            self.settle()
        rows = [
            {"kernel": e.key[:70], "calls": e.count, "us": round(e.device_time_total)}
            for e in profile.key_averages()
        ]
        return sorted(rows, key=lambda row: -row["us"])[:14]

    def steps(
        self, kind: str, count: int
    ) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
        """Return a step of each variant, and what cannot be had."""
        tokens, place = self.tokens(count), self.place(count, prefill=kind == "prefill")
        torch_llama.BY_TRITON = self.by_triton and kind != "plain"
        found, failed = {}, {}
        for variant, model in self.models.items():
            step = functools.partial(model, tokens, place)
            made, wrong = self.tried(lambda step=step: self.ready(kind, step))
            if wrong:
                failed[variant] = wrong
            else:
                found[variant] = made
        return found, failed

    def ready(self, kind: str, step: Callable[[], Any]) -> Callable[[], Any]:
        """Return a step that has run before, in a graph when that is wanted."""
        for _ in range(3):
            step()
        self.settle()
        if kind == "graph":
            step = self.captured(step)
            step()
        return step

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

    def case(self, kind: str, count: int) -> dict[str, Any]:
        """Return one row of the table: all variants, in turn."""
        steps, failed = self.steps(kind, count)
        times = self.compare(steps, self.args.repeats)
        return {"kind": kind, "tokens": count, **times, "failed": failed}


@torch.no_grad()
def main() -> int:
    """Run all cases; rank 0 writes after each."""
    parser = argparse.ArgumentParser()
    inner(parser)
    for name in ("layers", "context", "repeats"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--shape")
    parser.add_argument("--variants", nargs="+")
    parser.add_argument("--kinds", nargs="+")
    parser.add_argument("--batches", nargs="+", type=int)
    parser.add_argument("--prefill", nargs="*", type=int)
    parser.add_argument("--fused-up-to", type=int)
    parser.add_argument("--kernels")
    parser.add_argument("--profile", type=int)
    args = parser.parse_args()
    rank = Rank(args)
    if args.fused_up_to:
        from stretto.torch.operators import norms

        norms.FUSED_UP_TO = args.fused_up_to
    failed = {}
    for variant in args.variants:
        _, wrong = rank.tried(functools.partial(rank.make, variant))
        if wrong:
            failed[variant] = wrong
            rank.models.pop(variant, None)
    said: dict[str, Any] = {"failed": failed, "rows": [], "errors": {}}
    said["kernels"] = rank.choose()
    rank.say(f"kernels chosen; failed: {said['kernels'].get('failed')}")
    rank.write(said)
    said["errors"] = rank.errors()
    rank.say(said["errors"])
    said["layers"], said["torch"] = rank.shape.layers, torch.__version__
    if rank.is_gpu:
        said["gpu"] = torch.cuda.get_device_name()
    sizes = {"prefill": args.prefill}
    for kind in args.kinds:
        for count in sizes.get(kind, args.batches):
            if rank.late():
                said["cut"] = f"no time left at {kind} {count}"
                break
            said["rows"].append(rank.case(kind, count))
            rank.say(said["rows"][-1])
            rank.write(said)
    if args.profile and rank.is_gpu and not rank.late():
        said["profiles"], wrong = rank.tried(lambda: rank.profiled(args.profile))
        said["profiles"] = said["profiles"] or {"failed": wrong}
    rank.write(said)
    dist.barrier(group=rank.control)
    with contextlib.suppress(Exception):
        rank.models.clear()
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
