"""The vocabulary: ranks, buffers, chunks, and the program that moves them."""

from stretto.ir.chunks import ALIGNMENT, partition
from stretto.ir.program import (
    INPUT,
    OUTPUT,
    Op,
    Params,
    Program,
    Ref,
    Verified,
    freeze,
)
from stretto.ir.spans import Spans
from stretto.ir.text import parse_program, print_program, spell_op
from stretto.ir.undisturbed import undisturbed

__all__ = [
    "ALIGNMENT",
    "INPUT",
    "OUTPUT",
    "Op",
    "Params",
    "Program",
    "Ref",
    "Spans",
    "Verified",
    "freeze",
    "parse_program",
    "partition",
    "print_program",
    "spell_op",
    "undisturbed",
]
