"""New weights between two decode steps: whole on all ranks of a replica, or on none.

In: tensors of a trainer's ranks, by name, however they are cut. Out: the same elements
in a replica's tensors, one version in each step. Never: a step that reads two versions,
or a version that is not what was pushed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stretto.weights.casts import Float8
from stretto.weights.names import Cat, Part, Stack
from stretto.weights.version import Version

if TYPE_CHECKING:
    from stretto.transfer import Engine
    from stretto.weights.casts import Cast
    from stretto.weights.names import Names
    from stretto.weights.policy import Policy
    from stretto.weights.source import Source

__all__ = ["Cat", "Float8", "Part", "Stack", "Version", "publish", "subscribe"]


def publish(
    engine: Engine, name: str, tensors: Any, *, rank: int = 0, num_ranks: int = 1,
    epoch: str = "", layouts: Mapping[str, Any] | None = None, cast: Cast = None,
    patience: float = 5.0, fan: int = 0, delta: bool | None = None,
) -> Source:  # fmt: skip
    """Return the source of weights of a name: each trainer rank calls it.

    `tensors` is a module (plain, DDP, FSDP2), or a mapping from names to tensors,
    DTensors and shards; `layouts` says of plain tensors which part of a whole they are.
    `cast` makes elements of another type first: "bfloat16", a `Float8` with scales, or
    a mapping from patterns of names to these. Versions are of an `epoch`, by default
    made by rank 0. Who reads a version when the next is pushed has `patience` seconds.
    At most `fan` replicas read here at once, if that is not 0: the others wait, or read
    from those that have it. Replicas on other hosts read only the elements that have
    changed, where few have; `delta` says True, for all of them, or False.
    """
    from stretto.weights.source import Source

    return Source(
        engine, name, tensors, rank=rank, num_ranks=num_ranks, epoch=epoch,
        layouts=layouts or {}, cast=cast, patience=patience, fan=fan, delta=delta,
    )  # fmt: skip


def subscribe(
    engine: Engine, name: str, *, into: Any, names: Names = None, replica: str = "",
    rank: int = 0, num_ranks: int = 1, copies: int = 2, memory: int | None = None,
    layouts: Mapping[str, Any] | None = None, start: Version | None = None,
    patience: float = 5.0, deadline: float = 60.0, **how: Any,
) -> Policy:  # fmt: skip
    """Return what keeps tensors at the newest version of a source: on each rank.

    `into` are tensors of this rank, or a module. `names` maps their names to the
    source's: a way that is known, such as "vllm/llama" with what it needs (`rank`,
    `of`, `kv_heads`), a mapping, or a function. Ranks of one `replica` switch together.
    With `copies=2` the next version comes while steps read this one, which takes
    memory for a second copy; with 1 steps pause. `start` is the version that `into`
    holds already.
    """
    from stretto.weights.policy import Policy

    if isinstance(names, str) and num_ranks > 1:
        how = {"rank": rank, "of": num_ranks, **how}
    return Policy(
        engine, name, into, names=names, how=how, layouts=layouts,
        replica=replica or engine.name, rank=rank, num_ranks=num_ranks, copies=copies,
        memory=memory, start=start, patience=patience, deadline=deadline,
    )  # fmt: skip
