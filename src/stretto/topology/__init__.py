"""Machines: ranks, switches, links, routes and costs; one TOML file per family."""

from stretto.topology.assumed import EXAMPLE, assumed
from stretto.topology.detect import detect, here
from stretto.topology.hosts import assumed_hosts, cpu_hosts
from stretto.topology.load import load, names, patterns
from stretto.topology.machine import Machine
from stretto.topology.parts import Costs, Link, Ports, Switch
from stretto.topology.reader import Reader
from stretto.topology.render import draw, render
from stretto.topology.routes import Route
from stretto.topology.symmetry import is_symmetry

__all__ = [
    "EXAMPLE",
    "Costs",
    "Link",
    "Machine",
    "Ports",
    "Reader",
    "Route",
    "Switch",
    "assumed",
    "assumed_hosts",
    "cpu_hosts",
    "detect",
    "draw",
    "here",
    "is_symmetry",
    "load",
    "names",
    "patterns",
    "render",
]

Machine._repr_svg_ = draw  # pictures know machines, not the other way round
