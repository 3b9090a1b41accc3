"""Tune: find the fastest algorithm and schedule for each size, and write it down."""

from stretto.bench.tune.figure import draw
from stretto.bench.tune.fit import Fit, fit, observations, toml_of
from stretto.bench.tune.memory import decision_of, forget
from stretto.bench.tune.profile import default_path, merged, rule_of, text_of
from stretto.bench.tune.search import Ask, Decision, Space, search
from stretto.bench.tune.space import (
    candidates,
    expanded,
    leaders,
    refined,
    simulated_us,
)
from stretto.bench.tune.supervise import supervised

__all__ = [
    "Ask",
    "Decision",
    "Fit",
    "Space",
    "candidates",
    "decision_of",
    "default_path",
    "draw",
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
    "supervised",
    "text_of",
    "toml_of",
]
