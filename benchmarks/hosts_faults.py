"""Two hosts of two ranks: connecting, idling, a killed process, a lost host or rail.

    python benchmarks/hosts_faults.py [--rounds 3] [--out FILE]

Hosts are namespaces of this machine; it needs root. Each figure is that of the rank
that is worst off, in the best round: foreign load makes rounds longer, never shorter.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RANKS = 4
GOALS = {
    "connect_s": 0.1,
    "idle_cpu_percent": 0.1,
    "killed_process_known_s": 0.1,
    "lost_host_known_s": 2.5,
    "lost_rail_call_s": 1.5,
}
IDLE_S, RAIL_S = 5.0, 4.0


def work(rank: int, address: str, end: str) -> None:
    """Be one rank: say how it fares, and when it hears of the fault."""
    import numpy as np

    import stretto
    from stretto.errors import StrettoError

    place = f"tcp://{address}:29700"
    comm = stretto.connect(rank, RANKS, place, deadline_s=60)
    x = np.ones(1000, np.float32)
    comm.all_reduce(x)
    connects = []
    for _ in range(4):
        comm.barrier()
        begun = time.perf_counter()
        other = stretto.connect(rank, RANKS, place, deadline_s=60)
        connects.append(time.perf_counter() - begun)
        comm.barrier()
        other.close()
    used = time.process_time()
    if end == "killed":
        time.sleep(IDLE_S)
    idle = (time.process_time() - used) / IDLE_S * 100
    comm.barrier()
    print(json.dumps({"connect_s": min(connects), "idle": idle}), flush=True)
    if end == "rail":
        ones, took, until = np.ones_like(x), [], time.monotonic() + RAIL_S
        while comm.broadcast_object(time.monotonic() < until):
            for _ in range(100):
                begun = time.monotonic()
                assert (comm.all_reduce(ones, out=x) == RANKS).all()
                took.append(time.monotonic() - begun)
        print(json.dumps({"longest": max(took), "calls": len(took)}), flush=True)
        return
    try:
        while True:
            comm.all_reduce(x)
    except StrettoError as e:
        told = time.monotonic()
        print(json.dumps({"told": told, "error": str(e)[:200]}), flush=True)


def run(end: str, folder: Path) -> dict[str, Any]:
    """Start the ranks, bring the end about, and return what they said."""
    from stretto.testing.namespaces import TwoHosts

    secret = folder / "secret"
    secret.write_text("0123456789abcdef" * 2, encoding="ascii")
    secret.chmod(0o600)
    environment = {
        **os.environ,
        "STRETTO_SECRET_FILE": os.fspath(secret),
        "PYTHONPATH": os.fspath(ROOT / "src"),
        "XDG_RUNTIME_DIR": os.fspath(folder),
    }
    script = os.fspath(Path(__file__).resolve())
    with TwoHosts(wires=3 if end == "rail" else 1) as hosts:
        started = []
        for rank in range(RANKS):
            if end == "rail":
                rails = [hosts.rail(rank // 2, wire) for wire in (1, 2)]
                environment["STRETTO_INTERFACE"] = ",".join(rails)
            words = [sys.executable, script, "--work", str(rank)]
            command = hosts.command(rank // 2, [*words, hosts.addresses[0], end])
            started.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
            )
        try:
            lines = [p.stdout.readline() for p in started if p.stdout is not None]
            said = [json.loads(line) for line in lines]
            time.sleep(0.3)
            begun = time.monotonic()
            if end == "killed":
                started[3].kill()
            else:
                hosts.cut(1, int(end == "rail"))
            left = started[:3] if end == "killed" else started
            ends = [json.loads(p.stdout.readline()) for p in left if p.stdout]
        finally:
            for process in started:
                process.kill()
                process.wait()
    found: dict[str, Any] = {"connect_s": max(s["connect_s"] for s in said)}
    if end == "rail":
        longest = max(e["longest"] for e in ends)
        return {"lost_rail_call_s": longest, "calls": ends[0]["calls"]}
    if end == "killed":
        found["idle_cpu_percent"] = max(s["idle"] for s in said)
    name = "killed_process_known_s" if end == "killed" else "lost_host_known_s"
    found[name] = max(e["told"] - begun for e in ends)
    found["each_s"] = [round(e["told"] - begun, 3) for e in ends]
    return {**found, "errors": [e["error"] for e in ends]}


def main() -> None:
    """Run all rounds; write and print what was reached."""
    from stretto.bench.machine import commit

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", default="")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(int(args.work[0]), args.work[1], args.work[2])
        return
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            rounds += [run(end, Path(folder)) for end in ("killed", "lost", "rail")]
    best = {
        name: round(min(one[name] for one in rounds if name in one), 3)
        for name in GOALS
    }
    reached = {name: best[name] <= goal for name, goal in GOALS.items()}
    document = {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "goals": GOALS,
        "best": best,
        "reached": reached,
        "rounds": rounds,
    }
    if args.out:
        text = json.dumps(document, indent=1)
        Path(args.out).write_text(text + "\n", encoding="utf-8")
    for name, goal in GOALS.items():
        print(f"{name}: {best[name]}; goal {goal}: {'yes' if reached[name] else 'no'}")


if __name__ == "__main__":
    main()
