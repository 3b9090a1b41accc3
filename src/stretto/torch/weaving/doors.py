"""A found weave with tensors of the caller's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from stretto.compiler.weaves import FoundWeave
from stretto.errors import CallError
from stretto.torch.operators.library import resolve, text_of
from stretto.torch.weaving.loads import made
from stretto.torch.weaving.woven import Woven

__all__ = ["woven"]


def woven(path: str | Path, *, group: Any = None, **tensors: Tensor) -> Woven:
    """Return a call that is done as `stretto search fused -o PATH` found (collective).

    For gemm_all_gather and gemm_reduce_scatter, with `x` and `w`: what the returned
    object gives when it is called is `all_gather_matmul(x, w)` or
    `matmul_reduce_scatter(x, w)`, of what `x` and `w` hold then. Its result lies in
    memory of its own, until the next call.
    """
    found, comm = FoundWeave.read(path), resolve(text_of(group))
    if found.ranks != comm.num_ranks:
        raise CallError(
            f"{path} is for {found.ranks} ranks; the group has {comm.num_ranks}"
        )
    load = made(found.load, comm.rank, comm.num_ranks, found.tokens, found.width)
    load.use(**tensors)
    return Woven(comm, found.text, load)
