"""Transfers are in recordings, beside calls: their path, their bytes, their times."""

import numpy as np
import pytest

from stretto.trace import record
from stretto.watch import summarise

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 20


def test_puts_and_gets_are_recorded(engine, start):
    """By their path; one that is refused has failed, and is there too."""
    child = start()
    peer = engine.connect(child.address).wait(WAIT)
    child.ask("share", name="buf", nbytes=1 << 16, arena=True)
    region = peer.region("buf").wait(WAIT)
    data = np.arange(5000, dtype=np.uint8)
    with record() as seen:
        path = region[:5000].put(data).wait(WAIT).path
        region[:5000].get(data).wait(WAIT)
    region[:10].put(data[:10]).wait(WAIT)
    calls, kinds = seen.recording.calls, seen.recording.kinds

    assert [5000, 5000] == calls["nbytes"].tolist()
    assert {("transfer", path)} == {(k.collective, k.algorithm) for k in kinds}
    assert (calls["end"] > calls["start"]).all()
    assert (calls["state"] == 1).all()
    assert "transfer" in {row.collective for row in summarise(seen.recording).rows}
