"""The vocabulary: ranks, buffers, chunks, and the program that moves them."""

from stretto.ir.chunks import ALIGNMENT, partition
from stretto.ir.parser import parse_program
from stretto.ir.program import (
    INPUT,
    OUTPUT,
    Op,
    Params,
    Program,
    Ref,
    Verified,
    Via,
    freeze,
    members_of,
    spell_op,
)
from stretto.ir.reading import WHOLE, literal, spelled, whole
from stretto.ir.spans import Spans
from stretto.ir.steps import steps_of
from stretto.ir.undisturbed import undisturbed

__all__ = [
    "ALIGNMENT",
    "INPUT",
    "OUTPUT",
    "WHOLE",
    "Op",
    "Params",
    "Program",
    "Ref",
    "Spans",
    "Verified",
    "Via",
    "freeze",
    "literal",
    "members_of",
    "parse_program",
    "partition",
    "spell_op",
    "spelled",
    "steps_of",
    "undisturbed",
    "whole",
]
