"""Models that are sharded over a mesh: which part a rank has, and another rank's place.

What FSDP2 and DTensors remember of this process's rank is written anew when it takes a
place. Where a tensor does not divide evenly, its part may be of another size there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any


def part_of(models: Iterable[Any]) -> str:
    """Return which part of sharded models this rank has; nothing: it has all of them.

    Ranks of one part are replicas of each other.
    """
    found: list[Any] = []
    for tensor in _tensors(models):
        mesh = getattr(tensor, "device_mesh", None)
        if mesh is None:
            continue
        held = zip(tensor.placements, mesh.get_coordinate(), strict=True)
        found.append([at for one, at in held if not one.is_replicate()])
    parts = sorted({json.dumps(one) for one in found if one})
    return " ".join(parts)


def seat(models: Iterable[Any], rank: int) -> None:
    """Have sharded models take this process for a rank of the world."""
    for mesh in _meshes(models):
        mesh._rank = rank
        mesh._coordinate_on_dim = mesh._compute_coordinate_on_dim()
    for info in _mesh_infos(models):
        for kind in ("shard", "replicate"):
            group = getattr(info, f"{kind}_process_group", None)
            if group is not None:
                setattr(info, f"{kind}_mesh_rank", group.rank())
    for one in _sharded(models):
        _resize(one)


def _resize(one: Any) -> None:
    """Have a parameter's part as long as that of the rank; there is room for any.

    As FSDP2 has them: all are of one length, but for the last, which may be empty.
    """
    rank = getattr(one.mesh_info, "shard_mesh_rank", 0)
    room = one._sharded_param_data.view(one.padded_sharded_param_size)
    dim, whole = one.fsdp_placement.dim, one._orig_size
    length = max(0, min(room.size(dim), whole[dim] - rank * room.size(dim)))
    if length != one.sharded_size[dim]:
        part = room.narrow(dim, 0, length)
        one.sharded_size, one.contiguous_sharded_stride = part.size(), part.stride()
        one.sharded_param._local_tensor = part.detach()


def _tensors(models: Iterable[Any]) -> Iterator[Any]:
    for one in models:
        yield from one.parameters()


def _meshes(models: Iterable[Any]) -> list[Any]:
    """Return every mesh that a model refers to, and those that they are slices of."""
    found = {}
    for tensor in _tensors(models):
        mesh = getattr(tensor, "device_mesh", None)
        if mesh is not None:
            found[id(mesh)] = mesh
    for info in _mesh_infos(models):
        found[id(info.mesh)] = info.mesh
    for mesh in list(found.values()):
        root = getattr(mesh, "_root_mesh", None)
        if root is not None:
            found[id(root)] = root
    return list(found.values())


def _mesh_infos(models: Iterable[Any]) -> Iterator[Any]:
    """Yield what FSDP2 knows of its meshes."""
    for one in (*_groups(models), *_sharded(models)):
        infos = one.mesh_info, one.post_forward_mesh_info
        yield from (info for info in infos if info is not None)


def _sharded(models: Iterable[Any]) -> Iterator[Any]:
    """Yield what FSDP2 knows of each parameter."""
    for group in _groups(models):
        yield from group.fsdp_params


def _groups(models: Iterable[Any]) -> Iterator[Any]:
    for model in models:
        for module in model.modules():
            state = getattr(module, "_get_fsdp_state", None)
            yield from getattr(state(), "_fsdp_param_groups", ()) if state else ()
