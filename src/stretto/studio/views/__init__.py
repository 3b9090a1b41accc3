"""Views of a studio: one file each, found by scanning; what each shows, as data.

A view's module has `TITLE`, `ORDER`, `offered(loaded)`, which says whether there is
anything to show, and `data(scene, args)`, which says what: plain values and arrays. The
page draws it with the file of the same name in `web/views`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any, Protocol

from stretto.errors import UnknownNameError
from stretto.studio.analysis.scene import Args, Scene
from stretto.studio.inputs.loading import Loaded

__all__ = ["View", "get", "names"]


class View(Protocol):
    """What a module of this folder offers."""

    TITLE: str
    ORDER: int

    def offered(self, loaded: Loaded) -> bool:
        """Return whether there is anything to show."""

    def data(self, scene: Scene, args: Args) -> dict[str, Any]:
        """Return what is shown."""


@functools.cache
def _found() -> dict[str, Any]:
    found = {
        m.name: importlib.import_module(f"{__name__}.{m.name}")
        for m in pkgutil.iter_modules(__path__)
    }
    return dict(sorted(found.items(), key=lambda item: item[1].ORDER))


def names() -> tuple[str, ...]:
    """Return the names of all views, as they stand on the page."""
    return tuple(_found())


def get(name: str) -> Any:
    """Return the module of one view."""
    found = _found()
    if name not in found:
        raise UnknownNameError.among("view", name, found)
    return found[name]
