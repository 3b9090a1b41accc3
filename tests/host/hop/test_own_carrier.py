"""A carrier of a user's own, found by its entry point: `examples/own_carrier.py`.

Its calls are Python's, so what serves it serves every such carrier.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MOST_LINES = 150
pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]


@pytest.fixture
def path(tmp_path):
    """Return a PYTHONPATH on which the example is installed, as pip would do it."""
    about = tmp_path / "own-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[stretto.carriers]\nunix = own_carrier:Unix\n"
    )
    return os.pathsep.join(map(str, (tmp_path, ROOT / "examples", ROOT / "src")))


def run(path, program, *words, **own):
    """Return a process of a program."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *words], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": path, **own},
    )  # fmt: skip


def test_it_is_short():
    """So that somebody can copy from it."""
    lines = (ROOT / "examples/own_carrier.py").read_text().splitlines()

    assert len(lines) <= MOST_LINES


CALLS = """
import sys
import numpy as np
import stretto
with stretto.connect() as comm:
    for count in (1, 3000, 300_000):
        x = np.arange(count, dtype=np.float32) + comm.rank
        want = np.arange(count, dtype=np.float32) * 2 + 1
        for _ in range(3):
            assert np.array_equal(comm.all_reduce(x.copy()), want)
    print(comm.hosts, comm.explain("all_reduce", 100).partition("#")[2].strip())
"""


def test_calls_go_by_it_between_two_hosts(path, tmp_path):
    """This machine pretends to be both."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("5e" * 32)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {
        "WORLD_SIZE": "2", "STRETTO_CARRIER": "unix",
        "STRETTO_ADDRESS": f"tcp://127.0.0.1:{port}",
        "STRETTO_SECRET_FILE": str(secret),
    }  # fmt: skip
    ranks = [
        run(path, CALLS, RANK=str(r), STRETTO_HOST=f"pretended{r}", **own)
        for r in range(2)
    ]
    said = [rank.communicate(timeout=100)[0].strip() for rank in ranks]

    assert ["(0, 1) between hosts by unix"] * 2 == said


TRANSFERS = """
import numpy as np
from stretto.transfer import Engine
how = {"hop": "unix", "secret": b"s" * 32, "job": "own"}
with Engine("there", listen="127.0.0.1:0", **how) as there, Engine("here", **how) as us:
    there.share(bytearray(1 << 20), "buf")
    buf = us.connect(there.address).wait(30)["buf"]
    for nbytes in (5, 10_000, 1 << 20):
        sent = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
        got = np.zeros_like(sent)
        buf[:nbytes].put(sent, notify=b"put").wait(30)
        there.notified(b"put").wait(30)
        buf[:nbytes].get(got).wait(30)
        assert np.array_equal(sent, got)
print("moved")
"""


def test_transfers_go_by_it(path):
    """Small and large, both ways, with notifications."""
    assert "moved" == run(path, TRANSFERS).communicate(timeout=100)[0].strip()


def test_doctor_says_what_it_can(path):
    """Whoever lists carriers finds it."""
    out, _ = run(path, "from stretto.cli import main; main(['doctor'])").communicate()

    rows = [line for line in out.splitlines() if "carrier unix" in line]
    assert any("ready" in row and "yes" in row for row in rows), out
    assert any("cannot" in row and "TLS" in row for row in rows), out
