"""What ranks of two hosts record: steps to the other host, and clocks that agree."""

import numpy as np
import pytest

from stretto.trace import STEP_KINDS, read_all
from stretto.watch import links, summarise

pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]

CALLS = """
comm = connect()
x = np.ones(1 << 14, np.float32)
comm.all_reduce(x)
with comm.trace(os.environ["INTO"], steps=True):
    for _ in range(40):
        comm.all_reduce(x)
        x.fill(1)
say("done")
comm.close()
"""


def test_steps_to_other_hosts_are_told_apart_and_clocks_meet(start, tmp_path):
    """Puts and signals of a hop by name; the clock that is one is found to be so."""
    names = {f"rank{r}": {"STRETTO_HOST": "ab"[r // 2]} for r in range(4)}
    job = start((0, 0, 1, 1), CALLS, INTO=str(tmp_path / "seen"), **names)
    assert ["done"] * 4 == job.hear_all()
    job.end()
    seen = read_all(tmp_path / "seen")

    assert ("a", "b") == seen.hosts
    assert 160 == len(seen.calls)
    for info in seen.ranks:
        assert abs(info.offset_ns) <= info.error_ns, "there is one clock in truth"
        assert (info.host == "a") == (info.error_ns == 0)
    kinds = {STEP_KINDS[k] for k in np.unique(seen.steps["kind"])}
    assert {"hop_put", "hop_signal", "wait"} <= kinds
    far = seen.steps[seen.steps["kind"] == STEP_KINDS.index("hop_put")]
    assert (far["rank"] // 2 != far["peer"] // 2).all()
    assert (far["nbytes"] > 0).all()
    found = {(one.src // 2, one.dst // 2): one.nbytes for one in links(seen)}
    assert found[0, 1] > 0
    assert summarise(seen).rows[0].count == 160
