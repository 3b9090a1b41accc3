"""What samples say of a thread: the line where it is, and whether it may run."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.soon import soon

from stretto.trace import SAMPLE, RankInfo, chunks, file
from stretto.trace.sampling import Sampler

BLOCK = bytes(1 << 14)

CROWD = """
import os, subprocess, sys, time
from stretto.trace.sampling import Sampler

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
spin = [sys.executable, "-c", "while True: pass"]
others = [subprocess.Popen(spin) for _ in range(3)]
try:
    time.sleep(0.3)
    sampler, end = Sampler(), time.monotonic() + 1.0
    while time.monotonic() < end:
        pass
    sampler.take()
finally:
    for one in others:
        one.kill()
row = sampler.taken()[0][-1]
print(row["main"] / row["period"], row["delayed"] / row["period"])
"""


def compute(until):
    """Compute in Python for a millisecond or so, then let go of the lock shortly."""
    while time.monotonic() < until:
        for _ in range(60_000):
            pass
        zlib.crc32(BLOCK)


def seen(work, seconds):
    """Return how often the lines of this file were seen while the main thread works."""
    sampler, over = Sampler(), threading.Event()

    def look():
        while not over.wait(0.02):
            sampler.take()

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        work(time.monotonic() + seconds)
    finally:
        over.set()
        watcher.join()
    rows, places = sampler.taken()
    return Counter(places[at].text for at in rows["place"] if at >= 0)


def test_a_line_is_seen_as_often_as_it_takes_time():
    """Not where the interpreter's lock is let go of: there least of all time is."""
    usual = sys.getswitchinterval()
    lines = seen(compute, soon(2.0))
    innocent = sum(n for line, n in lines.items() if "zlib.crc32" in line)

    assert lines.total() > 20
    assert innocent < lines.total() / 3, lines
    assert usual == sys.getswitchinterval()


def test_a_line_that_sleeps_is_seen():
    """A look at a thread that waits is made at once."""
    lines = seen(lambda until: time.sleep(soon(1.0)), 0)
    assert "time.sleep(soon(1.0))" in lines.most_common(1)[0][0]


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="not told here")
def test_who_has_no_processor_is_not_asleep():
    """Four that compute share one: each runs for a quarter, and is ready else."""
    told = subprocess.run(
        [sys.executable, "-c", CROWD], capture_output=True, text=True, check=True
    )
    main, delayed = map(float, told.stdout.split())
    assert main < 0.6
    assert np.isclose(main + delayed, 1.0, atol=0.25)


def test_files_of_before_say_nothing_of_processors_that_were_missing(
    tmp_path, monkeypatch
):
    """Their samples have no such column, and are read all the same."""
    kept = [name for name in SAMPLE.names if name != "delayed"]
    before = np.dtype([(name, SAMPLE[name]) for name in kept])
    with monkeypatch.context() as patch:
        patch.setitem(chunks.TYPES, chunks.SAMPLES, before)
        patch.setattr(file, "SAMPLE", before)
        with file.TraceFile(tmp_path / "old.trace") as old:
            old.facts(ranks=(RankInfo(rank=0),))
            old.samples(np.array([(0, -1, 9, 5, 4, 3, 2, 1)], before))
    (row,) = file.read(tmp_path / "old.trace").samples
    assert (4, 3, 0, 2, 1) == tuple(row.item())[4:]
