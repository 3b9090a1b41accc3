"""Run chaos for as long as you like.

    python -m tests.chaos --jobs 48 --seconds 500 --out FILE    # of real processes
    python -m tests.chaos --kind NAME --again 1:0:17            # one scenario of those
    python -m tests.chaos --cheap 2000                          # in this process

The seed is printed; with it the same scenarios come again. The last lines are a table.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import random
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.scenarios import CHEAP
from tests.host import warm
from tests.shared_names import shared_names


def used() -> dict[str, int]:
    """Return what this process holds that must not grow."""
    gc.collect()
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "processes": len(warm.children()),
        "shared memory": len(shared_names()),
    }


def plan(cheap: int) -> Iterator[tuple[str, object]]:
    """Yield kinds, in turn; `flood` one time in ten of the others."""
    for name, scenario in CHEAP.items():
        times = cheap // 10 if name.startswith("hostile") else cheap
        yield from ((name, scenario) for _ in range(times))


def run(seed: int, cheap: int, stop_s: float = 1e9) -> tuple[dict, list]:
    """Run scenarios; return how many of each kind, and what was not survived."""
    done: dict[str, list[float]] = collections.defaultdict(lambda: [0, 0, 0.0])
    failed: list[str] = []
    until = time.monotonic() + stop_s
    before: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for nth, (name, scenario) in enumerate(plan(cheap)):
            if time.monotonic() > until:
                break
            rng = random.Random(f"{seed}:{name}:{nth}")
            begin = time.monotonic()
            try:
                steps = scenario(rng, Path(folder))
            except BaseException as e:
                if isinstance(e, KeyboardInterrupt):
                    raise
                failed.append(f"{name} {nth}: {type(e).__name__}: {e}"[:500])
                steps = 0
            row = done[name]
            row[0], row[1] = row[0] + 1, row[1] + steps
            row[2] += time.monotonic() - begin
            if row[0] == 3:
                before[name] = used()["descriptors"]
            if name in before and row[0] % 100 == 0:
                grown = used()["descriptors"] - before[name]
                if grown > 0:
                    failed.append(f"{name} {nth}: {grown} descriptors leaked")
    return dict(done), failed


def processes(args: argparse.Namespace) -> int:
    """Run scenarios of real processes, by many workers; print what came of them."""
    from tests.chaos import campaign

    report = campaign.run(
        args.seed, args.jobs, args.seconds, args.kind, args.most, args.out
    )
    print(json.dumps({**report, "faults": report["faults"][:10]}, indent=1))
    return 1 if report["faults"] or report["left in /dev/shm"] else 0


@contextmanager
def base_folder() -> Iterator[Path]:
    """Be with a folder that no exit hook of a forked child deletes."""
    base = Path(tempfile.mkdtemp(prefix="ch", dir="/tmp"))
    try:
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)


def besiege(args: argparse.Namespace) -> int:
    """Have strangers come to one door; print what that cost."""
    from tests.chaos import campaign, siege
    from tests.chaos.team import adopt_orphans

    campaign.warm()
    adopt_orphans()
    with base_folder() as base:
        report = {"seed": args.seed, **siege.run(args.seed, args.siege, base)}
    print(text := json.dumps(report, indent=1))
    if args.out:
        args.out.write_text(text + "\n")
    return 1 if report["faults"] else 0


def die(args: argparse.Namespace) -> int:
    """End ranks and jobs in every way that has a name; print what each left."""
    from tests.chaos import campaign, ways
    from tests.chaos.team import adopt_orphans

    campaign.warm()
    adopt_orphans()
    lines, before = [], used()
    with base_folder() as base:
        for name, way in list(ways.WAYS.items())[args.seed % args.ways :: args.ways]:
            line = campaign.run_one(name, way, f"{args.seed}:{name}", base)
            print(f"{line['seconds']:7.2f} s  {name}", flush=True)
            lines.append(line)
    after = used()
    faults = [line for line in lines if "faults" in line]
    if after != before:
        faults.append({"kind": "all of them", "faults": [f"{before} became {after}"]})
    report = {"seed": args.seed, "ways": len(lines), "faults": faults}
    print(text := json.dumps(report, indent=1))
    if args.out:
        args.out.write_text(text + "\n")
    return 1 if faults else 0


def again(args: argparse.Namespace) -> int:
    """Run one scenario again; print its line."""
    from tests.chaos import campaign
    from tests.chaos.team import adopt_orphans

    campaign.warm()
    adopt_orphans()
    (name,) = args.kind
    with base_folder() as base:
        found = campaign.scenarios()[name][0]
        line = campaign.run_one(name, found, args.again, base)
    print(json.dumps(line, indent=1).replace("\\n", "\n"))
    return 1 if "faults" in line else 0


def main() -> int:
    """Print the seed, run, print the table; 1 when something was not survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--cheap", type=int, default=200, help="of each kind")
    parser.add_argument("--dear", type=int, default=0, help="of real processes, after")
    parser.add_argument("--stop-s", type=float, default=1e9)
    parser.add_argument("--jobs", type=int, default=0, help="workers, of processes")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kind", action="append", default=[], help="only this")
    parser.add_argument("--most", type=int, default=1 << 40, help="of each worker")
    parser.add_argument("--out", type=Path, help="a JSON file, written as it goes")
    parser.add_argument("--again", help="the seed of one scenario, of one --kind")
    parser.add_argument("--siege", type=int, default=0, help="connections at one door")
    parser.add_argument("--ways", type=int, default=0, help="to die: every so-many-th")
    args = parser.parse_args()
    if args.ways:
        return die(args)
    if args.siege:
        return besiege(args)
    if args.again:
        return again(args)
    print(f"seed {args.seed}", flush=True)
    status = processes(args) if args.jobs else cheap_ones(args)
    if args.dear:
        args.jobs, args.seconds, args.most = 2, args.stop_s, -(-args.dear // 2)
        status |= processes(args)
    return status


def cheap_ones(args: argparse.Namespace) -> int:
    """Run scenarios in this process; print a table."""
    done, failed = run(args.seed, args.cheap, args.stop_s)
    left = used()
    print("| scenario | times | steps | seconds |\n| --- | --- | --- | --- |")
    for name, (times, steps, seconds) in done.items():
        print(f"| {name} | {times} | {steps} | {seconds:.1f} |")
    total = sum(int(times) for times, _, _ in done.values())
    print(f"{total} scenarios, {len(failed)} not survived; left: {left}")
    print("\n".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
