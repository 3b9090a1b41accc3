"""The user's profiles, as all ranks use them: rank 0's, but for what some rank lacks.

A profile may name a kernel that somebody registers, and not every process need have
imported it. Ranks that chose differently would not meet. So a name counts when every
rank knew it as the communicator was made; rows without such names are passed over.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stretto import topology
from stretto.arrays import CPU
from stretto.errors import TopologyError
from stretto.executors import Group
from stretto.fabric.variables import text_of
from stretto.program import algorithms
from stretto.runtime.choice import own
from stretto.runtime.choice.bits import ANY, VARIABLE, bits_in, bits_of_environment
from stretto.runtime.choice.select import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Texts of profiles by executor, and which of their algorithms some rank lacks."""

    texts: Mapping[str, str] = field(default_factory=dict)
    lacking: frozenset[str] = frozenset()
    bits: str = ANY
    """What sums promise where a call does not say: rank 0's environment tells."""
    here: str = ""
    """What rank 0's processors are, by which all choose what is shipped for them."""
    tune: bool = False
    """Whether a machine that nobody has tuned is to be: that tells it, too."""

    def said(self) -> dict[str, Any]:
        """Return them for who comes later; `of` makes them again."""
        texts, lacking = dict(self.texts), sorted(self.lacking)
        told = {"bits": self.bits, "here": self.here, "tune": self.tune}
        return {"texts": texts, "lacking": lacking, **told}

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Measured:
        """Return what was said by another rank."""
        lacking = frozenset(said.get("lacking", ()))
        return cls(
            texts=said.get("texts", {}),
            lacking=lacking,
            bits=said.get("bits", ANY),
            here=said.get("here", ""),
            tune=bool(said.get("tune")),
        )

    def shipped(self, executor: str) -> Profile:
        """Return what comes with the library, alike on all ranks."""
        return Profile.shipped(executor, self.here if executor == CPU else "")

    def profile(self, executor: str) -> Profile | None:
        """Return what was measured with an executor, without what cannot be used."""
        text = self.texts.get(executor)
        return _parse(text).without(self.lacking) if text else None


def agree(group: Group) -> Measured:
    """Return the profiles that rank 0 reads, the same on every rank (collective)."""
    read = own.texts() if group.rank == 0 else {}
    said = {"profiles": read, "bits": bits_of_environment()}
    said |= {"here": topology.here(CPU), "tune": text_of(own.TUNE)}
    first = group.exchange(said)[0][0]
    texts, bits = first["profiles"], bits_in(first["bits"], f"{VARIABLE} of rank 0")
    tune = own.wants_tuning(first["tune"], f"{own.TUNE} of rank 0")
    if not texts:
        return Measured(bits=bits, here=first["here"], tune=tune)
    lacking = sorted(_named(texts) - set(algorithms.names()))
    known = group.exchange({"lacking": lacking})
    return Measured(
        texts=texts,
        lacking=frozenset(name for m, _ in known for name in m["lacking"]),
        bits=bits,
        here=first["here"],
        tune=tune,
    )


def of_one_rank() -> Measured:
    """Return what holds where there is nobody to agree with."""
    return Measured(bits=bits_in(bits_of_environment(), VARIABLE))


def _named(texts: Mapping[str, str]) -> set[str]:
    """Return the algorithms that profiles name; one that is malformed names none."""
    found: set[str] = set()
    for text in texts.values():
        try:
            found |= _parse(text).names
        except TopologyError:  # it is raised at the first call that asks it
            continue
    return found


@functools.lru_cache(maxsize=8)
def _parse(text: str) -> Profile:
    return Profile.parse(text, "of rank 0")
