"""Which congestion control does a training cluster need: the study, one figure.

python benchmarks/congestion_study.py FIGURE.svg [--sizes 1,8,64] [--hosts 64]
    [--rows ROWS.jsonl]  what is there is not run again, what is run is added
    [--controls pfc,...]  some of them, with PFC first

Four collectives on 64 hosts of 100 Gb/s under eight leaves, 1:1 and 2:1, as packets
under six controls; times over those of PFC alone. Plans are those of the catalogue;
nothing but the network takes time.
"""

import argparse
import json
import time
from pathlib import Path

from stretto import network, topology
from stretto.compiler.lower import lower
from stretto.compiler.plan import ProvedPlan, Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.executors import sim
from stretto.program import algorithms
from stretto.topology import Machine
from stretto.topology.traffic import Congestion, Packets

CONTROLS = ("pfc", "dcqcn", "dctcp", "timely", "hpcc", "hpcc-pint")
COLLECTIVES = (
    "all_reduce/ring",
    "all_reduce/two_shot",
    "all_reduce/rabenseifner",
    "all_to_all/one_shot",
)
COLOURS = ("#888888", "#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2")


KEYS = ("collective", "network", "mbytes", "control")


def cells(
    hosts: int, sizes: list[int], path: Path | None, controls: list[str]
) -> list[dict]:
    """Return one row for each collective, network, size and control."""
    found: dict[tuple, dict] = {}
    text = path.read_text() if path and path.is_file() else ""
    rows = map(json.loads, text.split("\n")[:-1])
    known = {tuple(row[k] for k in KEYS): row for row in rows}
    for name in COLLECTIVES:
        plan = planned(name, hosts)
        for fabric, short in (("clos", "1:1"), ("clos_over", "2:1")):
            machine = topology.load(f"{fabric}{hosts // 8}x8")
            for mbytes in sizes:
                for control in controls:
                    key = name, short, mbytes, control
                    if key in known:
                        found[key] = known[key]
                        continue
                    row = dict(zip(KEYS, key, strict=True))
                    row |= run(plan, machine, mbytes, network.find(control))
                    base = found.get((name, short, mbytes, "pfc"), row)
                    row["over_pfc"] = row["us"] / base["us"]
                    found[key] = row
                    if path:
                        with path.open("a") as file:
                            file.write(json.dumps(row) + "\n")
                    print(
                        f"{name:28} {row['network']} {mbytes:3} MB {control:10}"
                        f" {row['us']:10.1f} us {row['over_pfc']:6.3f}"
                        f" {row['pauses']:6} pauses {row['marks']:8} marks"
                        f" {row['queue_kb']:8.0f} KB {row['mevents']:6.1f} M events"
                        f" {row['cpu_s']:5.1f} s",
                        flush=True,
                    )
    return list(found.values())


def planned(name: str, hosts: int) -> ProvedPlan:
    """Return the plan of a collective of the catalogue."""
    program = verify(algorithms.get(name).build(hosts))
    return verify_plan(lower(program, Schedule.parse("bulk")), program)


def run(plan: ProvedPlan, machine: Machine, mbytes: int, control: Congestion) -> dict:
    """Return what a call takes as packets under a control, and what queued."""
    traffic: Packets = Packets(machine, control)
    began = time.process_time()
    found = sim.simulate(
        plan, machine, nbytes=mbytes << 20, tile_bytes=1 << 40, traffic=traffic
    )
    counts = traffic.counts()
    return {
        "us": found.time_us,
        "pauses": sum(c.pauses for c in counts),
        "marks": round(sum(c.marks for c in counts)),
        "queue_kb": max(c.max_queue for c in counts) / 1e3,
        "cpu_s": time.process_time() - began,
        "mevents": traffic.num_events / 1e6,
    }


def figure(rows: list[dict], path: Path) -> None:
    """Draw times over PFC's: a panel a collective and network, a line a control."""
    wide, high, parts = 230, 170, []
    sizes = sorted({row["mbytes"] for row in rows})
    most = max(1.3, *(row["over_pfc"] for row in rows)) + 0.05
    least = min(0.9, *(row["over_pfc"] for row in rows)) - 0.05

    def y(value: float) -> float:
        return 24 + (high - 50) * (most - value) / (most - least)

    for column, name in enumerate(COLLECTIVES):
        for line, fabric in enumerate(("1:1", "2:1")):
            left, top = 40 + column * wide, 10 + line * high
            parts.append(
                f'<g transform="translate({left},{top})">'
                f'<text x="0" y="14">{name} {fabric}</text>'
            )
            parts += [
                f'<path d="M0 {y(value):.1f}H190" stroke="#ddd"/>'
                f'<text x="-28" y="{y(value) + 4:.1f}">{value}</text>'
                for value in (0.9, 1.0, 1.1, 1.2, 1.5, 2.0)
                if least < value < most
            ]
            for control, colour in zip(CONTROLS, COLOURS, strict=True):
                points = [
                    (10 + 170 * i / max(1, len(sizes) - 1), y(row["over_pfc"]))
                    for i, size in enumerate(sizes)
                    for row in rows
                    if (row["collective"], row["network"]) == (name, fabric)
                    and (row["mbytes"], row["control"]) == (size, control)
                ]
                text = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
                parts.append(
                    f'<polyline points="{text}" fill="none" stroke="{colour}"'
                    ' stroke-width="2"/>'
                )
            for i, size in enumerate(sizes):
                x = 10 + 170 * i / max(1, len(sizes) - 1)
                parts.append(f'<text x="{x - 8:.0f}" y="{high - 12}">{size}</text>')
            parts.append("</g>")
    for i, (control, colour) in enumerate(zip(CONTROLS, COLOURS, strict=True)):
        parts.append(
            f'<rect x="{40 + 110 * i}" y="{2 * high + 14}" width="10" height="10" '
            f'fill="{colour}"/><text x="{54 + 110 * i}" y="{2 * high + 23}">'
            f"{control}</text>"
        )
    size = f'width="{40 + 4 * wide}" height="{2 * high + 34}"'
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" '
        f'font-size="12"><title>Time over that of PFC alone, by MB</title>'
        f"{''.join(parts)}</svg>\n"
    )


def main() -> None:
    """Run the study, draw the figure, and say what differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("figure", type=Path)
    parser.add_argument("--sizes", default="1,8,64")
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--controls", default=",".join(CONTROLS))
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    rows = cells(args.hosts, sizes, args.rows, args.controls.split(","))
    figure(rows, args.figure)
    for name in COLLECTIVES:
        for fabric in ("1:1", "2:1"):
            some = [
                row
                for row in rows
                if (row["collective"], row["network"]) == (name, fabric)
            ]
            ratios = [row["over_pfc"] for row in some]
            print(f"{name} {fabric}: {min(ratios):.3f} to {max(ratios):.3f} of PFC")


if __name__ == "__main__":
    main()
