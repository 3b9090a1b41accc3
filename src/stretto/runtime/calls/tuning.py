"""STRETTO_TUNE=quick: a machine that nobody has tuned is, by the first job on it.

Rank 0 has `stretto tune --quick` run beside the job, whose ranks wait for it; what that
writes is this machine's from then on, and no later job waits. Rank 0's word counts.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import replace

from stretto import topology
from stretto.executors import Group, hosts_of
from stretto.runtime.calls.logs import logger
from stretto.runtime.choice import own
from stretto.runtime.choice.measured import Measured, agree
from stretto.runtime.choice.select import Profile

__all__ = ["say_where_measured", "tuned_first"]

_WORDS = ("tune", "--quick", "--if-unknown")
_LIMIT_S, _LOOK_S = 90.0, 0.5
_NOT_FOR_IT = ("STRETTO_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")
_FOR_IT = ("STRETTO_PROFILES", "STRETTO_CACHE_DIR", "STRETTO_CUDA_", "STRETTO_KERNELS")
_said: set[str] = set()


def tuned_first(group: Group, executor: str, profiles: Measured) -> Measured:
    """Return what was measured here, once it has been (collective).

    Nothing is done where rank 0 does not want it, or has a profile for so many ranks.
    """
    if not profiles.tune or group.num_ranks == 1 or len(set(hosts_of(group))) > 1:
        return profiles
    text = profiles.texts.get(executor)
    asks = group.rank == 0 and not own.knows(text, group.num_ranks)
    if not _any(group, asks):
        return profiles
    running = None
    if asks and not own.knows(own.texts().get(executor), group.num_ranks):
        try:
            running = _Quick(executor, group.num_ranks)
        except OSError as e:  # the job goes on as it would have
            logger().warning("stretto tune: %s", e)
    while _any(group, running is not None and running.goes_on()):
        time.sleep(_LOOK_S)  # exchanges have the group's deadline, each of its own
    if running is not None:
        running.say()
    fresh = agree(group)
    return replace(profiles, texts=fresh.texts, lacking=fresh.lacking)


def say_where_measured(executor: str, profile: Profile | None, shipped: Profile) -> str:
    """Return, once a process, that what is shipped was measured elsewhere; or ""."""
    here = topology.here(executor) if shipped.machine and profile is None else ""
    if not here or here in shipped.machine.split(" or ") or executor in _said:
        return ""
    _said.add(executor)
    return (
        f"the profile that is shipped was measured on {shipped.machine}, and this is "
        f"{here}: `stretto tune --quick --device {executor}` measures here, in 20 s"
    )


def _any(group: Group, mine: bool) -> bool:
    return any(bool(m["tuning"]) for m, _ in group.exchange({"tuning": mine}))


class _Quick:
    """`stretto tune --quick`, as a process beside this one."""

    def __init__(self, executor: str, num_ranks: int) -> None:
        import subprocess  # only who tunes needs it

        words = [*_WORDS, "--device", executor, "--ranks", str(num_ranks)]
        kept = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_FOR_IT) or not name.startswith(_NOT_FOR_IT)
        }
        self._what = f"stretto {' '.join(words)}"
        logger().info("%s: nobody has tuned this machine, wait 20 s", self._what)
        self._until_s = time.monotonic() + _LIMIT_S
        self._told = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stretto", *words],
            env=kept,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._told,
        )

    def goes_on(self) -> bool:
        """Return whether it runs, and may."""
        if self._process.poll() is None and time.monotonic() > self._until_s:
            self._process.kill()
        return self._process.poll() is None

    def say(self) -> None:
        """Log that it has written a profile, or why it has not."""
        with self._told as file:
            file.seek(0)
            told = file.read().strip().splitlines()
        if self._process.returncode == 0:
            logger().info("%s: done, and kept for later jobs", self._what)
        else:
            ended = self._process.returncode > 0 and told
            why = told[-1] if ended else f"it was killed, after {_LIMIT_S:g} s at most"
            logger().warning("%s: %s", self._what, why)
