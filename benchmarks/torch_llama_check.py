"""Compare the kernels of torch_llama_kernels.py with plain PyTorch, without a GPU.

    TRITON_INTERPRET=1 python benchmarks/torch_llama_check.py

By Triton's interpreter, in float16 (it has no products of bfloat16), a minute. On a
GPU torch_llama_choice.py compares them, in bfloat16, before it takes them. Of Triton
3.6 the interpreter wants a NumPy before 2.3.
"""

from __future__ import annotations

import itertools
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch
import torch_llama_calls as kernels
from torch import Tensor
from torch.nn import functional

HALF = torch.float16
CLOSE = 1e-3


def gap(got: Tensor, want: Tensor) -> float:
    """Return the relative error."""
    return float((got.float() - want).norm() / want.norm())


def products() -> float:
    """Return the worst error of products, with and without gates and splits."""
    worst = 0.0
    for gated, splits, tokens in itertools.product(
        (False, True), (1, 2, 4), (1, 3, 16)
    ):
        rows, columns = 128, 512 * splits
        x = torch.randn(tokens, columns).to(HALF)
        w = (torch.randn(rows * (1 + gated), columns) * columns**-0.5).to(HALF)
        way = kernels.Thin(16, 64, 128, splits, 4, gated)
        assert way.fits(tokens, rows, columns), "sizes that it takes"
        want = functional.linear(x.float(), w.float())
        if gated:
            want = functional.silu(want[:, :rows]) * want[:, rows:]
        for _ in range(2):  # the second finds counters as the first left them
            worst = max(worst, gap(way(x, w), want))
    return worst


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return rows whose halves are turned."""
    a, b = x.float().chunk(2, -1)
    c, s = cos.float(), sin.float()
    return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)


def attention() -> float:
    """Return the worst error of attention, and of what it leaves in the cache."""
    worst, places, head = 0.0, 256, 128
    shapes = ((16, 4), (8, 1), (32, 4), (4, 4))
    for (heads, kv), splits, tokens in itertools.product(shapes, (1, 2, 4), (1, 3)):
        made = torch.randn(tokens, heads + 2 * kv, head).to(HALF)
        angles = torch.rand(tokens, 1, head // 2)
        cos, sin = angles.cos().to(HALF), angles.sin().to(HALF)
        keys, values = (torch.randn(4, kv, places, head).to(HALF) for _ in "kv")
        q, k, v = made.split([heads, kv, kv], 1)
        due_k, due_v = keys.clone(), values.clone()
        due_k[:tokens, :, -1], due_v[:tokens, :, -1] = turned(k, cos, sin), v
        want = functional.scaled_dot_product_attention(
            turned(q, cos, sin).unsqueeze(2).float(),
            due_k[:tokens].float(),
            due_v[:tokens].float(),
            enable_gqa=True,
        ).reshape(tokens, -1)
        way = kernels.Attention(splits)
        for _ in range(2):
            got = way(made, cos, sin, keys, values, heads)
            worst = max(worst, gap(got, want), gap(keys, due_k.float()))
            worst = max(worst, gap(values, due_v.float()))
    return worst


def small() -> float:
    """Return the worst error of the norm and of the gate."""
    x, residual = torch.randn(3, 96).to(HALF), torch.randn(3, 96).to(HALF)
    weight, total = torch.rand(96).to(HALF), x + residual
    want = functional.rms_norm(total.float(), (96,), weight.float(), 1e-5)
    worst = gap(kernels.add_norm(x, residual, weight, 1e-5), want)
    worst = max(worst, gap(residual, total.float()))
    both = torch.randn(3, 256).to(HALF)
    want = functional.silu(both[:, :128].float()) * both[:, 128:].float()
    return max(worst, gap(kernels.silu_times(both), want))


def main() -> int:
    """Compare all."""
    torch.manual_seed(0)
    found = {one.__name__: one() for one in (products, attention, small)}
    for name, worst in found.items():
        print(f"{name}: off by {worst:.1e}, want {CLOSE:.0e}", flush=True)
    return int(any(not worst < CLOSE for worst in found.values()))


if __name__ == "__main__":
    sys.exit(main())
