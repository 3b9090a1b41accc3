"""Which plan a call gets: pins, profiles, rules of rows; and its proof, made once."""

from stretto.runtime.choice import own
from stretto.runtime.choice.beside import Beside
from stretto.runtime.choice.plans import frozen, proved_plan, proved_program
from stretto.runtime.choice.question import (
    Choice,
    FrozenParams,
    Question,
    dtype_class,
)
from stretto.runtime.choice.select import Pin, Profile
from stretto.runtime.choice.selector import Selector
from stretto.runtime.choice.sizes import parse_size, parse_sizes, spell_size

__all__ = [
    "Beside",
    "Choice",
    "FrozenParams",
    "Pin",
    "Profile",
    "Question",
    "Selector",
    "dtype_class",
    "frozen",
    "own",
    "parse_size",
    "parse_sizes",
    "proved_plan",
    "proved_program",
    "spell_size",
]
