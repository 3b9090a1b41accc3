"""Peers that are no good: one ends its process, one never comes back, one raises."""

import os
import threading
import types

from stretto.bench.contender import Contender, PreparedCall
from stretto.bench.ranks import run

run._SILENT_S, run._DEADLINES = 1.5, 0.0


class Peer(Contender):
    """Gives what the oracle does, by stretto; in one case it does what it is for."""

    def __init__(self, setup, at, spoil):
        self.rank, self.at, self.spoil = setup.rank, at, spoil

    def prepare(self, case, x, out):
        if case.nbytes == self.at and self.rank == 1:
            return PreparedCall(call=self.spoil, x=x, out=out)
        return PreparedCall(call=lambda: None, x=x, out=out)


def dies():
    os._exit(3)


def hangs():
    threading.Event().wait()


def raises():
    raise RuntimeError("the link is down")


SPOILS = {"gloo": (256, dies), "nixl": (1024, raises)}


def get(name, kind):
    """Return a peer; one of them never opens."""

    class Found(Peer):
        DEVICES = ("cpu",)

        @classmethod
        def open(cls, setup):
            return hangs() if name == "nccl" else cls(setup, *SPOILS[name])

    return Found


def work(comm, task, say):
    """Measure beside them."""
    run.peers = types.SimpleNamespace(get=get)
    return run.work(comm, task, say)
