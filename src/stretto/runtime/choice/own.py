"""The user's own profiles: what `stretto tune` measured, by executor and machine.

They lie in STRETTO_PROFILES, or in the user's cache. A folder may hold those of several
machines, as a home that many hosts mount does: each says what it was measured on, and
counts there alone. One that does not say it counts wherever there is no better.
"""

from __future__ import annotations

import os
import re
import warnings
from contextlib import AbstractContextManager
from pathlib import Path

from stretto import caches, topology
from stretto.errors import CallError, TopologyError
from stretto.runtime.choice.select import Profile

__all__ = ["TUNE", "folder", "knows", "one_tuner", "path_of", "texts", "wants_tuning"]

TUNE = "STRETTO_TUNE"
"""Says whether a machine that nobody has tuned is, by the first job on it."""
_WAIT_S = 120.0
QUICK, NEVER = "quick", "never"
MOST_CHARACTERS = 1 << 19
"""Of a profile: rank 0 hands it to all."""


def folder() -> Path:
    """Return where the user's profiles lie."""
    if named := os.environ.get("STRETTO_PROFILES"):
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "stretto" / "profiles"


def path_of(executor: str) -> Path:
    """Return where the profile of this machine lies, or would."""
    slug = re.sub(r"[^a-z0-9]+", "-", topology.here(executor).lower()).strip("-")
    return folder() / f"{'.'.join(filter(None, (executor, slug[:80])))}.toml"


def texts() -> dict[str, str]:
    """Return the texts of the profiles that count here, by executor.

    What cannot be read is named, and passed over.
    """
    found: dict[str, str] = {}
    said: dict[str, str] = {}
    for path in sorted(folder().glob("*.toml")):
        try:
            text = path.read_text(encoding="utf-8")
            profile = Profile.parse(text, str(path))
            if len(text) > MOST_CHARACTERS:
                raise TopologyError(
                    f"profile {path}: {len(text)} characters; want at most "
                    f"{MOST_CHARACTERS}"
                )
        except (OSError, UnicodeDecodeError, TopologyError) as e:
            why = str(e) if isinstance(e, TopologyError) else f"profile {path}: {e}"
            warnings.warn(f"{why}. It is passed over", RuntimeWarning, stacklevel=2)
            continue
        name, machine = profile.executor, profile.machine
        counts = not machine or machine == topology.here(name)
        if counts and (machine or not said.get(name)):
            found[name], said[name] = text, machine
    return found


def knows(text: str | None, num_ranks: int) -> bool:
    """Return whether a profile has rows for so many ranks."""
    rules = Profile.parse(text, "of one's own").rules if text else ()
    return any(rule.fewest <= num_ranks <= rule.most for rule in rules)


def one_tuner(wait_s: float = _WAIT_S) -> AbstractContextManager[bool]:
    """Be the only one that measures here; another is waited for, for a while.

    Groups of one job, and jobs, would else disturb one another's figures.
    """
    return caches.alone(folder() / ".tuner", wait_s, idles=True)


def wants_tuning(said: str, whose: str = TUNE) -> bool:
    """Return whether a value of the variable asks for it."""
    if said not in ("", QUICK, NEVER):
        raise CallError(f"{whose}={said!r:.40}; want {QUICK} or {NEVER}")
    return said == QUICK
