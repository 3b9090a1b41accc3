"""The collectives as methods: what each takes, and what it gives back.

Every method is collective: all ranks call it, in the same order. Legend: n ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from stretto.calls.engine import Engine
from stretto.calls.hot import MISS
from stretto.choice.select import Pin
from stretto.collectives import Operator
from stretto.epilogues import Bound
from stretto.ir import freeze

__all__ = ["Verbs"]


class Verbs(Engine):
    """Collectives whose parts are equal.

    Common to all: `out` receives the result; `algorithm` is a catalogue name, with the
    words of a schedule after it when wanted; `stream` is a GPU stream; `dtype` says
    that raw 16-bit integers are bfloat16, or bytes a float8. With an `epilogue` the
    call returns what that makes of the result, computed in the same kernel.

    An algorithm of one's own may be among some ranks, its members: n then counts them.
    All ranks call. Who only passes data on gives an array like the others', which tells
    the size and stays as it is (in the `_v` forms an empty one), and gets None.
    """

    def all_reduce(
        self,
        x: Any,
        op: str | Operator = "sum",
        *,
        out: Any = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
        epilogue: Bound | None = None,
    ) -> Any:
        """Combine everybody's `x`, in `x` itself or in `out`."""
        key = ("all_reduce", id(x), id(out), op, algorithm, stream, dtype)
        try:
            hot = self._hot.get(key) if epilogue is None else None
        except TypeError:
            raise self._odd(key) from None
        if hot is not None and (done := hot(x, out)) is not MISS:
            return done
        if (done := self._alike(key, x, out, epilogue)) is not MISS:
            return done
        who = self._caller("all_reduce", dtype, algorithm)
        source = who.take(x, "x", written=out is None)
        request = who.request(
            "all_reduce",
            source,
            source if out is None else who.target(source, out, source.shape),
            counts=(source.count,),
            op=who.operator(op, source),
        )
        return self._run(request, algorithm, stream, (key, x, out), epilogue)

    def reduce(
        self,
        x: Any,
        op: str | Operator = "sum",
        *,
        root: int = 0,
        out: Any = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
    ) -> Any:
        """Combine everybody's `x` at the root, in `x` itself or in `out`.

        The root gets the result, the others None; their `x` stays as it is.
        """
        key = ("reduce", id(x), id(out), op, root, algorithm, stream, dtype)
        try:
            hot = self._hot.get(key)
        except TypeError:
            raise self._odd(key) from None
        if hot is not None and (done := hot(x, out)) is not MISS:
            return done
        if (done := self._alike(key, x, out)) is not MISS:
            return done
        who = self._caller("reduce", dtype, algorithm)
        params, here = who.root(root), root == self.rank
        source = who.take(x, "x", written=here and out is None)
        target = source if here else None
        if here and out is not None:
            target = who.target(source, out, source.shape)
        request = who.request(
            "reduce",
            source,
            target,
            counts=(source.count,),
            op=who.operator(op, source),
            params=params,
        )
        return self._run(request, algorithm, stream, (key, x, out))

    def broadcast(
        self,
        x: Any,
        *,
        root: int = 0,
        out: Any = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
    ) -> Any:
        """Give everybody the root's `x`, in `x` itself or in `out`.

        A rank other than the root that passes `out` may pass None as `x`.
        """
        key = ("broadcast", id(x), id(out), root, algorithm, stream, dtype)
        try:
            hot = self._hot.get(key)
        except TypeError:
            raise self._odd(key) from None
        if hot is not None and (done := hot(x, out)) is not MISS:
            return done
        if (done := self._alike(key, x, out)) is not MISS:
            return done
        who = self._caller("broadcast", dtype, algorithm)
        params, here = who.root(root), root == self.rank
        if here:
            source = who.take(x, "x", written=out is None)
            target = source
            if out is not None:
                target = who.target(source, out, source.shape)
        else:
            source = None
            name, given = ("x", x) if out is None else ("out", out)
            target = who.take(given, name, written=True)
        request = who.request(
            "broadcast", source, target, counts=(target.count,), params=params
        )
        return self._run(request, algorithm, stream, (key, x, out))

    def all_gather(
        self,
        x: Any,
        *,
        out: Any = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
        epilogue: Bound | None = None,
    ) -> Any:
        """Give everybody everybody's `x`: shape (n, *x.shape), in rank order.

        In place, `x` is `out[rank]`.
        """
        key = ("all_gather", id(x), id(out), algorithm, stream, dtype)
        try:
            hot = self._hot.get(key) if epilogue is None else None
        except TypeError:
            raise self._odd(key) from None
        if hot is not None and (done := hot(x, out)) is not MISS:
            return done
        if (done := self._alike(key, x, out, epilogue)) is not MISS:
            return done
        who = self._caller("all_gather", dtype, algorithm)
        source = who.take(x, "x")
        target = who.target(source, out, (who.num_members, *source.shape))
        counts = (source.count,) * who.num_members
        request = who.request("all_gather", source, target, counts=counts)
        return self._run(request, algorithm, stream, (key, x, out), epilogue)

    def gather(
        self,
        x: Any,
        *,
        root: int = 0,
        out: Any = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
    ) -> Any:
        """Give the root everybody's `x`: shape (n, *x.shape); the others None.

        `out` counts at the root only.
        """
        key = ("gather", id(x), id(out), root, algorithm, stream, dtype)
        try:
            hot = self._hot.get(key)
        except TypeError:
            raise self._odd(key) from None
        if hot is not None and (done := hot(x, out)) is not MISS:
            return done
        if (done := self._alike(key, x, out)) is not MISS:
            return done
        who = self._caller("gather", dtype, algorithm)
        params, source = who.root(root), who.take(x, "x")
        target = None
        if root == self.rank:
            target = who.target(source, out, (who.num_members, *source.shape))
        counts = (source.count,) * who.num_members
        request = who.request("gather", source, target, counts=counts, params=params)
        return self._run(request, algorithm, stream, (key, x, out))

    def reduce_scatter(
        self,
        x: Any,
        op: str | Operator = "sum",
        *,
        out: Any = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
        epilogue: Bound | None = None,
    ) -> Any:
        """Combine everybody's `x` and give every rank its part of the first axis.

        In place, `out` is the rank's own part of `x`.
        """
        key = ("reduce_scatter", id(x), id(out), op, algorithm, stream, dtype)
        try:
            hot = self._hot.get(key) if epilogue is None else None
        except TypeError:
            raise self._odd(key) from None
        if hot is not None and (done := hot(x, out)) is not MISS:
            return done
        if (done := self._alike(key, x, out, epilogue)) is not MISS:
            return done
        who = self._caller("reduce_scatter", dtype, algorithm)
        source = who.take(x, "x")
        part = who.divide(source)
        target = who.target(source, out, part)
        request = who.request(
            "reduce_scatter",
            source,
            target,
            counts=(math.prod(part),) * who.num_members,
            op=who.operator(op, source),
        )
        return self._run(request, algorithm, stream, (key, x, out), epilogue)

    def scatter(
        self,
        x: Any = None,
        *,
        root: int = 0,
        out: Any = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
    ) -> Any:
        """Give every rank its part of the first axis of the root's `x`.

        `x` counts at the root only; the others pass `out`, which tells the size.
        """
        key = ("scatter", id(x), id(out), root, algorithm, stream, dtype)
        try:
            hot = self._hot.get(key)
        except TypeError:
            raise self._odd(key) from None
        if hot is not None and (done := hot(x, out)) is not MISS:
            return done
        if (done := self._alike(key, x, out)) is not MISS:
            return done
        who = self._caller("scatter", dtype, algorithm)
        params = who.root(root)
        source = None
        if root == self.rank:
            source = who.take(x, "x")
            target = who.target(source, out, who.divide(source))
        else:
            target = who.take(out, "out", written=True)
        request = who.request(
            "scatter",
            source,
            target,
            counts=(target.count,) * who.num_members,
            params=params,
        )
        return self._run(request, algorithm, stream, (key, x, out))

    def all_to_all(
        self,
        x: Any,
        *,
        split: int = 0,
        concat: int = 0,
        out: Any = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
    ) -> Any:
        """Give every rank its part of everybody's `x`, along axis `split`.

        Parts are joined along axis `concat`, in rank order. By default both are the
        first, and the result has the shape of `x`; in place, `out` is then `x`.
        """
        key = ("all_to_all", id(x), id(out), algorithm, stream, dtype, split, concat)
        try:
            hot = self._hot.get(key)
        except TypeError:
            raise self._odd(key) from None
        if hot is not None and (done := hot(x, out)) is not MISS:
            return done
        if (done := self._alike(key, x, out)) is not MISS:
            return done
        who = self._caller("all_to_all", dtype, algorithm)
        source = who.take(x, "x")
        if not split and not concat:
            who.divide(source)
        shape, rows = who.exchanged(source, split, concat)
        target = who.target(source, out, shape)
        n = who.num_members
        counts = (target.count // n,) * n**2
        request = who.request("all_to_all", source, target, counts=counts)
        if any(rows) and who.members:
            raise who.wrong(
                f"axes that move, by an algorithm among {who.members}; want split=0 "
                f"and concat=0"
            )
        if any(rows) and request.in_place:
            raise who.wrong(
                "out overlaps x, with axes that move; want memory of its own"
            )
        request = replace(request, rows=rows if source.count else (0, 0))
        return self._run(request, algorithm, stream, (key, x, out))

    def permute(
        self,
        x: Any,
        pairs: Iterable[tuple[int, int]],
        *,
        out: Any = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
    ) -> Any:
        """Move `x` from source to target for every pair (source, target).

        Ranks that nobody targets get zeros. All ranks pass arrays of the same shape.
        """
        key = ("permute", id(x), id(out), pairs, algorithm, stream, dtype)
        hashable = type(pairs) is tuple and all(type(p) is tuple for p in pairs)
        try:
            hot = self._hot.get(key) if hashable else None
        except TypeError:
            raise self._odd(key) from None
        if hot is not None and (done := hot(x, out)) is not MISS:
            return done
        if hashable and (done := self._alike(key, x, out)) is not MISS:
            return done
        who = self._caller("permute", dtype)
        given = who.read("pairs", pairs)
        moves = tuple((who.peer(a, "source"), who.peer(b, "target")) for a, b in given)
        for side, ranks in enumerate(zip(*moves, strict=True)):
            if len(set(ranks)) < len(ranks):
                role = ("source", "target")[side]
                raise who.wrong(f"pairs={moves}: a rank is a {role} more than once")
        source = who.take(x, "x", written=out is x and out is not None)
        target = who.target(source, out, source.shape)
        targeted = any(b == self.rank for _, b in moves)
        request = who.request(
            "permute",
            source if any(a == self.rank for a, _ in moves) else None,
            target if targeted else None,
            counts=(source.count,) * self.num_ranks,
            params=freeze({"pairs": moves}),
            idle=None if targeted else target,
        )
        seen = (key, x, out) if hashable else None
        return self._run(request, algorithm, stream, seen)

    def barrier(self, *, stream: Any = None) -> None:
        """Return when everybody has come."""
        key = ("barrier", stream)
        try:
            hot = self._hot.get(key)
        except TypeError:
            raise self._odd(key) from None
        if hot is not None:
            hot(None, None)
            return
        who = self._caller("barrier", None)
        request = who.request("barrier", None, None, counts=())
        self._run(request, None, stream, (key, None, None))
