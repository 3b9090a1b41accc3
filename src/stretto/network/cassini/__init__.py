"""CASSINI: jobs that share links begin their iterations so that they fit."""

from stretto.network.cassini.circle import Circle, unified
from stretto.network.cassini.drawing import svg
from stretto.network.cassini.exact import exact
from stretto.network.cassini.groups import Affinity, JobGroup, fitted
from stretto.network.cassini.shifts import ShiftProblem, Shifts, best, score

__all__ = [
    "Affinity",
    "Circle",
    "JobGroup",
    "ShiftProblem",
    "Shifts",
    "best",
    "exact",
    "fitted",
    "score",
    "svg",
    "unified",
]
