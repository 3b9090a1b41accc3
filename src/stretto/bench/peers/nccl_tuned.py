"""NCCL with NCCL_GRAPH_MIXING_SUPPORT=0: faster, and no longer for every use.

A communicator may then not be captured and called, nor be in several graphs, at once.
NCCL reads the variable once a process, so this peer has a run of its own.
"""

from __future__ import annotations

import os
from typing import ClassVar

from stretto.bench.peers._gpu import MIXING, NcclPeer
from stretto.errors import CallError


class NcclTuned(NcclPeer):
    """NCCL, tuned."""

    ALONE = True
    SETTINGS: ClassVar = {MIXING: "0"}

    @classmethod
    def check(cls) -> None:
        """Refuse what it would be without its setting."""
        if os.environ.get(MIXING) != "0":
            raise CallError(f"{MIXING}=0 must be set before ranks start")


OFFERS = (NcclTuned,)
