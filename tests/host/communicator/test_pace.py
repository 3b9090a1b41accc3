"""`comm.pace`: two training loops on real processes keep apart on their slots."""

import os
import socket
import subprocess
import sys

import pytest

import stretto
from stretto.errors import CallError, RankFailed

PERIOD, STREAK, ROUNDS = 0.08, 6, 600
LOOP = """
import sys, time
import numpy as np
import stretto
shift, early, streak = float(sys.argv[1]), 0, 0
x = np.ones(100_000, np.float32)
with stretto.connect() as comm:
    for round in range(ROUNDS):
        time.sleep(0.01)  # computes
        waited = comm.pace(shift, PERIOD)
        since = (time.time() - shift + 1e-4) % PERIOD
        early += waited > 0 and since > PERIOD - 1e-3
        streak = streak + 1 if since < PERIOD / 2 else 0
        comm.all_reduce(x)
        if comm.all_reduce(np.array([streak]), op="min")[0] >= STREAK:
            break
    print(early, round)
"""


def job(name, shift, tmp_path):
    """Start a job of two ranks that are on two hosts, by loopback."""
    secret = tmp_path / name
    secret.touch(0o600)
    secret.write_text("5e" * 32)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {
        "WORLD_SIZE": "2", "STRETTO_CARRIER": "tcp",
        "STRETTO_ADDRESS": f"tcp://127.0.0.1:{port}",
        "STRETTO_SECRET_FILE": str(secret),
    }  # fmt: skip
    program = LOOP
    for word in ("PERIOD", "STREAK", "ROUNDS"):
        program = program.replace(word, str(globals()[word]))
    return [
        subprocess.Popen(
            [sys.executable, "-c", program, str(shift)], text=True,
            stdout=subprocess.PIPE,
            env={**os.environ, **own, "RANK": str(r), "STRETTO_HOST": f"{name}{r}"},
        )
        for r in range(2)
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_jobs_of_two_ranks_send_in_turns(tmp_path):
    """Half a period apart, by loopback: nobody is early, and all come to their turns.

    A busy machine makes them late now and then, so each goes on until it has been in
    its own half several times in a row: left alone, at 10 ms a round, it never would.
    """
    ranks = [
        rank for i in range(2) for rank in job(f"job{i}", i * PERIOD / 2, tmp_path)
    ]
    told = [rank.communicate(timeout=100)[0].split() for rank in ranks]

    assert ["0"] * 4 == [early for early, _ in told]
    assert all(STREAK - 1 <= int(rounds) < ROUNDS - 1 for _, rounds in told)


def misused(comm):
    """Call it with what means nothing."""
    for shift, period in ((-1, 1), (0, 0), (0, float("nan")), (0, "1"), (0, 1e9)):
        with pytest.raises(CallError, match=f"rank {comm.rank}: pace: .* want seconds"):
            comm.pace(shift, period)
    comm.close()
    comm.pace(0.0, 1.0)


def test_what_means_nothing_is_refused():
    """With the name, the value and what is wanted; also after `close`."""
    with pytest.raises(RankFailed, match="pace: this communicator is closed"):
        stretto.spawn(misused, num_ranks=1)
