"""What tests of many jobs share: a machine of one narrow link, and jobs across it."""

import pytest

from stretto import topology
from stretto.network import Cluster, Job, JobStep

SPEED = "bandwidth_gbytes_per_s = 6.25\nlatency_us = 1"


@pytest.fixture(scope="session")
def narrow(tmp_path_factory):
    """Two racks of five ranks, one link of 50 Gb/s between them each way."""
    lines = ['about = "x"', 'kind = "gpu"', "ranks = 10", "ranks_per_box = 5"]
    lines += ["[costs]\nbackground_puts = true"]
    lines += [f'[[switches]]\nname = "{name}"' for name in "ab"]
    lines.append(f'[[links]]\nsrc = "a"\ndst = "b"\n{SPEED}')
    for rank in range(10):
        lines.append(f'[[links]]\nsrc = {rank}\ndst = "{"ab"[rank // 5]}"\n{SPEED}')
    path = tmp_path_factory.mktemp("machines") / "narrow.toml"
    path.write_text("\n".join(lines))
    return Cluster(topology.load(path))


def across(rows, *, jitter=0.0, begins=(), iterations=60):
    """Return jobs of two ranks across that link, as (period, up ms, Gb/s) says."""
    begins = begins or [0.0] * len(rows)
    return [
        Job(
            name=f"job{i}",
            workers=2,
            ranks=(i, 5 + i),
            iterations=iterations,
            jitter=jitter,
            begins_ms=begins[i],
            steps=(
                JobStep(
                    compute_ms=period - up,
                    collective="chain",
                    mbytes=up * rate / 8,
                    gbits_per_s=rate,
                ),
            ),
        )
        for i, (period, up, rate) in enumerate(rows)
    ]
