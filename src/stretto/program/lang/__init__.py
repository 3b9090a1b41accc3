"""Write an algorithm as plain assignments between the ranks' arrays."""

from stretto.program.ir import Handwritten
from stretto.program.lang.algorithm import Algorithm, Requires, algorithm, power_of_two
from stretto.program.lang.byhand import kernel, registered
from stretto.program.lang.hosts import by_host
from stretto.program.lang.ranks import Buffer, Rank, Ranks, Reference, reduce
from stretto.program.lang.renumber import alone, ordered, renumbered
from stretto.program.lang.trace import Reduction

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
    "alone",
    "by_host",
    "kernel",
    "ordered",
    "power_of_two",
    "reduce",
    "registered",
    "renumbered",
]
