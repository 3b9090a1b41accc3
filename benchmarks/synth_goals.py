"""Check every synthesis goal: bounds, frontiers, schedules; write JSON and a table.

Figures are of the link model, exact and the same on every computer; only `seconds`,
of one core, depend on the machine. Peers' figures are their publications'. Run from the
repository: `python benchmarks/synth_goals.py --out FILE`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from stretto import topology  # noqa: E402
from stretto.bench.machine import commit  # noqa: E402
from stretto.synth import (  # noqa: E402
    Budget,
    bound,
    from_machine,
    frontier,
    rounds_bound,
    synthesize,
)
from stretto.synth.direct.trees import pack_trees  # noqa: E402

Row = dict[str, object]
_GB, _MB = 10**9, 10**6


def rates() -> Iterator[Row]:
    """Yield the proved rates of large sizes."""
    wanted = {
        "all_gather": {
            "dgx1": Fraction(1200, 7),
            "ndv2x2": Fraction(25),
            "ndv2x4": Fraction(50, 3),
            "dgx2x2": Fraction(4000, 31),
            "dgx_a100x2": Fraction(1040, 3),
            "dgx_a100x4": Fraction(800, 3),
            "dgx_a100x8": Fraction(1600, 7),
            "mi250x": Fraction(2400, 7),
            "mi250x2": Fraction(5312, 15),
            "dgx_h100x2": Fraction(1600, 3),
            "dgx_h100x4": Fraction(16000, 31),
            "dgx_h100x16": Fraction(1280, 3),
            "torus4x4": Fraction(64, 15),
            "torus8x8": Fraction(256, 63),
            "torus4x4x4": Fraction(128, 21),
        },
        "all_to_all": {
            "dgx1": Fraction(75),
            "ndv2x2": Fraction(25, 8),
            "dgx2x2": Fraction(25, 2),
            "mi250x": Fraction(75),
            "mi250x2": Fraction(32),
            "torus4x4": Fraction(2),
            "torus8x8": Fraction(1),
            "torus4x4x4": Fraction(2),
        },
    }
    for collective, machines in wanted.items():
        for machine, rate in machines.items():
            network = from_machine(topology.load(machine))
            start = time.process_time()
            got = bound(collective, network).algbw
            took = time.process_time() - start
            yield _row(
                "bound",
                machine,
                collective,
                "GB/s",
                float(rate),
                float(got),
                ok=abs(got / rate - 1) < Fraction(1, 10**6) and took < 2,
                took=took,
            )


def frontiers() -> Iterator[Row]:
    """Yield DGX-1's frontier of steps and rounds."""
    network = from_machine(topology.load("dgx1"))
    for collective, chunks, limit, want in (
        ("all_gather", range(1, 7), 10, {(1, 2, 2), (2, 2, 3), (6, 3, 7)}),
        ("all_to_all", range(1, 4), 5, {(1, 2, 3), (3, 2, 8)}),
    ):
        start = time.process_time()
        least = bound(collective, network)
        found = list(frontier(collective, network, least, chunks=chunks))
        took = time.process_time() - start
        points = {(p.chunks, p.steps, p.rounds) for p in found}
        last = found[-1].ratio == rounds_bound(least, network)
        proved = all(p.proved for p in found)
        row = _row(
            "frontier",
            "dgx1",
            collective,
            "s",
            float(limit),
            took,
            ok=want <= points and last and proved and took < limit,
            took=took,
        )
        yield row | {"points": sorted(points)}


_TIMES = (
    ("ndv2x2", "all_gather", 64_000, 5.85, "TE-CCL 6.08 (15 GPUs); TACCL 13.08"),
    ("ndv2x2", "all_gather", _MB, 44.6, "TE-CCL 48.75 (15 GPUs); TACCL 62.15"),
    ("ndv2x2", "all_gather", _GB, 41000, "TE-CCL 43750 (15 GPUs); TACCL 53767"),
    ("ndv2x2", "all_to_all", _GB, 321000, "TACCL 320049"),
    ("ndv2x4", "all_gather", _MB, 69.4, "TE-CCL 69.38"),
    ("ndv2x4", "all_gather", _GB, 62500, "TE-CCL 65000"),
    ("dgx2x2", "all_gather", _MB, 10.6, "TE-CCL 10.75"),
    ("dgx2x2", "all_gather", 4 * _MB, 32.4, "TE-CCL 33.0"),
    ("dgx2x2", "all_gather", 16 * _MB, 125, "TE-CCL 124 (alpha dropped)"),
    ("dgx2x2", "all_to_all", _GB, 80500, "TE-CCL 80500"),
)


def times() -> Iterator[Row]:
    """Yield exact times of schedules against published ones."""
    for machine, collective, size, goal, peer in _TIMES:
        network = from_machine(topology.load(machine))
        start = time.process_time()
        found = synthesize(collective, network, size, budget=Budget(seconds=0))
        took = time.process_time() - start
        us = float(found.us)
        row = _row(
            "time", machine, collective, "us", goal, us, ok=us <= goal, took=took
        )
        yield row | {
            "size": size,
            "bound": float(found.bound_us),
            "peer": peer,
            "generator": found.schedule.generator,
            "split": found.schedule.demand.split,
        }


_EXCHANGED = (
    *("dgx1", "ndv2x2", "ndv2x4", "dgx2x2", "dgx_a100x2", "dgx_a100x4", "dgx_a100x8"),
    *("mi250x", "mi250x2", "dgx_h100x2", "dgx_h100x4", "dgx_h100x16"),
    *("torus4x4", "torus8x8", "torus4x4x4", "h200x4", "h200x8"),
)
"""Machines on which all_to_all is to reach 95 % of the bound."""


def shares() -> Iterator[Row]:
    """Yield which share of the bound large sizes reach."""
    cases = [
        *(("all_to_all", machine, 0.95) for machine in _EXCHANGED),
        ("all_gather", "dgx1", 0.99),
        ("all_reduce", "dgx1", 0.99),
    ]
    for collective, machine, goal in cases:
        network = from_machine(topology.load(machine))
        start = time.process_time()
        found = synthesize(collective, network, _GB, budget=Budget(seconds=2))
        took = time.process_time() - start
        share = float(found.bound_us / found.us)
        row = _row(
            "share",
            machine,
            collective,
            "of bound",
            goal,
            share,
            ok=share >= goal,
            took=took,
        )
        yield row | {"size": _GB, "generator": found.schedule.generator}
    for machine, rounds in (("torus4x4", 4), ("torus8x8", 16), ("torus4x4x4", 11)):
        network = from_machine(topology.load(machine))
        start = time.process_time()
        found = synthesize(
            "all_gather", network, _GB, splits=(1,), budget=Budget(seconds=0)
        )
        took = time.process_time() - start
        chunk = _GB / network.num_ranks / 1000
        got = float(found.us) / chunk
        yield _row(
            "rounds",
            machine,
            "all_gather",
            "rounds",
            rounds,
            got,
            ok=got < rounds + 0.01,
            took=took,
        )


def forests() -> Iterator[Row]:
    """Yield the rates of packed trees; every packing is checked link by link."""
    cases = [
        ("dgx_a100", None, 342.857),
        ("dgx_a100x2", 1, 342.857),
        ("dgx_a100x2", 8, 345.946),
        ("dgx_a100x2", None, 346.667),
        ("dgx_a100x4", 1, 266.667),
        ("dgx_a100x8", None, 228.571),
        ("mi250x", 1, 266.667),
        ("mi250x", 2, 320),
        ("mi250x", 3, 342.857),
        ("mi250x", 4, 320),
        ("mi250x", 5, 333.333),
        ("mi250x", 8, 336.842),
        ("mi250x2", 1, 320),
        ("mi250x2", 2, 341.333),
        ("mi250x2", 3, 342.857),
        ("mi250x2", 5, 347.826),
        ("mi250x2", None, 354.133),
        ("dgx_h100x2", None, 533.333),
        ("dgx_h100x4", None, 516.129),
    ]
    for machine, k, goal in cases:
        network = from_machine(topology.load(machine))
        start = time.process_time()
        forest = pack_trees(network, trees=k)
        took = time.process_time() - start
        rate = forest.trees / forest.units_per_rate
        got = float(rate * network.num_ranks)
        row = _row(
            "trees",
            machine,
            "all_gather",
            "GB/s",
            goal,
            got,
            ok=got > goal - 0.001,
            took=took,
        )
        yield row | {"trees": forest.trees}


def cluster() -> Iterator[Row]:
    """Yield the cluster of 1,024 GPUs on rails."""
    network = from_machine(topology.load("dgx_h100x128"))
    for collective in ("all_gather", "all_to_all"):
        start = time.process_time()
        found = synthesize(collective, network, _GB, budget=Budget(seconds=0))
        took = time.process_time() - start
        row = _row(
            "share",
            network.name,
            collective,
            "of bound",
            0.9,
            float(found.bound_us / found.us),
            ok=found.gap < 0.1 and took < 600,
            took=took,
        )
        yield row | {"size": _GB, "moves": len(found.schedule.moves)}


def _row(
    kind: str,
    machine: str,
    collective: str,
    unit: str,
    goal: float,
    got: float,
    *,
    ok: bool,
    took: float,
) -> Row:
    row: Row = {
        "kind": kind,
        "machine": machine,
        "collective": collective,
        "unit": unit,
        "goal": goal,
        "got": got,
        "reached": bool(ok),
        "seconds": round(took, 3),
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


_PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "rates": rates,
    "frontiers": frontiers,
    "times": times,
    "shares": shares,
    "forests": forests,
    "cluster": cluster,
}


def main() -> None:
    """Run the parts asked for and write what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="without a suffix")
    parser.add_argument("--parts", default=",".join(_PARTS))
    parser.add_argument("--jobs", type=int, default=1, help="more: parts side by side")
    args = parser.parse_args()
    names = args.parts.split(",")
    found: dict[str, list[Row]] = {name: [] for name in names}
    for name, row in _together(names) if args.jobs > 1 else _in_turn(names):
        found[name].append(row)
        write(args.out, [r for name in names for r in found[name]])


def _in_turn(names: list[str]) -> Iterator[tuple[str, Row]]:
    for name in names:
        for row in _PARTS[name]():
            yield name, row


def _together(names: list[str]) -> Iterator[tuple[str, Row]]:
    """Yield rows as they come, of every part from a process of its own."""
    context = multiprocessing.get_context("fork")
    rows: Any = context.Queue()
    parts = [context.Process(target=_tell, args=(name, rows)) for name in names]
    for part in parts:
        part.start()
    open_parts = len(parts)
    while open_parts:
        name, row = rows.get()
        if row is None:
            open_parts -= 1
        else:
            yield name, row
    for part in parts:
        part.join()
    failed = [n for n, part in zip(names, parts, strict=True) if part.exitcode]
    if failed:
        sys.exit(f"parts that failed: {', '.join(failed)}")


def _tell(name: str, rows: Any) -> None:
    """Put the rows of a part into a queue, and None at its end, whatever it is."""
    try:
        for row in _PARTS[name]():
            rows.put((name, row))
    finally:
        rows.put((name, None))


def write(out: Path, rows: list[Row]) -> None:
    """Write JSON and a table, after every row: stopping early loses nothing."""
    said = ["FILE" if word == str(out) else word for word in sys.argv[1:]]
    document = {
        "command": " ".join(["python", "benchmarks/synth_goals.py", *said]),
        "commit": commit(),
        "model": "links: bytes/rate occupies, alpha does not; exact replay",
        "rows": rows,
    }
    out.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    lines = [
        "# Synthesis goals",
        "",
        f"`{document['command']}` at {document['commit']}. {document['model']}.",
        "",
        "| kind | machine | collective | size | unit | goal | got | reached | s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['kind']} | {r['machine']} | {r['collective']} | {r.get('size', '')} |"
        f" {r['unit']} | {r['goal']:.6g} | {r['got']:.6g} |"
        f" {'yes' if r['reached'] else 'NO'} | {r['seconds']} |"
        for r in rows
    ]
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
