"""NCCL through torch.distributed, as it is when nobody sets anything."""

from __future__ import annotations

import os

from stretto.bench.peers._gpu import MIXING, NcclPeer
from stretto.errors import CallError


class Nccl(NcclPeer):
    """NCCL, plain."""

    @classmethod
    def check(cls) -> None:
        """Refuse what makes it faster, and another peer."""
        if os.environ.get(MIXING) == "0":
            raise CallError(f"{MIXING}=0 is set; that is peer nccl-tuned")


OFFERS = (Nccl,)
