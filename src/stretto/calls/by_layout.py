"""Calls on arrays never seen before, but like those of an earlier call.

All that a request looks at in an array is a part of its call's key: what its reader
says (array_readers.py), whether it is registered, and how input and output overlap. How
a call is repeated is known by that key, and holds no array. Launches on a GPU are given
addresses, those on the CPU NumPy arrays.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from stretto.arrays.array_readers import read_array
from stretto.arrays.operands import CPU, Operand
from stretto.calls.by_identity import (
    MISS,
    Again,
    Broke,
    KnownCall,
    clear,
    known_arrays,
    known_barrier,
    known_places,
)
from stretto.calls.fused_by_layout import FusedLayoutCalls
from stretto.calls.request import Request
from stretto.collectives import storage
from stretto.executors import Launch, Session

__all__ = ["CallKey", "LayoutCall", "LayoutCalls", "call_key", "layout_call_of"]

_MOST_KINDS = 4096
_MOST_KNOWN = 512
_BOUND_EACH = 64
"""Every 64th call that is known by its layout becomes known by its very arrays."""

CallKey: TypeAlias = tuple[Any, Any, Any]
"""What identifies calls that are alike; what a launch is given for `x` and `out`."""
Carry: TypeAlias = Callable[[Any], Any]
Carries: TypeAlias = tuple[Carry, Carry] | None
Repeat: TypeAlias = Callable[[Any, Any, Any, Any], Any]


class LayoutCalls:
    """What a communicator knows of its calls: by their very arrays, and by kind."""

    def __init__(
        self, table: dict[Any, KnownCall], sessions: Mapping[str, Session]
    ) -> None:
        """`table` is where calls are looked up first, by the identity of arrays."""
        self._table = table
        self._sessions = sessions
        self._known: dict[Any, LayoutCall] = {}
        self._turn = 0
        self.fused = FusedLayoutCalls(sessions)

    def repeat(self, key: tuple[Any, ...], x: Any, out: Any) -> Any:
        """Repeat a call on arrays like those of an earlier one, or return MISS.

        Most arrays are seen once; those that come again are soon in the table.
        """
        found = call_key(key, x, out, self._sessions)
        if found is None:
            return MISS
        kind, source, target = found
        how = self._known.get(kind)
        if how is None:
            return MISS
        self._turn += 1
        if not self._turn % _BOUND_EACH:
            self._keep(key, how.bind(x, out, source, target))
        return how.repeat(x, out, source, target)

    def learn(
        self,
        key: tuple[Any, ...],
        x: Any,
        out: Any,
        request: Request,
        launch: Launch,
        session: Session,
        broke: Broke,
    ) -> None:
        """Let the same call, and those like it, be recognised by their arrays."""
        if request.collective == "barrier":
            self._keep(key, known_barrier(launch, broke))
            return
        found = call_key(key, x, out, self._sessions)
        if found is None:
            return
        kind, source, target = found
        how = layout_call_of(request, launch, x, out, session=session, broke=broke)
        if how is None:
            return
        if len(self._known) >= _MOST_KINDS:
            self._known.clear()
        self._known[kind] = how
        self._keep(key, how.bind(x, out, source, target))

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()
        self.fused.clear()

    def _keep(self, key: tuple[Any, ...], known: KnownCall | None) -> None:
        if known is None:
            return
        if len(self._table) >= _MOST_KNOWN:
            self._table.clear()
        self._table[key] = known


def call_key(
    key: tuple[Any, ...], x: Any, out: Any, sessions: Mapping[str, Session]
) -> CallKey | None:
    """Return the kind of a call, or None when its arrays must be examined.

    `key` is the verb, two identities, and all other arguments.
    """
    if type(x) is np.ndarray or type(out) is np.ndarray:
        return _of_numpy(key, x, out, sessions)
    source = target = nbytes = 0
    seen_x = seen_out = apart = None
    if x is not None:
        found = read_array(x)
        if found is None or (session := sessions.get(found[0])) is None:
            return None
        _, alike, source, nbytes = found
        seen_x = alike, session.offset_at(source, nbytes) is None
    if out is x:
        return (key[0], key[3:], seen_x, None, 0), source, source
    if out is not None:
        found = read_array(out)
        if found is None or (session := sessions.get(found[0])) is None:
            return None
        _, alike, target, size = found
        seen_out = alike, session.offset_at(target, size) is None
        if target < source + nbytes and source < target + size:
            apart = target - source
    return (key[0], key[3:], seen_x, seen_out, apart), source, target


def _of_numpy(
    key: tuple[Any, ...], x: Any, out: Any, sessions: Mapping[str, Session]
) -> CallKey | None:
    """Return the kind of a call on NumPy arrays alone."""
    if not (type(x) is np.ndarray or x is None):
        return None
    if not (type(out) is np.ndarray or out is None):
        return None
    session = sessions.get(CPU)
    if session is None:
        return None
    seen_x = seen_out = apart = None
    if x is not None:
        seen_x = x.shape, x.dtype, x.flags.num, session.offset(x) is None
    if out is x:
        return (key[0], key[3:], seen_x, None, 0), x, x
    if out is not None:
        seen_out = out.shape, out.dtype, out.flags.num, session.offset(out) is None
        if x is not None and np.may_share_memory(x, out):
            apart = _start(out) - _start(x)
    return (key[0], key[3:], seen_x, seen_out, apart), x, out


def _start(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCall:
    """How a kind of call is repeated."""

    again: Again
    numpy: bool
    """Whether its arrays are NumPy's; a launch is told the places of others."""
    carry: Carries
    """What makes what a launch takes of the places of `x` and `out`."""
    repeat: Repeat
    """Repeat the call on `x` and `out`, and what `call_key` says of them."""

    def bind(self, x: Any, out: Any, source: Any, target: Any) -> KnownCall | None:
        """Return the call on these very arrays, for when they come again."""
        if self.numpy:
            return known_arrays(self.again, x, out)
        if self.carry is not None:
            source = self.carry[0](source)
            target = self.carry[1](target) if out is not None else None
        return known_places(self.again, x, out, source, target)


def layout_call_of(
    request: Request,
    launch: Launch,
    x: Any,
    out: Any,
    *,
    session: Session,
    broke: Broke,
) -> LayoutCall | None:
    """Return how to repeat a call on other arrays; None when it cannot be repeated."""
    result = request.out or request.idle
    if any(o is not None and o.staged for o in (*request.operands, request.idle)):
        return None
    numpy = all(a is None or type(a) is np.ndarray for a in (x, out))
    if request.idle is not None and not numpy:
        return None
    in_place = out is None and result is not None and result.given is x
    made = result if out is None and not in_place else None
    if made is not None and not numpy and type(made.given) is np.ndarray:
        return None  # scatter_v makes it of what the call says, and not like `x`
    again = Again(
        session=session,
        launch=launch,
        broke=broke,
        reads=request.x is not None,
        writes=request.out is not None,
        idle=request.idle is not None,
        in_place=in_place,
        make=None if made is None else _maker(made, numpy=numpy),
    )
    carry = None
    if not numpy and request.device == CPU:
        x_like = result if in_place else request.x
        carry = _viewer(x_like), _viewer(request.out)
    if in_place:
        repeat = _in_place(again, carry)
    elif again.make is not None and made is not None:
        repeat = _into_new(again, again.make, carry, kind=type(made.given))
    else:
        repeat = _into(again, carry)
    return LayoutCall(again=again, numpy=numpy, carry=carry, repeat=repeat)


def _maker(result: Operand, *, numpy: bool) -> Callable[[Any], Any]:
    """Return what makes a new output for `x`."""
    shape = result.shape
    if numpy:
        return functools.partial(_new_array, shape, result.given.dtype)
    return lambda x: x.new_empty(shape)


def _new_array(shape: tuple[int, ...], dtype: Any, x: Any) -> Any:
    return np.empty(shape, dtype)


def _viewer(operand: Operand | None) -> Carry:
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


def _in_place(again: Again, carry: Carries) -> Repeat:
    """Return a call whose output is `x`; some ranks have no input."""
    launch, reads, broke = again.launch, again.reads, again.broke
    carried = None if carry is None else carry[0]

    def repeat(x: Any, out: Any, source: Any, target: Any) -> Any:
        if carried is not None:
            source = carried(source)
        try:
            launch(source if reads else None, source)
        except BaseException as e:
            raise broke(e) from e.__cause__
        return x

    return repeat


def _into(again: Again, carry: Carries) -> Repeat:
    """Return a call that writes into another array; some ranks do not write."""
    launch, reads, writes = again.launch, again.reads, again.writes
    idle, broke = again.idle, again.broke

    def repeat(x: Any, out: Any, source: Any, target: Any) -> Any:
        if carry is not None:
            source, target = carry[0](source), carry[1](target)
        try:
            launch(source if reads else None, target if writes else None)
        except BaseException as e:
            raise broke(e) from e.__cause__
        if idle:
            clear(out)
        return out if writes or idle else None

    return repeat


def _into_new(
    again: Again, make: Callable[[Any], Any], carry: Carries, *, kind: type[Any]
) -> Repeat:
    """Return a call that makes its output, of such a type."""
    numpy = kind is np.ndarray
    launch, reads, idle, broke = again.launch, again.reads, again.idle, again.broke

    def repeat(x: Any, out: Any, source: Any, target: Any) -> Any:
        result = make(x)
        if type(result) is not kind:
            return MISS  # a mode of PyTorch's has made it, of no memory perhaps
        target = result if numpy else result.data_ptr()
        if carry is not None:
            source, target = carry[0](source), carry[1](target)
        try:
            launch(source if reads else None, None if idle else target)
        except BaseException as e:
            raise broke(e) from e.__cause__
        if idle:
            clear(result)
        return result

    return repeat
