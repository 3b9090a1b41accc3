"""Things that are found by name: modules of a folder, and of others' entry points.

Names are listed without importing anything; what is asked for is imported then. A
wrong name is answered with the nearest ones.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from stretto.errors import UnknownNameError

__all__ = ["Registry", "entries", "modules"]

T = TypeVar("T")


def modules(package: str, *, folders: bool = False) -> tuple[str, ...]:
    """Return the names of a package's modules, sorted, but those that begin with `_`.

    Of `folders`, only packages: beside them lies what they share.
    """
    path = importlib.import_module(package).__path__
    found = (m for m in pkgutil.iter_modules(path) if m.ispkg or not folders)
    return tuple(sorted(m.name for m in found if not m.name.startswith("_")))


def entries(group: str) -> dict[str, EntryPoint]:
    """Return what installed packages offer to a group of ours, by name."""
    return {entry.name: entry for entry in entry_points(group=group)}


class Registry(Generic[T]):
    """What modules of a package offer, one each, as `T` says: usually a protocol."""

    def __init__(
        self, kind: str, package: str, *, group: str = "", folders: bool = False,
        listed: Callable[[tuple[str, ...]], tuple[str, ...]] = lambda names: names,
    ) -> None:  # fmt: skip
        """Find modules of `package`, and entry points of a `group`.

        `kind` says what they are; `listed`, with which names a wrong one is answered.
        """
        self._kind, self._package, self._group = kind, package, group
        self._folders, self._listed = folders, listed

    @functools.cached_property
    def _own(self) -> dict[str, str]:
        """Return modules by their names, as users spell them."""
        found = modules(self._package, folders=self._folders)
        return {name.replace("_", "-"): name for name in found}

    @functools.cached_property
    def _others(self) -> dict[str, EntryPoint]:
        found = entries(self._group) if self._group else {}
        return {name: entry for name, entry in found.items() if name not in self._own}

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        return tuple(sorted({*self._own, *self._others}))

    def get(self, name: str) -> T:
        """Return what has that name."""
        if isinstance(name, str) and name in self._own:
            module = importlib.import_module(f"{self._package}.{self._own[name]}")
            return cast("T", module)
        if isinstance(name, str) and name in self._others:
            return cast("T", self._others[name].load())
        raise UnknownNameError.among(self._kind, name, self._listed(self.names()))
