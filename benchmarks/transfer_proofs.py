"""Time what a plan costs the first time, and what its proof does: both are kept.

python benchmarks/transfer_proofs.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stretto.transfer import Layout, kv_layout
from stretto.transfer.plans import plan, prove, proved

_TURNS = 20


def _cases() -> dict[str, tuple[Layout, Layout]]:
    sizes = {"layers": 80, "blocks": 5000, "block": 16, "heads": 8, "dim": 128}
    small = {**sizes, "layers": 32}
    large = Layout(f"N={1 << 30} uint8")
    return {
        "8 bytes of a buffer": (Layout("N=8 uint8"), Layout("N=8 uint8")),
        "1 GB of a buffer": (large, large),
        "a cache, 32 layers, NHD to HND": (
            kv_layout("vllm/flash", **small), kv_layout("vllm/flashinfer", **small),
        ),
        "a cache, 80 layers, of 4 ranks to one of 2": (
            kv_layout("vllm/flash", tp=(1, 4), **sizes),
            kv_layout("vllm/flash", tp=(0, 2), **sizes),
        ),
        "a cache, 80 layers, tensors for K and V": (
            kv_layout("vllm/flash", **sizes), kv_layout("sglang/mha", **sizes),
        ),
        "4,096 tensors": (
            Layout("L=4096 | D=128 float16"), Layout("L=4096 | D=128 float16"),
        ),
    }  # fmt: skip


def _us(call: Callable[[], object]) -> float:
    """Return the least time of some calls."""
    times = []
    for _ in range(_TURNS):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return 1e6 * min(times)


def main() -> None:
    """Print a table."""
    print(f"{'':46}{'boxes':>7}{'plan':>10}{'proof':>10}{'again':>10}  us")
    for name, (src, dst) in _cases().items():
        made = proved(src, dst)
        afresh = plan.__globals__["_plan"].__wrapped__
        row = (
            _us(lambda: afresh(src, dst, (), None)),  # noqa: B023
            _us(lambda: prove(made)),  # noqa: B023
            _us(lambda: proved(src, dst)),  # noqa: B023
        )
        print(f"{name:46}{len(made.boxes):7}" + "".join(f"{one:10.1f}" for one in row))


if __name__ == "__main__":
    main()
