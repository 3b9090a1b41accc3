"""Topology and collective to a program: bounds with proofs, and schedules near them."""

from stretto.synth.bounds import COLLECTIVES, ROOTED, Bound, Term, bound
from stretto.synth.emit import identifier
from stretto.synth.joint import Budget
from stretto.synth.model import Network, from_machine
from stretto.synth.portfolio import Result, Trial, synthesize
from stretto.synth.replay import Replay, replay
from stretto.synth.schedule import Demand, Move, Schedule
from stretto.synth.sketch import Sketch, load_sketch, sketches, sketches_for
from stretto.synth.steps import Point, frontier, rounds_bound

__all__ = [
    "COLLECTIVES",
    "ROOTED",
    "Bound",
    "Budget",
    "Demand",
    "Move",
    "Network",
    "Point",
    "Replay",
    "Result",
    "Schedule",
    "Sketch",
    "Term",
    "Trial",
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
]
