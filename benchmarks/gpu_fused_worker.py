"""One rank of gpu_fused.py: all_reduce, residual add and RMSNorm, fused or one by one.

`nbytes` of the commands is the number of rows here. Residuals are updated in place, as
models do; NCCL sums in place and a Triton kernel of one program a row follows it.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import torch
from gpu_fused_kernels import HIDDEN, call_of, how
from gpu_worker import Ours, Worker

from stretto.program.epilogues import evaluate

EPS = 1e-6

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def add_rms_norm(x, residual, weight, out, eps, n: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0) * n
    at = tl.arange(0, block)
    inside = at < n
    s = tl.load(x + row + at, inside, other=0.0).to(tl.float32)
    s += tl.load(residual + row + at, inside, other=0.0).to(tl.float32)
    tl.store(residual + row + at, s.to(tl.bfloat16), inside)
    scale = tl.rsqrt(tl.sum(s * s) / n + eps)
    w = tl.load(weight + at, inside, other=0.0).to(tl.float32)
    tl.store(out + row + at, (s * scale * w).to(tl.bfloat16), inside)
"""


@functools.cache
def triton_norm() -> Any:
    """Return the kernel; Triton reads its source from a file."""
    import importlib.util
    import os
    import tempfile

    handle, path = tempfile.mkstemp(suffix=".py", prefix="add_rms_norm_")
    with os.fdopen(handle, "w") as file:
        file.write(KERNEL)
    spec = importlib.util.spec_from_file_location("add_rms_norm", path)
    assert spec is not None, "the file was just written"
    assert spec.loader is not None, "it ends in .py"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.add_rms_norm


class Norm:
    """The arrays of one number of rows, and what they should become."""

    def __init__(self, rank: int, ranks: int, rows: int, hidden: int = HIDDEN) -> None:
        self.shape, self.rank, self.ranks = (rows, hidden), rank, ranks
        self.weight = self.drawn(9_000)[0]
        self.residual, self.out = self.drawn(8_000), self.drawn(8_000)

    def drawn(self, seed: int) -> Any:
        """Return random rows, the same wherever they are asked for."""
        gen = torch.Generator("cuda").manual_seed(seed)
        return torch.randn(
            self.shape, generator=gen, device="cuda", dtype=torch.bfloat16
        )

    def fill(self, x: Any) -> None:
        """Give everything its first values; poison the output."""
        x.copy_(self.drawn(self.rank))
        self.residual.copy_(self.drawn(8_000))
        self.out.view(torch.int16).fill_(0x7FA5)

    def total(self) -> Any:
        """Return the sum in the order of the ranks, not rounded yet."""
        total = self.drawn(0).float()
        for rank in range(1, self.ranks):
            total += self.drawn(rank).float()
        return total

    @functools.cached_property
    def bits(self) -> list[Any]:
        """Return what out and residual have to be, by the reference, bit for bit."""
        spec = call_of(*self.shape).epilogue
        assert spec is not None, "the call has one"

        def raw(one: Any) -> Any:
            return one.contiguous().view(torch.int16).cpu().numpy().view("u2").ravel()

        given = [raw(self.drawn(8_000)), raw(self.weight), EPS]
        made = evaluate(spec, raw(self.total().bfloat16()), given)
        return [torch.from_numpy(m.view("i2")).cuda() for m in made]

    def differs(self) -> str:
        """Return which output has other bits than the reference, or nothing."""
        for name, got, want in zip(
            ("out", "residual"), (self.out, self.residual), self.bits, strict=True
        ):
            wrong = got.view(torch.int16).ravel() != want
            if bool(wrong.any()):
                first = int(wrong.nonzero()[0])
                return f"{name}: {int(wrong.sum())} differ, the first at {first}"
        return ""

    def error(self) -> str:
        """Return what is wrong after one call, or nothing."""
        s = self.total().bfloat16().float() + self.drawn(8_000).float()
        scale = torch.rsqrt((s * s).mean(-1, keepdim=True) + EPS)
        norm = s * scale * self.weight.float()
        for name, got, want in (
            ("out", self.out, norm),
            ("residual", self.residual, s),
        ):
            off = (got.float() - want).abs() - want.abs() * 0.02
            if not bool((off < 0.04).all()):
                return f"{name} is off by {off.max().item():.3f}"
        return ""


@functools.cache
def norm_of(rank: int, ranks: int, rows: int) -> Norm:
    """Return the arrays of a number of rows, the same for all variants."""
    return Norm(rank, ranks, rows)


class FusedWorker:
    """`prepare` of both sides: one call is checked, eagerly and replayed."""

    exact = False

    def built(self, norm: Norm, variant: str) -> tuple[Any, Any]:
        """Return the input, and a function that enqueues everything."""
        raise NotImplementedError

    def prepare(self: Any, collective: str, nbytes: int, variant: str) -> Any:
        """Check a variant, and capture what is timed."""
        norm = norm_of(self.rank, self.ranks, nbytes)
        check = norm.differs if self.exact else norm.error
        x, enqueue = self.built(norm, variant)
        norm.fill(x)
        self.settle()
        enqueue()
        self.settle()
        wrong = check()
        graph = self.capture(enqueue, 1)
        norm.fill(x)
        self.settle()
        graph.replay()
        self.settle()
        wrong = wrong or check()
        checksum = int(norm.out.view(torch.int16).sum(dtype=torch.int64).item())
        graph = self.capture(enqueue, 10)
        self.kept[f"{collective} {nbytes} {variant}"] = (graph, 10, (enqueue, norm))
        return {"wrong": wrong, "checksum": checksum}


def _bf16(count: int) -> Any:
    return torch.empty(count, dtype=torch.bfloat16, device="cuda")


class Nccl(Worker):
    """NCCL through torch.distributed: plain tensors and symmetric windows."""

    def open(self, args: argparse.Namespace) -> None:
        """Connect, and register a pool of symmetric memory."""
        import torch.distributed as dist

        self.dist = dist
        dist.init_process_group(
            "nccl",
            init_method=f"file://{args.meet}",
            rank=args.rank,
            world_size=args.ranks,
            device_id=torch.device("cuda", args.rank),
        )
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
        count = self.largest // 2
        self.plain = [_bf16(count), _bf16(count)]
        self.windows: list[Any] = []
        self.pool_error = ""

    def _windows(self) -> list[Any]:
        if not self.windows and not self.pool_error:
            try:
                group = self.dist.distributed_c10d._get_default_group()
                backend = group._get_backend(torch.device("cuda"))
                self.pool = torch.cuda.MemPool(backend.mem_allocator)
                with torch.cuda.use_mem_pool(self.pool):
                    made = [_bf16(self.largest // 2) for _ in range(2)]
                backend.register_mem_pool(self.pool, symm=True)
                self.windows = made
            except Exception as e:
                self.pool_error = f"{type(e).__name__}: {e}"
        if not self.windows:
            raise RuntimeError(f"no symmetric windows: {self.pool_error}")
        return self.windows


class FusedNccl(FusedWorker, Nccl):
    """NCCL, then a Triton kernel."""

    def built(self, norm: Norm, variant: str) -> tuple[Any, Any]:
        """Return the input and both calls; `symm`: in a symmetric window."""
        kind, _, warps = variant.partition(" ")
        both = self._windows() if kind == "symm" else self.plain
        rows = norm.shape[0]
        x = both[0][: rows * HIDDEN].view(norm.shape)
        kernel, dist = triton_norm(), self.dist

        def enqueue() -> None:
            dist.all_reduce(x)
            kernel[(rows,)](
                x, norm.residual, norm.weight, norm.out, EPS, HIDDEN, HIDDEN,
                num_warps=int(warps),
            )  # fmt: skip

        return x, enqueue


class FusedOurs(FusedWorker, Ours):
    """One kernel, whose outputs have the bits of the reference."""

    exact = True

    def built(self, norm: Norm, variant: str) -> tuple[Any, Any]:
        """Return the input and the call."""
        plan, call = self._plan(variant), call_of(norm.shape[0])
        with how(variant):
            launch = self.session.prepare(plan, call)
        x, y = (one[: norm.out.numel()].view(norm.shape) for one in self.registered)
        extra = (norm.residual, norm.weight, EPS, norm.out, norm.residual)
        return x, lambda: launch(x, y, extra=extra)


FUSED = {"fused_nccl": FusedNccl, "fused_nccl_mix0": FusedNccl, "fused_ours": FusedOurs}
