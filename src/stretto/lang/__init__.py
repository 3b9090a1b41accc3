"""Write an algorithm as plain assignments between the ranks' arrays."""

from stretto.lang.algorithm import Algorithm, Requires, algorithm, power_of_two
from stretto.lang.byhand import handwritten, kernel, registered
from stretto.lang.hand import Handwritten
from stretto.lang.hosts import by_host
from stretto.lang.ranks import Buffer, Rank, Ranks, Reduction, Reference, reduce

__all__ = [
    "Algorithm",
    "Buffer",
    "Handwritten",
    "Rank",
    "Ranks",
    "Reduction",
    "Reference",
    "Requires",
    "algorithm",
    "by_host",
    "handwritten",
    "kernel",
    "power_of_two",
    "reduce",
    "registered",
]
