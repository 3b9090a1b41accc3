"""A minute of chaos; hours with `python -m tests.chaos --jobs 8 --seconds 7200`."""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from tests.chaos.__main__ import run, used
from tests.chaos.team import adopt_orphans

pytestmark = [pytest.mark.host, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]


def test_chaos_in_one_process():
    """Nothing hangs, no value is wrong, nobody is misled, nothing is left."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    try:
        _, failed = run(seed, cheap=40, stop_s=60)
    finally:
        adopt_orphans(False)  # other tests' orphans are nobody's here

    assert [] == failed, f"seed {seed}"
    assert 0 == used()["processes"]


def processes(tmp_path, *words):
    """Run scenarios of real processes; return the report."""
    out = tmp_path / "report.json"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}", "LC_ALL": "C.UTF-8"}
    environment["OPENBLAS_NUM_THREADS"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *words, "--out", str(out)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    print(done.stdout[-8000:], done.stderr[-2000:])
    return done.returncode, json.loads(out.read_text())


def test_chaos_of_real_processes(tmp_path):
    """Ranks are killed, stopped, limited, misled: the right one is named each time."""
    status, report = processes(
        tmp_path, "--jobs", "2", "--most", "3", "--seconds", "300"
    )

    assert [] == report["faults"], f"seed {report['seed']}"
    assert 0 == status
    assert 6 == report["scenarios"]


@pytest.mark.parametrize(
    ("every", "least"), [(8, 7), pytest.param(1, 31, marks=pytest.mark.slow)]
)
def test_ways_to_die(tmp_path, every, least):
    """Some, or at night each: nothing is left of it; see the names in `ways.py`."""
    status, report = processes(tmp_path, "--ways", str(every))

    assert [] == report["faults"]
    assert 0 == status
    assert report["ways"] >= least


@pytest.mark.slow
def test_a_siege_of_one_door(tmp_path):
    """Strangers by the thousand cost a job that goes on nothing but time."""
    status, report = processes(tmp_path, "--siege", "10000")

    assert 0 == status
    assert 90_000 < report["frames"]
