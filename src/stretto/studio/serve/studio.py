"""A studio: what was given, loaded aside; its views as bytes, computed once each."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from stretto._version import __version__
from stretto.errors import CallError, StrettoError, UnknownNameError
from stretto.studio import views
from stretto.studio.analysis.scene import Args, Scene
from stretto.studio.ask import EXAMPLES, Translator, answer, understood
from stretto.studio.ask.answers import packed
from stretto.studio.inputs.given import NamedInputs
from stretto.studio.inputs.loading import LoadedInputs, load, stamp
from stretto.studio.serve.pack import pack

_MOST_CACHED = 64
_FIRST = ("overview",)
"""Views that are computed as soon as a recording is there: who looks must not wait."""


class Studio:
    """What a page may ask for. Any thread may ask; each view is computed once."""

    def __init__(
        self, given: NamedInputs, *, translator: Translator | None = None
    ) -> None:
        self.given = given
        self._translator = translator
        self._changed = threading.Condition()
        self._scene: Scene | None = None
        self._failed = ""
        self._revision = 0
        self._cache: dict[tuple[int, str, tuple[tuple[str, str], ...]], bytes] = {}
        self._stamp: object = None

    @property
    def revision(self) -> int:
        """Return how often what is shown has changed."""
        return self._revision

    def refresh(self) -> bool:
        """Load again if a file has changed; return whether anything is new."""
        now = stamp(self.given)
        if self._revision and now == self._stamp:
            return False
        self._stamp = now
        failed, scene = "", None
        try:
            scene = Scene(load(self.given), self._revision + 1)
            for name in _FIRST:
                if views.get(name).offered(scene.loaded):
                    self._view(scene, name, {})
        except (StrettoError, OSError) as e:
            failed = str(e)
        except MemoryError:
            failed = "the recording does not fit in this machine's memory"
        except Exception as e:  # else the page would wait for ever
            said = " ".join(str(e).split())[:200]
            given = (*self.given.recordings, *self.given.reports, *self.given.searches)
            names = ", ".join(path.name for path in given)
            failed = f"{names}: cannot be shown: {type(e).__name__}: {said}"
        with self._changed:
            self._failed = failed
            if scene is not None:  # what was shown before stays, should a file be bad
                self._scene = scene
            self._revision += 1
            self._changed.notify_all()
        return True

    def warm(self) -> None:
        """Compute every view that nobody has asked for yet; what fails is said then."""
        scene = self._scene
        if scene is None:
            return
        for one in _offered(scene.loaded):
            with contextlib.suppress(Exception):  # who asks for it is told
                self._view(scene, one["name"], {})

    def wait(self, revision: int, seconds: float) -> int:
        """Return the revision when it is another, or when the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._revision != revision, seconds)
            return self._revision

    def index(self) -> dict[str, Any]:
        """Return what there is to see."""
        scene = self._scene
        return {
            "version": __version__,
            "revision": self._revision,
            "state": "failed" if self._failed else "ready" if scene else "loading",
            "failed": self._failed,
            "files": [path.name for path in self.given.recordings],
            "views": _offered(scene.loaded) if scene else [],
            "examples": list(EXAMPLES),
            "asks": scene is not None and scene.loaded.recording is not None,
            "notes": list(scene.loaded.notes) if scene else [],
        }

    def view(self, name: str, args: Args) -> bytes:
        """Return the data of a view, packed."""
        return self._view(self._ready(), name, args)

    def ask(self, text: str) -> dict[str, Any]:
        """Return the answer to a question."""
        question = understood(text, self._translator)
        scene = self._ready()
        with scene.lock:
            return packed(answer(scene, question))

    def _ready(self) -> Scene:
        if self._scene is None:
            raise CallError(self._failed or "still loading")
        return self._scene

    def _view(self, scene: Scene, name: str, args: Args) -> bytes:
        view = views.get(name)
        if not view.offered(scene.loaded):
            raise UnknownNameError.among(
                "view", name, [one["name"] for one in _offered(scene.loaded)]
            )
        key = (scene.revision, name, tuple(sorted(args.items())))
        if (done := self._cache.get(key)) is not None:
            return done  # also while another view is being computed
        with scene.lock:
            if key not in self._cache:
                raw = pack(view.data(scene, args))
                kept = {k: v for k, v in self._cache.items() if k[0] >= key[0]}
                while len(kept) >= _MOST_CACHED:
                    kept.pop(next(iter(kept)))
                self._cache = {**kept, key: raw}
            return self._cache[key]


def _offered(loaded: LoadedInputs) -> list[dict[str, str]]:
    return [
        {"name": name, "title": views.get(name).TITLE}
        for name in views.names()
        if views.get(name).offered(loaded)
    ]


def follow(studio: Studio, stop: threading.Event, every_s: float = 1.0) -> None:
    """Load again whenever files change, until told to stop; rest as long as it took."""
    while True:
        began = time.monotonic()
        if studio.refresh() and studio.revision == 1:
            studio.warm()
        took = time.monotonic() - began
        if stop.wait(max(every_s, 2 * took)):
            return
