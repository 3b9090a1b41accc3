"""Every channel does what a channel must do: `stretto.testing.channels` says what.

Over shared memory, by TCP, and by a carrier of a user's own, whose calls are Python's;
`test_libraries.py` runs this file by every other carrier that is installed.
"""

import importlib.util
import os
from pathlib import Path

import pytest

from stretto.fabric import hop
from stretto.testing import channels

OWN = Path(__file__).resolve().parents[3] / "examples" / "own_carrier.py"
LIBRARY = os.environ.get("STRETTO_TEST_LIBRARY")
WAYS = (LIBRARY,) if LIBRARY else ("shared", "tcp", "called")
pytestmark = pytest.mark.timeout(120)


def carrier_of(way):
    """Return a carrier; None: memory is shared."""
    if way == "shared":
        return None
    if way == "called":
        spec = importlib.util.spec_from_file_location("own_carrier", OWN)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.Unix()
    return hop.get(way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", channels.CASES, ids=lambda case: case.__name__)
def test_a_channel_does_what_it_must(case, way):
    """One thing each, by whatever way."""
    case(carrier_of(way))


def test_the_case_that_fails_is_named(monkeypatch):
    """With the way: here one that never wakes who sleeps."""
    monkeypatch.setattr(channels, "WITHIN_S", 0.3)
    monkeypatch.setattr(channels.Channel, "wake", lambda self: None)

    with pytest.raises(AssertionError, match=r"shared memory, who_sleeps.*: nobody"):
        channels.check()
