"""Measure a switch of weights: two processes, one trains, the other steps all the time.

    python -m stretto.bench.weights TRAINER COPIES NBYTES

is the process that steps; whoever measures starts it. Every element of a version is its
counter, and each step looks at one of every page.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto import weights
from stretto.errors import StrettoError
from stretto.transfer import Engine

_TENSORS, _VERSIONS, _WAIT_S = 16, 8, 60.0
_LOOKED = 1024
"""Elements from one that a step looks at to the next."""


def measure(nbytes: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each way to hold copies: what a push and a switch take."""
    for copies in (2, 1):
        yield _row(nbytes, copies)


def _tensors(nbytes: int) -> dict[str, NDArray[Any]]:
    each = max(1, nbytes // _TENSORS // 1024)
    return {f"w{i}": np.zeros((each, 256), np.float32) for i in range(_TENSORS)}


def _copy_s(tensors: dict[str, NDArray[Any]]) -> float:
    """Return the least time of a plain copy of it all."""
    there = {name: np.ones_like(one) for name, one in tensors.items()}
    found = []
    for _ in range(5):
        begun = time.perf_counter()
        for name, one in tensors.items():
            np.copyto(there[name], one)
        found.append(time.perf_counter() - begun)
    return min(found)


def _row(nbytes: int, copies: int) -> dict[str, Any]:
    tensors = _tensors(nbytes)
    name = f"bench-weights-{os.getpid()}-{copies}"
    words = ["-m", "stretto.bench.weights", name, str(copies), str(nbytes)]
    pushes, switches = [], []
    with Engine(name) as engine, weights.publish(engine, "bench", tensors) as source:
        child = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert child.stdin is not None, "it is a pipe"
        assert child.stdout is not None, "it is a pipe"
        try:
            child.stdout.readline()
            for version in range(1, _VERSIONS + 1):
                for one in tensors.values():
                    one[...] = version
                begun = time.perf_counter()
                push = source.push(version)
                pushes.append(time.perf_counter() - begun)
                push.wait(_WAIT_S)
                switches.append(time.perf_counter() - begun)
            said = json.loads(child.communicate("end\n", timeout=_WAIT_S)[0])
        finally:
            child.kill()
            child.wait()
    return {
        "nbytes": source.nbytes, "copies": copies,
        "plain_copy_ms": round(1e3 * _copy_s(tensors), 2),
        "push_ms": round(1e3 * min(pushes), 2),
        "switched_ms": round(1e3 * min(switches), 2),
        "median_ms": round(1e3 * float(np.median(switches)), 2),
        "first_s": round(switches[0], 3), **said,
    }  # fmt: skip


def _follow(name: str, copies: int, nbytes: int) -> None:
    """Step until told to end, and say how long no step began at most."""
    gaps, torn, steps = [], 0, 0
    with Engine(f"{name}-follows") as engine:
        engine.connect(name).wait(_WAIT_S)
        policy = weights.subscribe(
            engine, "bench", into=_tensors(nbytes), copies=copies, patience=_WAIT_S
        )
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        policy.wait(timeout=_WAIT_S)
        last, before = time.perf_counter(), -1
        os.set_blocking(sys.stdin.fileno(), False)
        while not sys.stdin.readline():
            with policy.step() as version:
                now = time.perf_counter()
                if version.counter != before and before >= 0:
                    gaps.append(now - last)
                before = version.counter
                for one in policy.tensors.values():
                    torn += int((one.reshape(-1)[::_LOOKED] != before).any())
                steps += 1
            last = time.perf_counter()
    sys.stdout.write(
        json.dumps(
            {
                "gap_ms": round(1e3 * min(gaps, default=0.0), 3),
                "largest_gap_ms": round(1e3 * max(gaps, default=0.0), 3),
                "steps": steps, "torn": torn,
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    try:
        _follow(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    except StrettoError as e:
        sys.exit(f"{type(e).__name__}: {e}")
