"""Transfers by NIXL, each group in a process that has loaded no other UCX."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.checking.libraries import lacks
from tests.host.transfer.carriers import SOME, run_by
from tests.nightly import at_night

ROOT = Path(__file__).resolve().parents[3]
ON_GPUS = "bytes_go_from_a_gpu or many_at_once or taken_back or prepared"
pytestmark = [pytest.mark.host, pytest.mark.timeout(600)]


@pytest.mark.parametrize("which", [SOME, at_night("nixl")], ids=["some", "all"])
def test_paths_faults_and_gpus_by_nixl(which):
    """All that goes by NIXL of the files on paths and faults; of GPUs, a part."""
    run_by(
        "nixl", ("test_paths", "test_faults", "test_gpu_staged", "by_python_checks"),
        f"two_carriers or nixl and ({which}) and not quicker "
        f"and (not gpu_staged or {ON_GPUS})",
        UCX_TLS="tcp,self", UCX_LOG_LEVEL="fatal",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second"), [("ucx", "nixl"), at_night("nixl", "ucx")]
)
def test_a_process_goes_by_one_of_both(first, second):
    """Whoever comes second is told so; the first goes on, and TCP with either."""
    for carrier in (first, second):
        if why := lacks(carrier):
            pytest.skip(why)
    run = subprocess.run(
        [sys.executable, "-c", BOTH, first, second], cwd=ROOT, capture_output=True,
        text=True, check=False, timeout=200,
    )  # fmt: skip

    said = run.stdout + run.stderr[-3000:]
    assert "NIXL brings a UCX of its own, and this process has loaded" in run.stdout
    assert run.stdout.endswith("went on\n"), said


BOTH = """
import os, sys
sys.path[:0] = ["src"]
os.environ.setdefault("UCX_TLS", "tcp,self")
import numpy as np
from stretto.errors import StrettoError
from stretto.transfer import Engine

def joined(hop):
    how = {"hop": hop, "secret": b"s" * 32, "job": f"{hop}-{os.getpid()}"}
    there, here = Engine("there", listen="127.0.0.1:0", **how), Engine("here", **how)
    there.share(bytearray(100), "buf")
    return there, here, here.connect(there.address).wait(30)["buf"]

def moved(buf, word):
    got = np.zeros(5, np.uint8)
    buf[:5].put(word).wait(30)
    buf[:5].get(got).wait(30)
    assert got.tobytes() == word

*engines, buf = joined(sys.argv[1])
moved(buf, b"first")
try:
    joined(sys.argv[2])
except StrettoError as e:
    print(e)
*others, plain = joined("tcp")
for word in (b"again", b"other"):
    moved(buf, word)
    moved(plain, word)
for engine in (*engines, *others):
    engine.close()
print("went on")
"""
