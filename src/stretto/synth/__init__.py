"""Topology and collective to a program: bounds with proofs, and schedules near them."""

from stretto.synth.as_written import Written, written
from stretto.synth.bounds.bound import COLLECTIVES, ROOTED, Bounds, bound
from stretto.synth.bounds.terms import BoundTerm
from stretto.synth.budget import Budget
from stretto.synth.emit.file import identifier
from stretto.synth.exact.steps import Point, frontier, rounds_bound
from stretto.synth.network.model import Network, from_machine
from stretto.synth.schedules.replay import Replay, replay
from stretto.synth.schedules.schedule import Demand, TimedMove, TimedSchedule
from stretto.synth.search.portfolio import Candidate, SearchResult, synthesize
from stretto.synth.sketch.rules import Sketch, load_sketch, sketches, sketches_for

__all__ = [
    "COLLECTIVES",
    "ROOTED",
    "BoundTerm",
    "Bounds",
    "Budget",
    "Candidate",
    "Demand",
    "Network",
    "Point",
    "Replay",
    "SearchResult",
    "Sketch",
    "TimedMove",
    "TimedSchedule",
    "Written",
    "bound",
    "from_machine",
    "frontier",
    "identifier",
    "load_sketch",
    "replay",
    "rounds_bound",
    "sketches",
    "sketches_for",
    "synthesize",
    "written",
]
