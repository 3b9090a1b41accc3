"""What a measurement of collectives says: rates, floors, tables, and where it ran."""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
K, M, G = 1 << 10, 1 << 20, 1 << 30


def sms(variant: str) -> int:
    """Return the SMs that a variant keeps: a block each; copy engines keep none."""
    words = variant.partition("|")[2].split()
    if "engine" in words:
        return 0
    return max([1, *(int(w[7:]) for w in words if w.startswith("blocks="))])


def fewest(ranked: list[tuple[float, str]]) -> list[dict[str, Any]]:
    """Return the fastest variant for every number of SMs, while fewer cost more."""
    best: dict[int, tuple[float, str]] = {}
    for us, variant in reversed(ranked):
        best[sms(variant)] = (us, variant)
    kept, least = [], math.inf
    for count in sorted(best):
        if best[count][0] < least:
            least = best[count][0]
            kept.append({"sms": count, "us": least, "variant": best[count][1]})
    return kept


def floor_us(collective: str, nbytes: int, ranks: int) -> float:
    """Return the model's lower bound, in us (docs/notes/cuda-tuning.md).

    A launch and a hop in 2.3, a further hop in 1.8, 340 GB/s for the packets of a
    single shot and 370 for what is large.
    """
    part = (ranks - 1) / ranks * nbytes / 1e3
    if collective != "all_reduce":
        return 2.3 + part / 370
    return min(2.3 + (ranks - 1) * nbytes / 340e3, 2.3 + 1.8 + 2 * part / 370)


def channels(log: Path) -> dict[str, str]:
    """Return what NCCL says it runs a call on, by collective and bytes."""
    found = re.findall(
        r"(\w+): (\d+) Bytes -> Algo (\S+) proto (\S+) channel\S*?\{(\d+)\.\.(\d+)\}",
        log.read_text(errors="replace") if log.exists() else "",
    )
    return {
        f"{name} {nbytes}": f"{algo} {proto}, {int(high) - int(low) + 1} channels"
        for name, nbytes, algo, proto, low, high in found
    }


def busbw(collective: str, nbytes: int, ranks: int, us: float) -> float:
    """Return bus bandwidth in 10^9 bytes a second."""
    factor = (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks
    return nbytes * factor / us / 1e3


def size(nbytes: int) -> str:
    """Return a size as people write it."""
    for unit, scale in (("G", G), ("M", M), ("K", K)):
        if nbytes >= scale:
            return f"{nbytes // scale}{unit}"
    return str(nbytes)


def markdown(document: dict[str, Any]) -> str:
    """Return the tables."""
    machine = document["machine"]
    about = (
        f"bf16, CUDA graphs, median of the slowest rank, us. Commit "
        f"{document['commit']}; `{' '.join(document['command'])}`; driver "
        f"{machine.get('driver')}, torch {machine['torch']}, NCCL {machine['nccl']}. "
        "MSCCL++ is recorded on such a machine on 2026-11-21, not in this run."
    )
    lines = [f"# Collectives on {machine['gpu']}, {document['ranks']} ranks", ""]
    lines += [about, ""]
    for collective in COLLECTIVES:
        rows = [r for r in document["rows"] if r["collective"] == collective]
        if not rows:
            continue
        names = sorted({n for r in rows for n in r["peers_us"]})
        lines += [f"## {collective}", ""]
        head = ["S", *names, "ours", "best peer / ours", "NCCL / ours", "busbw"]
        head += ["model floor", "over it", "SMs", "how"]
        lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for r in sorted(rows, key=lambda r: r["nbytes"]):
            cells = [size(r["nbytes"])]
            cells += [_figure(r["peers_us"].get(n)) for n in names]
            cells += [_figure(r.get("ours_us")), _figure(r.get("speedup"))]
            cells += [_figure(r.get("speedup_nccl")), _figure(r.get("busbw_gbps"))]
            cells += [_figure(r.get("floor_us"))]
            over = r["ours_us"] - r["floor_us"] if "ours_us" in r else None
            cells += [_figure(over), str(r.get("sms", "-"))]
            cells.append(str(r.get("ours", "-")).replace("|", ", "))
            lines.append("| " + " | ".join(cells) + " |")
        for key, label in (("speedup", "best peer"), ("speedup_nccl", "NCCL default")):
            ratios = [r[key] for r in rows if key in r]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                lines += ["", f"Geomean over {label}: {mean:.3f}"]
        lines.append("")
    lines += _few(document)
    if document["eager"]:
        lines += ["## Eager all_reduce 1K from Python", ""]
        lines += [
            "Back to back with one synchronisation at the end; and one a call.",
            "",
        ]
        lines += [
            f"* {e['set']} {e['variant']}: {e['us']:.2f} us a call, "
            f"{e['issue_us']:.2f} to issue; {_figure(e.get('alone_us'))} each alone"
            for e in document["eager"]
        ]
    return "\n".join(lines) + "\n"


def _few(document: dict[str, Any]) -> list[str]:
    """Return the lines about few SMs, and NCCL's channels."""
    lines = ["## Large messages on few SMs", ""]
    for r in document["rows"]:
        if r["nbytes"] < 64 * M:
            continue
        shown = "; ".join(f"{k['sms']}: {k['us']:.0f}" for k in r.get("few_sms", ()))
        label = f"* {r['collective']} {size(r['nbytes'])}"
        lines.append(f"{label}, us by SMs: {shown} (a quick sweep)")
        if half := r.get("half"):
            ratio = r["peers_us"].get("nccl default", math.nan) / half["us"]
            lines.append(
                f"{label} on {sms(half['variant'])} SMs: {half['us']:.1f} us, NCCL / "
                f"ours {ratio:.3f}, {half['variant'].replace('|', ', ')}"
            )
    said = document.get("nccl_channels", {})
    large = [k for k in said if int(k.split()[1]) >= 16 * M]
    lines += [f"* NCCL, {k} elements or bytes: {said[k]}" for k in large]
    return [*lines, ""]


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def parse_sizes(text: str) -> list[int]:
    """Read `1K:1G:4`, or a comma-separated list."""
    scale = {"K": K, "M": M, "G": G}

    def one(word: str) -> int:
        return int(word[:-1]) * scale[word[-1]] if word[-1] in scale else int(word)

    if ":" not in text:
        return [one(w) for w in text.split(",")]
    first, last, *step = text.split(":")
    factor = int(step[0]) if step else 2
    found = [one(first)]
    while found[-1] * factor <= one(last):
        found.append(found[-1] * factor)
    return found


def commit() -> str:
    """Return what is measured: its short name in Git."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return os.environ.get("STRETTO_COMMIT") or done.stdout.strip() or "unknown"


def machine() -> dict[str, Any]:
    """Return what it is measured on."""
    import torch

    query = "--query-gpu=name,driver_version"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        ).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        done = []
    first = (done or ["unknown, unknown"])[0].split(",")
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if done else "unknown"
    return {
        "gpu": f"{len(done)}x {first[0].strip()}",
        "driver": first[-1].strip(),
        "torch": torch.__version__,
        "nccl": nccl,
        "python": platform.python_version(),
    }
