"""From a verb to a launch: the communicator, its verbs, and what it remembers."""

from stretto.calls.communicator import Communicator, lacks
from stretto.calls.joining.spawn import connect, connect_on, spawn
from stretto.calls.precompile import start_precompiling
from stretto.calls.requests.verb import VERBS, call_of
from stretto.calls.work import Work

__all__ = [
    "VERBS",
    "Communicator",
    "Work",
    "call_of",
    "connect",
    "connect_on",
    "lacks",
    "spawn",
    "start_precompiling",
]
