"""MSCCL++ through its library that stands in for NCCL, where that is preloaded.

It answers NCCL's calls, so torch.distributed need not know: start everything with
LD_PRELOAD=.../libmscclpp_nccl.so, in a run without the other peers of NCCL.
"""

from __future__ import annotations

import importlib.util
import os
from typing import ClassVar

from stretto.bench.peers._gpu import NcclPeer
from stretto.errors import MissingExtraError


class Mscclpp(NcclPeer):
    """NCCL's calls, answered by MSCCL++."""

    NEEDS = ("mscclpp", "build it from microsoft/mscclpp")
    ALONE = importlib.util.find_spec("mscclpp") is not None
    """Where it is missing it needs no run of its own to say so."""
    SETTINGS: ClassVar = {"MSCCLPP_FORCE_DISABLE_NVLS": "1"}

    @classmethod
    def check(cls) -> None:
        """Refuse to be NCCL itself."""
        if "libmscclpp_nccl" not in os.environ.get("LD_PRELOAD", ""):
            raise MissingExtraError(
                "mscclpp is there: set LD_PRELOAD=libmscclpp_nccl.so"
            )


OFFERS = (Mscclpp,)
