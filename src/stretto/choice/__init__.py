"""Which plan a call gets: pins, profiles, rules of rows; and its proof, made once."""

from stretto.choice.beside import Beside
from stretto.choice.plans import FrozenParams, frozen, proved_plan, proved_program
from stretto.choice.select import (
    Choice,
    Pin,
    Profile,
    Question,
    dtype_class,
    profile_folder,
)
from stretto.choice.selector import Selector
from stretto.choice.sizes import parse_size, parse_sizes, spell_size

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
    "parse_size",
    "parse_sizes",
    "profile_folder",
    "proved_plan",
    "proved_program",
    "spell_size",
]
