"""The vocabulary: ranks, buffers, chunks, and the program that moves them."""

from stretto.program.ir.byhand import Handwritten, Room
from stretto.program.ir.chunks import ALIGNMENT, partition
from stretto.program.ir.drawing import page, text_page
from stretto.program.ir.parser import parse_program
from stretto.program.ir.program import (
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
from stretto.program.ir.reading import WHOLE, literal, spelled, whole
from stretto.program.ir.spans import Spans
from stretto.program.ir.steps import steps_of
from stretto.program.ir.undisturbed import undisturbed

__all__ = [
    "ALIGNMENT",
    "INPUT",
    "OUTPUT",
    "WHOLE",
    "Handwritten",
    "Op",
    "Params",
    "Program",
    "Ref",
    "Room",
    "Spans",
    "Verified",
    "Via",
    "freeze",
    "literal",
    "members_of",
    "page",
    "parse_program",
    "partition",
    "spell_op",
    "spelled",
    "steps_of",
    "text_page",
    "undisturbed",
    "whole",
]

Program._repr_html_ = page  # pictures know programs, not the other way round
