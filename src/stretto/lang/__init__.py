"""Write an algorithm as plain assignments between the ranks' arrays."""

from stretto.lang.algorithm import Algorithm, Requires, algorithm, power_of_two
from stretto.lang.ranks import Buffer, Rank, Ranks, Reduction, Reference, reduce

__all__ = [
    "Algorithm",
    "Buffer",
    "Rank",
    "Ranks",
    "Reduction",
    "Reference",
    "Requires",
    "algorithm",
    "power_of_two",
    "reduce",
]
