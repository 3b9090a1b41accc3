"""Conditions that tests wait for: never a time that busy cores may exceed."""

import time
from pathlib import Path

__all__ = ["Flag", "until"]


def until(true, within_s=60.0):
    """Wait until something is so."""
    stop_at = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < stop_at, "it does not come"
        time.sleep(0.002)


class Flag:
    """What one process raises and others wait for; it lies in a folder."""

    def __init__(self, folder, name):
        self.path = Path(folder, name)

    def up(self):
        """Raise it."""
        self.path.touch()

    def wait(self, within_s=60.0):
        """Wait until it is up."""
        until(self.path.exists, within_s)
