"""Tune: find the fastest algorithm and schedule for each size, and write it down."""

from stretto.bench.tune.fit import Fit, fit, observations, toml_of
from stretto.bench.tune.memory import blame, decision_of, forget
from stretto.bench.tune.profile import merged, rule_of, text_of
from stretto.search.halving import Decision, SearchSpace, TrialRequest, search
from stretto.search.schedules import (
    candidates,
    expanded,
    leaders,
    refined,
    simulated_us,
)

__all__ = [
    "Decision",
    "Fit",
    "SearchSpace",
    "TrialRequest",
    "blame",
    "candidates",
    "decision_of",
    "expanded",
    "fit",
    "forget",
    "leaders",
    "merged",
    "observations",
    "refined",
    "rule_of",
    "search",
    "simulated_us",
    "text_of",
    "toml_of",
]
