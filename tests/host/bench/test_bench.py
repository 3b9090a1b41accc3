"""`stretto bench` and `stretto tune` on real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.host import warm
from tests.nightly import at_night

import stretto
from stretto import bench
from stretto.bench.contender import CallBuffer, Contender, PreparedCall
from stretto.bench.measuring.control import Control
from stretto.bench.measuring.loop import Limits, measure
from stretto.bench.peers._ours import OurCalls
from stretto.bench.ranks.launch import mpirun
from stretto.bench.workload.cases import case_of
from stretto.errors import CallError

pytestmark = [pytest.mark.host, pytest.mark.timeout(150)]

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src"
EVERYTHING = tuple(t for t in bench.TESTS)


def run(*words, launcher=(), **environment):
    """Run a command of ours; return its status and what it printed.

    Without a launcher it and its ranks are forked.
    """
    path = os.pathsep.join(map(str, (SOURCE, ROOT)))
    command = ["-m", "stretto", *words]
    start = warm.run
    if launcher:
        command, start = [*launcher, sys.executable, *command], subprocess.run
    done = start(
        command,
        env=dict(os.environ) | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def measured(**options):
    """Measure with 2 ranks that spawn starts; return the rows."""
    task = bench.BenchTask(
        **{"num_ranks": 2, "sizes": (1 << 12,), "batches": 5} | options
    )
    return bench.run_ranks(task, lambda _: None)["rows"]


def test_everything_is_measured_and_right():
    """Every test has a row with figures, in order, that the oracle agrees with."""
    rows = measured(tests=EVERYTHING, budget_s=2.0)

    assert list(EVERYTHING) == [row["test"] for row in rows]
    assert [] == [(r["test"], r["wrong"], r["refused"]) for r in rows if not r["ok"]]
    for row in rows:
        assert 0 < row["min_us"] <= row["p50_us"] <= row["p99_us"] <= row["max_us"]
        assert 5 == row["batches"] == len(row["times_us"])
        assert row["slowest_rank"] in (0, 1)


@pytest.mark.parametrize(
    "options",
    [
        at_night({"buffer": "bytearray"}),
        pytest.param({"buffer": "torch"}, marks=pytest.mark.slow, id="tensors"),
        {"registered": True},
        pytest.param(
            {"registered": True, "in_place": True}, marks=pytest.mark.slow, id="both"
        ),
        {"in_place": True, "dtype": "bfloat16"},
        at_night({"cold": True, "op": "max", "dtype": "int32"}),
        {"mode": "overlapped", "tests": ("all_reduce",)},
        pytest.param({"mode": "overlapped"}, marks=pytest.mark.slow, id="overlapped"),
    ],
    ids=str,
)
def test_every_kind_of_buffer_gives_right_results(options):
    """Registered or not, in place or not, from caches warm or cold."""
    tests = tuple(t for t in EVERYTHING if t not in bench.PAIRS)
    if options.get("buffer") == "torch":
        pytest.importorskip("torch", reason="tensors are PyTorch's")

    rows = measured(**{"tests": tests, "budget_s": 0.2} | options)

    assert [] == [(r["test"], r["wrong"], r["refused"]) for r in rows if not r["ok"]]
    if options.get("mode") == "overlapped":
        assert all(0 <= row["hidden"] <= 1 for row in rows)


class Liar(Contender):
    """A contender that forgets the other ranks."""

    def prepare(self, case, x: CallBuffer, out: CallBuffer):
        return PreparedCall(call=lambda: np.copyto(out.host, x.host), x=x, out=out)


class Coward(Liar):
    """A contender that cannot, on one rank."""

    def __init__(self, rank):
        self.rank = rank

    def prepare(self, case, x, out):
        if self.rank == 1:
            raise CallError("not with me")
        return super().prepare(case, x, out)


def compare_contenders(comm):
    """Measure stretto beside the liar and the coward."""
    case = case_of("all_reduce", 4096, comm.num_ranks)
    x, out = (
        CallBuffer(given=a, host=a) for a in (np.zeros(1024, np.float32) for _ in "io")
    )
    found = measure(
        Control(comm),
        case,
        {"ours": OurCalls(comm), "liar": Liar(), "coward": Coward(comm.rank)},
        x,
        out,
        limits=Limits(batch_us=50, batches=5, budget_us=1e5),
        seed=0,
    )
    return {n: (f.wrong, f.refused, f.note, f.us.shape) for n, f in found.items()}


def test_a_wrong_contender_is_found_out_on_every_rank():
    """What does not give the oracle's result is WRONG; who refuses says why."""
    first, second = stretto.spawn(compare_contenders, num_ranks=2)

    assert first == second
    assert ("", False, "", (2, 5)) == first["ours"]
    assert "element" in first["liar"][0]
    assert (True, "CallError: not with me") == first["coward"][1:3]


def test_a_peer_that_ends_the_ranks_does_not_end_the_run(tmp_path, monkeypatch):
    """What was measured is kept, who did it is named, the rest is measured."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    task = bench.BenchTask(
        tests=("all_reduce",), sizes=(64, 256, 1024, 4096), num_ranks=2,
        peers=("gloo", "nccl", "nixl"), budget_s=2.0,
    )  # fmt: skip
    said = []

    found = bench.run_task(task, said.append, how="spawn", job="dying:work")

    ours = [row for row in found["rows"] if row["contender"] == "stretto"]
    assert [64, 256, 1024, 4096] == [row["nbytes"] for row in ours]
    assert all(row["ok"] and row["p50_us"] > 0 for row in ours)
    assert "ended the ranks" in found["missing"]["nccl"]
    assert "status 3" in found["missing"]["gloo"]
    assert "from all_reduce 1K on: RuntimeError: the link" in found["missing"]["nixl"]
    assert 2 == sum("start again" in line for line in said)
    theirs = {r["contender"]: [] for r in found["rows"]}
    for row in found["rows"]:
        theirs[row["contender"]].append(row["nbytes"])
    assert [64] == theirs["gloo"]
    assert [64, 256, 1024] == theirs["nixl"]


def test_a_missing_peer_is_named():
    """A GPU's peer on a CPU is not dropped in silence."""
    task = bench.BenchTask(
        tests=("barrier",), sizes=(8,), num_ranks=2, peers=("nccl",), budget_s=0.5
    )

    found = bench.run_ranks(task, lambda _: None)

    assert {"nccl": "runs on cuda only"} == found["missing"]


def test_gloo_is_measured_on_the_same_buffers():
    """Its rows stand beside ours, with how much longer it takes."""
    pytest.importorskip("torch", reason="gloo is PyTorch's")

    rows = measured(
        tests=("all_reduce", "all_to_all"), peers=("gloo",), budget_s=2.0,
        mode="overlapped",
    )  # fmt: skip

    gloo = [row for row in rows if row["contender"] == "gloo"]
    assert 2 == len(gloo)
    assert all(row["ok"] and row["ratio"] > 0 for row in gloo)
    assert all(0 <= row["hidden"] <= 1 for row in rows)


@pytest.mark.slow
def test_mpi_is_measured_through_its_own_launcher():
    """With mpi among the peers, mpirun starts the ranks."""
    pytest.importorskip("mpi4py", reason="MPI is reached through mpi4py")
    if mpirun() is None:
        pytest.skip("no mpirun here")

    tests = ("all_reduce", "gather_v", "latency")

    rows = measured(tests=tests, peers=("mpi",), budget_s=2.0, mode="overlapped")

    assert ["stretto", "mpi"] * 3 == [row["contender"] for row in rows]
    assert all(row["ok"] for row in rows)
    assert all(0 <= row["hidden"] <= 1 for row in rows[:4])
    assert [None, None] == [row["hidden"] for row in rows[4:]]


def torchrun(rank):
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(os.getpid()),
    }


def srun(rank):
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": str(rank),
        "SLURM_NNODES": "1",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
    }


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(torchrun, id="torchrun"),
        pytest.param(srun, marks=pytest.mark.slow, id="srun"),
    ],
)
def test_a_launcher_may_start_the_ranks(launcher):
    """In its environment each process is a rank; rank 0 prints."""
    command = [sys.executable, "-m", "stretto", "bench", "all_reduce"]
    command += ["--sizes", "64", "--budget", "0.5", "--plain"]
    common = dict(os.environ) | {"PYTHONPATH": str(SOURCE)}
    ranks = [
        subprocess.Popen(
            command,
            env=common | launcher(r),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for r in range(2)
    ]

    said = [rank.communicate(timeout=100)[0] for rank in ranks]

    assert [0, 0] == [rank.returncode for rank in ranks], said
    assert "all_reduce" in said[0]
    assert "" == said[1]


@pytest.mark.slow
def test_mpirun_may_start_the_ranks():
    """MPI is then there to be measured, in the ranks that it has started."""
    pytest.importorskip("mpi4py", reason="MPI is reached through mpi4py")
    if mpirun() is None:
        pytest.skip("no mpirun here")
    launcher = (mpirun(), "-n", "2", "--bind-to", "none", "--allow-run-as-root")
    words = ("bench", "all_reduce", "--peers", "mpi", "--sizes", "64", "--plain")

    status, said, error = run(*words, "--budget", "0.5", launcher=launcher)

    assert 0 == status, error
    assert 1 == said.count("bus GB/s"), "rank 0 alone prints"
    assert "mpi takes" in said


def test_the_command_writes_every_form(tmp_path):
    """JSON, CSV, a page; compared with itself nothing is worse."""
    forms = {form: tmp_path / f"a.{form}" for form in ("json", "csv", "markdown")}
    words = [w for form, path in forms.items() for w in (f"--{form}", str(path))]

    status, said, error = run(
        "bench", "all_reduce", "--sizes", "64,4K", "--budget", "1", *words
    )

    assert 0 == status, error
    assert "all_reduce" in said
    document = json.loads(forms["json"].read_text())
    assert 2 == len(document["rows"]) == len(forms["csv"].read_text().splitlines()) - 1
    assert "## all_reduce" in forms["markdown"].read_text()
    again = str(forms["json"])
    assert 0 == run("bench", "--compare", again, again)[0]


def test_a_slower_run_ends_with_status_one(tmp_path):
    """For CI: the verdict is the exit status."""
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    words = ("bench", "barrier", "--budget", "1", "--json", str(before))
    assert 0 == run(*words)[0]
    document = json.loads(before.read_text())
    for path, factor in (before, 1), (after, 3):
        for row in document["rows"]:  # as of a quiet machine: noise is no slowness
            row["times_us"] = [factor * (10 + i % 5 / 10) for i in range(20)]
        path.write_text(json.dumps(document))

    status, said, _ = run("bench", "--compare", str(before), str(after))

    assert 1 == status
    assert "slower" in said
