"""One door, ten thousand connections, 100,000 frames, and a job that goes on.

    python -m tests.chaos --siege 10000 --out FILE

Ranks 0 and 1 have a communicator and call on it all the time; the hub of rank 0 also
waits for a third rank, at an open TCP door. Strangers come there and at the Unix socket
behind it. Then the third rank comes, and the door closes; strangers go on knocking.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import statistics
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.chaos.jobs import Job, new_folder, outcome, spell
from tests.chaos.meetings import _port
from tests.chaos.talk import ALL, equal, talk
from tests.chaos.team import Me, gives_back, held

import stretto

_BATCH = 50
FRAMES_EACH = 10


def measure(comm: Any, me: Me, what: str, until: Path) -> None:
    """Call until there is a file of that name; say what a call took, in us."""
    x, times, calls = np.ones(64, np.float32), [], 0
    go_on = np.ones(1, np.float32)
    while go_on[0]:
        x[:] = comm.rank
        comm.all_reduce(x)
        equal(x, np.full(64, comm.num_ranks * (comm.num_ranks - 1) / 2), what)
        begin = time.perf_counter()
        for _ in range(_BATCH):
            comm.all_reduce(x, "max")
        times.append((time.perf_counter() - begin) / _BATCH * 1e6)
        calls += _BATCH + 2
        go_on[0] = comm.rank != 0 or not until.exists()
        comm.all_reduce(go_on, "min")
    times.sort()
    spread = times[len(times) // 2], times[int(len(times) * 0.99)]
    me.say((what, comm.rank, calls, *spread))


def be_besieged(me: Me, *, rank: int, folder: Path, name: str, door: str) -> str:
    """Be a rank of both jobs: one that runs, one that still waits."""
    before = held()
    found: list[Any] = []

    def wait() -> None:
        found.append(stretto.connect(rank, 3, door, deadline_s=600.0))

    if rank < 2:
        comm = stretto.connect(rank, 2, name, deadline_s=60.0)
        waiting = threading.Thread(target=wait)
        waiting.start()
        measure(comm, me, "before", folder / "flood")
        measure(comm, me, "while strangers come", folder / "over")
        waiting.join()
        comm.close()
        del comm
    else:
        wait()
    (both,) = found
    for turn in range(10):
        talk(both, name, turn, ALL)
    measure(both, me, "the door is closed", folder / "again")
    measure(both, me, "closed, and strangers come", folder / "end")
    both.close()
    found.clear()
    del both
    gives_back(before)
    return "done"


def flood(me: Me, *, seed: int, connections: int, port: int, path: str) -> tuple:
    """Come so often, each time with some frames; return how often anybody was there."""
    from tests.chaos.scenarios import hostile_bytes

    rng, taken, frames = random.Random(seed), 0, 0
    for _ in range(connections):
        family = socket.AF_UNIX if rng.random() < 0.3 else socket.AF_INET
        where: Any = path if family == socket.AF_UNIX else ("127.0.0.1", port)
        with suppress(OSError), socket.socket(family) as sock:
            sock.settimeout(5.0)
            sock.connect(where)
            taken += 1
            data = b"".join(hostile_bytes(rng) for _ in range(FRAMES_EACH))
            frames += FRAMES_EACH
            sock.sendall(data)
            if rng.random() < 0.1:
                sock.settimeout(0.01)
                sock.recv(100)
    return taken, frames


def run(seed: int, connections: int, base: Path) -> dict[str, Any]:
    """Run it; return what was counted and measured."""
    folder = new_folder(base)
    job = Job(random.Random(seed), folder, 3)
    job.team.until = time.monotonic() + 900
    secret, port = folder / "secret", _port()
    secret.write_text(secrets.token_hex(16))
    secret.chmod(0o600)
    os.environ["STRETTO_SECRET_FILE"] = os.fspath(secret)
    door = f"tcp://127.0.0.1:{port}"
    common = {"folder": folder, "name": job.address, "door": door}

    def start(rank: int) -> Any:
        return job.team.start(partial(be_besieged, rank=rank, **common), f"rank{rank}")

    def strangers(count: int, name: str) -> list[Any]:
        (path,) = [*(folder / "r" / "stretto").glob("*.sock")] or [folder / "none"]
        return [
            job.team.start(
                partial(
                    flood,
                    seed=seed + i,
                    connections=count // 4,
                    port=port,
                    path=os.fspath(path),
                ),
                f"{name}{i}",
            )
            for i in range(4)
        ]

    def until_over(members: list[Any]) -> list[int]:
        while any(m.status is None for m in members):
            job.team.watch(0.02)
        return [sum(n) for n in zip(*(outcome(m).value for m in members), strict=True)]

    ranks = [start(0), start(1)]
    job.team.watch(3.0)
    begin = time.monotonic()
    (folder / "flood").touch()
    taken, frames = until_over(strangers(connections, "first"))
    flood_s = time.monotonic() - begin
    late = strangers(400, "beside")  # the third rank comes among them
    ranks.append(start(2))
    until_over(late)
    (folder / "over").touch()
    job.team.watch(3.0)
    (folder / "again").touch()
    let_in, _ = until_over(strangers(connections * 5, "second"))
    (folder / "end").touch()
    job.team.until_over()
    job.check_right(ranks, "under siege")
    return _report(job, ranks, [taken, frames, let_in], flood_s)


def _report(
    job: Job, ranks: list[Any], counted: list[int], flood_s: float
) -> dict[str, Any]:
    """Return what was counted and measured, in words."""
    taken, frames, let_in = counted
    rows = [
        dict(zip(("when", "rank", "calls", "median_us", "p99_us"), said, strict=True))
        for member in ranks
        for said, _ in member.said
    ]
    found = job.end()
    return {
        "connections": taken,
        "frames": frames,
        "seconds": round(flood_s, 1),
        "let in after the door closed": let_in,
        "calls": sum(row["calls"] for row in rows),
        "rows": rows,
        "spread of medians, us": {
            when: round(
                statistics.mean(r["median_us"] for r in rows if r["when"] == when), 2
            )
            for when in dict.fromkeys(row["when"] for row in rows)
        },
        "faults": found.faults
        or [spell(m) for m in ranks if outcome(m).value != "done"],
    }
