"""What CASSINI gains, fairly: random phases, jitter, beside its host alone and ideal.

python benchmarks/cassini.py snapshots | once | servers | mixes | aligned [SEEDS]

snapshots: compatible sets of jobs across one link of 50 Gb/s, jitter 0 to 5 %
once:      the same two jobs left alone, shifted once, and kept to their grid
servers:   24 servers, traces of all 13 models, Themis and Pollux with and without
mixes:     100 random mixes with jitter up to 10 %: is it ever harmful?
aligned:   everybody starts at once, as the paper's baseline does: the best snapshot
"""

import itertools
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from stretto import topology
from stretto.network import Cluster, ClusterRun, Job, JobStep, cluster, jobs

SPEED = "bandwidth_gbytes_per_s = 6.25\nlatency_us = 1"
Rows = list[tuple[float, float, float]]
JITTERS = (0.0, 0.01, 0.02, 0.05)


def narrow() -> Cluster:
    """Return two racks of eight ranks, one link of 50 Gb/s each way between them."""
    lines = ['about = "x"', 'kind = "gpu"', "ranks = 16", "ranks_per_box = 8"]
    lines += ["[costs]\nbackground_puts = true"]
    lines += [f'[[switches]]\nname = "{name}"' for name in "ab"]
    lines.append(f'[[links]]\nsrc = "a"\ndst = "b"\n{SPEED}')
    for rank in range(16):
        lines.append(f'[[links]]\nsrc = {rank}\ndst = "{"ab"[rank // 8]}"\n{SPEED}')
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "narrow.toml"
        path.write_text("\n".join(lines))
        return Cluster(topology.load(path))


def across(
    rows: Rows, jitter: float, begins: list[float], iterations: int = 300
) -> list[Job]:
    """Return jobs of two ranks across the link: (period, up ms, Gb/s) each."""
    return [
        Job(
            name=f"job{i}",
            workers=2,
            ranks=(i, 8 + i),
            iterations=max(20, round(iterations * 200 / period)),
            jitter=jitter,
            begins_ms=begins[i],
            steps=(
                JobStep(
                    compute_ms=period - up,
                    collective="chain",
                    mbytes=up * rate / 8,
                    gbits_per_s=rate,
                ),
            ),
        )
        for i, (period, up, rate) in enumerate(rows)
    ]


def snapshots(count: int, seed: int = 0) -> Iterator[Rows]:
    """Yield sets whose circles fit: at most 85 % of the link's turn is asked for."""
    draw = random.Random(seed)
    while count:
        many, period = draw.choice((2, 2, 3, 3, 4)), draw.choice((150, 200, 300))
        share = draw.uniform(0.6, 0.85)
        parts = [draw.uniform(0.5, 1.5) for _ in range(many)]
        rows = [
            (period, round(period * share * part / sum(parts)), 45) for part in parts
        ]
        count -= 1
        yield rows


def figures(runs: list[ClusterRun]) -> tuple[float, float, float]:
    """Return mean, p99 and marks of some runs."""
    slow = np.concatenate([run.slowdowns for run in runs])
    marks = float(np.mean([run.marks for run in runs]))
    return float(slow.mean()), float(np.percentile(slow, 99)), marks


def phased(rows: Rows, seed: int) -> list[float]:
    """Return random phases."""
    draw = random.Random(f"phases {seed}")
    return [draw.uniform(0, period) for period, _, _ in rows]


def show_snapshots(seeds: int) -> None:
    """Print by snapshot and jitter what random phases cost, and what is left of it."""
    where = narrow()
    closed = {jitter: [] for jitter in JITTERS}
    gains = []
    for rows, jitter in itertools.product(snapshots(12), JITTERS):
        host, paced = (
            figures(
                [
                    where.run(
                        across(rows, jitter, phased(rows, seed)),
                        scheduler=name,
                        seed=seed,
                    )
                    for seed in range(seeds)
                ]
            )
            for name in ("packed", "packed+cassini")
        )
        gap = (host[0] - paced[0]) / (host[0] - 1) if host[0] > 1.001 else 0.0
        gains.append(host[0] / paced[0])
        said = "" if host[0] >= 1.1 else " (below 1.1)"
        if host[0] >= 1.1:
            closed[jitter].append((gap, host[2] / max(1.0, paced[2])))
        ups = "+".join(str(up) for _, up, _ in rows)
        print(
            f"{rows[0][0]} ms: {ups:>14}, {jitter:4.0%}: {host[0]:.3f} / {host[1]:.3f}"
            f" -> {paced[0]:.3f} / {paced[1]:.3f}, {gap:5.0%} of the gap, marks "
            f"{host[2]:.3g} -> {paced[2]:.3g}{said}",
            flush=True,
        )
    for jitter, found in closed.items():
        if found:
            gaps = [gap for gap, _ in found]
            print(
                f"jitter {jitter:.0%}: {len(found)} snapshots slowed by 1.1 or more; "
                f"gap closed {np.mean(gaps):.0%}, {min(gaps):.0%} at least; "
                f"marks over {np.median([m for _, m in found]):.3g} (median), "
                f"{min(m for _, m in found):.3g} at least"
            )
    print(f"geomean of gains over all: {np.exp(np.mean(np.log(gains))):.3f}")


def show_once(seeds: int) -> None:
    """Print the table of two jobs: left alone, shifted once, on their grid."""
    where, rows = narrow(), [(200, 80, 45)] * 2
    for jitter in JITTERS:
        line = [f"2 x (200: 80 at 45), jitter {jitter:.0%}:"]
        ways = (
            ("aligned", "packed", lambda s: [0.0, 0.0]),
            ("random", "packed", lambda s: phased(rows, s)),
            ("once", "packed", lambda s: [0.0, 100.0]),
            ("grid", "packed+cassini", lambda s: phased(rows, s)),
        )
        for word, name, begins in ways:
            runs = [
                where.run(across(rows, jitter, begins(s), 400), scheduler=name, seed=s)
                for s in range(seeds)
            ]
            mean, tail, marks = figures(runs)
            line.append(f"{word} {mean:.3f} / {tail:.3f} / {marks:.2g}")
        print("  ".join(line), flush=True)


def show_servers(seeds: int) -> None:
    """Print Themis and Pollux, alone and with CASSINI, on traces of 24 servers."""
    where = Cluster("leaf_spine6x4")
    names = ("themis", "themis+cassini", "pollux", "pollux+cassini")
    for jitter in JITTERS:
        found = {name: [] for name in (*names, "ideal")}
        for seed in range(seeds):
            trace = jobs.generate(
                servers=24, load=1.0, hours=0.15, seed=seed, jitter=jitter, mean_s=60
            )
            for name in names:
                found[name].append(where.run(trace, scheduler=name, seed=seed))
            found["ideal"].append(cluster.ideal(trace, seed=seed))
        for name, runs in found.items():
            mean, tail, marks = figures(runs)
            takes = np.mean([r.row()["completion_s"] for r in runs])
            worst = np.mean([r.row()["fairness_worst"] for r in runs])
            print(
                f"jitter {jitter:4.0%} {name:15} slowdown {mean:.4f} p99 {tail:.3f} "
                f"completion {takes:6.1f} s worst rho {worst:5.2f} marks {marks:.3g}",
                flush=True,
            )
        for host in ("themis", "pollux"):
            pairs = list(zip(found[host], found[f"{host}+cassini"], strict=True))
            ratio = [a.slowdowns.mean() / b.slowdowns.mean() for a, b in pairs]
            tails = [
                np.percentile(a.slowdowns, 99) / np.percentile(b.slowdowns, 99)
                for a, b in pairs
            ]
            mean, tail = (np.exp(np.mean(np.log(one))) for one in (ratio, tails))
            print(
                f"jitter {jitter:4.0%} {host}: geomean {mean:.4f} (best "
                f"{max(ratio):.3f}), p99 {tail:.3f} (best {max(tails):.3f})",
                flush=True,
            )


def show_mixes(count: int) -> None:
    """Print how much slower CASSINI ever makes a random mix."""
    where, ratios = narrow(), []
    for seed in range(count):
        draw = random.Random(f"mix {seed}")
        rows = []
        for _ in range(draw.randint(2, 6)):
            period = draw.uniform(60, 400)
            rows.append((period, period * draw.uniform(0.1, 0.7), draw.uniform(10, 48)))
        jitter = draw.uniform(0, 0.1)
        slow = []
        for name in ("packed", "packed+cassini"):
            given = across(rows, jitter, phased(rows, seed), 250)
            slow.append(where.run(given, scheduler=name, seed=seed).slowdowns.mean())
        ratios.append(slow[1] / slow[0])
    worst = sorted(ratios)[-5:]
    print(
        f"{count} mixes: {np.mean(ratios):.4f} of the host's slowdown on the mean, "
        f"best {min(ratios):.4f}, worst {', '.join(f'{r:.4f}' for r in worst)}; "
        f"{sum(r > 1.01 for r in ratios)} above 1.01"
    )


def show_aligned(seeds: int) -> None:
    """Print the snapshots that gain most over starts at one time: the paper's way."""
    where, found = narrow(), []
    for rows in [*snapshots(12), *([(200, 200 // n, 45)] * n for n in (2, 3, 4, 5))]:
        host = where.run(across(rows, 0.0, [0.0] * len(rows)), seed=0)
        paced = where.run(
            across(rows, 0.0, [0.0] * len(rows)), scheduler="packed+cassini", seed=0
        )
        a, b = figures([host]), figures([paced])
        found.append((a[0] / b[0], a[1] / b[1], a[2] / max(1.0, b[2]), rows))
    for mean, tail, marks, rows in sorted(found, key=lambda f: -f[0])[:4]:
        print(f"{rows}: average {mean:.2f}x, p99 {tail:.2f}x, marks {marks:.3g}x")


if __name__ == "__main__":
    WHAT = {
        "snapshots": (show_snapshots, 20),
        "once": (show_once, 20),
        "servers": (show_servers, 20),
        "mixes": (show_mixes, 100),
        "aligned": (show_aligned, 1),
    }
    show, usual = WHAT[sys.argv[1]]
    show(int(sys.argv[2]) if len(sys.argv) > 2 else usual)
