"""Ranks on two hosts that are namespaces of this machine."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from tests.checking.wire import SlowHosts
from tests.host import forked

from stretto.testing.namespaces import NoNamespaces, TwoHosts

ROOT = Path(__file__).parents[3]
BEGIN = """
import os, sys, time
import numpy as np
import stretto
from stretto.errors import StrettoError
def say(*words):
    print(*words, flush=True)
rank, num_ranks, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def connect(deadline_s=20.0):
    return stretto.connect(rank, num_ranks, address, deadline_s=deadline_s)
"""


class Job:
    """Ranks of one job; the first ones on host 0."""

    def __init__(self, hosts, environment, placed, code, variables):
        self.placed, self.ranks, self.begun_s = placed, [], time.monotonic()
        script = BEGIN + code
        address = variables.pop("address", f"tcp://{hosts.addresses[0]}:29500")
        for rank, host in enumerate(placed):
            words = [str(rank), str(len(placed)), address]
            own = {k: v for k, v in variables.items() if not isinstance(v, dict)}
            own |= variables.get(f"rank{rank}", {})
            enter, env = partial(hosts.enter, host), {**environment, **own}
            if forked.is_on:
                self.ranks.append(forked.Script(script, words, env=env, before=enter))
                continue
            command = [sys.executable, "-u", "-c", script, *words]
            self.ranks.append(
                subprocess.Popen(
                    hosts.command(host, command),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=env,
                )
            )

    def hear(self, rank):
        """Return the next line of a rank; when it ended without one, its errors."""
        line = self.ranks[rank].stdout.readline()
        assert line, f"rank {rank} ended: {self.ranks[rank].communicate()[1]}"
        return line.strip()

    def hear_all(self):
        """Return the next line of every rank."""
        return [self.hear(rank) for rank in range(len(self.ranks))]

    def end(self, timeout_s=60):
        """Wait for all; return what they wrote to stdout, and to stderr."""
        said = [rank.communicate(timeout=timeout_s) for rank in self.ranks]
        return [out for out, _ in said], [err for _, err in said]


@pytest.fixture
def hosts():
    """Two hosts; where they cannot be made, the test is skipped and says why."""
    try:
        with TwoHosts() as made:
            yield made
    except NoNamespaces as e:
        pytest.skip(f"no hosts of one's own here: {e}")


@pytest.fixture
def slow_hosts():
    """Make hosts that a slow wire joins: `slow_hosts(Wire(delay_s=0.005))`."""
    with contextlib.ExitStack() as made:

        def join(wire):
            try:
                return made.enter_context(SlowHosts(wire))
            except NoNamespaces as e:
                pytest.skip(f"no such wire here: {e}")

        yield join


@pytest.fixture
def start(tmp_path, request):
    """Start a job: `start((0, 0, 1, 1), code, VARIABLE=value)`, or on hosts `on`."""
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 2)
    secret.chmod(0o600)
    environment = {
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(Path.home()),
        "PYTHONPATH": str(ROOT / "src"),
        "XDG_RUNTIME_DIR": str(tmp_path),
        "STRETTO_SECRET_FILE": str(secret),
    }
    jobs = []

    def begin(placed, code, on=None, **variables):
        hosts = on or request.getfixturevalue("hosts")
        jobs.append(Job(hosts, environment, placed, code, variables))
        return jobs[-1]

    yield begin
    for job in jobs:
        for rank in job.ranks:
            rank.kill()
            rank.communicate()
