"""The device programs as tests: each runs apart, on the GPUs that are there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def gpus() -> int:
    """Return how many GPUs there are, 0 without a driver."""
    try:
        from stretto.executors.cuda.device.driver import ask

        return int(ask("cuDeviceGetCount"))
    except Exception:
        return 0


def run(tmp_path, name, *words, limit):
    """Run a program; return its report, failing with what it printed."""
    command = [sys.executable, str(HERE / name), "--out", str(tmp_path), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=limit
    )

    assert 0 == done.returncode, (done.stdout + done.stderr)[-4000:]


@pytest.mark.gpus(1)
@pytest.mark.skipif(gpus() < 1, reason="needs a GPU")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("protocol", ["packets", "bulk staged", "zero_copy"])
def test_virtual_ranks_match_the_interpreter(tmp_path, protocol):
    """Every shipped algorithm, bit for bit, all ranks in one launch."""
    words = ["--ranks", "2,3", "--only", protocol, "--seconds", "600"]
    run(tmp_path, "virtual.py", *words, limit=850)


@pytest.mark.gpus(1)
@pytest.mark.skipif(gpus() < 1, reason="needs a GPU")
@pytest.mark.timeout(600)
def test_two_processes_on_one_gpu_keep_every_check(tmp_path):
    """Sessions, graphs, streams, faults: kernels take turns, and nothing hangs."""
    run(tmp_path, "ranks.py", "--ranks", "2", "--share", limit=500)

    rows = json.loads((tmp_path / "ranks2s.json").read_text())
    assert [] == [row["check"] for row in rows if "not_run" in row]


@pytest.mark.gpus(1)
@pytest.mark.skipif(gpus() < 1, reason="needs a GPU")
@pytest.mark.timeout(300)
def test_changes_of_weights_on_one_gpu(tmp_path):
    """Compared where they lie, read by TCP, written behind what was carried over."""
    run(tmp_path, "weights_changes.py", limit=250)


@pytest.mark.gpus(1)
@pytest.mark.skipif(gpus() < 1, reason="needs a GPU")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", ["1", "2", "4"])
def test_bits_on_one_gpu(tmp_path, ranks):
    """Of rows in any batch, and of eight shards on any number of ranks."""
    words = ["--ranks", ranks, "--share", "--only", "s_", "--rows", "100000"]
    run(tmp_path, "bits.py", *words, limit=250)


@pytest.mark.gpus(2)
@pytest.mark.skipif(gpus() < 2, reason="needs two GPUs")
@pytest.mark.timeout(300)
def test_graphs_of_all_forms(tmp_path):
    """Conditional bodies, children, for the device; one that outlives is an error."""
    run(tmp_path, "graph_forms.py", "--ranks", "2", limit=250)


@pytest.mark.gpus(1)
@pytest.mark.skipif(gpus() < 1, reason="needs a GPU")
@pytest.mark.timeout(300)
def test_kernels_of_ones_own_on_one_gpu(tmp_path):
    """Channels, copy engines, Triton, registered kernels: two ranks take turns."""
    run(tmp_path, "channels.py", "--ranks", "2", "--share", limit=250)


@pytest.mark.gpus(1)
@pytest.mark.skipif(gpus() < 1, reason="needs a GPU")
@pytest.mark.timeout(500)
def test_experts_on_one_gpu(tmp_path):
    """Dispatch and combine of two ranks that take turns, as on CPUs, bit for bit."""
    run(tmp_path, "experts.py", "--ranks", "2", "--share", limit=450)


@pytest.mark.gpus(2)
@pytest.mark.skipif(gpus() < 2, reason="needs two GPUs")
@pytest.mark.timeout(500)
def test_experts_on_a_gpu_each(tmp_path):
    """The same on as many GPUs as there are, four at most, and many replays."""
    words = ["--ranks", str(min(4, gpus())), "--replays", "20000"]
    run(tmp_path, "experts.py", *words, limit=450)


@pytest.mark.gpus(2)
@pytest.mark.skipif(gpus() < 2, reason="needs two GPUs")
@pytest.mark.timeout(300)
def test_kernels_of_ones_own_on_a_gpu_each(tmp_path):
    """The same on as many GPUs as there are, four at most."""
    run(tmp_path, "channels.py", "--ranks", str(min(4, gpus())), limit=250)


@pytest.mark.gpus(2)
@pytest.mark.skipif(gpus() < 2, reason="needs two GPUs")
@pytest.mark.timeout(600)
def test_a_gpu_a_rank_keeps_every_check(tmp_path):
    """The same on as many GPUs as there are, four at most."""
    run(tmp_path, "ranks.py", "--ranks", str(min(4, gpus())), limit=500)


@pytest.mark.gpus(2)
@pytest.mark.skipif(gpus() < 2, reason="needs two GPUs")
@pytest.mark.timeout(300)
def test_communicators_serve_every_verb(tmp_path):
    """As users have it: spawn, tensors, graphs."""
    ranks = str(min(4, gpus()))
    run(tmp_path, "communicator.py", "--ranks", ranks, limit=250)


@pytest.mark.gpus(2)
@pytest.mark.skipif(gpus() < 2, reason="needs two GPUs")
@pytest.mark.timeout(300)
def test_a_graph_of_an_earlier_generation_errs_and_does_not_hang(tmp_path):
    """Its replay is an error soon; calls of the new generation are right."""
    run(tmp_path, "generations.py", "--seconds", "200", limit=280)
