"""Ranks of these tests start fast: `spawn` forks them."""

import pytest
from tests.host import forked

from stretto.fabric.meeting.launching import launch


@pytest.fixture(scope="session", autouse=True)
def _forked_ranks():
    """Fork ranks from here, where all is loaded: see `tests/conftest.py`."""
    forked.begin()


@pytest.fixture(autouse=True)
def _fresh_ranks(request, monkeypatch):
    """Start ranks of marked tests as everybody's are."""
    forked.is_on = request.node.get_closest_marker("fresh") is None
    if not forked.is_on:
        monkeypatch.setattr(launch, "GRACE_S", forked.GRACE_S)
    yield
    forked.is_on = True
