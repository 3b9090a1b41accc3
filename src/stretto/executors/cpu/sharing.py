"""Everybody's memory, mapped here: at the start, and when other ranks go on with it.

Who stays keeps its slab, and so does whoever has mapped it. A slab of somebody new is
mapped where that of the rank was which it replaces: tables that name it stay true.
Whatever lies in a slab is of an epoch; the ranks go on with one that nobody has used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CommunicationError
from stretto.executors import Group, hosts_of
from stretto.executors.cpu.peers.crowding import is_crowded, where
from stretto.executors.cpu.peers.far import FarHosts, FarSlab
from stretto.executors.cpu.running.loaded import Interpreter, interpreter, is_kept
from stretto.executors.cpu.shared.slab import ABI, CALL, Slab, SlabLayout
from stretto.executors.cpu.words import Common
from stretto.fabric import hop
from stretto.fabric.across import Witness, admit, why_not
from stretto.fabric.jit.together import await_compiled, load_together
from stretto.fabric.memory import create_file, prefault


class OwnSlab:
    """This rank's slab, with its file as long as somebody is to be given it."""

    def __init__(self, group: Group, words: NDArray[np.int64]) -> None:
        """Make it, with room for all ranks that there may be."""
        self._group, self._words = group, words
        self.number, self.fd = 0, -1
        """Which of this rank's slabs it is, from 1 on."""
        self._make()

    def _make(self) -> None:
        most = max(self._group.num_ranks, self._group.most_ranks)
        layout = SlabLayout(num_ranks=most)
        self.number, self.fd = self.number + 1, create_file(layout.nbytes)
        self._known: set[str] = set()
        try:
            self.slab = Slab(layout, self.fd, self.number)
            self.slab.begin()
            prefault(self.slab.address, layout.packets(0))
        except BaseException:
            self.close()
            raise
        self._words[Common.CALL] = self.slab.address + CALL

    def make_room(self) -> None:
        """Be a larger one, if more ranks are to come than there is room for.

        All who stay do so: they know as much of each other.
        """
        if self._group.most_ranks > self.slab.layout.num_ranks:
            self.close()
            self._make()

    def register(self, fingerprint: int, text: str) -> None:
        """Let peers read what a fingerprint means."""
        if text not in self._known:
            self._known.add(text)
            self.slab.register(fingerprint, text)

    def given(self) -> None:
        """Give the descriptor back, when all have it who ever come."""
        if not self._group.most_ranks:  # nobody comes later
            self.close()

    def close(self) -> None:
        """Give the descriptor back."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class SharedSlabs(NamedTuple):
    """Everybody's memory, and who runs where."""

    slabs: tuple[Slab | FarSlab, ...]
    way: FarHosts | None
    interpreter: Interpreter
    crowded: bool
    """Whether ranks exceed cores."""
    epoch: int
    """The first that no rank has used."""
    heaps: tuple[Mapping[str, Any], ...]
    """What each said of its registered memory."""
    none_across: str
    """Why the kernel does not copy from every other rank's memory, or nothing."""


def share(
    group: Group,
    mine: OwnSlab,
    words: NDArray[np.int64],
    have: Sequence[Slab | FarSlab | None],
    spare: Sequence[Slab | FarSlab | None],
    heap: Mapping[str, Any],
) -> SharedSlabs:
    """Give my slab to everybody here, map theirs, and connect with others (collective).

    `have` is what is mapped already of each rank, unless that says that it is new;
    `spare`, of those that go, is mapped anew in place.
    """
    hosts, places = hosts_of(group), mine.slab.layout
    if len(set(hosts)) > 1:
        load_together(group, load_far)
    fds: set[int] = set()
    said: dict[str, Any] = {"abi": ABI, "kept": is_kept(), **where(), "heap": heap}
    said |= {"most": places.num_ranks, "epoch": int(words[Common.EPOCH])}
    said["slab"] = mine.number
    admit()
    witness = Witness()
    said["witness"] = witness.dump()
    way = None
    try:
        if len(set(hosts)) > 1:
            way = FarHosts(group, places, mine.slab, words)
            said["hop"] = way.share()
        fds.update(way.wakers.share() if way else ())
        parts = group.exchange(said, (mine.fd, *fds))
        fds.update(each for _, theirs in parts for each in theirs)
        fds.discard(mine.fd)
        _check([part for part, _ in parts], places)
        slabs = _map_all(group, mine, parts, have, spare)
        mine.given()
        engine = interpreter()
        if not all(payload["kept"] for payload, _ in parts):
            await_compiled(group)
        if way is not None:
            way.connect([part["hop"] for part, _ in parts], group.deadline_s)
            near = {r: s for r, s in enumerate(slabs) if isinstance(s, Slab)}
            numbers = {r: parts[r][1][1] for r in near if len(parts[r][1]) > 1}
            way.wakers.connect(words, group.rank, near, numbers)
    except BaseException:
        if way is not None:
            way.close()
        raise
    finally:
        for each in fds:
            os.close(each)
    said_by = [part for part, _ in parts]
    return SharedSlabs(
        slabs=tuple(slabs),
        way=way,
        interpreter=engine,
        crowded=is_crowded(group.rank, said_by, hosts),
        epoch=_unused(said_by),
        heaps=tuple(part["heap"] for part in said_by),
        none_across=_why_none_across(group, [part["witness"] for part in said_by]),
    )


def _why_none_across(group: Group, witnesses: Sequence[Mapping[str, Any]]) -> str:
    """Return why not all ranks can have the kernel copy from others, alike on all."""
    if group.num_ranks == 1 or len(set(hosts_of(group))) > 1:
        return "it is for several ranks on one host"
    why = "STRETTO_ACROSS=0" if os.environ.get("STRETTO_ACROSS", "1") == "0" else ""
    for peer, witness in enumerate(witnesses):
        if peer != group.rank and not why and (said := why_not(witness)):
            why = f"rank {peer}: {said}"
    for rank, (part, _) in enumerate(group.exchange({"across": why})):
        if part["across"]:
            return f"rank {rank} cannot have the kernel copy: {part['across']}"
    return ""


def _map_all(
    group: Group,
    mine: OwnSlab,
    parts: Sequence[tuple[Mapping[str, Any], tuple[int, ...]]],
    have: Sequence[Slab | FarSlab | None],
    spare: Sequence[Slab | FarSlab | None],
) -> list[Slab | FarSlab]:
    """Return everybody's slab: mine, kept, mapped now, or of another host."""
    hosts, places = hosts_of(group), mine.slab.layout
    slabs: list[Slab | FarSlab] = []
    for rank, (part, theirs) in enumerate(parts):
        if rank == group.rank:
            slabs.append(mine.slab)
        elif hosts[rank] != hosts[group.rank]:
            slabs.append(FarSlab(mine.slab, rank))
        else:
            number = 0 if part["heap"]["new"] else part["slab"]
            kept, place = have[rank], spare[rank] or have[rank]
            if isinstance(kept, Slab) and (kept.layout, kept.number) == (
                places,
                number,
            ):
                slabs.append(kept)
            else:
                slabs.append(_mapped(places, theirs[0], part["slab"], place))
    return slabs


def _unused(said: Sequence[Mapping[str, Any]]) -> int:
    """Return an epoch that nobody has used.

    Two more than any: signals say by its parity of which epoch they are.
    """
    last = max(int(one["epoch"]) for one in said)
    return last + 2 if last > 1 else 1


def _check(parts: Sequence[Mapping[str, Any]], places: SlabLayout) -> None:
    """Raise where ranks would lay their memory out in different ways."""
    for rank, said in enumerate(parts):
        if said["abi"] != ABI:
            raise CommunicationError(
                f"rank {rank} lays its memory out by ABI {said['abi']}, want "
                f"{ABI}: run the same version of stretto everywhere"
            )
        if said["most"] != places.num_ranks:
            raise CommunicationError(
                f"rank {rank} has room for {said['most']} ranks, and this one for "
                f"{places.num_ranks}: give all the same elastic="
            )


def _mapped(
    places: SlabLayout, fd: int, number: int, place: Slab | FarSlab | None
) -> Slab:
    """Return a slab of a rank of this host, mapped where another one is, if it fits."""
    if isinstance(place, Slab) and place.layout == places:
        place.mapping.replace(fd)
        place.number, found = number, place
    else:
        found = Slab(places, fd, number)
    prefault(found.address, places.packets(0))
    return found


def load_far() -> None:
    """Load what runs calls, and what carries their bytes to other hosts."""
    interpreter()
    hop.get(hop.chosen()).missing()  # opening it says why
