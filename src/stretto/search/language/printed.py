"""Terms as C: with doubles for programs, with fixed point for the kernel's BPF.

The first gives the machine's bits. BPF has no floating point: there numbers count
65536ths, are cut off at 2**30, and a logarithm is right to one in 4,096.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.search.language.terms import LARGEST, OPERATORS, Term

__all__ = ["as_bpf", "as_c"]

_DOUBLES = f"""\
static inline double st_cut(double a) {{
  return a > {LARGEST:g} ? {LARGEST:g} : a < -{LARGEST:g} ? -{LARGEST:g} : a;
}}
static inline double st_div(double a, double b) {{ return b != 0 ? a / b : 0; }}
static inline double st_log(double a) {{ return a >= 0 ? log(1 + a) : -log(1 - a); }}
"""

_FIXED = """\
typedef long long st_t;
typedef unsigned long long st_u;
#define ST_MOST (1LL << 46)
static inline __attribute__((always_inline)) st_t st_cut(st_t a) {
  return a > ST_MOST ? ST_MOST : a < -ST_MOST ? -ST_MOST : a;
}
static inline __attribute__((always_inline)) st_u st_size(st_t a) {
  return a < 0 ? -(st_u)a : (st_u)a;
}
static inline __attribute__((always_inline)) st_t st_sign(st_u a, int negative) {
  st_t cut = a > (st_u)ST_MOST ? ST_MOST : (st_t)a;
  return negative ? -cut : cut;
}
static inline __attribute__((always_inline)) st_t st_mul(st_t a, st_t b) {
  st_u x = st_size(a), y = st_size(b);
  if (x == 0 || y == 0) return 0;
  if ((x >> 16) > (st_u)ST_MOST / y) return st_sign(ST_MOST, (a < 0) != (b < 0));
  return st_sign((x >> 16) * y + (((x & 65535) * y) >> 16), (a < 0) != (b < 0));
}
static inline __attribute__((always_inline)) st_t st_div(st_t a, st_t b) {
  if (b == 0) return 0;
  return st_sign((st_size(a) << 16) / st_size(b), (a < 0) != (b < 0));
}
static inline __attribute__((always_inline)) st_t st_log(st_t a) {
  st_u u = st_size(a) + 65536, whole = 0, part = 0;
  for (int i = 0; i < 32; i++)
    if (u >= 131072) { u >>= 1; whole++; }
  for (int i = 0; i < 16; i++) {
    u = (u * u) >> 16;
    part <<= 1;
    if (u >= 131072) { u >>= 1; part |= 1; }
  }
  return st_sign((((whole << 16) | part) * 45426) >> 16, a < 0);
}
"""


def as_c(
    term: Term, features: Sequence[str], *, name: str = "score", head: bool = True
) -> str:
    """Return a term as a C function of doubles, one for each feature.

    `head`: with what it calls before it, once a file.
    """
    args = ", ".join(f"double {f}" for f in features) or "void"
    before = f"#include <math.h>\n{_DOUBLES}\n" if head else ""
    return f"{before}double {name}({args}) {{\n  return {_doubles(term)};\n}}\n"


def _doubles(term: Term) -> str:
    if term.op == "number":
        return repr(float(term.value)) if term.value >= 0 else f"({term.value!r})"
    if term.op == "feature":
        return f"st_cut({term.name})"
    args = [_doubles(arg) for arg in term.args]
    match term.op, args:
        case "neg", [a]:
            return f"(-{a})"
        case "log", [a]:
            return f"st_log({a})"
        case "div", [a, b]:
            return f"st_cut(st_div({a}, {b}))"
        case _:
            return _common(term.op, args)


def as_bpf(
    term: Term, features: Sequence[str], *, name: str = "score", head: bool = True
) -> str:
    """Return a term as a C function of whole numbers, which BPF can be compiled from.

    Features come as they are counted; a number is in 65536ths, a truth 0 or 1.
    """
    args = ", ".join(f"st_t {f}" for f in features) or "void"
    begin = "".join(
        f"  {f} = st_cut({f} < ST_MOST >> 16 ? {f} << 16 : ST_MOST);\n"
        for f in features
    )
    before = f"{_FIXED}\n" if head else ""
    return f"{before}st_t {name}({args}) {{\n{begin}  return {_fixed(term)};\n}}\n"


def _fixed(term: Term) -> str:
    if term.op == "number":
        cut = max(-(2.0**30), min(2.0**30, term.value))
        return f"({round(cut * 65536)}LL)"
    if term.op == "feature":
        return term.name
    args = [_fixed(arg) for arg in term.args]
    match term.op, args:
        case "neg", [a]:
            return f"(-{a})"
        case "log" | "mul" | "div", _:
            return f"st_{term.op}({', '.join(args)})"
        case _:
            return _common(term.op, args)


def _common(op: str, args: Sequence[str]) -> str:
    """Return what both kinds of C write alike."""
    symbol = {"or": "||", "and": "&&", "not": "!"}.get(op, OPERATORS[op].symbol)
    match op, args:
        case "not", [a]:
            return f"(!{a})"
        case "where", [test, a, b]:
            return f"({test} ? {a} : {b})"
        case "min" | "max", [a, b]:
            return f"({a} {'<' if op == 'min' else '>'} {b} ? {a} : {b})"
        case "add" | "sub" | "mul", [a, b]:
            return f"st_cut({a} {symbol} {b})"
        case _, [a, b]:
            return f"({a} {symbol} {b})"
    raise AssertionError(op)
