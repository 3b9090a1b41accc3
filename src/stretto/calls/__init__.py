"""From a verb to a launch: the communicator, its verbs, and what it remembers."""

from stretto.calls.ahead import start_ahead
from stretto.calls.communicator import Communicator
from stretto.calls.spawn import connect, spawn
from stretto.calls.verb import VERBS, call_of
from stretto.calls.work import Work

__all__ = [
    "VERBS",
    "Communicator",
    "Work",
    "call_of",
    "connect",
    "spawn",
    "start_ahead",
]
