"""Tune: find the fastest algorithm and schedule for each size, and write it down."""

from stretto.bench.tune.figure import draw
from stretto.bench.tune.fit import Fit, fit, observations, toml_of
from stretto.bench.tune.profile import default_path, merged, rule_of, text_of
from stretto.bench.tune.search import Decision, decide, halve
from stretto.bench.tune.space import candidates, expanded, leaders, simulated_us

__all__ = [
    "Decision",
    "Fit",
    "candidates",
    "decide",
    "default_path",
    "draw",
    "expanded",
    "fit",
    "halve",
    "leaders",
    "merged",
    "observations",
    "rule_of",
    "simulated_us",
    "text_of",
    "toml_of",
]
