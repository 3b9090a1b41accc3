"""What a recording says of experts, in tables and in the studio."""

from __future__ import annotations

import numpy as np
import pytest

import stretto
from stretto import trace, watch
from stretto.studio.analysis.groups import groups
from stretto.studio.analysis.index import Index

pytestmark = [pytest.mark.host, pytest.mark.timeout(60)]


def recorded(comm, folder):
    """Dispatch and combine once while somebody records, and once while nobody does."""
    ep = comm.experts(4, 2, 16, 8, dtype="float32")
    x = np.ones((3, 16), np.float32)
    ids = np.array([[0, 3], [1, -1], [2, 3]])
    ep.combine((sent := ep.dispatch(x, ids)).rows, sent)
    with trace.record(folder):
        sent = ep.dispatch(x, ids)
        ep.combine(sent.rows, sent)
    return ep.geometry.record_bytes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A recording, and bytes of a record."""
    folder = str(tmp_path_factory.mktemp("run"))
    record_bytes = stretto.spawn(recorded, folder, num_ranks=2)[0]
    return trace.read_all(folder), record_bytes


def test_each_link_and_each_expert_has_a_row(run):
    """Bytes are those that went there, and the rows that each expert got."""
    recording, record_bytes = run
    found = {}
    for row in watch.summarise(recording).rows:
        if row.collective.startswith("experts"):
            found[row.collective, row.comm] = row.count

    kinds = {k.collective: k.nbytes for k in recording.kinds}
    assert {("experts dispatch", f"experts of rank {r}") for r in (0, 1)} <= set(found)
    assert {("experts combine", f"experts of rank {r}") for r in (0, 1)} <= set(found)
    assert set(found.values()) == {1}
    assert 2 * record_bytes == kinds["experts link 0 to 1"]
    assert 2 * record_bytes == kinds["experts link 1 to 0"]
    assert 2 * 64 == kinds["experts link 1 to 0, back"]
    loads = {e: kinds.get(f"experts load {e}") for e in range(4)}
    assert {0: 2 * 64, 1: 2 * 64, 2: 2 * 64, 3: 4 * 64} == loads


def test_the_studio_has_them_among_operations(run):
    """As rows of their own."""
    names = {one.collective for one in groups(Index(run[0]))}

    assert {"experts dispatch", "experts link 0 to 1", "experts load 3"} <= names
