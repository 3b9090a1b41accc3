"""Models that are sharded over a mesh: which part a rank has, and another rank's place.

What FSDP2 and DTensors remember of this process's rank is written anew when it takes a
place. Parts must be of one size: a tensor that does not divide evenly is refused when
states are compared.
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
    for model in models:
        for module in model.modules():
            state = getattr(module, "_get_fsdp_state", None)
            groups = getattr(state(), "_fsdp_param_groups", ()) if state else ()
            for group in groups:
                infos = [group.mesh_info, group.post_forward_mesh_info]
                for one in group.fsdp_params:
                    infos += [one.mesh_info, one.post_forward_mesh_info]
                yield from (info for info in infos if info is not None)
