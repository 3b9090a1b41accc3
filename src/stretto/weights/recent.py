"""What a source's rank keeps of changes: from which versions one gets to the newest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from stretto.errors import CallError
from stretto.transfer import Engine
from stretto.weights.changes import BlockMap, Found, packed
from stretto.weights.manifest import Manifest, region_name
from stretto.weights.version import Version

__all__ = ["Looking", "Recent"]

_MOST = 0.5
"""Of all bytes: what would take more is read whole."""
_MOST_KEPT = 8
_PAUSE = 7
"""Pushes after one that changed too much, in which nothing is looked for."""


class Looking:
    """A push whose changes are looked for, part by part, before it is written."""

    def __init__(self, manifest: Manifest, base: Version) -> None:
        self.blocks, self.base = BlockMap(manifest), base
        self.whole = int((self.blocks.sizes * self.blocks.items).sum())
        self.found: list[Any] = [None] * len(self.blocks.parts)
        self.nbytes = 0
        """What changes take, of the parts that were seen."""
        self.count = 0

    @property
    def is_too_much(self) -> bool:
        """Return whether to read it whole is better."""
        return self.nbytes > _MOST * self.whole

    def see(self, number: int, compare: Callable[[], Found]) -> None:
        """Compare a part; none any more when it is too much."""
        if not self.is_too_much:
            found = self.found[number] = compare()
            count = int(found[0].sum())
            self.nbytes += count * (2 + int(self.blocks.items[number]))
            self.count += count


class Recent:
    """See the module; `wanted` is what `publish(delta=...)` says."""

    def __init__(self, engine: Engine, name: str, *, wanted: bool | None) -> None:
        if wanted not in (None, True, False):
            raise CallError(
                f"delta={wanted!r}; want True, False, or None: where it pays"
            )
        self._engine, self._name, self.wanted = engine, name, wanted
        self._kept: deque[tuple[Version, Version, Any]] = deque()
        """From which version, to which one, and the region that peers read."""
        self._pause = 0
        self.said = ""
        """What became of it at the last push, for people."""

    def look(
        self, manifest: Manifest, base: Version | None, *, far: bool
    ) -> Looking | None:
        """Return what looks for changes since a version; None, and `said`: why not."""
        self._pause -= self._pause > 0
        why = (
            "delta=False" if self.wanted is False
            else "no replica is on another host" if not (far or self.wanted)
            else "there is no snapshot before it" if base is None
            else "too much changed lately" if self._pause
            else ""
        )  # fmt: skip
        found = None if why or base is None else Looking(manifest, base)
        if found is not None and not {1, 2, 4, 8}.issuperset(found.blocks.items):
            why, found = "elements of 16 bytes", None
        self.said = f"changes were not looked for: {why}" if why else ""
        return found

    def keep(self, looking: Looking, tag: str, version: Version) -> None:
        """Let peers read what has changed; forget what is old, or too much."""
        if looking.is_too_much:
            self._pause = _PAUSE + 1
            self.said = (
                f"not worth it here: over {_MOST:.0%} of all bytes would be sent; "
                f"it is looked at again in {_PAUSE + 1} pushes"
            )
            return
        made = packed(looking.blocks, looking.found)
        name = region_name(self._name, tag, f"changes/{version.counter}")
        region = self._engine.share(made, name, read_only=True)
        self._kept.append((looking.base, version, region))
        elements = int(looking.blocks.sizes.sum())
        self.said = (
            f"{looking.count / elements:.2%} of the elements changed since "
            f"{looking.base}: {len(made)} bytes of {looking.whole}"
        )
        most = _MOST * looking.whole
        while len(self._kept) > _MOST_KEPT or most < sum(
            kept.nbytes for _, _, kept in self._kept
        ):
            self._engine.unshare(self._kept.popleft()[2])

    def chain(self, base: Version, version: Version) -> list[int]:
        """Return the counters of changes that lead from one version to another."""
        found: list[int] = []
        for before, after, _ in list(self._kept):
            if before == base:
                found.append(after.counter)
                base = after
        return found if base == version else []

    def close(self) -> None:
        """Share nothing any more."""
        while self._kept:
            self._engine.unshare(self._kept.popleft()[2])
