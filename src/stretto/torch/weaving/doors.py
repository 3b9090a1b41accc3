"""A found weave with tensors of the caller's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from stretto.compiler.weaves import FoundWeave
from stretto.errors import CallError
from stretto.runtime.calls import Communicator
from stretto.torch.operators.library import resolve, text_of
from stretto.torch.weaving.loads import WovenLoad, load_of
from stretto.torch.weaving.woven import Woven

__all__ = ["woven"]

_ALIKE = ("weave", "type and device", "rows of x", "columns of x", "columns of w")


def woven(path: str | Path, *, group: Any = None, **tensors: Tensor) -> Woven:
    """Return a call that is done as `stretto search fused -o PATH` found (collective).

    For gemm_all_gather and gemm_reduce_scatter, with `x` and `w`: what the returned
    object gives when it is called is `all_gather_matmul(x, w)` or
    `matmul_reduce_scatter(x, w)`, of what `x` and `w` hold then, without gradients. Its
    result lies in memory of its own, until the next call; drop the object when its
    calls have ended. Graphs of your own that hold a call are replayed on the stream of
    the other calls.
    """
    found, comm = FoundWeave.read(path), resolve(text_of(group))
    if found.ranks != comm.num_ranks:
        raise CallError(
            f"{path} is for {found.ranks} ranks; the group has {comm.num_ranks}"
        )
    load = load_of(found.load, comm.rank, comm.num_ranks, found.tokens, found.width)
    wrong: CallError | None = None
    try:
        load.use(**tensors)
    except CallError as e:
        wrong = e
    _agree(comm, load, found.text, tensors, wrong)
    return Woven(comm, found.text, load)


def _agree(
    comm: Communicator,
    load: WovenLoad,
    text: str,
    tensors: dict[str, Tensor],
    wrong: CallError | None,
) -> None:
    """Raise on all ranks where one cannot, or has other sizes than the others."""
    mine = [1, *(0 for _ in _ALIKE)]
    if wrong is None:
        x, w = tensors["x"], tensors["w"]
        columns = w.shape[1] if load.shape.goes else 0  # else they may differ
        words = text, f"{x.dtype} {x.device.type}"
        mine = [0, *map(_number, words), x.shape[0], x.shape[1], columns]
    every = comm.all_gather(np.array(mine, np.int64)).reshape(comm.num_ranks, -1)
    if wrong is not None:
        raise wrong
    for rank, theirs in enumerate(every):
        if theirs[0]:
            raise CallError(
                f"rank {rank} has tensors that cannot be woven; it says why"
            )
        for what, other, own in zip(_ALIKE, theirs[1:], mine[1:], strict=True):
            if other != own:
                raise CallError(
                    f"ranks {comm.rank} and {rank} differ: {what}; want the same"
                )


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
