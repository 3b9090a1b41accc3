"""Experts on two hosts, which this machine pretends to be: a row once to each."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from tests.host import warm

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.host, pytest.mark.timeout(200)]

RANK = """
import sys
import numpy as np
import stretto
from stretto.experts import hosts
from stretto.runtime.calls import Communicator
from tests.host.experts.test_experts import many

moved = []
plain = Communicator.all_to_all_v

def spied(self, x, *given, **how):
    moved.append(x.nbytes)
    return plain(self, x, *given, **how)

Communicator.all_to_all_v = spied
with stretto.connect(deadline_s=60) as comm:
    wrong = many(comm, 700, int(sys.argv[1]))
    n, me = comm.num_ranks, comm.rank
    ep = comm.experts(2 * n, 2 * n, 64, 8, dtype="float32", layout="token")
    ids = np.tile(np.arange(2 * n), (5, 1))  # every token to every expert
    x = np.arange(5 * 64, dtype=np.float32).reshape(5, 64) + me
    moved.clear()
    sent = ep.dispatch(x, ids)
    crossed = moved[0] // ep.geometry.record_bytes
    out = ep.combine(sent.rows, sent)
    print(comm.hosts, wrong, crossed, len(sent.rows), np.array_equal(out, n * x))
"""


def said_by(placed, cases, tmp_path):
    """Return what ranks say that are placed so on hosts."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("5e" * 32)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {
        "WORLD_SIZE": str(len(placed)),
        "STRETTO_ADDRESS": f"tcp://127.0.0.1:{port}",
        "STRETTO_SECRET_FILE": str(secret),
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "src"))),
    }
    ranks = [
        warm.Popen(
            ["-c", RANK, str(cases)], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, **own, "RANK": str(r), "STRETTO_HOST": f"pretended{h}"},
        )
        for r, h in enumerate(placed)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=170)[0].strip() for rank in ranks]
        return [text.splitlines()[-1] for text in said]  # the first may be compiling
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_rows_cross_once_and_are_those_of_one_host(tmp_path):
    """Random cases are the definition, bit for bit; each token crosses once."""
    for said in said_by((0, 0, 1, 1), 12, tmp_path):
        assert "(0, 0, 1, 1) [] 5 20 True" == said


@pytest.mark.slow
def test_many_more_cases_on_two_hosts(tmp_path):
    """With the ranks of a host apart, and unlike numbers of them, too."""
    for placed in ((0, 0, 1, 1), (0, 1, 1, 0), (0, 1, 0)):
        for said in said_by(placed, 150, tmp_path):
            assert f"{placed} [] 5 {5 * len(placed)} True" == said
