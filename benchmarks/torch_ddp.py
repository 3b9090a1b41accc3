"""A step of DDP and FSDP2 on two GPUs, by who communicates; what a started call costs.

    python benchmarks/torch_ddp.py --ranks 2 --out DIR
    python benchmarks/torch_ddp.py --device cpu --models tiny --buckets 1 --out DIR

A step is forward and backward of layers without biases, in bf16 on GPUs. Variants run
in turns: no DDP ("alone", the floor), NCCL, stretto as it is, and stretto by ways that
`--ways` names: `blocks=16` is `Options(max_blocks=16)`, `python` is without what is
compiled of a group (`stretto precompile --torch`), other words are a pin of all_reduce.
Gradients are compared with a sum over ranks by NCCL, in float32.
`--profile MODEL` adds what kernels of one step took, by variant.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_ranks import Ranks, inner, launch, outer, write

MODELS = {
    "8 of 2048, batch 64": (8, 2048, 64),
    "8 of 4096, batch 512": (8, 4096, 512),
    "24 of 1024, batch 2048": (24, 1024, 2048),
    "16 of 4096, batch 20480": (16, 4096, 20480),
    "tiny": (3, 256, 8),
}
"""Layers, their width, rows of a rank's batch; `tiny` is for a look on CPUs."""
CLOSE = 0.02
"""By how much gradients may differ from the reference, of its norm: bf16."""
CALLS = (1 << 20, 16 << 20)
SLOWER = 1.0
"""Of NCCL's step, what is still no slower: told with the spread beside it."""


class Rank(Ranks):
    """Models of this rank, and the groups of every variant."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        self.made: dict[str, Any] = {}

    def group_of(self, variant: str) -> Any:
        """Return a variant's group: a backend, or stretto with options."""
        name, _, way = variant.partition(" ")
        if not way:
            return self.group(name)
        if variant not in self.made:
            from stretto.torch import Options

            key, _, number = way.partition("=")
            if key == "blocks" and number.isdigit():
                options = Options(max_blocks=int(number))
            elif way == "python":
                options = Options()
            else:
                options = Options(algorithms={"all_reduce": way})
            before = os.environ.get("STRETTO_TORCH_NATIVE", "")
            os.environ["STRETTO_TORCH_NATIVE"] = "0" if way == "python" else before
            group = self.dist.new_group(backend=name, pg_options=options)
            os.environ["STRETTO_TORCH_NATIVE"] = before
            self.made[variant] = group
        return self.made[variant]

    def model(self, shape: tuple[int, int, int]) -> Any:
        """Return the layers, alike on every rank, and this rank's batch."""
        torch, (layers, width, batch) = self.torch, shape
        kind = torch.bfloat16 if self.is_gpu else torch.float32
        torch.manual_seed(7)
        with torch.device(self.device):
            stack = [torch.nn.Linear(width, width, bias=False) for _ in range(layers)]
            net = torch.nn.Sequential(*stack).to(kind)
        gen = torch.Generator(self.device).manual_seed(100 + self.rank)
        x = torch.empty((batch, width), device=self.device, dtype=kind)
        return net, x.normal_(generator=gen)

    def stepped(self, net: Any, x: Any) -> Callable[[], Any]:
        """Return forward and backward; gradients are there afterwards."""

        def step() -> Any:
            net.zero_grad(set_to_none=True)
            out = net(x)
            out.backward(gradient=x)

        return step

    def ddp(self, net: Any, variant: str, bucket: float, *, view: bool) -> Any:
        """Return a copy of the model in DDP, on a variant's group."""
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(
            copy.deepcopy(net),
            process_group=self.group_of(variant),
            bucket_cap_mb=bucket,
            gradient_as_bucket_view=view,
        )

    def sharded(self, net: Any, variant: str) -> Any:
        """Return a copy of the model in FSDP2, a unit for each layer."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        made = copy.deepcopy(net)
        mesh = DeviceMesh.from_group(self.group_of(variant), self.device.type)
        for layer in made:
            fully_shard(layer, mesh=mesh)
        return fully_shard(made, mesh=mesh)

    def reference(self, net: Any, x: Any) -> list[Any]:
        """Return the mean over ranks of every gradient, in float32."""
        self.stepped(net, x)()
        found = [p.grad.float() for p in net.parameters()]
        for one in found:
            self.dist.all_reduce(one)
            one /= self.ranks
        return found

    def off(self, made: Any, due: list[Any]) -> float:
        """Return by how much gradients differ from what is due, at most."""
        worst = 0.0
        for p, want in zip(made.parameters(), due, strict=True):
            grad = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
            by = (grad.float() - want).norm() / want.norm()
            worst = max(worst, float(by))
        return worst if worst == worst else float("inf")

    def cell(self, model: str, how: tuple[str, float, bool], ways: list[str]) -> Any:
        """Measure one model in one way of dividing it, for all variants."""
        kind, bucket, view = how
        net, x = self.model(MODELS[model])
        due = self.reference(net, x)
        steps, failed, off = {"alone": self.stepped(net, x)}, {}, {}
        for variant in (self.baseline, *ways):
            made, wrong = self.tried(
                lambda v=variant: (
                    self.sharded(net, v)
                    if kind == "fsdp2"
                    else self.ddp(net, v, bucket, view=view)
                )
            )
            step = None if wrong else self.stepped(made, x)
            for _ in range(0 if wrong else 3):
                _, wrong = self.tried(step)  # type: ignore[arg-type]
            if wrong:
                failed[variant] = wrong
                continue
            off[variant] = max(self.everybody(self.off(made, due)))
            if not off[variant] <= CLOSE:
                failed[variant] = f"gradients differ by {off[variant]}"
                continue
            steps[variant] = step
        row = {"model": model, "kind": kind, "bucket": bucket, "view": view}
        row |= self.compare(steps, self.args.repeats)
        if self.args.profile == model:
            row["kernels"] = {v: self.profiled(one) for v, one in steps.items()}
        return {**row, "failed": failed, "off": off}

    def profiled(self, step: Callable[[], Any]) -> dict[str, float]:
        """Return microseconds of a step's kernels: those that communicate, others."""
        torch = self.torch
        kinds = [torch.profiler.ProfilerActivity.CUDA]
        self.settle()
        with torch.profiler.profile(activities=kinds) as profile:
            for _ in range(5):
                step()
            self.settle()
        path = Path(tempfile.mkdtemp()) / "trace.json"
        profile.export_chrome_trace(str(path))
        found = {"communicate": 0.0, "others": 0.0, "calls": 0}
        for event in json.loads(path.read_text())["traceEvents"]:
            if event.get("cat") != "kernel":
                continue
            ours = str(event["name"]).startswith(("nccl", "stretto"))
            found["communicate" if ours else "others"] += event["dur"] / 5
            found["calls"] += ours
        return {name: round(us, 1) for name, us in found.items()}

    def host(self, nbytes: int, variant: str) -> dict[str, float]:
        """Return microseconds that a started all_reduce takes the host, in parts."""
        torch, dist, group = self.torch, self.dist, self.group_of(variant)
        x = torch.zeros(nbytes // 4, device=self.device)
        times: dict[str, list[float]] = {"start": [], "future": [], "wait": []}
        for turn in range(60):
            if turn % 5 == 0:
                self.settle()
                dist.barrier(group=self.control)
            at = [time.perf_counter()]
            work = dist.all_reduce(x, group=group, async_op=True)
            at.append(time.perf_counter())
            future = work.get_future()
            at.append(time.perf_counter())
            work.wait()
            at.append(time.perf_counter())
            del work, future
            for said, a, b in zip(times.values(), at, at[1:], strict=False):
                said += [(b - a) * 1e6] if turn >= 10 else []
        self.settle()
        took = {name: statistics.median(said) for name, said in times.items()}
        took["blocking"] = self.blocking(x, group)
        return {name: round(us, 1) for name, us in took.items()}

    def blocking(self, x: Any, group: Any) -> float:
        """Return microseconds that a call which is not started takes the host."""
        said = []
        for turn in range(40):
            if turn % 5 == 0:
                self.settle()
                self.dist.barrier(group=self.control)
            begun = time.perf_counter()
            self.dist.all_reduce(x, group=group)
            said.append((time.perf_counter() - begun) * 1e6)
        return statistics.median(said[10:])


def cells(args: argparse.Namespace) -> list[tuple[str, tuple[str, float, bool]]]:
    """Return what is measured, in order."""
    found: list[tuple[str, tuple[str, float, bool]]] = []
    names = list(MODELS)
    for word in args.models:
        model = names[int(word)] if word.isdigit() else word
        for bucket in args.buckets:
            found += [(model, ("ddp", float(bucket), v == "1")) for v in args.views]
        if args.fsdp:
            found.append((model, ("fsdp2", 0.0, False)))
    return found


def work(words: list[str]) -> int:
    """Be a rank."""
    parser = argparse.ArgumentParser()
    inner(parser)
    own(parser)
    rank = Rank(parser.parse_args(words))
    if rank.is_gpu:
        rank.device = rank.torch.device("cuda", rank.torch.cuda.current_device())
    args, ways = rank.args, [w or "stretto" for w in rank.args.ways]
    ways = [w if w.startswith("stretto") else f"stretto {w}" for w in ways]
    said: dict[str, Any] = {"rows": [], "host": {}, "late": []}
    said["torch"] = rank.torch.__version__
    if rank.is_gpu:
        said["nccl"] = ".".join(map(str, rank.torch.cuda.nccl.version()))
    base = () if args.share else (rank.baseline,)
    for variant in (*base, *ways) if rank.is_gpu else ():
        for nbytes in CALLS:
            made, wrong = rank.tried(lambda v=variant, n=nbytes: rank.host(n, v))
            said["host"][f"{variant}, {nbytes >> 20} MB"] = wrong or made
    rank.say(said["host"])
    for model, how in cells(args):
        if rank.late():
            said["late"].append([model, *how])
            continue
        row, wrong = rank.tried(lambda m=model, h=how: rank.cell(m, h, ways))
        said["rows"].append(row or {"model": model, "failed": {"all": wrong}})
        if wrong:
            said["rows"][-1]["wrong"] = wrong
        rank.say(json.dumps(said["rows"][-1]))
        rank.write(said)
        if rank.is_gpu:
            rank.torch.cuda.empty_cache()
    rank.write(said)
    rank.dist.barrier(group=rank.control)
    return 0


def table(said: dict[str, Any]) -> str:
    """Return the results as markdown."""
    rows = [row for row in said["rows"] if "us" in row]
    names = list(dict.fromkeys(name for row in rows for name in row["us"]))
    base = "nccl" if "nccl" in names else "gloo"
    lines = [f"| model | how | {' | '.join(names)} | ours of {base}'s |"]
    lines.append(f"| --- | --- |{' ---: |' * (len(names) + 1)}")
    for row in rows:
        how = f"{row['bucket']:g} MB{', views' if row['view'] else ''}"
        how = "FSDP2" if row["kind"] == "fsdp2" else how
        us, spread = row["us"], row["spread"]
        cells = [f"{us[n]:.0f} ({spread[n]:.0f})" if n in us else "" for n in names]
        of = us["stretto"] / us[base] if "stretto" in us and base in us else None
        cells.append("" if of is None else f"{of:.3f}")
        lines.append(f"| {row['model']} | {how} | {' | '.join(cells)} |")
    lines += ["", "| started all_reduce, us of the host | start | its future | wait | "]
    lines[-1] += "not started |"
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for name, one in said["host"].items():
        told = list(one.values()) if isinstance(one, dict) else [one]
        lines.append(f"| {name} | {' | '.join(map(str, told))} |")
    for row in said["rows"]:
        for name, why in row.get("failed", {}).items():
            lines.append(f"- {row['model']}, {name} failed: {why[:400]}")
        if "kernels" in row:
            lines.append(f"- kernels of {row['model']}: {row['kernels']}")
    lines += [f"- no time for {one}" for one in said["late"]]
    lines += [f"- {said['wrong']}"] if said["wrong"] else []
    return "\n".join(lines) + "\n"


def own(parser: argparse.ArgumentParser) -> None:
    """Add what is measured."""
    parser.add_argument("--models", nargs="*", default=["0", "1", "2", "3"])
    parser.add_argument("--buckets", nargs="*", default=["1", "4", "8", "25"])
    parser.add_argument("--views", nargs="*", default=["0", "1"])
    parser.add_argument("--ways", nargs="*", default=["stretto"])
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--profile", default="")


def main() -> int:
    """Measure, or be a rank when started as one."""
    if "--rank" in sys.argv:
        return work(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    outer(parser)
    own(parser)
    args = parser.parse_args()
    words = ["--repeats", str(args.repeats), "--profile", args.profile]
    words += ["--fsdp"] * args.fsdp
    for name in ("models", "buckets", "views", "ways"):
        words += [f"--{name}", *getattr(args, name)]
    said = {"rows": [], "host": {}, "late": [], **launch("torch_ddp.py", words, args)}
    return write(args.out, f"torch_ddp_x{args.ranks}", said, table(said))


if __name__ == "__main__":
    sys.exit(main())
