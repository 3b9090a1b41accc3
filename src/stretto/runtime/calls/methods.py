"""Methods of verbs, written from what describes them.

A method is written as its signature, its words, and which arrays have what. `verb`
makes the rest, as a dataclass makes `__init__`: calls that are known are repeated at
once, others take the road of call.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import (
    Any,
    Concatenate,
    ParamSpec,
    TypeVar,
    get_args,
    get_type_hints,
)

from stretto.arrays import on_gpu
from stretto.runtime.calls.call import call
from stretto.runtime.calls.forms.counted import call_counted
from stretto.runtime.calls.forms.counts import as_key, every_count, own_counts
from stretto.runtime.calls.requests.arguments import odd
from stretto.runtime.calls.requests.layout import MISS
from stretto.runtime.calls.requests.request import examined
from stretto.runtime.calls.requests.verb import VERBS, Content, Verb
from stretto.runtime.calls.runner import looked_up
from stretto.runtime.calls.started import start
from stretto.runtime.calls.work import Work

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])

_STEPS = {
    one.__name__: one
    for one in (
        *(as_key, call, call_counted, every_count, examined),
        *(looked_up, odd, on_gpu, own_counts),
    )
} | {"MISS": MISS}
"""What the text of a method names."""


def verb(
    x: Content, out: Content, *, x_at_root: bool = False, out_at_root: bool = False
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
        known = {**_STEPS, "verb": one}
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
    me, *own, last = signature.parameters.values()
    own = [me.replace(annotation=me.empty), *own]
    if last.kind is not last.VAR_KEYWORD:
        return signature.replace(parameters=[*own, last])
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
    rest = list(one.in_key)
    lines = [f"def {one.name}({', '.join(['self', *before, '*', *after])}):"]
    values = f"({', '.join(names)},)"
    if "max_count" in names:
        lines += [
            " if type(counts) is not tuple and on_gpu(counts):",
            f"  return call_counted(self, verb, {values})",
        ]
    if one.unequal:
        rest = ["parts", *rest]
    arrays = [] if one.x is Content.NOTHING else ["id(x)", "id(out)"]
    key = f"key = ({', '.join([repr(one.name), *arrays, *rest])},)"
    known = "self._known.get(key)"
    if "epilogue" in names:
        known += " if epilogue is None else None"
    thaw, freeze, examine = _frozen(one)
    lines += [*thaw, f" {key}", " try:", f"  known = {known}", " except TypeError:"]
    if freeze:
        lines += [f"  {freeze}", f"  {key}", "  known = looked_up(self, key)"]
    else:
        lines.append("  raise odd(self.rank, key) from None")
    two = "x, out" if arrays else "None, None"
    missed = f" and (done := known({two})) is not MISS" if arrays else ""
    gift = "done" if arrays else f"known({two})"
    lines += [f" if known is not None{missed}:", f"  return {gift}"]
    if examine:
        lines += [f" if {examine}:", f"  {freeze}", f"  {key}"]
    also = ", epilogue" if "epilogue" in names else ""
    given = f"examined, (verb, {values}){also}"
    return "\n".join([*lines, f" return call(self, key, {two}, {given})"])


def _frozen(one: Verb) -> tuple[list[str], str, str]:
    """Return how an argument that may change becomes a part of a key.

    First what is always done, then what freezes a tuple that holds what may change, at
    last what tells whether one does that could be hashed.
    """
    if "pairs" in one.parameters:
        read = "pairs = self._caller('permute', dtype).read('pairs', pairs)"
        return (
            [
                " if type(pairs) is list:",
                "  pairs = tuple(pairs)",
                " elif type(pairs) is not tuple:",
                f"  {read}",
            ],
            read,
            "any(type(p) is not tuple for p in pairs)",
        )
    if not one.unequal:
        return [], "", ""
    if one.collective == "all_to_all":
        every = "counts = parts = every_count(self, counts, dtype, algorithm)"
        return [f" {every}"], "", ""
    own = [
        " if counts is None:",
        "  counts = own_counts(self, verb, x, dtype, algorithm)",
    ]
    parts = " parts = counts if type(counts) is tuple else as_key(counts)"
    always = [*(own if one.x is Content.PART else ()), parts]
    return always, "parts = as_key(counts)", ""


def started(
    method: Callable[Concatenate[Any, P], Any],
) -> Callable[Concatenate[Any, P], Work]:
    """Return a verb as one that returns at once: its arguments, and a `Work`."""
    name = method.__name__

    def begin(self: Any, /, *args: P.args, **options: P.kwargs) -> Work:
        return start(self, name, method.__get__(self), *args, **options)

    functools.update_wrapper(begin, method)
    begin.__name__ = f"{name}_async"
    begin.__doc__ = f"Start `{name}`; the `wait` of its `Work` gives the result."
    signature = inspect.signature(method)
    begin.__signature__ = signature.replace(return_annotation="Work")  # type: ignore[attr-defined]
    return begin
