"""Ranks that are actors of Ray, one on each of two nodes, which are two hosts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.host, pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[3]
PYTHON = os.environ.get("STRETTO_TEST_RAY", sys.executable)
RAY = Path(PYTHON).parent / "ray"
DRIVER = """
import os, sys
import numpy as np
import ray
ray.init(address=sys.argv[1] + ":6399", log_to_driver=False)
names = ("PYTHONPATH", "STRETTO_SECRET_FILE", "XDG_RUNTIME_DIR")
own = {name: os.environ[name] for name in names}

@ray.remote(num_cpus=1, runtime_env={"env_vars": own})
class Rank:
    def run(self, rank, address):
        import stretto
        comm = stretto.connect(rank, 2, f"tcp://{address}:29650", deadline_s=90)
        got = comm.all_reduce(np.ones(4) * (rank + 1))
        found = comm.hosts, float(got[0])
        comm.close()
        return found

nodes = sorted(node["NodeManagerAddress"] for node in ray.nodes())
ranks = [Rank.options(resources={f"node:{node}": 0.1}).remote() for node in nodes]
calls = [one.run.remote(r, nodes[0]) for r, one in enumerate(ranks)]
said = ray.get(calls, timeout=150)
print(said, flush=True)
"""


@pytest.mark.skipif(not RAY.exists(), reason="no Ray: pip install ray")
def test_actors_on_two_nodes_are_ranks(hosts, tmp_path):
    """Given rank, number and address, as Ray's own examples give them."""
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 2)
    secret.chmod(0o600)
    own = {
        **os.environ,
        "PYTHONPATH": os.fspath(ROOT / "src"),
        "STRETTO_SECRET_FILE": os.fspath(secret),
        "XDG_RUNTIME_DIR": os.fspath(tmp_path),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    folder = Path(f"/tmp/r{os.getpid()}")  # Ray's sockets want a short path
    common = ["--block", "--num-cpus", "1", "--object-store-memory", "80000000"]
    common += ["--disable-usage-stats"]
    one, other = hosts.addresses
    head = [os.fspath(RAY), "start", "--head", "--port", "6399", *common]
    head += ["--node-ip-address", one, "--temp-dir", os.fspath(folder)]
    head += ["--include-dashboard", "false"]
    join = [os.fspath(RAY), "start", "--address", f"{one}:6399", *common]
    join += ["--node-ip-address", other]
    started = []
    try:
        for host, words in enumerate((head, join)):
            started.append(
                subprocess.Popen(
                    hosts.command(host, words), env=own,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
        code = (
            "import sys, time, ray\n"
            "for _ in range(200):\n"
            "    try:\n"
            "        ray.init(address=sys.argv[1] + ':6399', log_to_driver=False)\n"
            "        if len([n for n in ray.nodes() if n['Alive']]) == 2: break\n"
            "        ray.shutdown()\n"
            "    except ConnectionError: pass\n"
            "    time.sleep(0.5)\n"
            "ray.shutdown()\n"
        )
        words = [PYTHON, "-c", code + DRIVER, one]
        done = subprocess.run(
            hosts.command(0, words), env=own, capture_output=True, text=True,
            timeout=250, check=False,
        )  # fmt: skip
    finally:
        for process in started:
            process.terminate()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)

    assert "[((0, 1), 3.0), ((0, 1), 3.0)]" in done.stdout, done.stderr[-2000:]
