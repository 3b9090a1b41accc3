"""Things that are found by name: modules of a folder, and of others' entry points.

Names are listed without importing anything; what is asked for is imported then. A
wrong name is answered with the nearest ones. Texts that come with a package, such as
descriptions of machines, are found here, too.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from importlib import resources
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from stretto.errors import CallError, UnknownNameError

__all__ = ["Registry", "entries", "modules", "texts"]

K = TypeVar("K")
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


@functools.cache
def texts(package: str, folder: str, suffix: str = ".toml") -> dict[str, str]:
    """Return the files of a package's folder that end so, sorted, by their names."""
    found = (resources.files(package) / folder).iterdir()
    some = [file for file in found if file.name.endswith(suffix)]
    return {
        file.name.removesuffix(suffix): file.read_text(encoding="utf-8")
        for file in sorted(some, key=lambda file: file.name)
    }


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

    def offer(self, name: str, kind: type[K]) -> K:
        """Return what a module offers as OFFER, or an entry point: one of a kind.

        Where that is a class, one is made of it. A kind may be a protocol.
        """
        found = self._offered(name)
        if isinstance(found, type):
            found = found()
        if not isinstance(found, kind):
            raise self._wrong(name, found, f"a {kind.__name__}, or a class of such")
        return found

    def offered_class(self, name: str, kind: type[K]) -> type[K]:
        """Return a class that is offered so: to be made with arguments."""
        found = self._offered(name)
        if not (isinstance(found, type) and issubclass(found, kind)):
            raise self._wrong(name, found, f"a class of {kind.__name__}")
        return found

    def _offered(self, name: str) -> object:
        found: object = self.get(name)
        return getattr(found, "OFFER", found)

    def _wrong(self, name: str, found: object, want: str) -> CallError:
        of = f" of {self._group}" if self._group else ""
        return CallError(f"{self._kind} {name!r}{of} is {found!r:.100}; want {want}")
