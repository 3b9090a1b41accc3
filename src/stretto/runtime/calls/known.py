"""Calls seen before: known by their very arrays, or by how their arrays look.

An array is recognised by its identity and a weak reference (so that another array at
the same address is not taken for it), and by what can change in place: its shape and
element type, whether it is contiguous and writable; for tensors the memory itself, too.

Other arrays, however new, may look like those of an earlier call (layout.py): how a
call is repeated is known by that, and holds no array. Launches on a GPU are given
addresses, those on the CPU NumPy arrays.

Either way the call is one function, written for what it is, as a dataclass writes its
`__init__`: what it checks, what it launches, what it gives back.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from stretto.arrays import CPU, Operand
from stretto.executors import Launch, Session
from stretto.program.collectives import storage
from stretto.runtime.calls.requests.layout import MISS, Broke, Seen
from stretto.runtime.calls.requests.request import Request

MOST = 2048
"""Entries of a table."""
_BOUND_EACH = 64
"""Every 64th call that is known by its layout becomes known by its very arrays."""

KnownCall: TypeAlias = Callable[..., Any]
"""Takes `x` and `out`; by layout also what `look` found."""


class KnownForm(NamedTuple):
    """What known calls differ in, but for what they know."""

    reads: bool
    """Whether this rank has an input, and whether it has an output."""
    writes: bool
    idle: bool = False
    """Whether the caller gets zeros, which nobody sends."""
    in_place: bool = False
    """Whether `x` is given back, and no `out` was passed."""
    makes: bool = False
    """Whether the call makes its output."""
    numpy: bool = False
    """Whether its arrays are NumPy's; a launch is told the places of others."""
    carries: bool = False
    """Whether a launch takes NumPy arrays at those places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What is done again."""

    session: Session
    launch: Launch
    broke: Broke
    """What to raise of what a launch raises."""
    form: KnownForm
    made: type[Any] | None = None
    """The type of the output that the call makes for `x`; `make` returns it."""
    make: Callable[[Any], Any] | None = None
    carry: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None
    """What makes what a launch takes of the places of `x` and `out`."""


Layout: TypeAlias = tuple[KnownCall, Again]


class KnownCalls(dict[Any, Any]):
    """All that is known of a communicator's calls: one table, forgotten as a whole.

    Calls are found by their very arrays (a verb, two identities, all other arguments),
    by their layout (layout.py), with an epilogue by what is looked at first
    (known_epilogues.py). Those who build on a communicator keep what they know of its
    calls here, too, by keys that begin with a number.

    It is emptied when anything changes that a call may depend on: what is registered,
    which kernels are written, what has broken; and when it is full.
    """

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        super().__init__()
        self._turn = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        """Know one more; a table that is full is begun anew."""
        if len(self) >= MOST:
            self.clear()
        super().__setitem__(key, value)

    def repeat(
        self, how: Layout, key: tuple[Any, ...], x: Any, out: Any, seen: Seen
    ) -> Any:
        """Repeat a call that looks like an earlier one, or return MISS.

        Most arrays are seen once; those that come again are soon known themselves.
        """
        # To keep a call costs more than to find it by its layout again; arrays that
        # come in each step are met by the 64th soon enough.
        self._turn += 1
        if not self._turn % _BOUND_EACH:
            self._keep(key, how[1], x, out, seen)
        return how[0](x, out, seen)

    def learn(
        self,
        key: tuple[Any, ...],
        x: Any,
        out: Any,
        seen: Seen | None,
        again: Again | None,
    ) -> None:
        """Let the same call, and those like it, be known; it has just been made."""
        if seen is not None and again is not None:
            written = _writer(again, _AS_SEEN, _UNSEEN, _UNSEEN)
            self[seen[0]] = written(again.launch), again
            self._keep(key, again, x, out, seen)

    def _keep(
        self, key: tuple[Any, ...], again: Again, x: Any, out: Any, seen: Seen
    ) -> None:
        if len(self) >= MOST:
            self.clear()
        known = by_arrays(again, x, out, *seen[1:])
        if known is not None:
            super().__setitem__(key, known)


def again_of(
    request: Request,
    x: Any,
    out: Any,
    session: Session,
    launch: Launch,
    broke: Broke,
) -> Again | None:
    """Return how to repeat a call on other arrays; None when it cannot be repeated."""
    result = request.out or request.idle
    # What was copied on its way in or out is copied anew each time: by the long road.
    if any(o is not None and o.staged for o in (request.x, request.out, request.idle)):
        return None
    numpy = all(a is None or type(a) is np.ndarray for a in (x, out))
    if request.idle is not None and not numpy:
        return None
    in_place = out is None and result is not None and result.given is x
    made = result if out is None and not in_place else None
    if made is not None and not numpy and type(made.given) is np.ndarray:
        return None  # scatter_v makes it of what the call says, and not like `x`
    carry = None
    if not numpy and request.device == CPU:
        x_like = result if in_place else request.x
        carry = _viewer(x_like), _viewer(request.out)
    form = KnownForm(
        reads=request.x is not None,
        writes=request.out is not None,
        idle=request.idle is not None,
        in_place=in_place,
        makes=made is not None,
        numpy=numpy,
        carries=carry is not None,
    )
    return Again(
        session=session,
        launch=launch,
        broke=broke,
        form=form,
        made=None if made is None else type(made.given),
        make=None if made is None else _maker(made, numpy=numpy),
        carry=carry,
    )


def _maker(result: Operand, *, numpy: bool) -> Callable[[Any], Any]:
    """Return what makes a new output for `x`."""
    shape = result.shape
    if numpy:
        dtype = result.given.dtype
        return lambda x: np.empty(shape, dtype)
    return lambda x: x.new_empty(shape)


def _viewer(operand: Operand | None) -> Callable[[Any], Any]:
    """Return what makes a NumPy array of an address: of an operand's type and size."""
    if operand is None:
        return lambda at: None
    dtype = storage(operand.dtype)
    if not operand.count:
        nothing = np.empty(0, dtype)
        return lambda at: nothing
    memory_at = (ctypes.c_char * (operand.count * dtype.itemsize)).from_address
    view: Any = np.frombuffer
    return lambda at: view(memory_at(at), dtype)


def by_arrays(
    again: Again, x: Any, out: Any, source: Any, target: Any
) -> KnownCall | None:
    """Return a call on these very arrays; None: they cannot be recognised."""
    form = again.form
    if form.numpy:
        one, other = _arrays(again, x, out)
        return _writer(again, ("x", "out"), one, other)(again.launch)
    if form.makes:
        return None
    this = _place(x, by_size=form.in_place)
    that = _UNSEEN if form.in_place else _place(out, by_size=False)
    if this is None or that is None:
        return None
    if again.carry is not None:
        source = again.carry[0](source)
        target = None if out is None else again.carry[1](target)
    to = source if form.in_place else target
    places = source if form.reads else None, to if form.writes else None
    write = _writer(again, None, this, that)
    return write(again.session.repeated(again.launch, *places))


# What tells whether an array is still the one that a call knows, and its traits: a
# reference, a size or shape, an element type, and what else may change in place.

_Known: TypeAlias = tuple[str, Any, Any, Any, Any]
_IS = "{0}_ref() is not {0} or {0}.dtype is not {0}_dtype or "
_SIZE = _IS + "{0}.size != {0}_by or {0}.flags.num != {0}_at"
_SHAPE = _IS + "{0}.shape != {0}_by or {0}.flags.num != {0}_at"
_NUMEL = "{0}.numel() != {0}_by or {0}.data_ptr() != {0}_at or not {0}.is_contiguous()"
_DIMS = "{0}.shape != {0}_by or {0}.data_ptr() != {0}_at or not {0}.is_contiguous()"
_OURS = "{0}_ref() is not {0}"
_SAME = "not x_ref(x, out)"
_UNSEEN: _Known = "", None, None, None, None
_ABSENT: _Known = "{0} is not None", None, None, None, None


def _arrays(again: Again, x: Any, out: Any) -> tuple[_Known, _Known]:
    """Return what tells whether NumPy arrays are still these.

    Of what is not divided, no shape matters.
    """
    if x is None and out is None:
        return _UNSEEN, _UNSEEN
    x_by = "size" if again.form.in_place else "shape"
    out_by = "nothing" if again.form.in_place or again.form.makes else "size"
    tells = again.session.same_arrays
    if tells is not None and (same := tells(x, x_by, out, out_by)) is not None:
        return (_SAME, same, None, None, None), _UNSEEN
    return _array(x, x_by), _array(out, out_by)


def _array(array: Any, by: str) -> _Known:
    if by == "nothing":
        return _UNSEEN
    if array is None:
        return _ABSENT
    ref, flags = weakref.ref(array), array.flags.num
    if by == "size":
        return _SIZE, ref, array.size, array.dtype, flags
    return _SHAPE, ref, array.shape, array.dtype, flags


def _place(array: Any, *, by_size: bool) -> _Known | None:
    """Return the same of a tensor or an array of ours; None: nothing can tell."""
    if array is None:
        return _ABSENT
    if type(array).__module__.startswith("stretto."):
        return _OURS, weakref.ref(array), None, None, None
    if not hasattr(array, "data_ptr"):
        return None
    ref, at = weakref.ref(array), array.data_ptr()
    if by_size:
        return _IS + _NUMEL, ref, array.numel(), array.dtype, at
    return _IS + _DIMS, ref, array.shape, array.dtype, at


def _writer(
    again: Again, places: tuple[str, str] | None, x: _Known, out: _Known
) -> Callable[[Callable[..., object]], KnownCall]:
    """Return what writes the function of a known call: checks, a launch, a result.

    It takes the launch. `places` are the names of what that takes; None: nothing.
    """
    # The text depends on the form alone, so it is compiled once for each form, and what
    # a call knows is given to what was compiled.
    carry_x, carry_out = again.carry or (None, None)
    make_known = _maker_of(x[0], out[0], places, again.form)
    said = again.broke, again.make, again.made, carry_x, carry_out
    return functools.partial(make_known, *said, *x[1:], *out[1:])


@functools.lru_cache(maxsize=256)
def _maker_of(
    x: str, out: str, places: tuple[str, str] | None, form: KnownForm
) -> Callable[..., KnownCall]:
    """Return what makes such functions, each of what it knows."""
    by_layout = places == _AS_SEEN
    given = "x, out, seen" if by_layout else "x, out"
    traits = ", ".join(f"{a}_{b}" for a in ("x", "out") for b in _TRAITS)
    lines = [
        f"def make_known(broke, make, made, carry_x, carry_out, {traits}, launch):",
        f" def run({given}):",
    ]
    for name, check in (("x", x), ("out", out)):
        lines += [f"  if {check.format(name)}:", "   return MISS"] if check else []
    source, target = places or ("", "")
    carries = by_layout and form.carries
    result = "out"
    if carries:
        lines.append(f"  source = carry_x({source})")
        source = "source"
    if form.in_place:
        result, target = "x", source
    elif form.makes:
        lines.append("  result = make(x)")
        result = target = "result"
        if not form.numpy:  # a mode of PyTorch's may have made it, of no memory
            lines += ["  if type(result) is not made:", "   return MISS"]
            target = "result.data_ptr()"
    if carries and not form.in_place:
        target = f"carry_out({target})"
    takes = f"{source if form.reads else None}, {target if form.writes else None}"
    takes = "" if places is None else takes
    lines += [
        "  try:",
        f"   launch({takes})",
        "  except BaseException as e:",
        "   raise broke(e) from e.__cause__",
    ]
    if form.idle:
        lines.append(f"  {result}[...] = zeros((), {result}.dtype)  # raw bytes, too")
    gives = form.writes or form.idle or form.in_place or form.makes
    gift = result if gives else None
    space: dict[str, Any] = {"MISS": MISS, "zeros": np.zeros}
    text = "\n".join([*lines, f"  return {gift}", " return run"])
    exec(compile(text, "<stretto: a known call>", "exec"), space)  # the text is ours
    make_known: Callable[..., KnownCall] = space["make_known"]
    return make_known


_AS_SEEN = "seen[1]", "seen[2]"
_TRAITS = ("ref", "by", "dtype", "at")
