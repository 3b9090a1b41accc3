"""What a verb is: one description, from which its method and its other forms follow.

A method is written as its signature, its words, and which arrays have what. `verb`
makes the rest, as a dataclass makes `__init__`: calls that are known are repeated at
once, others become a request (request.py) and are run.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import (
    Any,
    Concatenate,
    ParamSpec,
    TypeVar,
    get_args,
    get_type_hints,
)

import numpy as np

from stretto.arrays.operands import on_gpu
from stretto.calls.requests.layout import MISS
from stretto.calls.work import Work

__all__ = ["VERBS", "Holds", "Verb", "as_key", "call_of", "started", "verb"]

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
NO_PART_OF_A_KEY = ("x", "out", "counts", "epilogue", "max_count", "received")


class Holds(Enum):
    """What an array of a call holds."""

    WHOLE = "one part, which is everybody's"
    PART = "the rank's own part"
    PARTS = "a part for every rank, or of every rank"
    NOTHING = "there is no such array"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A method of a communicator that all ranks call."""

    name: str
    collective: str
    x: Holds
    out: Holds
    x_at_root: bool
    """Whether the root alone has an input; and an output."""
    out_at_root: bool
    unequal: bool
    """Whether parts differ in size: the caller says their counts."""
    parameters: tuple[str, ...]
    everywhere: tuple[str, ...] = field(init=False)
    """The arrays that every rank has: all can be registered, or none."""

    def __post_init__(self) -> None:
        """Name those arrays."""
        has = ("x", self.x, self.x_at_root), ("out", self.out, self.out_at_root)
        named = (
            name
            for name, holds, at_root in has
            if holds is not Holds.NOTHING and not at_root
        )
        object.__setattr__(self, "everywhere", tuple(named))


VERBS: dict[str, Verb] = {}
"""All of them, by name, in the order in which they are described."""


def verb(
    x: Holds, out: Holds, *, x_at_root: bool = False, out_at_root: bool = False
) -> Callable[[F], F]:
    """Make a method of a verb's signature; its body is not run.

    `**options: Unpack[...]` stands for the keywords of a `TypedDict`, all None.
    """

    def make(method: F) -> F:
        signature = _signature(method)
        parameters = tuple(signature.parameters)[1:]
        one = Verb(
            name=method.__name__,
            collective=method.__name__.removesuffix("_v"),
            x=x,
            out=out,
            x_at_root=x_at_root,
            out_at_root=out_at_root,
            unequal="counts" in parameters,
            parameters=parameters,
        )
        VERBS[one.name] = one
        known = {"MISS": MISS, "verb": one, "on_gpu": on_gpu, "as_key": as_key}
        made: dict[str, Any] = {}
        text = compile(_text(one, method), f"<stretto: {one.name}>", "exec")
        exec(text, known, made)  # as dataclasses do; the text is ours
        found: Any = functools.update_wrapper(made[one.name], method)
        found.__signature__ = signature
        found.__defaults__ = method.__defaults__
        found.__kwdefaults__ = {
            p.name: p.default
            for p in signature.parameters.values()
            if p.kind is p.KEYWORD_ONLY
        }
        return found  # type: ignore[no-any-return]

    return make


def _signature(method: Any) -> inspect.Signature:
    """Return a method's signature, with the keywords that its options stand for."""
    signature = inspect.signature(method)
    *own, last = signature.parameters.values()
    if last.kind is not last.VAR_KEYWORD:
        return signature
    (options,) = get_args(get_type_hints(method)[last.name])
    named = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=getattr(kind, "__forward_arg__", kind),
        )
        for name, kind in options.__annotations__.items()
    ]
    return signature.replace(parameters=[*own, *named])


def _text(one: Verb, method: Any) -> str:
    """Return the text of a method: known calls first, then a request."""
    names, places = one.parameters, method.__code__.co_argcount - 1
    before, after = names[:places], names[places:]
    rest = [n for n in names if n not in NO_PART_OF_A_KEY]
    lines = [f"def {one.name}({', '.join(['self', *before, '*', *after])}):"]
    values = f"({', '.join(names)},)"
    if "max_count" in names:
        lines += [
            " if type(counts) is not tuple and on_gpu(counts):",
            f"  return self._call_counted(verb, {values})",
        ]
    if one.unequal:
        rest = ["parts", *rest]
    arrays = [] if one.x is Holds.NOTHING else ["id(x)", "id(out)"]
    key = f"key = ({', '.join([repr(one.name), *arrays, *rest])},)"
    known = "self._known.get(key)"
    if "epilogue" in names:
        known += " if epilogue is None else None"
    thaw, freeze, examine = _frozen(one)
    lines += [*thaw, f" {key}", " try:", f"  known = {known}", " except TypeError:"]
    if freeze:
        lines += [f"  {freeze}", f"  {key}", "  known = self._looked_up(key)"]
    else:
        lines.append("  raise self._odd(key) from None")
    two = "x, out" if arrays else "None, None"
    missed = f" and (done := known({two})) is not MISS" if arrays else ""
    gift = "done" if arrays else f"known({two})"
    lines += [f" if known is not None{missed}:", f"  return {gift}"]
    if examine:
        lines += [f" if {examine}:", f"  {freeze}", f"  {key}"]
    also = ", epilogue" if "epilogue" in names else ""
    return "\n".join([*lines, f" return self._call(verb, key, {two}, {values}{also})"])


def _frozen(one: Verb) -> tuple[list[str], str, str]:
    """Return how an argument that may change becomes a part of a key.

    First what is always done, then what freezes a tuple that holds what may change, at
    last what tells whether one does that could be hashed.
    """
    if "pairs" in one.parameters:
        read = "pairs = self._caller('permute', dtype).read('pairs', pairs)"
        return (
            [" if type(pairs) is not tuple:", f"  {read}"],
            read,
            "any(type(p) is not tuple for p in pairs)",
        )
    if not one.unequal:
        return [], "", ""
    if one.collective == "all_to_all":
        every = "counts = parts = self._every_count(counts, dtype, algorithm)"
        return [f" {every}"], "", ""
    own = [
        " if counts is None:",
        "  counts = self._own_counts(verb, x, dtype, algorithm)",
    ]
    parts = " parts = counts if type(counts) is tuple else as_key(counts)"
    always = [*(own if one.x is Holds.PART else ()), parts]
    return always, "parts = as_key(counts)", ""


def as_key(counts: Any) -> Any:
    """Return counts as a part of a key; lists and arrays may change, these may not."""
    if isinstance(counts, (tuple, list)) and counts and type(counts[0]) is int:
        return tuple(counts)
    try:
        return tuple(np.ravel(counts).tolist())
    except (TypeError, ValueError):  # the checks that follow say what is wrong
        return ()


def started(
    method: Callable[Concatenate[Any, P], Any],
) -> Callable[Concatenate[Any, P], Work]:
    """Return a verb as one that returns at once: its arguments, and a `Work`."""
    name = method.__name__

    def start(self: Any, /, *args: P.args, **options: P.kwargs) -> Work:
        work: Work = self._start(name, method.__get__(self), *args, **options)
        return work

    functools.update_wrapper(start, method)
    start.__name__ = f"{name}_async"
    start.__qualname__ = f"{method.__qualname__}_async"
    start.__doc__ = f"Start `{name}`; the `wait` of its `Work` gives the result."
    signature = inspect.signature(method)
    start.__signature__ = signature.replace(return_annotation="Work")  # type: ignore[attr-defined]
    return start


def call_of(
    comm: Any, name: str, x: Any, out: Any, *, root: int = 0, **options: Any
) -> Callable[[], Any]:
    """Return a call by this rank: with the arrays and options that it has there.

    Options that a verb does not know are left out.
    """
    one = VERBS[name.removesuffix("_async")]
    method = getattr(comm, name)
    if one.x is Holds.NOTHING:
        return functools.partial(method)
    known = {k: v for k, v in options.items() if k in one.parameters}
    if "root" in one.parameters:
        known["root"] = root
    at_root = comm.rank == root
    if at_root or not one.out_at_root:
        known["out"] = out
    given = x if at_root or not one.x_at_root or out is None else None
    return functools.partial(method, given, **known)
