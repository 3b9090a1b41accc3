"""Run plans in virtual time on a described machine, or on arrays in any order."""

from stretto.executors.sim.result import LinkLoad, Simulation, bus_factor
from stretto.executors.sim.simulate import counts_of, simulate

__all__ = ["LinkLoad", "Simulation", "bus_factor", "counts_of", "simulate"]
