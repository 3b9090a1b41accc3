"""Where ranks of several hosts meet when nobody names an address: rank 0 publishes it.

Under torchrun on the agents' store, where torch is loaded; under mpirun by a broadcast,
where mpi4py is. The secret is that of a file, where ranks have one. Else rank 0 draws
one for this meeting: it goes with the address where only ranks hear it, and sealed for
each where others may look, as in a store.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any, Protocol

from stretto.errors import LaunchEnvironmentError, RendezvousError
from stretto.fabric.meeting import ADDRESS, Place, find_place
from stretto.fabric.process import host_id
from stretto.fabric.secret import VARIABLE
from stretto.runtime.calls.joining import pmix, sealed, slurm

_ELSEWHERE = "192.0.2.1"
"""An address that no host has: the route to it is the one to the world."""
_meetings = count()
"""Ranks meet in the same order, so they count alike."""

_NAME = "stretto/name"
"""Where a store has the name of a meeting, until all have come."""

Board = Callable[[str | None], str]
"""Rank 0 gives a text; all get it."""
_FROM_FILE, _SEALED = "file", "sealed"
"""Where a secret is that does not stand beside the address."""


class KeyStore(Protocol):
    """What ranks share already: `get` waits until somebody has set it."""

    def set(self, key: str, value: str) -> Any:
        """Set a text."""

    def get(self, key: str) -> str | bytes:
        """Return a text, once there is one."""

    def delete_key(self, key: str) -> Any:
        """Remove a text, where there is one."""


def agree(
    place: Place, deadline_s: float, modules: Mapping[str, Any] = sys.modules
) -> tuple[Place, socket.socket | None]:
    """Return a place with an address, where ranks on several hosts have none.

    Rank 0 listens there already.
    """
    if not place.is_spread or place.address is not None:
        return place, None
    if place.launcher == "srun" and os.environ.get(VARIABLE):
        where = slurm.address(os.environ)
        if where is not None:  # the file says the secret
            return replace(place, address=where, job=f"at {where}"), None
    if place.launcher == "torchrun" and "torch" in modules:
        return _on_store(place, deadline_s, modules["torch"])
    return _publish(place, _board(place, deadline_s, modules))


def agree_on(
    store: KeyStore, rank: int, num_ranks: int, towards: str = ""
) -> tuple[Place, socket.socket | None]:
    """Return a place for ranks that have a store: on one host a name drawn by lot.

    Everybody says there where it is. On several hosts rank 0 publishes an address, and
    listens there already: that by which it reaches `towards`, where that is known.
    """
    store.set(f"stretto/host/{rank}", host_id())
    if rank == 0:
        said = {_text(store.get(f"stretto/host/{r}")) for r in range(num_ranks)}
        store.set(_NAME, f"{secrets.token_hex(12)} {len(said)}")
    name, hosts = _text(store.get(_NAME)).split()
    place = find_place(rank, num_ranks, f"store-{name}")
    if hosts == "1":
        return place, None
    key = f"stretto/address/{name}"  # a store that is used again has older ones

    def get(name: str) -> str:
        return _text(store.get(name))

    return _publish_on(place, key, store.set, get, towards)


def forget(store: KeyStore, num_ranks: int) -> None:
    """Remove what rank 0 and others have told, once all have met, or when it fails.

    Who meets again in this store would believe the name of the meeting before. Rank 0
    calls it, before anybody can.
    """
    for key in (_NAME, *(f"stretto/host/{r}" for r in range(num_ranks))):
        with suppress(NotImplementedError, RuntimeError):  # it cannot, or it is gone
            store.delete_key(key)


def _text(given: str | bytes) -> str:
    return given if isinstance(given, str) else given.decode()


def _publish(place: Place, board: Board) -> tuple[Place, socket.socket | None]:
    """Return a place at the address that rank 0 publishes; it listens there already."""
    if place.rank:
        host, port, secret = board(None).split()
        known = b"" if secret == _FROM_FILE else secret.encode()
        return _at(place, host, int(port), known), None
    listener, host, number = _listen()
    secret = _FROM_FILE if os.environ.get(VARIABLE) else secrets.token_hex(32)
    board(f"{host} {number} {secret}")
    own = b"" if secret == _FROM_FILE else secret.encode()
    return _at(place, host, number, own), listener


def _publish_on(
    place: Place, key: str, set_: sealed.Set, get: sealed.Get, towards: str = ""
) -> tuple[Place, socket.socket | None]:
    """Do the same on a store, which anybody may read who reaches it."""
    if place.rank:
        host, port, how = get(key).split()
        secret = b""
        if how != _FROM_FILE:
            secret = sealed.take(place.rank, f"{key}/key", set_, get)
        return _at(place, host, int(port), secret), None
    listener, host, number = _listen(towards)
    try:
        how = _FROM_FILE if os.environ.get(VARIABLE) else _SEALED
        set_(key, f"{host} {number} {how}")
        secret = b""
        if how == _SEALED:
            secret = sealed.give(place.num_ranks, f"{key}/key", set_, get)
    except BaseException:
        listener.close()
        raise
    return _at(place, host, number, secret), listener


def _listen(towards: str = "") -> tuple[socket.socket, str, int]:
    host = own_address(towards)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family, backlog=128)
    return listener, host, listener.getsockname()[1]


def _at(place: Place, host: str, port: int, secret: bytes) -> Place:
    """Return the place; without a secret, that of the file is meant."""
    where = (host, port)
    return replace(place, address=where, secret=secret, job=f"at {where}")


def _board(place: Place, deadline_s: float, modules: Mapping[str, Any]) -> Board:
    """Return what ranks alone can publish on, or raise what to do."""
    if place.launcher == "mpirun" and "mpi4py.MPI" in modules:
        world = modules["mpi4py.MPI"].COMM_WORLD
        return lambda text: str(world.bcast(text, root=0))
    has_mpi = importlib.util.find_spec("mpi4py") is not None  # MPI wants PMIx then
    if place.launcher == "mpirun" and not has_mpi and (found := pmix.library()):
        return _by_pmix(found, deadline_s)
    by = {"torchrun": " or import torch first,", "mpirun": " or import mpi4py first,"}
    raise LaunchEnvironmentError(
        f"{place.num_ranks} ranks on several hosts ({place.launcher} says "
        f"{place.on_this_host} on this one):{by.get(place.launcher, '')} give "
        f"address='tcp://HOST:PORT' of rank 0's host, or set {ADDRESS}; and name a "
        f"file with a secret in {VARIABLE}"
    )


def _by_pmix(library: str, deadline_s: float) -> Board:
    key = f"stretto/{next(_meetings)}"

    def publish(text: str | None) -> str:
        try:
            return pmix.share(library, key, text, deadline_s)
        except pmix.PmixError as e:
            raise RendezvousError(
                f"no address of rank 0 by mpirun's PMIx: {e}; read the log of rank 0, "
                f"or give address='tcp://HOST:PORT' and {VARIABLE}"
            ) from None

    return publish


def _on_store(
    place: Place, deadline_s: float, torch: Any
) -> tuple[Place, socket.socket | None]:
    store = _store(place, deadline_s, torch)
    key = f"stretto/{place.job}/{next(_meetings)}"

    def get(name: str) -> str:
        try:
            return bytes(store.get(name)).decode()
        except Exception as e:  # of torch, whatever it is called
            who = "rank 0 published no address" if place.rank else "not all ranks came"
            raise RendezvousError(
                f"{who} within {deadline_s:g} s on torchrun's store ({name}): {e}; "
                f"read the log of {'rank 0' if place.rank else 'the others'}"
            ) from e

    return _publish_on(place, key, store.set, get)


def _store(place: Place, deadline_s: float, torch: Any) -> Any:
    """Return the store of the process group, or else of torchrun's agents."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.distributed_c10d._get_default_store()
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True"
    if not hosted or not port.isdigit():
        raise LaunchEnvironmentError(
            f"{place.num_ranks} ranks on several hosts, and torchrun's agents keep no "
            f"store: call init_process_group first, or set {ADDRESS}=tcp://HOST:PORT "
            f"and {VARIABLE}"
        )
    timeout = timedelta(seconds=deadline_s)
    try:
        return distributed.TCPStore(
            host, int(port), is_master=False, timeout=timeout, wait_for_workers=False
        )
    except Exception as e:  # of torch, whatever it is called
        raise RendezvousError(f"torchrun's store at {host}:{port}: {e}") from e


def own_address(towards: str = "") -> str:
    """Return the address of this host that other hosts reach."""
    from stretto.fabric.hop.interface import INTERFACE, address_towards, addresses

    master = towards or os.environ.get("MASTER_ADDR", "") or _ELSEWHERE
    for towards in (master, _ELSEWHERE):
        try:
            found = address_towards(towards)
        except RendezvousError:
            continue
        if not found.startswith("127.") and found != "::1":
            return found
    known = addresses()
    if len(known) == 1:
        return next(iter(known.values()))
    has = ", ".join(f"{name} {address}" for name, address in known.items()) or "none"
    raise RendezvousError(
        f"{socket.gethostname()}: {master} resolves to loopback, and there is no route "
        f"to the world; name the network's interface in {INTERFACE}: it has {has}"
    )
