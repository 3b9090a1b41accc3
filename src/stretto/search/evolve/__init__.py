"""The loop of a search, what it asks of a problem, and its file."""

from stretto.search.evolve.loop import Settings, Trial, evolve
from stretto.search.evolve.problem import PolicyProblem, Problem, Verdict
from stretto.search.evolve.running import Searched, fresh_of, progress, search
from stretto.search.evolve.runs import Judged, SearchRun

__all__ = [
    "Judged",
    "PolicyProblem",
    "Problem",
    "SearchRun",
    "Searched",
    "Settings",
    "Trial",
    "Verdict",
    "evolve",
    "fresh_of",
    "progress",
    "search",
]
