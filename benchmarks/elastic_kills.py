"""Kill, stop and drain what a training job consists of, again and again.

    python benchmarks/elastic_kills.py [--seconds 600] [--seed N] [--ranks N] [--out F]

Jobs of a small DDP model follow one another. In each, at random times: ranks are killed
(rank 0, too), several at once or one while another's loss is being made good; those who
stand by are killed; ranks are stopped, and go on later, or are replaced while they are
stopped; ranks are drained. Whoever has a state is left alive in one rank at least.

Every loss is compared with the undisturbed run's, bit for bit. A job that makes no step
for a minute counts as hung; what processes and files are left afterwards is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import elastic as driver

from stretto import elastic
from stretto.bench.machine import commit
from stretto.errors import StrettoError
from stretto.fabric.meeting.watching import watching

HANG_S = 60.0
STEPS = 4000
KINDS = {
    "kill a rank": 4, "kill two ranks": 2, "kill, and one more meanwhile": 4,
    "kill a standby": 2, "kill a rank and a standby": 2, "stop and go on": 2,
    "replace one that is stopped": 1, "drain": 1,
}  # fmt: skip


class Storm:
    """One job, and what is done to it."""

    def __init__(self, chance: random.Random, ranks: int, pause: str) -> None:
        self.chance, self.ranks = chance, ranks
        self.counts: Counter[str] = Counter()
        self.downtimes: list[float] = []
        self.faults: list[str] = []
        self.losses: dict[tuple[int, int], str] = {}
        self.step = 0
        self.job = driver.launched(
            "storm", ranks, 2, 1, STEPS=str(STEPS), PAUSE=pause, OMP_NUM_THREADS="1"
        )

    def read(self, within_s: float) -> bool:
        """Take what ranks say for so long; return whether the job goes on."""
        until = time.monotonic() + within_s
        while (left_s := until - time.monotonic()) > 0:
            with suppress(queue.Empty):
                said = self.job.hear(left_s)
                if said is None:
                    return False
                key, loss = (said["rank"], said["step"]), said["loss"]
                self.step = max(self.step, said["step"])
                if self.losses.setdefault(key, loss) != loss:
                    self.faults.append(f"rank {key[0]} step {key[1]}: two losses")
        return True

    def seen(self) -> Any:
        """Return what a watcher sees."""
        with watching(driver.JOB) as meeting:
            return elastic.look(meeting)

    def whole(self, seen: Any) -> list[Any]:
        """Return the ranks that have a state."""
        return [m for m in seen.ranks if m.gone is None and m.said.get("whole")]

    def disturb(self) -> None:
        """Do something, with somebody left alive who has a state."""
        seen = self.seen()
        kept = self.chance.choice(self.whole(seen))
        others = [m for m in seen.ranks if m.pid != kept.pid and m.gone is None]
        free = [m for m in seen.members if m.rank < 0 and m.said.get("pid")]
        self.chance.shuffle(others)
        kind = self.chance.choices(list(KINDS), list(KINDS.values()))[0]
        if ("standby" in kind or kind == "drain") and not free:
            kind = "kill a rank"
        if "replace" in kind and not any(m.said.get("ready") for m in free):
            kind = "stop and go on"
        self.counts[kind] += 1
        before, begun = self.step, time.monotonic()
        self.do(kind, others, free)
        while self.step <= before + 1:
            if not self.read(0.01):
                self.faults.append(f"the job ended after: {kind}")
                return
            if time.monotonic() > begun + HANG_S:
                self.faults.append(f"no step in {HANG_S:g} s after: {kind}")
                return
        self.downtimes.append(time.monotonic() - begun)

    def do(self, kind: str, others: list[Any], free: list[Any]) -> None:
        """Do one thing."""
        if kind == "drain":
            with watching(driver.JOB) as meeting, suppress(StrettoError):
                elastic.drain(meeting, others[0].rank, stays=True, within_s=10.0)
        elif kind == "stop and go on":
            send(others[0].pid, signal.SIGSTOP)
            self.read(self.chance.uniform(0.0, 0.5))
            send(others[0].pid, signal.SIGCONT)
        elif kind == "replace one that is stopped":
            send(others[0].pid, signal.SIGSTOP)
            with watching(driver.JOB) as meeting, suppress(StrettoError):
                elastic.replace(meeting, others[0].rank, within_s=20.0)
            send(others[0].pid, signal.SIGCONT)
        else:
            chosen = [
                m.pid
                for m in others[: 2 if "two" in kind or "meanwhile" in kind else 1]
            ]
            if "standby" in kind:
                standby = int(self.chance.choice(free).said["pid"])
                chosen = [standby] if "rank" not in kind else [*chosen, standby]
            for nth, pid in enumerate(chosen):
                if nth and "meanwhile" in kind:
                    self.read(self.chance.uniform(0.0, 0.15))
                send(pid, signal.SIGKILL)

    def run(self, until: float) -> None:
        """Disturb it until a time, or its end; then let it end by itself, or end it."""
        try:
            if not self.begin():
                self.faults.append("the job did not begin")
                return
            while time.monotonic() < until and self.step < STEPS - 200:
                self.read(self.chance.uniform(0.05, 1.5))
                with suppress(StrettoError, IndexError):
                    self.disturb()
                if self.faults:
                    return
        finally:
            self.job.end()

    def begin(self) -> bool:
        """Wait for first steps, and for one that stands by."""
        until = time.monotonic() + 3 * HANG_S
        while time.monotonic() < until and self.read(0.5):
            with suppress(StrettoError):
                if self.step > 3 and any(m.rank < 0 for m in self.seen().members):
                    return True
        return False


def send(pid: int, number: int) -> None:
    """Send a signal to who may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def undisturbed(ranks: int) -> dict[tuple[int, int], str]:
    """Return the losses of a run that nobody disturbs."""
    job = driver.launched(
        "storm", ranks, 0, ranks, STEPS=str(STEPS), PAUSE="0", OMP_NUM_THREADS="1"
    )
    found = {}
    while (said := job.hear()) is not None:
        found[said["rank"], said["step"]] = said["loss"]
    assert len(found) == ranks * STEPS, f"{len(found)} losses"
    return found


def left(folder: Path) -> dict[str, Any]:
    """Return how many processes of the job, and which files, are left."""
    time.sleep(1.0)
    said = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True)
    ours = [line for line in said.stdout.splitlines() if driver.WORKER in line]
    hubs = [line for line in said.stdout.splitlines() if driver.JOB in line]
    files = [p for p in folder.rglob("*") if p.is_file() or p.is_socket()]
    names = sorted(str(p.relative_to(folder)) for p in files)
    return {"processes": len(ours) + len(hubs), "files": names}


def main() -> None:
    """Storm, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--pause", default="0.005", help="between two steps [0.005]")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    known, begun = undisturbed(args.ranks), time.monotonic()
    counts: Counter[str] = Counter()
    downtimes, faults, wrong, compared, jobs = list[float](), list[str](), 0, 0, 0
    while time.monotonic() < begun + args.seconds:
        seed = f"{args.seed}/{jobs}"
        storm = Storm(random.Random(seed), args.ranks, args.pause)
        storm.run(begun + args.seconds)
        jobs += 1
        counts += storm.counts
        downtimes += storm.downtimes
        faults += [f"seed {seed}: {one}" for one in storm.faults]
        wrong += sum(known[key] != loss for key, loss in storm.losses.items())
        compared += len(storm.losses)
    found = {
        "command": " ".join(sys.argv), "commit": commit(), "cores": os.cpu_count(),
        "seconds": round(time.monotonic() - begun), "jobs": jobs, "events": counts,
        "losses compared": compared, "losses that differ": wrong, "faults": faults,
        "left": left(folder), "median, s": median(downtimes or [0]),
        "most, s": max(downtimes, default=0),
    }  # fmt: skip
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    if args.out:
        Path(args.out).write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(bool(faults or wrong or any(found["left"].values())))


if __name__ == "__main__":
    main()
