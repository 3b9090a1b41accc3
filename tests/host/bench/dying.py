"""Peers that are no good: one ends its process, one never comes back, one raises."""

import os
import threading
import types

from stretto.bench.ranks import run
from stretto.bench.workload.contender import Prepared

run._SILENT_S, run._DEADLINES = 1.5, 0.0


class Peer:
    """Gives what the oracle does, by stretto; in one case it does what it is for."""

    def __init__(self, setup, at, spoil):
        self.rank, self.at, self.spoil = setup.rank, at, spoil

    def prepare(self, case, x, out):
        if case.nbytes == self.at and self.rank == 1:
            return Prepared(call=self.spoil, x=x, out=out)
        return Prepared(call=lambda: None, x=x, out=out)

    def close(self):
        pass


def dies():
    os._exit(3)


def hangs():
    threading.Event().wait()


def raises():
    raise RuntimeError("the link is down")


SPOILS = {"gloo": (256, dies), "nixl": (1024, raises)}


def get(name):
    """Return a peer's module."""
    if name == "nccl":  # it never opens
        return types.SimpleNamespace(DEVICES=("cpu",), open_peer=lambda setup: hangs())
    opened = lambda setup: Peer(setup, *SPOILS[name])  # noqa: E731
    return types.SimpleNamespace(DEVICES=("cpu",), open_peer=opened)


def work(comm, task, say):
    """Measure beside them."""
    run.peers = types.SimpleNamespace(get=get)
    return run.work(comm, task, say)
