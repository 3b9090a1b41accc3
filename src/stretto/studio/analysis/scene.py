"""All that views draw from: what was loaded, indexed once, aggregated once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from threading import RLock

from stretto.errors import CallError
from stretto.studio.analysis.flows import Plans
from stretto.studio.analysis.index import Index
from stretto.studio.analysis.link_use import LinkUse, PairTraffic, link_use, traffic
from stretto.studio.inputs.loading import LoadedInputs
from stretto.trace import MARKS

Args = Mapping[str, str]
"""What a page asks of a view, as it stands in an address."""
RECORD_STEPS = "Record them with `stretto trace --steps -- COMMAND`."
NO_CALLS = (
    "No calls were recorded: nothing that ran under `stretto trace -- COMMAND` called "
    "a collective of stretto."
)


class Scene:
    """What is shown, at one revision; a live recording that grows is another scene."""

    def __init__(self, loaded: LoadedInputs, revision: int = 1) -> None:
        self.loaded = loaded
        self.revision = revision
        self.lock = RLock()
        """Held while a view is computed: no part is computed by two at once."""

    @cached_property
    def index(self) -> Index:
        """Return the first recording's index."""
        if self.loaded.recording is None:
            raise CallError("no recording was given; name one: stretto studio FILE")
        return Index(self.loaded.recording.without(MARKS))

    @cached_property
    def other(self) -> Index:
        """Return the second recording's index."""
        if self.loaded.other is None:
            raise CallError("one recording was given; name two to compare them")
        return Index(self.loaded.other.without(MARKS))

    @cached_property
    def plans(self) -> Plans:
        """Return the plans of the recording, made again on demand."""
        return Plans(self.loaded.program)

    @cached_property
    def traffic(self) -> PairTraffic:
        """Return what ranks sent one another."""
        return traffic(self.index, self.plans)

    @cached_property
    def links(self) -> LinkUse:
        """Return what links carried."""
        return link_use(self.index, self.traffic, self.loaded.machine)


def number(args: Args, name: str, default: int, *, low: int = 0, most: int) -> int:
    """Return a whole number that a page asks with."""
    text = args.get(name, "")
    if not text:
        return min(max(default, low), max(most, low))
    plain = text.isascii() and text.isdigit() and len(text) < 19
    if not plain or not low <= int(text) <= most:
        raise CallError(f"{name}={text[:40]!r}; want a number from {low} to {most}")
    return int(text)
