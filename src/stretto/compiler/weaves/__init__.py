"""Weaves: computing and moving in one order, as text that is proved before it runs."""

from stretto.compiler.weaves.files import FoundWeave
from stretto.compiler.weaves.referee import prove
from stretto.compiler.weaves.text import (
    LOADS,
    MEETS,
    LoadShape,
    PartsBox,
    Weave,
    WeaveStep,
)
from stretto.compiler.weaves.waits import PlacedStep, placed

__all__ = [
    "LOADS",
    "MEETS",
    "FoundWeave",
    "LoadShape",
    "PartsBox",
    "PlacedStep",
    "Weave",
    "WeaveStep",
    "placed",
    "prove",
]
