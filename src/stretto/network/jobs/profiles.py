"""Models to make jobs of: one file each in `network/profiles`, found by looking."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from stretto.errors import CallError, UnknownNameError
from stretto.network.jobs.job import USUAL_GBITS_PER_S, Job, JobStep
from stretto.registry import texts
from stretto.topology import Reader

__all__ = ["JobProfile", "names", "profile", "read_steps"]

_AT = "stretto.network", "profiles"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    """A model: its steps, and what of that is published and what assumed."""

    name: str
    about: str
    source: str
    assumed: tuple[str, ...]
    workers: int
    noise: float
    steps: tuple[JobStep, ...]

    def job(self, name: str, *, iterations: int, workers: int = 0, **more: Any) -> Job:
        """Return a job of it; `more` are fields of a job."""
        given = {"noise": self.noise, **more}
        return Job(
            name=name,
            steps=self.steps,
            workers=workers or self.workers,
            iterations=iterations,
            profile=self.name,
            **given,
        )


def names() -> tuple[str, ...]:
    """Return the names of all profiles, sorted."""
    return tuple(texts(*_AT))


@functools.cache
def profile(name: str) -> JobProfile:
    """Return the profile of that name."""
    known = texts(*_AT)
    if name not in known:
        raise UnknownNameError.among("profile", name, known)
    top = Reader.of(known[name], where=f"profiles/{name}.toml", refusal=CallError)
    found = JobProfile(
        name=name,
        about=top.text("about"),
        source=top.text("source"),
        assumed=top.texts("assumed"),
        workers=top.integer("workers", least=1),
        noise=top.number("noise", float("inf")),
        steps=read_steps(top, ""),
    )
    top.done()
    return found


def read_steps(table: Reader, home: str) -> tuple[JobStep, ...]:
    """Return the steps that a table has; `home` is that of a job whose profile says."""
    found = []
    for row in table.tables("steps"):
        compute = row.number("compute_ms", 0.0)
        collective = row.text("collective", "ring")
        rate = row.number("gbits_per_s", USUAL_GBITS_PER_S)
        mbytes = row.number("mbytes", 0.0)
        if "up_ms" in row:
            if "mbytes" in row:
                raise row.wrong("up_ms", "it or `mbytes`, not both")
            mbytes = row.number("up_ms") * rate / 8
        if not 0 < rate < float("inf"):
            raise row.wrong("gbits_per_s", "a rate above 0")
        row.done()
        step = JobStep(
            compute_ms=compute, collective=collective, mbytes=mbytes, gbits_per_s=rate
        )
        found.append(step)
    if not found and not home:
        raise table.wrong("steps", "at least one [[steps]]")
    return tuple(found)
