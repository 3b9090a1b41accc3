"""Collectives for arrays of JAX on CPUs: as they are, in `jit`, and with gradients.

    comm = stretto.connect()
    y = jax.jit(lambda x: stretto.jax.all_reduce(x * 2, comm))(x)

In a compiled program each is a callback, in the order in which they are written: all
ranks run the same program. What is outside waits for those before it: the two may mix.

The gradient of a collective is that of the sum of what all ranks return, and a
collective itself: all ranks take it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, MissingExtraError
from stretto.runtime.calls import Communicator

try:
    import jax
    from jax.experimental import io_callback
except ImportError as e:
    raise MissingExtraError("stretto.jax needs JAX: pip install jax") from e

__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "permute",
           "reduce_scatter"]  # fmt: skip

Shape = tuple[int, ...]
Array = NDArray[Any]


def all_reduce(x: jax.Array, comm: Communicator, op: str = "sum") -> jax.Array:
    """Return everybody's `x`, combined."""

    def back(of_result: jax.Array) -> jax.Array:
        if op not in ("sum", "avg"):
            raise CallError(
                f"jax.all_reduce of {op!r} has no gradient; want 'sum' or 'avg', or "
                "jax.lax.stop_gradient around it"
            )
        return all_reduce(of_result, comm, op)

    def run(given: Array) -> Any:
        return comm.all_reduce(given, op, out=np.empty_like(given))

    return _called("all_reduce", x, run, lambda shape: shape, back)


def all_gather(x: jax.Array, comm: Communicator) -> jax.Array:
    """Return everybody's `x`, one behind the other: shape (n, *x.shape)."""
    n = comm.num_ranks

    def back(of_result: jax.Array) -> jax.Array:
        return reduce_scatter(of_result, comm).reshape(of_result.shape[1:])

    return _called("all_gather", x, comm.all_gather, lambda shape: (n, *shape), back)


def reduce_scatter(x: jax.Array, comm: Communicator, op: str = "sum") -> jax.Array:
    """Return this rank's part of the first axis of everybody's `x`, combined."""
    n = comm.num_ranks

    def back(of_result: jax.Array) -> jax.Array:
        if op not in ("sum", "avg"):
            raise CallError(
                f"jax.reduce_scatter of {op!r} has no gradient; want 'sum' or 'avg'"
            )
        every = all_gather(of_result, comm)
        every = every.reshape((-1, *of_result.shape[1:]))
        return every / n if op == "avg" else every

    def part(shape: Shape) -> Shape:
        _require_parts("reduce_scatter", shape, n)
        return (shape[0] // n, *shape[1:])

    def run(given: Array) -> Any:
        return comm.reduce_scatter(given, op)

    return _called("reduce_scatter", x, run, part, back)


def all_to_all(x: jax.Array, comm: Communicator) -> jax.Array:
    """Return this rank's parts of the first axis of everybody's `x`, in rank order."""

    def whole(shape: Shape) -> Shape:
        _require_parts("all_to_all", shape, comm.num_ranks)
        return shape

    def back(of_result: jax.Array) -> jax.Array:
        return all_to_all(of_result, comm)

    return _called("all_to_all", x, comm.all_to_all, whole, back)


def broadcast(x: jax.Array, comm: Communicator, root: int = 0) -> jax.Array:
    """Return the root's `x`; all pass arrays of its shape."""

    def run(given: Array) -> Any:
        return comm.broadcast(given, root=root, out=np.empty_like(given))

    def back(of_result: jax.Array) -> jax.Array:
        total = all_reduce(of_result, comm)
        return total if comm.rank == root else jax.numpy.zeros_like(total)

    return _called("broadcast", x, run, lambda shape: shape, back)


def permute(
    x: jax.Array, comm: Communicator, pairs: Iterable[tuple[int, int]]
) -> jax.Array:
    """Return the `x` of who has this rank as target in (source, target), or zeros."""
    known = [(int(source), int(target)) for source, target in pairs]

    def run(given: Array) -> Any:
        return comm.permute(given, known, out=np.empty_like(given))

    def back(of_result: jax.Array) -> jax.Array:
        return permute(of_result, comm, [(target, source) for source, target in known])

    return _called("permute", x, run, lambda shape: shape, back)


def _called(
    what: str, x: jax.Array, run: Callable[[Array], Any],
    shape_of: Callable[[Shape], Shape], back: Callable[[jax.Array], jax.Array],
) -> jax.Array:  # fmt: skip
    """Call it now, or write it into the program that is traced."""
    if not isinstance(x, jax.Array):
        raise CallError(
            f"jax.{what}: x is {type(x).__name__}; want an array of JAX (those of "
            f"NumPy have comm.{what})"
        )
    shape = shape_of(x.shape)
    if not isinstance(x, jax.core.Tracer):
        _require_cpu(what, x)
        jax.effects_barrier()  # what was written before is called before
        return jax.numpy.asarray(run(np.asarray(x)))
    result = jax.ShapeDtypeStruct(shape, x.dtype)

    def callback(given: jax.Array) -> Any:
        return io_callback(lambda a: run(np.asarray(a)), result, given, ordered=True)

    def refuse(size: int, *_: Any) -> Any:
        raise CallError(
            f"jax.{what} in vmap: {size} calls of a row each; want one call of all "
            "rows, outside of vmap"
        )

    plain = jax.custom_batching.custom_vmap(callback)
    plain.def_vmap(refuse)
    called = jax.custom_vjp(plain)
    called.defvjp(
        lambda given: (plain(given), None), lambda _, of_result: (back(of_result),)
    )
    found: jax.Array = called(x)
    return found


def _require_parts(what: str, shape: Shape, n: int) -> None:
    if not shape or shape[0] % n:
        raise CallError(
            f"jax.{what}: x of shape {shape}; want a first axis of a multiple of {n}, "
            "a part for each rank"
        )


def _require_cpu(what: str, x: jax.Array) -> None:
    where = {device.platform for device in x.devices()}
    if where != {"cpu"} or len(x.devices()) != 1:
        raise CallError(
            f"jax.{what}: x is on {sorted(map(str, x.devices()))}; want an array on "
            "one CPU device"
        )
