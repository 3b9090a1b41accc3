"""Bytes on a machine's links in virtual time: as flows that share, or as packets."""

from stretto.topology.traffic.congestion import Congestion, Parameter
from stretto.topology.traffic.flow import Flows
from stretto.topology.traffic.packet import Packets
from stretto.topology.traffic.pausing import may_fail
from stretto.topology.traffic.traffic import Delivery, LinkCounts, Parcel, Traffic

__all__ = [
    "Congestion",
    "Delivery",
    "Flows",
    "LinkCounts",
    "Packets",
    "Parameter",
    "Parcel",
    "Traffic",
    "may_fail",
]
