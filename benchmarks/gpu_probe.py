"""The first job on a fresh GPU machine: what is there, and whether our basics work.

    python benchmarks/gpu_probe.py --out DIR [--seconds 200]

One GPU is enough. Every step runs in a process of its own and says what it found.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
STEPS: dict[str, Callable[[], Any]] = {}

EMPTY = 'extern "C" __global__ void stretto_kernel(const __grid_constant__ P p) {}'


def step(function: Callable[[], Any]) -> Callable[[], Any]:
    """Register a step under its name."""
    STEPS[function.__name__] = function
    return function


@step
def versions() -> Any:
    """Say what is installed."""
    import cuda.bindings
    import torch

    said = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "bindings": cuda.bindings.__version__,
        "nvidia_smi": said,
        "cores": os.cpu_count(),
    }


@step
def doctor() -> Any:
    """Ask our own doctor."""
    from stretto.executors import cuda

    return dict(cuda.doctor())


@step
def compiler() -> Any:
    """Compile one kernel and say how long it takes."""
    from stretto import algorithms
    from stretto.executors.cuda.compile import build
    from stretto.executors.cuda.generate import generate
    from stretto.lower import lower
    from stretto.plan import Schedule
    from stretto.verify import verify

    answer = {}
    for name, schedule in (
        ("all_reduce/one_shot", "push packets staged blocks=1 threads=128"),
        ("all_reduce/two_shot", "push packets staged blocks=16 threads=512"),
        ("all_reduce/two_shot", "pull bulk zero_copy blocks=32 threads=512"),
    ):
        plan = lower(verify(algorithms.get(name).build(4)), Schedule.parse(schedule))
        kernel = generate(plan, rank=1, dtype="bfloat16")
        began = time.monotonic()
        image, log = build(kernel, arch=(9, 0))
        answer[f"{name} {schedule}"] = {
            "seconds": round(time.monotonic() - began, 2),
            "bytes": len(image),
            "log": log[-300:],
        }
    return answer


@step
def launches() -> Any:
    """Measure the processor time of a launch, by the bindings and by ctypes."""
    import numpy as np

    from stretto.executors.cuda.abi import Kernel
    from stretto.executors.cuda.compile import build
    from stretto.executors.cuda.driver import api, ask, open_device
    from stretto.executors.cuda.launch import enqueue, load

    device = open_device(0)
    text = f"struct P {{ char c[512]; }};\n{EMPTY}\n"
    kernel = Kernel(text=text, ranks=(0,), grid=1, threads=32)
    image, _ = build(kernel, arch=device.arch)
    loaded = load(device, kernel, image)
    raw = np.zeros(512, np.uint8)
    array = (ctypes.c_void_p * 1)(raw.ctypes.data)
    where, stream = ctypes.addressof(array), ask("cuStreamCreate", 1)

    def by_bindings() -> None:
        enqueue(device, loaded, stream, where)

    cuda = ctypes.CDLL("libcuda.so.1")
    direct = cuda.cuLaunchKernel
    direct.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
    fixed = (int(loaded.function), 1, 1, 1, 32, 1, 1, 0, int(stream), where, None)

    def by_ctypes() -> None:
        assert direct(*fixed) == 0, "the launch is the same"

    answer = {}
    for name, launch in (("bindings", by_bindings), ("ctypes", by_ctypes)):
        times = []
        for _ in range(7):
            ask("cuCtxSynchronize")
            began = time.perf_counter()
            for _ in range(300):
                launch()
            times.append((time.perf_counter() - began) / 300 * 1e6)
        answer[name] = round(sorted(times)[3], 2)
    assert api() is not None, "the driver stayed"
    return answer


def _script(name: str, *words: str, limit: float) -> Any:
    out = os.environ["OUT"]
    command = [sys.executable, str(ROOT / name), "--out", out, *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=limit
    )
    return {"code": done.returncode, "tail": (done.stdout + done.stderr)[-3500:]}


@step
def virtual_two() -> Any:
    """Run every algorithm and protocol with two virtual ranks."""
    words = ["--ranks", "2", "--seconds", "80"]
    return _script("tests/device/virtual.py", *words, limit=120)


@step
def shared() -> Any:
    """Run sessions of two processes that share this GPU."""
    words = ["--ranks", "2", "--share", "--seconds", "100"]
    return _script("tests/device/ranks.py", *words, limit=130)


@step
def sanitizer() -> Any:
    """Run two cases under compute-sanitizer."""
    found = {}
    for only in ("all_reduce/two_shot packets", "all_gather/one_shot zero_copy"):
        words = ["--ranks", "2", "--limit", "1", "--seconds", "40", "--only", only]
        words += ["--prefix", "compute-sanitizer --tool memcheck --error-exitcode 9"]
        found[only] = _script("tests/device/virtual.py", *words, limit=70)
    return found


def main() -> int:
    """Run each step in a process of its own, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--seconds", type=float, default=330)
    parser.add_argument("--step", default="")
    args = parser.parse_args()
    os.environ["OUT"] = args.out
    os.environ.update(
        NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1",
        NVSHMEM_DISABLE_NVLS="1",
    )  # fmt: skip
    if args.step:
        try:
            answer = STEPS[args.step]()
        except Exception:
            answer = {"failed": traceback.format_exc()[-1500:]}
        print("ANSWER " + json.dumps(answer, default=str))
        return 0
    began = time.monotonic()
    results: dict[str, Any] = {}
    for name in STEPS:
        left = args.seconds - (time.monotonic() - began)
        if left < 10:
            results[name] = "no time"
            continue
        command = [sys.executable, __file__, "--step", name, "--out", args.out]
        started = time.monotonic()
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=left
            )
            lines = [x for x in done.stdout.splitlines() if x.startswith("ANSWER ")]
            results[name] = (
                json.loads(lines[-1][7:])
                if lines
                else {"failed": done.stderr[-1500:], "code": done.returncode}
            )
        except subprocess.TimeoutExpired:
            results[name] = {"failed": f"no answer in {left:.0f} s"}
        took = time.monotonic() - started
        print(f"== {name} ({took:.1f} s)", flush=True)
        shown = results[name]
        if isinstance(shown, dict) and "tail" in shown:
            print(shown["tail"], flush=True)
        else:
            print(json.dumps(shown, indent=1)[:3000], flush=True)
        (Path(args.out) / "probe.json").write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
