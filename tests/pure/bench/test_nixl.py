"""NIXL as a peer, over a module that stands in for it: two agents in one process."""

import ctypes
import importlib.machinery
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from stretto.bench import peers
from stretto.bench.contender import CallBuffer, Contender, Setup
from stretto.bench.workload.cases import Check, case_of
from stretto.errors import CallError

KNOWN, LOCK = {}, threading.Lock()


class Agent:
    """What `nixl_agent` promises, by copies inside this process."""

    def __init__(self, name, config):
        assert ["UCX"] == config
        self.name, self.heard = name, []
        with LOCK:
            KNOWN[name] = self

    def register_memory(self, regions, mem_type):
        assert all(4 == len(region) for region in regions)
        self.registered = [region[:3] for region in regions]
        return regions

    def get_xfer_descs(self, regions, mem_type):
        assert all(3 == len(region) for region in regions)
        return regions

    def get_agent_metadata(self):
        return self.name.encode()

    def add_remote_agent(self, metadata):
        return metadata.decode()

    def initialize_xfer(self, operation, local, remote, peer, message):
        assert "WRITE" == operation
        assert local[0] in self.registered
        assert remote[0] in KNOWN[peer].registered
        return [local[0], remote[0], peer, "NEW"]

    def transfer(self, handle, message):
        (source, nbytes, _), (target, _, _), peer, _ = handle
        ctypes.memmove(target, source, nbytes)
        handle[3] = "DONE"
        self.send_notif(peer, message)
        return "PROC"

    def check_xfer_state(self, handle):
        return handle[3]

    def send_notif(self, peer, message):
        with LOCK:
            KNOWN[peer].heard.append((self.name, message))

    def check_remote_xfer_done(self, peer, tag):
        with LOCK:
            if (peer, tag) in self.heard:
                self.heard.remove((peer, tag))
                return True
        return False

    def release_xfer_handle(self, handle):
        handle[3] = "RELEASED"

    def deregister_memory(self, regions):
        self.registered = []

    def remove_remote_agent(self, peer):
        assert peer in KNOWN


@pytest.fixture
def nixl(monkeypatch):
    """Let a NIXL be installed."""
    module, api = types.ModuleType("nixl"), types.ModuleType("nixl._api")
    module.__spec__ = importlib.machinery.ModuleSpec("nixl", None)
    module._api = api
    api.nixl_agent, api.nixl_agent_config = Agent, lambda backends: backends
    monkeypatch.setitem(sys.modules, "nixl", module)
    monkeypatch.setitem(sys.modules, "nixl._api", api)


def on_both(work, tmp_path):
    """Run both ranks, each in a thread."""

    def rank(r):
        setup = Setup(rank=r, num_ranks=2, meet=str(tmp_path))
        peer = peers.get("nixl", Contender).open(setup)
        try:
            return work(r, peer)
        finally:
            peer.close()

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(rank, range(2)))


@pytest.mark.parametrize("test", ["latency", "bw", "bibw", "multi_lat"])
def test_what_is_written_arrives(nixl, tmp_path, test):
    """In every test between pairs, call after call, with an agent for each case."""
    cases = [case_of(test, nbytes, 2) for nbytes in (64, 4096)]

    def work(rank, peer):
        wrong = []
        for case in cases:
            check = Check.fresh(case, rank, seed=3)
            x, out = (
                CallBuffer(given=a, host=a)
                for a in (check.x.copy(), np.zeros_like(check.x))
            )
            if test == "bw" and rank == 0:  # it only hears that all has come
                out.write(check.want)
            call = peer.prepare(case, x, out).call
            for _ in range(3):
                call()
            wrong.append(check.wrong(out.read(), case.dtype))
        return wrong

    assert [["", ""], ["", ""]] == on_both(work, tmp_path)


def test_collectives_are_refused(nixl, tmp_path):
    """It moves data between pairs."""
    setup = Setup(rank=0, num_ranks=2, meet=str(tmp_path))
    peer = peers.get("nixl", Contender).open(setup)
    array = np.zeros(4, np.float32)
    buffer = CallBuffer(given=array, host=array)

    with pytest.raises(CallError, match="between pairs only"):
        peer.prepare(case_of("all_reduce", 16, 2), buffer, buffer)
