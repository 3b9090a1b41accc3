"""Many jobs at once, each with scenarios of its own, and one count of what came of all.

A worker is a process with everything loaded, from which ranks are forked. It writes a
line for each scenario as soon as that is over, so nothing is lost when it is stopped.
"""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.chaos import deaths, launched, limits, meetings
from tests.chaos.jobs import Found, Naming, forget_folder, new_folder
from tests.chaos.team import Skipped, adopt_orphans
from tests.shared_names import shared_names

Scenario = Callable[[random.Random, Path], Found]
_LATE_S = 1.0


def scenarios() -> dict[str, tuple[Scenario, float]]:
    """Return all kinds, each with how often it is drawn."""
    rooms = (deaths, meetings, launched, limits)
    return {name: how for room in rooms for name, how in room.SCENARIOS.items()}


def warm() -> None:
    """Load and compile what ranks need, and prove what they will ask for, once."""
    import gc

    import numpy as np
    from tests.chaos.scenarios import Alone
    from tests.chaos.talk import talk

    import stretto
    from stretto.executors import cpu  # noqa: F401

    comm = stretto.Communicator(Alone(), profiles=None)
    for turn in range(60):
        talk(comm, "warm", turn)
    for dtype in ("float32", "int64", "float64"):
        for op in ("sum", "max", "min"):
            comm.all_reduce(np.ones(3, dtype), op)
    comm.close()
    gc.collect()
    gc.freeze()


def run_one(name: str, scenario: Scenario, seed: str, base: Path) -> dict[str, Any]:
    """Run one scenario; return its line."""
    begin, folder = time.monotonic(), new_folder(base)
    line: dict[str, Any] = {"kind": name, "seed": seed}
    try:
        found = scenario(random.Random(seed), folder)
    except Skipped as e:
        line["skipped"], found = str(e), Found()
    except BaseException as e:
        if isinstance(e, KeyboardInterrupt | SystemExit):
            raise
        found = Found(faults=[traceback.format_exc()[-6000:]])
        _clear()
    finally:
        forget_folder(folder)
    line |= {k: v for k, v in asdict(found).items() if v}
    line["seconds"] = round(time.monotonic() - begin, 4)
    return line


def _clear() -> None:
    """Kill what a scenario that failed has left of its processes."""
    from tests.chaos.team import _children

    for pid in _children():
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except OSError:
            pass
    import gc

    gc.collect()


def work(seed: str, base: Path, until: float, kinds: list[str], most: int) -> None:
    """Be a worker: one scenario after another, one line each."""
    adopt_orphans()
    chosen = {k: v for k, v in scenarios().items() if not kinds or k in kinds}
    names = list(chosen)
    weights = [chosen[name][1] for name in names]
    rng = random.Random(seed)
    with (base / "lines").open("a", buffering=1) as lines:
        for nth in range(most):
            if time.monotonic() > until:
                break
            (name,) = rng.choices(names, weights)
            line = run_one(name, chosen[name][0], f"{seed}:{nth}", base)
            lines.write(json.dumps(line) + "\n")


def run(
    seed: int, jobs: int, seconds: float, kinds: list[str], most: int, out: Path | None
) -> dict[str, Any]:
    """Run workers until time is over or a signal comes; return the report."""
    warm()
    begin = time.monotonic()
    base = Path(tempfile.mkdtemp(prefix="ch", dir="/tmp"))
    shared = shared_names()
    workers: dict[int, int] = {}
    for job in range(jobs):
        (base / str(job)).mkdir()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            _be_worker(f"{seed}:{job}", base / str(job), begin + seconds, kinds, most)
        workers[pid] = job
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, frame: stopped.append(n))
    next_report = 0.0
    try:
        while workers:
            _reap(workers)
            if stopped or time.monotonic() > begin + seconds + 90:
                break
            if time.monotonic() > next_report:
                next_report = time.monotonic() + 10
                _write(_report(base, seed, jobs, begin), out)
            time.sleep(0.1)
        for pid in workers:
            _kill_all_of(pid)
    finally:
        report = _report(base, seed, jobs, begin)
        report["left in /dev/shm"] = sorted(shared_names() - shared)
        _write(report, out)
        shutil.rmtree(base, ignore_errors=True)
    return report


def _be_worker(*args: Any) -> None:
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        work(*args)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _reap(workers: dict[int, int]) -> None:
    for pid in list(workers):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            job = workers.pop(pid)
            if status:
                print(f"worker {job} ended with {status}", file=sys.stderr, flush=True)


def _kill_all_of(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except OSError:
        pass


def _report(base: Path, seed: int, jobs: int, begin: float) -> dict[str, Any]:
    kinds: dict[str, dict[str, Any]] = {}
    faults, skipped, namings, early = [], {}, [], []
    notes: dict[str, list[float]] = {}
    for path in base.glob("*/lines"):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if "skipped" in line:
                skipped[line["kind"]] = line["skipped"]
                continue
            row = kinds.setdefault(line["kind"], {"times": 0, "failed": 0, "s": 0.0})
            row["times"] += 1
            row["s"] = round(row["s"] + line["seconds"], 2)
            for found, name in ((namings, "namings"), (early, "early")):
                for said in line.get(name, ()):
                    found.append(Naming(**said))
                    found[-1].words += f" in {line['kind']}, {line['seed']}"
            for name, value in line.get("notes", {}).items():
                notes.setdefault(name, []).append(value)
            if "faults" in line:
                row["failed"] += 1
                about = {k: line[k] for k in ("kind", "seed", "faults")}
                faults.append(about)
    return {
        "seed": seed,
        "jobs": jobs,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "seconds": round(time.monotonic() - begin, 1),
        "scenarios": sum(row["times"] for row in kinds.values()),
        "not survived": len(faults),
        "kinds": kinds,
        "deaths after all had met": _summary(namings),
        "deaths before all had met": _summary(early),
        "notes": {k: _spread(v) for k, v in notes.items()},
        "skipped": skipped,
        "faults": faults[:200],
    }


def _summary(namings: list[Naming]) -> dict[str, Any]:
    if not namings:
        return {"heard": 0}
    good = [n for n in namings if n.is_right and n.seconds <= _LATE_S]
    right = [n for n in namings if n.is_right]
    times = _spread([n.seconds * 1e3 for n in namings])
    late = sorted((n for n in namings if n.seconds > _LATE_S), key=lambda n: -n.seconds)
    return {
        "heard": len(namings),
        "milliseconds": times,
        "share with the right rank": round(len(right) / len(namings), 6),
        "share with the right rank within 1 s": round(len(good) / len(namings), 6),
        "late ones, s": [f"{n.seconds:.3f}{n.words}" for n in late[:20]],
    }


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"median": 0.5, "p99": 0.99, "p99.9": 0.999, "most": 1.0}
    last = len(ordered) - 1
    return {
        name: round(ordered[min(last, int(q * len(ordered)))], 3)
        for name, q in at.items()
    }


def _write(report: dict[str, Any], out: Path | None) -> None:
    if out is not None:
        part = out.with_suffix(".part")
        part.write_text(json.dumps(report, indent=1) + "\n")
        part.replace(out)
