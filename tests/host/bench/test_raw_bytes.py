"""Arrays whose library lacks their type, in a whole run of the benchmark."""

from pathlib import Path

import pytest

from stretto import bench

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]


def test_arrays_of_a_library_without_the_type_are_measured_beside_a_peer(monkeypatch):
    """We are told what their bytes are, and PyTorch's peers get the tensor itself."""
    pytest.importorskip("torch", reason="the peer is PyTorch's")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    task = bench.BenchTask(
        tests=("all_reduce", "latency"),
        sizes=(4096,),
        num_ranks=2,
        dtype="bfloat16",
        device="cuda",
        buffer="numba",
        peers=("gloo",),
        batches=2,
        budget_s=0.5,
    )

    rows = bench.run_ranks(task, lambda _: None, job="pretend:raw_work")["rows"]

    by = sorted((row["test"], row["contender"]) for row in rows)
    assert [
        (test, who) for test in sorted(task.tests) for who in ("gloo", "stretto")
    ] == by
    assert [("", "")] * 4 == [(row["wrong"], row["refused"]) for row in rows]
    assert all(row["ok"] for row in rows)
