"""From a verb to a launch: the communicator, its verbs, and what it remembers."""

from stretto.runtime.calls.communicator import Communicator, lacks
from stretto.runtime.calls.joining.spawn import (
    connect,
    connect_on,
    meet_elastic,
    open_elastic,
    spawn,
)
from stretto.runtime.calls.options import Elastic
from stretto.runtime.calls.precompile import start_precompiling
from stretto.runtime.calls.requests.verb import VERBS, call_of
from stretto.runtime.calls.work import Work

__all__ = [
    "VERBS",
    "Communicator",
    "Elastic",
    "Work",
    "call_of",
    "connect",
    "connect_on",
    "lacks",
    "meet_elastic",
    "open_elastic",
    "spawn",
    "start_precompiling",
]
