"""Weights on a GPU of which only changes are read: right, and what they take.

    python tests/device/weights_changes.py --out DIR [--mib N]

This process trains, a child follows by TCP, on the same GPU. After each version the
child says a sum of the bytes that it has, which is compared with a sum of what PyTorch
casts here. Times are seconds from a push until the child has switched.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src")]
os.environ.setdefault("STRETTO_CUDA_SHARE_GPU", "1")

import torch  # noqa: E402

from stretto import weights  # noqa: E402
from stretto.transfer import Engine  # noqa: E402

SECRET, WAIT, GPU = b"w" * 32, 60.0, "cuda"
SHAPES = {"w": (512, 384), "t": (256, 640), "b": (777,), "one": ()}
CASES = {
    "as it is, two copies": (None, 2, "float32"),
    "as it is, one copy": (None, 1, "float32"),
    "bfloat16": ("bfloat16", 2, "bfloat16"),
    "on the host there": (None, 2, "host"),
}


def said(tensors: dict[str, Any]) -> int:
    """Return what tells tensors from others, by names."""
    found = 0
    for name in sorted(tensors):
        raw = tensors[name].detach().contiguous().view(-1).view(torch.uint8)
        found = zlib.crc32(raw.cpu().numpy(), found)
    return found


def empty(name: str, shape: tuple[int, ...], kind: str) -> Any:
    """Return memory of a replica; `t` lies by columns."""
    device = "cpu" if kind == "host" and name == "w" else GPU
    dtype = torch.float32 if kind == "host" else getattr(torch, kind)
    if name == "t":
        return torch.zeros(shape[::-1], dtype=dtype, device=device).t()
    return torch.zeros(shape, dtype=dtype, device=device)


def follow(words: list[str]) -> None:
    """Be the child: step once for each line, and say what is here."""
    address, name, kind, copies, mib = words
    shapes = large(int(mib)) if int(mib) else SHAPES
    into = {one: empty(one, shape, kind) for one, shape in shapes.items()}
    with Engine("child", listen="127.0.0.1:0", secret=SECRET) as engine:
        engine.connect(address).wait(WAIT)
        how = {"copies": int(copies), "patience": WAIT, "deadline": WAIT}
        with weights.subscribe(engine, name, into=into, **how) as policy:
            calls, inner = [], policy.puller.update

            def update(*given: Any) -> int:
                calls.append(inner(*given))
                return calls[-1]

            policy.puller.update = update
            print("ready", flush=True)
            for line in sys.stdin:
                policy.wait(int(line), timeout=WAIT)
                with policy.step(timeout=WAIT):
                    torch.cuda.synchronize()
                    found = said(policy.tensors)
                print(json.dumps([found, len(calls)]), flush=True)


class Child:
    """The replica, in a process."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, __file__, "--follow", *map(str, words)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def has(self, version: int) -> list[int]:
        """Return the sum of what it steps with, and how often it read changes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{version}\n")
        self.process.stdin.flush()
        return list(json.loads(self.process.stdout.readline()))

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait(20)


def alter(tensors: dict[str, Any], share: float, chance: Any) -> None:
    """Change a share of all elements."""
    for one in tensors.values():
        where = torch.rand(one.shape, device=one.device, generator=chance) < share
        one.copy_(torch.where(where, one * 1.5 + 1, one + one * 1e-6))


def right(name: str) -> dict[str, Any]:
    """Push versions of one case, and compare each."""
    cast, copies, kind = CASES[name]
    chance = torch.Generator(GPU).manual_seed(3)
    ours = {
        n: torch.randn(shape, device=GPU, generator=chance)
        for n, shape in SHAPES.items()
    }
    how = {"cast": cast, "delta": True, "patience": WAIT}
    wrong, told = [], []
    with (
        Engine("trainer", listen="127.0.0.1:0", secret=SECRET) as engine,
        weights.publish(engine, "p", ours, **how) as source,
    ):
        child = Child(engine.address, "p", kind, copies, 0)
        try:
            for version, share in enumerate((1.0, 0.01, 0.0, 0.1, 0.2, 0.001), 1):
                if cast:
                    alter(ours, share, chance)
                elif version > 1:
                    for one in ours.values():
                        flat = one.view(-1)
                        count = int(len(flat) * share)
                        at = torch.randperm(len(flat), device=GPU)[:count]
                        flat[at] = flat[at] * -2 + 1
                push = source.push(version)
                push.wait(WAIT)
                want = (
                    {n: one.to(getattr(torch, cast)) for n, one in ours.items()}
                    if (cast)
                    else ours
                )
                found, calls = child.has(version)
                told.append(push.delta)
                if found != said(want) or calls != version - 1:
                    wrong.append([version, calls, push.delta])
        finally:
            child.end()
    return {"case": name, "wrong": wrong, "said": told[-1]}


def large(mib: int) -> dict[str, tuple[int, ...]]:
    """Return shapes of so many MiB of bfloat16."""
    return {f"w{i:03}": (1024, 4096) for i in range(mib // 8)}


def times(mib: int) -> list[dict[str, Any]]:
    """Return what versions take, of which a share is new, and all of one."""
    found = []
    for share in (0.001, 0.01, 0.1, 1.0):
        chance = torch.Generator(GPU).manual_seed(4)
        ours = {
            n: torch.randn(shape, device=GPU, generator=chance).bfloat16()
            for n, shape in large(mib).items()
        }
        with (
            Engine("trainer", listen="127.0.0.1:0", secret=SECRET) as engine,
            weights.publish(engine, "p", ours, delta=True, patience=WAIT) as source,
        ):
            child = Child(engine.address, "p", "bfloat16", 2, mib)
            pushed, took = [], []
            try:
                for version in range(1, 6):
                    for one in ours.values():
                        where = torch.rand(one.shape, device=GPU) < share
                        one.view(torch.int16)[where] += 1
                    torch.cuda.synchronize()
                    begun = time.perf_counter()
                    push = source.push(version)
                    pushed.append(round(time.perf_counter() - begun, 4))
                    push.wait(WAIT)
                    took.append(round(time.perf_counter() - begun, 4))
                is_right = child.has(5)[0] == said(ours)
            finally:
                child.end()
        found.append({
            "share": share, "mib": mib, "push_s": pushed, "switched_s": took,
            "right": is_right, "said": push.delta,
        })  # fmt: skip
        print(json.dumps(found[-1]), flush=True)
    return found


def main() -> None:
    """Check, then measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--mib", type=int, default=0, help="measure so many, too")
    parser.add_argument("--follow", nargs=5)
    args = parser.parse_args()
    if args.follow:
        follow(args.follow)
        return
    rows = []
    for name in CASES:
        rows.append(right(name))
        print(json.dumps(rows[-1]), flush=True)
    timed = times(args.mib) if args.mib else []
    report = json.dumps({"cases": rows, "times": timed}, indent=1)
    (args.out / "weights_changes.json").write_text(report)
    is_well = not any(row["wrong"] for row in rows) and all(r["right"] for r in timed)
    sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main()
