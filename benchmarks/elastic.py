"""What a lost rank costs: calls alone, a training step, and torchrun's restart beside.

    python benchmarks/elastic.py [--runs N] [--only calls,train,restart,drain,healthy]
        [--ranks N] [--device cuda] [--out FILE]

All on this host, by the clock that its processes share. Sums are compared in each run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from stretto import elastic
from stretto.bench.machine import commit
from stretto.elastic.rehearsal import PHASES, phases
from stretto.fabric.meeting.watching import watching

HERE = Path(__file__).parent
PARTS = ["calls", "train", "restart", "drain", "healthy"]
WORKER = str(HERE / "elastic_worker.py")
JOB = f"benchmark-{os.getpid()}"


def _log() -> Any:
    """Return where what jobs say of themselves goes: a file, if one is named."""
    path = os.environ.get("ELASTIC_LOG")
    return subprocess.DEVNULL if path is None else Path(path).open("a")


class Running:
    """A launched job, whose ranks' lines are read as they come."""

    def __init__(self, words: list[str], **variables: str) -> None:
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=_log(), text=True,
            env={**os.environ, **variables},
        )  # fmt: skip
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def hear(self, timeout_s: float = 150.0) -> dict[str, Any] | None:
        """Return what a rank says next; None: the job has ended."""
        return self._lines.get(timeout=timeout_s)

    def end(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # it leaves nothing behind
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


LAUNCH = """
import sys
from dataclasses import replace
from stretto.elastic import Flapping, JobOptions, LaunchedJob, Starter
ranks, standby, least, name, *words = sys.argv[1:]
never = Flapping(first_s=0.0, most=1 << 30)  # that kills come often is what is measured
options = JobOptions.here(
    int(ranks), standby=int(standby), min_ranks=int(least), name=name,
    starter=Starter(words=words),
)
sys.exit(LaunchedJob(replace(options, flapping=never)).run())
"""


def launched(what: str, ranks: int, standby: int, least: int, **more: str) -> Running:
    """Launch a job of ours."""
    words = [sys.executable, "-c", LAUNCH, *map(str, (ranks, standby, least)), JOB]
    return Running([*words, sys.executable, WORKER, what], **more)


def calls(ranks: int, how: str) -> dict[str, float]:
    """Return when the last rank was told, had switched, and had made its first call."""
    standby = int(how == "replace")
    job = launched("calls", ranks, standby, 2, HOW=how)
    try:
        ready = [job.hear() for _ in range(ranks)]
        time.sleep(0.1)
        victim = next(one for one in ready if one and one["rank"] == 1)
        killed = time.monotonic()
        os.kill(victim["pid"], signal.SIGKILL)
        said = [job.hear() for _ in range(ranks if standby else ranks - 1)]
        found = [one for one in said if one]
        return {
            word: 1e3 * (max(one[word] for one in found) - killed)
            for word in ("told", "switched", "first")
        }
    finally:
        job.end()


def next_step(job: Running, ranks: int, at: int) -> tuple[float, float]:
    """Kill rank 1 after a step; return when, and how long until all have the next."""
    pids, last = {}, {}
    while True:
        said = job.hear()
        assert said is not None, "the job has ended"
        pids[said["rank"]], last[said["rank"]] = said["pid"], said["step"]
        if len(last) == ranks and min(last.values()) >= at:
            break
    killed = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    begun, done = max(last.values()), {}
    while len(done) < ranks:
        said = job.hear()
        assert said is not None, "the job has ended"
        if said["at"] > killed and said["step"] > begun:
            done.setdefault(said["rank"], said["at"])
    return killed, max(done.values()) - killed


def train(runs: int, ranks: int) -> list[dict[str, float]]:
    """Return the downtimes of kills in one job, which goes on after each: by phase."""
    found: list[dict[str, float]] = []
    job = launched("train", ranks, 1, 2, STEPS="1000000")
    try:
        for nth in range(runs):
            at, usual = _until_ready(job, ranks, nth)
            if found:
                found[-1] |= usual
            killed, downtime_s = next_step(job, ranks, at)
            found.append({"downtime": downtime_s, **_phases(killed, nth + 1)})
            print(json.dumps(found[-1]), flush=True)
    finally:
        job.end()
    return found


def _until_ready(
    job: Running, ranks: int, generation: int
) -> tuple[int, dict[str, float]]:
    """Read what ranks say until somebody stands by and waits; return a step to come.

    And how long rank 1's tenth step from here took, and what rank 0's GPU holds then.
    """
    at, look_at = 10, time.monotonic() + 1.0
    ends: list[float] = []
    usual: dict[str, float] = {}
    while True:
        said = job.hear()
        assert said is not None, "the job has ended"
        ends += [said["at"]] if said["rank"] == 1 else []
        if said["rank"] == 0 and len(ends) == 10:
            usual = {"tenth step": ends[-1] - ends[-2], "gpu_mb": said["gpu_mb"]}
        at = max(at, said["step"] + 5)
        if time.monotonic() < look_at:
            continue
        look_at = time.monotonic() + 1.0
        with watching(JOB) as meeting:
            seen = elastic.look(meeting)
        ready = [m for m in seen.members if m.rank < 0 and m.said.get("ready")]
        if ready and (len(seen.ranks), seen.generation) == (ranks, generation):
            return at, usual


def _phases(killed: float, generation: int) -> dict[str, float]:
    with watching(JOB) as meeting:
        for _ in range(50):
            said = [m.said.get("recovery", {}) for m in elastic.look(meeting).ranks]
            known = [one["at"] for one in said if one.get("generation") == generation]
            if known:
                break
            time.sleep(0.1)
    return phases(killed, known)


def drained(ranks: int, runs: int) -> list[float]:
    """Drain a rank some times; return how much longer a step took for it, in s.

    It stands by from then on, and takes the place back the next time.
    """
    found: list[float] = []
    job = launched("train", ranks, 1, 2, STEPS="1000000")
    try:
        while len(found) < runs:
            usual, longest = _around_a_drain(job, len(found))
            found.append(longest - usual)
    finally:
        job.end()
    return found


def _around_a_drain(job: Running, nth: int) -> tuple[float, float]:
    """Return the median step of rank 0, and its longest while rank 1 is drained."""
    begun, times, at = time.monotonic(), list[float](), 0.0
    ordered: threading.Thread | None = None
    while ordered is None or ordered.is_alive() or time.monotonic() < begun + 16:
        said = job.hear()
        assert said is not None, "the job has ended"
        if said["rank"] == 0:
            times += [said["at"] - at] if at else []
            at = said["at"]
        if ordered is None and len(times) > 10 and time.monotonic() > begun + 12:
            ordered = threading.Thread(target=_drain, args=(nth,))
            ordered.start()
    return median(times), max(times[10:])


def _drain(nth: int) -> None:
    with watching(JOB) as meeting:
        assert elastic.drain(meeting, 1, stays=True).generation == nth + 1


def restarted(runs: int, ranks: int) -> list[float]:
    """Return the downtimes of torchrun's restarts."""
    found: list[float] = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            words += ["--nproc-per-node", str(ranks), "--max-restarts", "3", WORKER]
            job = Running(
                [*words, "restart"], STEPS="1000000", CHECKPOINT=f"{folder}/kept"
            )
            try:
                found.append(next_step_of_restart(job, ranks))
            finally:
                job.end()
    return found


def next_step_of_restart(job: Running, ranks: int) -> float:
    """Kill rank 1 some steps after a checkpoint; return the time to any next step."""
    pids, last = {}, {}
    while True:
        said = job.hear()
        assert said is not None, "the job has ended"
        pids[said["rank"]], last[said["rank"]] = said["pid"], said["step"]
        if len(last) == ranks and min(last.values()) >= 14:
            break
    killed = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    done: dict[int, float] = {}
    while len(done) < ranks:
        said = job.hear()
        assert said is not None, "the job has ended"
        if said["pid"] not in pids.values():
            done.setdefault(said["rank"], said["at"])
    return max(done.values()) - killed


def healthy(ranks: int) -> dict[str, float]:
    """Return what a step of ours costs more than the optimizer's alone, in us."""
    job = launched("healthy", ranks, 0, 1)
    try:
        said = [one for one in (job.hear() for _ in range(ranks)) if one]
        return {k: max(one[k] for one in said) for k in said[0] if k != "rank"}
    finally:
        job.end()


def main() -> None:
    """Measure, and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--ranks", type=int, default=4, help="that train [4]")
    parser.add_argument("--device", default="cpu", help="that trains [cpu]")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    os.environ["DEVICE"] = args.device
    found: dict[str, Any] = {"command": " ".join(sys.argv), "commit": commit()}
    found["machine"] = f"{platform.processor() or platform.machine()}, {os.cpu_count()}"
    chosen = args.only.split(",") if args.only else PARTS
    if "calls" in chosen:
        for name, ranks, how in [
            ("replace 1 of 4", 4, "replace"),
            ("shrink 4 to 3", 4, "shrink"),
            ("replace 1 of 8", 8, "replace"),
        ]:
            found[name] = [calls(ranks, how) for _ in range(args.runs)]
            say(name, [one["first"] for one in found[name]], "ms")
    if "train" in chosen:
        found["DDP, replaced"] = train(args.runs, args.ranks)
        for part in ("downtime", *PHASES):
            values = [one[part] for one in found["DDP, replaced"]]
            say(f"DDP, replaced: {part}", values, "s")
    if "restart" in chosen:
        found["DDP, torchrun"] = restarted(max(1, args.runs // 5), args.ranks)
        say("DDP, torchrun", found["DDP, torchrun"], "s")
    if "drain" in chosen:
        found["DDP, drained"] = drained(args.ranks, max(2, args.runs // 3))
        say("DDP, drained", found["DDP, drained"], "s")
    if "healthy" in chosen:
        found["healthy"] = healthy(min(2, args.ranks))  # alone, nobody is waited for
        print(found["healthy"], flush=True)
    if args.out:
        Path(args.out).write_text(json.dumps(found, indent=2) + "\n")


def say(name: str, values: list[float], unit: str) -> None:
    """Print a row."""
    print(
        f"{name}: median {median(values):.3f} {unit}, most {max(values):.3f}, "
        f"of {len(values)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
