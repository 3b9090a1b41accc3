"""A step of FSDP2 on a Llama-shaped model, by who communicates: time, and blocks used.

    python benchmarks/torch_fsdp.py --ranks 2 --out DIR
    python benchmarks/torch_fsdp.py --device cpu --width 64 --layers 2 --out DIR

The default is a model of a billion parameters: 16 layers of width 2048. A step is
forward, backward and SGD, in bf16 over float32 parameters. Both variants train the same
weights on the same tokens, and their losses are compared. On GPUs a profile of one step
says how many blocks each collective's kernel has (a block holds at least its share of
an SM while it waits), how long such kernels ran, and how long all others did.

`--few` are ways for large calls of the placed variant, as gathers:scatters, both the
blocks of a kernel or "engine": `engine:16 engine:pull16 16:32`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_ranks import Ranks, inner, launch, outer, write

CLOSE = 0.02
POOL = 3 << 30
"""Bytes of the pool of a variant whose buffers peers reach: two modules, gradients."""


FEW = ("engine:16", "engine:pull16", "engine:pull8", "16:pull16", "engine:32")
"""What is tried in place of what is shipped."""


def pins(few: str) -> dict[str, str]:
    """Return the algorithms that a word of `--few` names."""
    gather, scatter = few.split(":")
    whole = "zero_copy threads=512 tile_bytes=1073741824"
    by = "push engine zero_copy blocks=2"
    if gather != "engine":
        by = f"push bulk {whole} depth=8 blocks={gather}"
    way = f"ring push bulk {whole} blocks={scatter}"
    if scatter.startswith("pull"):
        way = f"one_shot pull bulk {whole} depth=8 blocks={scatter[4:]}"
    return {
        "all_gather": f"all_gather/one_shot {by}",
        "reduce_scatter": f"reduce_scatter/{way}",
    }


class Rank(Ranks):
    """A model for each variant."""

    def model(self, group: Any) -> tuple[Any, Any]:
        """Return a divided model and its optimizer."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        torch, args = self.torch, self.args
        torch.manual_seed(0)
        with torch.device(self.device):
            model = _llama(torch, args.width, args.layers)
        mesh = DeviceMesh.from_group(group, self.device.type)
        kind = torch.bfloat16 if self.is_gpu else torch.float32
        how = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=kind)}
        for layer in model.layers:
            fully_shard(layer, **how)
        fully_shard(model, **how)
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    def divided(self, variant: str) -> Any:
        """Return the model of a variant, and its optimizer.

        "stretto+placed": its buffers lie in memory that peers reach, and its large
        calls leave most SMs to others; "nccl+symmetric" is PyTorch's own way to that.
        """
        name, _, how = variant.partition("+")
        if not how:
            return self.model(self.group(name))
        if how == "symmetric":
            return self.symmetric()
        import stretto.torch

        group = self.dist.new_group(backend=name)
        made = self.model(group)
        pool = stretto.torch.pool(POOL, group=group)
        stretto.torch.place_buffers(made[0], pool)
        return made

    def symmetric(self) -> Any:
        """Return a model whose buffers are NCCL's symmetric memory, by copy engines.

        Options as PyTorch's documentation of `set_symm_mem_for_comm` has them.
        """
        options = self.dist.ProcessGroupNCCL.Options()
        options.config.cta_policy = self.dist.ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO
        made = self.model(self.dist.new_group(backend="nccl", pg_options=options))
        for module in made[0].modules():
            if hasattr(module, "set_symm_mem_for_comm"):
                module.set_symm_mem_for_comm()
        return made

    def few(self, step: Callable[[], Any], word: str) -> Callable[[], Any]:
        """Return the placed variant's step with other ways for large calls."""
        from stretto.torch import buffers

        usual, named = buffers.FEW_SMS, pins(word)

        def other() -> Any:
            buffers.FEW_SMS = named
            try:
                return step()
            finally:
                buffers.FEW_SMS = usual

        return other

    def step(self, variant: str) -> Callable[[], Any]:
        """Return a step of a variant, which returns the loss."""
        model, optimizer = self.divided(variant)
        torch, args = self.torch, self.args
        gen = torch.Generator(self.device).manual_seed(self.rank)
        shape = (1, args.tokens, args.width)
        x = torch.empty(shape, device=self.device).normal_(generator=gen)

        def step() -> Any:
            loss = model(x).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    def profiled(self, step: Callable[[], Any]) -> list[dict[str, Any]]:
        """Return kernels that communicate: blocks, how often, microseconds in all."""
        torch = self.torch
        kinds = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profile:
            step()
            self.settle()
        path = Path(tempfile.mkdtemp()) / "trace.json"
        profile.export_chrome_trace(str(path))
        found: dict[tuple[str, int], list[float]] = {}
        others = 0.0
        for event in json.loads(path.read_text())["traceEvents"]:
            name = str(event.get("name", ""))
            if event.get("cat") != "kernel":
                continue
            if not _communicates(name):
                others += event["dur"]
                continue
            x, y, z = event["args"]["grid"]
            found.setdefault((name[:60], x * y * z), []).append(event["dur"])
        rows = [
            {"kernel": k, "blocks": n, "calls": len(d), "us": round(sum(d), 1)}
            for (k, n), d in sorted(found.items())
        ]
        return [*rows, {"kernel": "all others", "us": round(others, 1)}]

    def host(self, step: Callable[[], Any]) -> float:
        """Return microseconds in which the host enqueues a step."""
        self.settle()
        self.dist.barrier(group=self.control)
        begun = time.perf_counter()
        step()
        took = (time.perf_counter() - begun) * 1e6
        self.settle()
        return round(took, 1)


def _communicates(name: str) -> bool:
    return name.startswith(("ncclDevKernel", "ncclSymk", "stretto"))


def _llama(torch: Any, width: int, layers: int) -> Any:
    """Return layers of attention and gated matrices, with norms, and a last norm."""
    nn, functional = torch.nn, torch.nn.functional

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.o = nn.Linear(width, width, bias=False)
            self.gate_up = nn.Linear(width, 8 * width, bias=False)
            self.down = nn.Linear(4 * width, width, bias=False)

        def forward(self, x: Any) -> Any:
            heads = max(1, width // 64)
            made = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, heads, -1)
            q, k, v = made.permute(2, 0, 3, 1, 4)
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(out.transpose(1, 2).flatten(2))
            gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
            return x + self.down(functional.silu(gate) * up)

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.norm = nn.RMSNorm(width)
            self.head = nn.Linear(width, width, bias=False)

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    return Model()


def work(words: list[str]) -> int:
    """Be a rank."""
    parser = argparse.ArgumentParser()
    inner(parser)
    for name in ("width", "layers", "tokens", "repeats"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--few", nargs="*")
    rank = Rank(parser.parse_args(words))
    said: dict[str, Any] = {"rows": [], "failed": {}, "losses": {}, "kernels": {}}
    said["torch"] = rank.torch.__version__
    steps: dict[str, Callable[[], Any]] = {}
    more = ("stretto+placed", "nccl+symmetric") if rank.is_gpu else ()
    for name in (rank.baseline, "stretto", *more):
        step, wrong = rank.tried(lambda name=name: rank.step(name))
        losses: Any = None
        if not wrong:
            losses, wrong = rank.tried(lambda step=step: [step().item() for _ in "123"])
        if wrong:
            said["failed"][name] = wrong
            continue
        steps[name], said["losses"][name] = step, losses
    placed = steps.get("stretto+placed")
    for word in rank.args.few if placed else ():
        step = rank.few(placed, word)
        _, wrong = rank.tried(lambda step=step: [step() for _ in "12"])
        if wrong:
            said["failed"][word] = wrong
        else:
            steps[f"placed {word}"] = step
    both = list(said["losses"].values())
    if len(both) > 1:
        first, *others = both
        off = max(
            abs(a - b) / abs(a)
            for one in others
            for a, b in zip(first, one, strict=True)
        )
        said["losses differ by"] = max(rank.everybody(off))
    said["rows"].append({"tokens": rank.args.tokens})
    said["rows"][0] |= rank.compare(steps, rank.args.repeats)
    said["rows"][0]["host"] = {
        name: max(rank.everybody(rank.host(step))) for name, step in steps.items()
    }
    rank.write(said)
    if rank.is_gpu:
        for name, step in steps.items():
            found, wrong = rank.tried(lambda step=step: rank.profiled(step))
            said["kernels"][name] = wrong or found
    rank.write(said)
    rank.dist.barrier(group=rank.control)
    return 0


def table(said: dict[str, Any]) -> str:
    """Return the results as markdown."""
    lines = ["| variant | us a step | spread | host us |"]
    lines.append("| --- | ---: | ---: | ---: |")
    for row in said["rows"]:
        host = row.get("host", {})
        lines += [
            f"| {name} | {us} | {row['spread'][name]} | {host.get(name)} |"
            for name, us in row["us"].items()
        ]
    lines += ["", f"- losses: {said.get('losses')}"]
    lines.append(f"- losses differ by {said.get('losses differ by')}, want {CLOSE}")
    for name, kernels in said.get("kernels", {}).items():
        lines.append(f"- kernels of {name}:")
        lines += (
            [f"  - {one}" for one in kernels] if type(kernels) is list else [kernels]
        )
    lines += [f"- {n} failed: {why[:500]}" for n, why in said.get("failed", {}).items()]
    lines += [f"- {said['wrong']}"] if said["wrong"] else []
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, or be a rank when started as one."""
    if "--rank" in sys.argv:
        return work(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    outer(parser)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=4096, help="of each rank")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--few", nargs="*", default=list(FEW))
    args = parser.parse_args()
    words = ["--few", *args.few]
    for name in ("width", "layers", "tokens", "repeats"):
        words += [f"--{name}", str(getattr(args, name))]
    said = {"rows": [], **launch("torch_fsdp.py", words, args)}
    off = said.get("losses differ by")
    if off is None or off > CLOSE:
        said["wrong"] = said["wrong"] or f"losses differ by {off}"
    return write(args.out, f"torch_fsdp_x{args.ranks}", said, table(said))


if __name__ == "__main__":
    sys.exit(main())
