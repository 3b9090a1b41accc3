"""The communicator: rendezvous, selection of plans, deadlines, faults."""

from stretto.runtime.communicator import Communicator
from stretto.runtime.plans import FrozenParams, frozen, proved_plan, proved_program
from stretto.runtime.select import (
    Choice,
    Pin,
    Profile,
    Question,
    dtype_class,
    profile_folder,
)
from stretto.runtime.selector import Selector
from stretto.runtime.sizes import parse_size, parse_sizes, spell_size
from stretto.runtime.spawn import connect, spawn
from stretto.runtime.work import Work

__all__ = [
    "Choice",
    "Communicator",
    "FrozenParams",
    "Pin",
    "Profile",
    "Question",
    "Selector",
    "Work",
    "connect",
    "dtype_class",
    "frozen",
    "parse_size",
    "parse_sizes",
    "profile_folder",
    "proved_plan",
    "proved_program",
    "spawn",
    "spell_size",
]
