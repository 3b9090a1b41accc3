"""The catalogue: shipped algorithms, one file each, found by scanning the folder.

Kernels that somebody registers (`stretto.kernel`) join it. STRETTO_KERNELS names Python
files that do so, for every process that asks: ranks and the command line alike.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import os
import re
from pathlib import Path

from stretto.errors import CallError, UnknownNameError
from stretto.program.lang import Algorithm, alone, ordered, registered
from stretto.registry import entries, modules

__all__ = ["among", "get", "names", "of"]

_ORDER = re.compile(r"\d{1,5}(-\d{1,5})*", re.ASCII)


@functools.cache
def _found() -> dict[str, Algorithm]:
    found: dict[str, Algorithm] = {}
    for name in modules(__name__):
        loaded = importlib.import_module(f"{__name__}.{name}")
        here = [x for x in vars(loaded).values() if isinstance(x, Algorithm)]
        assert here, f"{loaded.__name__} registers no algorithm"
        for one in here:
            assert one.name not in found, f"{loaded.__name__}: {one.name} is taken"
            found[one.name] = one
    for entry in entries("stretto.algorithms").values():
        one = entry.load()
        found.setdefault(one.name, one)
    for place in filter(None, os.environ.get("STRETTO_KERNELS", "").split(os.pathsep)):
        for one in _run(Path(place)):
            if found.setdefault(one.name, one) is not one:
                raise CallError(
                    f"STRETTO_KERNELS: {place}: the catalogue has {one.name!r}; want "
                    "another name"
                )
    return found


def _run(path: Path) -> list[Algorithm]:
    """Run a file for the kernels that it registers; return its other algorithms."""
    spec = importlib.util.spec_from_file_location(f"_kernels_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise CallError(f"STRETTO_KERNELS: {path}; want Python files that exist")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = [x for x in vars(module).values() if isinstance(x, Algorithm)]
    return [one for one in dict.fromkeys(found) if one.kernel is None]


def _all() -> dict[str, Algorithm]:
    shipped, own = _found(), registered()
    for name in own.keys() & shipped.keys():
        raise CallError(f"@kernel({name!r}): the catalogue has that name; want another")
    return {**own, **shipped}


def names() -> tuple[str, ...]:
    """Return the names of all algorithms, sorted."""
    return tuple(sorted(_all()))


def get(name: str) -> Algorithm:
    """Return the algorithm of that name; `NAME:2-0-1` is it with its ranks so."""
    found = _all()
    if not isinstance(name, str):
        raise UnknownNameError.among("algorithm", name, found)
    whole, _, order = name.rpartition(":")
    if name not in found and whole in found and _ORDER.fullmatch(order):
        return ordered(found[whole], tuple(map(int, order.split("-"))))
    if name not in found:
        collective, _, shape = name.partition("/")
        some = [n for n in found if n.startswith(f"{collective}/")]
        shapes = {n.partition("/")[2] for n in found}
        near = difflib.get_close_matches(shape or name, shapes, n=1)
        alike = [n for n in found if near and n.endswith(f"/{near[0]}")]
        meant = alike[0] if len(alike) == 1 else ""
        known = some or (alike if len(alike) > 1 else found)
        raise UnknownNameError.among("algorithm", name, known, meant=meant)
    return found[name]


def of(collective: str, num_ranks: int) -> tuple[Algorithm, ...]:
    """Return the algorithms of a collective that serve so many ranks, all of them."""
    return tuple(
        one
        for name, one in sorted(_all().items())
        if one.collective == collective
        and one.refuses(num_ranks) is None
        and not one.members
    )


def among(
    collective: str, num_ranks: int, members: tuple[int, ...]
) -> tuple[Algorithm, ...]:
    """Return those among these members of so many ranks, as of the members alone."""
    return tuple(
        alone(one, num_ranks)
        for name, one in sorted(_all().items())
        if one.collective == collective
        and one.members == members
        and one.refuses(num_ranks) is None
    )
