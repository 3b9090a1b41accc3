"""`stretto launch` on two hosts, with a script in ssh's place."""

import os
import subprocess
import sys
import time

import pytest

from stretto.cli.launch import parse_hosts
from stretto.errors import CallError

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
PROGRAM = """
import numpy as np, os, stretto
comm = stretto.connect()
got = comm.all_reduce(np.ones(3))
os.write(1, f"{comm.rank} {comm.hosts} {got[0]}\\n".encode())  # at once
"""


@pytest.fixture
def launch(hosts, tmp_path):
    """Run the command from the first host; return its status and output."""
    ssh = tmp_path / "ssh"
    lines = ["#!/bin/sh", 'host="$1"; shift']
    for host, name in enumerate(hosts.names):
        inside = " ".join(hosts.command(host, ["x"])[:4])
        lines.append(f'[ "$host" = {name} ] && exec {inside} sh -c "$*"')
    ssh.write_text("\n".join([*lines, "exit 9"]) + "\n")
    ssh.chmod(0o755)

    def begin(program, placed="nodea:2,nodeb:2"):
        words = [sys.executable, "-m", "stretto", "launch", "--hosts", placed]
        words += ["--ssh", str(ssh), "--address", f"{hosts.addresses[0]}:29700"]
        words += ["--", sys.executable, "-c", program]
        return subprocess.run(
            words, capture_output=True, text=True, timeout=100, env={**os.environ},
            check=False,
        )  # fmt: skip

    return begin


def test_a_program_runs_on_two_hosts(launch):
    """With ranks, an address and a secret."""
    done = launch(PROGRAM)

    assert 0 == done.returncode, done.stderr
    assert [f"{r} (0, 0, 1, 1) 4.0" for r in range(4)] == sorted(
        done.stdout.splitlines()
    )


@pytest.mark.slow
def test_a_rank_that_fails_ends_all(launch):
    """Those that would go on for long, too; the status is the failure's."""
    program = """
import os, sys, time
if os.environ["RANK"] == "2":
    sys.exit(5)
time.sleep(100)
"""
    begun = time.monotonic()
    done = launch(program)

    assert 5 == done.returncode
    assert "rank 2 on nodeb ended with status 5" in done.stderr
    assert time.monotonic() - begun < 40


@pytest.mark.parametrize("text", ["", "a:x", ",", "-oProxyCommand=x", "a:0"])
def test_hosts_that_are_none_are_refused(text):
    """Before anything is started."""
    with pytest.raises(CallError, match="--hosts"):
        parse_hosts(text)
