"""Decode and prefill of a model of Llama's shape, by who communicates.

    python benchmarks/torch_decode.py --ranks 2 --shape 8b --out DIR
    python benchmarks/torch_decode.py --ranks 2 --device cpu --shape tiny --out DIR

Variants, of one model with the same weights and inputs:

    nccl (gloo on the CPU)  dist.all_reduce of torch's own backend
    symm                    torch's symmetric memory, one-shot or two-shot, no multicast
    stretto                 dist.all_reduce on a group of the backend "stretto"
    stretto+fused           the same model after stretto.torch.fuse
    ...+compiled            the same, compiled by Inductor

Kinds: `graph` (decode in CUDA graphs), `eager` (decode without), `plain` (the same, of
PyTorch's kernels alone), `prefill`. The rest of a layer is as serving engines have it,
for every variant alike: attention split over places, with rotation and cache; norms
with their residual; products of few tokens by what is fastest, measured and checked
before (torch_llama_choice.py). `--kernels torch` has PyTorch's and cuBLAS alone.
Medians of the slowest rank, of samples in turn; before that, the distance of logits
from a float32 reference.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

from torch_ranks import launch, outer, write

BATCHES = (1, 2, 4, 8, 16, 32, 64)


def geomean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def table(said: dict[str, Any], baseline: str) -> str:
    """Return the rows as markdown, with each variant's gain over the baseline."""
    names = list(dict.fromkeys(n for row in said["rows"] for n in row["us"]))
    lines = ["| variant | relative error | largest |", "| --- | ---: | ---: |"]
    for name, error in said["errors"].items():
        cells = [error.get("relative", math.nan), error.get("largest", math.nan)]
        lines.append(f"| {name} | {cells[0]:.5f} | {cells[1]:.5f} |")
    heads = ["kind", "tokens", *(f"{n} us" for n in names)]
    heads += [f"{n} x" for n in names if n != baseline]
    lines += ["", f"| {' | '.join(heads)} |"]
    lines.append(f"| --- | {' | '.join(['---:'] * (len(heads) - 1))} |")
    gains: dict[tuple[str, str], list[float]] = {}
    for row in said["rows"]:
        us, cells = row["us"], [row["kind"], str(row["tokens"])]
        cells += [f"{us[n]:.1f}" if n in us else "-" for n in names]
        for name in names:
            if name == baseline:
                continue
            if name in us and baseline in us:
                gain = us[baseline] / us[name]
                gains.setdefault((row["kind"], name), []).append(gain)
                cells.append(f"{gain:.3f}")
            else:
                cells.append("-")
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for (kind, name), found in gains.items():
        lines.append(
            f"- {kind}, {name}: geomean {geomean(found):.3f}, best {max(found):.3f}, "
            f"least {min(found):.3f} over {baseline}"
        )
    bad = {n: e["failed"] for n, e in said["errors"].items() if "failed" in e}
    for name, why in {**said.get("failed", {}), **bad}.items():
        lines.append(f"- {name} failed: {why[:300]}")
    for row in said["rows"]:
        for name, why in row["failed"].items():
            lines.append(f"- {row['kind']} {row['tokens']} {name}: {why[:300]}")
    lines += [f"- {said[key]}" for key in ("cut", "wrong") if said.get(key)]
    return "\n".join([*lines, *_kernels(said)]) + "\n"


def _kernels(said: dict[str, Any]) -> list[str]:
    """Return which kernels were chosen, and what a step is made of."""
    chosen = said.get("kernels") or {}
    lines = ["", "| matrix | tokens | way | us | GB/s | cuBLAS us |"]
    lines += ["| --- | ---: | --- | ---: | ---: | ---: |"]
    for row in chosen.get("matrices", []):
        cells = [row[k] for k in ("matrix", "tokens", "way", "us", "GB/s", "cuBLAS")]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for row in chosen.get("attention", []):
        lines.append(
            f"- attention, {row['tokens']} tokens: {row['way']} of {row['us']}"
        )
    for what, why in chosen.get("failed", {}).items():
        lines.append(f"- not taken: {what}: {why[:300]}")
    for variant, kernels in (said.get("profiles") or {}).items():
        lines.append(f"- kernels of a step, {variant}:")
        several = kernels if isinstance(kernels, list) else [kernels]
        lines += [f"  - {one}" for one in several]
    return lines


def main() -> int:
    """Measure one shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    outer(parser)
    parser.add_argument("--shape", default="8b", choices=("8b", "70b", "tiny"))
    parser.add_argument("--layers", type=int, default=0, help="0: all of the shape's")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--variants", nargs="+")
    parser.add_argument("--kinds", nargs="+")
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--prefill", nargs="*", type=int, default=[512, 2048])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--fused-up-to", type=int, help="bytes, in place of our own")
    parser.add_argument("--kernels", default="triton", choices=("triton", "torch"))
    parser.add_argument("--profile", type=int, default=0, help="tokens of a profile")
    args = parser.parse_args()
    whole = args.device == "cuda" and not args.share
    baseline = "nccl" if whole else "gloo"
    fused = ["stretto", "stretto+fused"]
    args.variants = args.variants or [baseline, *(["symm"] if whole else []), *fused]
    args.kinds = args.kinds or [*(["graph"] if whole else []), "eager", "prefill"]
    words = []
    for name in ("shape", "layers", "context", "repeats", "kernels", "profile"):
        words += [f"--{name}", str(getattr(args, name))]
    for name in ("variants", "kinds", "batches", "prefill"):
        words += [f"--{name}", *map(str, getattr(args, name))]
    if args.fused_up_to:
        words += ["--fused-up-to", str(args.fused_up_to)]
    said = {"rows": [], "errors": {}, **launch("torch_decode_worker.py", words, args)}
    name = f"torch_decode_{args.shape}_x{args.ranks}"
    return write(args.out, name, said, table(said, baseline))


if __name__ == "__main__":
    sys.exit(main())
