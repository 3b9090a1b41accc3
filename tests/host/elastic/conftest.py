"""Ranks, standbys and whoever orders them about, as real processes."""

from tests.host.meeting.conftest import environment, nothing_left, start

__all__ = ["environment", "nothing_left", "start"]
