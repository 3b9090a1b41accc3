"""The language of policies: small, total, typed; parsed, printed, compiled."""

from stretto.search.language.growing import CHANGES, changed, grown
from stretto.search.language.intervals import Bounds, bounds
from stretto.search.language.machine import MachineCode, code_of, evaluate, value_of
from stretto.search.language.parts import Form, Policy
from stretto.search.language.printed import as_bpf, as_c
from stretto.search.language.terms import NUMBER, OPERATORS, TRUTH, Term, kind_of
from stretto.search.language.text import parse, spell

__all__ = [
    "CHANGES",
    "NUMBER",
    "OPERATORS",
    "TRUTH",
    "Bounds",
    "Form",
    "MachineCode",
    "Policy",
    "Term",
    "as_bpf",
    "as_c",
    "bounds",
    "changed",
    "code_of",
    "evaluate",
    "grown",
    "kind_of",
    "parse",
    "spell",
    "value_of",
]
