"""What a run keeps of a machine: its name, and a digest of all that its file says."""

from __future__ import annotations

import hashlib

from stretto.topology import Machine

__all__ = ["said_of"]


def said_of(machine: Machine) -> str:
    """Return what differs where a machine has changed."""
    parts = machine.links, machine.switches, machine.costs, machine.ports
    return f"{machine.name} {hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"
