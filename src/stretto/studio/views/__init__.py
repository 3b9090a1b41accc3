"""Views of a studio: one file each, found by scanning; what each shows, as data.

A view's module has `TITLE`, `ORDER`, `offered(loaded)`, which says whether there is
anything to show, and `data(scene, args)`, which says what: plain values and arrays. The
page draws it with the file of the same name in `web/views`.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

from stretto.registry import Registry
from stretto.studio.analysis.scene import Args, Scene
from stretto.studio.inputs.loading import LoadedInputs

__all__ = ["ViewModule", "get", "names"]


class ViewModule(Protocol):
    """What a module of this folder offers."""

    TITLE: str
    ORDER: int

    def offered(self, loaded: LoadedInputs) -> bool:
        """Return whether there is anything to show."""

    def data(self, scene: Scene, args: Args) -> dict[str, Any]:
        """Return what is shown."""


_views: Registry[ViewModule] = Registry("view", __name__)


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all views, as they stand on the page."""
    return tuple(sorted(_views.names(), key=lambda name: get(name).ORDER))


def get(name: str) -> ViewModule:
    """Return one view."""
    return _views.get(name)
