"""What `stretto synth` finds for a machine of several hosts runs on several hosts."""

import os
from pathlib import Path

import pytest

from stretto.cli import main

pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]
MACHINE = Path(__file__).parents[3] / "src/stretto/topology/machines/two_cpu_boxes.toml"
RUN = """
import importlib.util
from stretto.program.lang import Algorithm
def found(collective):
    file = f"{FOLDER}/{collective}.py"
    spec = importlib.util.spec_from_file_location(collective, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return next(v for v in vars(module).values() if isinstance(v, Algorithm))
comm = connect()
n, r = comm.num_ranks, comm.rank
x = np.arange(3072 * n, dtype=np.float32) + r
whole = n * np.arange(3072 * n, dtype=np.float32) + n * (n - 1) / 2
got = comm.all_reduce(x.copy(), algorithm=found("all_reduce"))
assert np.array_equal(got, whole)
got = comm.all_gather(x, algorithm=found("all_gather")).reshape(n, -1)
assert all(np.array_equal(row, x - r + q) for q, row in enumerate(got))
got = comm.all_to_all(x, algorithm=found("all_to_all")).reshape(n, -1)
part = np.arange(3072, dtype=np.float32) + 3072 * r
assert all(np.array_equal(row, part + q) for q, row in enumerate(got))
say(comm.hosts)
comm.close()
"""


def test_found_programs_run_on_the_hosts_they_were_found_for(start, tmp_path):
    """Links of the machine cross hosts; the plan says which, and is proved so."""
    text = MACHINE.read_text().replace("ranks = 8", "ranks = 2")
    machine = tmp_path / "boxes.toml"
    machine.write_text(text.replace('known = ["two_cpu_boxes"]', 'known = ["boxes"]'))
    for collective in ("all_reduce", "all_gather", "all_to_all"):
        file = os.fspath(tmp_path / f"{collective}.py")
        place = ("--machine", os.fspath(machine), "--size", "256K", "--budget", "0.5")
        assert 0 == main(["synth", collective, *place, "-o", file])
    job = start((0, 0, 1, 1), f"FOLDER = {os.fspath(tmp_path)!r}\n{RUN}")
    out, err = job.end(150)

    assert ["(0, 0, 1, 1)"] * 4 == [line.strip() for line in out], err
