"""How long the default set takes to compile: what a rank compiles before it is warm.

    python tests/device/cold.py --ranks 4 --out DIR [--threads N]

The default set is every plan that calls of 1 KB to 1 GB are served with when nobody
says how: each collective, staged and zero-copy. Compiled cold into an empty cache, all
cores at once; then asked for again in a process of its own, where nothing may compile.
Needs NVRTC and no GPU.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from stretto.errors import StrettoError  # noqa: E402
from stretto.executors.cuda.codegen import compile as compiler  # noqa: E402
from stretto.executors.cuda.codegen.abi import Kernel  # noqa: E402
from stretto.executors.cuda.codegen.generate import kernel_of  # noqa: E402
from stretto.executors.cuda.launching.copies import runs_on_engine  # noqa: E402
from stretto.program import collectives  # noqa: E402
from stretto.program.collectives import Operator  # noqa: E402
from stretto.runtime.choice.plans import frozen, proved_plan  # noqa: E402
from stretto.runtime.choice.question import STAGED, ZERO_COPY, Question  # noqa: E402
from stretto.runtime.choice.selector import Selector  # noqa: E402

ARCH = (9, 0)
SIZES = [1 << k for k in range(10, 31)]


def kernels(num_ranks: int, rank: int) -> list[Kernel]:
    """Return the kernels that one rank has in the default set."""
    selector = Selector("cuda")
    found: dict[str, Kernel] = {}
    for name in collectives.names():
        kind = collectives.get(name)
        params: dict[str, Any] = {}
        if name == "permute":
            params = {
                "pairs": tuple((r, (r + 1) % num_ranks) for r in range(num_ranks))
            }
        elif kind.rooted:
            params = {"root": 0}
        for memory in (STAGED, ZERO_COPY):
            for nbytes in SIZES:
                asked = Question(
                    executor="cuda",
                    collective=name,
                    num_ranks=num_ranks,
                    nbytes=nbytes,
                    memory=memory,
                    in_place=True,
                    params=frozen(params),
                )
                choice = selector.choose(asked)
                in_place = asked.in_place
                plan = proved_plan(
                    choice.algorithm, num_ranks, asked.params, choice.schedule, in_place
                )
                if runs_on_engine(plan.value):
                    continue
                kernel = kernel_of(plan, rank=rank, dtype="bfloat16", op=Operator.SUM)
                found[kernel.digest] = kernel
    return list(found.values())


def timed(args: argparse.Namespace) -> dict[str, Any]:
    """Return how long planning and compiling took in this process."""
    compiled = []
    build = compiler.build

    def counted(kernel: Kernel, **how: Any) -> tuple[bytes, str]:
        began = time.monotonic()
        try:
            return build(kernel, **how)
        finally:
            name = kernel.text.split(",")[0].removeprefix("// ")
            compiled.append((round(time.monotonic() - began, 2), name))

    compiler.build = counted
    began = time.monotonic()
    wanted = kernels(args.ranks, args.rank)
    planned = time.monotonic()
    compiler.compile_all(wanted, arch=ARCH, threads=args.threads or None)
    return {
        "kernels": len(wanted),
        "compiled": len(compiled),
        "plan_s": round(planned - began, 2),
        "compile_s": round(time.monotonic() - planned, 2),
        "longest": sorted(compiled, reverse=True)[:5],
        "cpu_s": round(sum(t for t, _ in compiled), 1),
        "threads": args.threads or os.cpu_count(),
    }


def main() -> int:
    """Time a cold process, then a second one; report both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--child", action="store_true")
    args = parser.parse_args()
    if args.child:
        try:
            print(json.dumps(timed(args)))
        except StrettoError as e:
            print(json.dumps({"error": str(e)}))
        return 0
    Path(args.out).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--child", "--ranks", str(args.ranks)]
    command += ["--rank", str(args.rank), "--threads", str(args.threads)]
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "STRETTO_CACHE_DIR": cache}
        for label in ("cold", "second"):
            began = time.monotonic()
            done = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            lines = done.stdout.strip().splitlines()
            said = json.loads(lines[-1]) if lines else {"error": done.stderr[-2000:]}
            rows.append({"process": label, **said})
            rows[-1]["process_s"] = round(time.monotonic() - began, 2)
            print(rows[-1], flush=True)
    (Path(args.out) / "cold.json").write_text(json.dumps(rows, indent=1))
    cold, second = rows
    good = cold.get("compile_s", 99) < 10 and second.get("compiled") == 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
