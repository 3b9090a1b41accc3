"""Kernels whose ranks are on two hosts, run on this CPU, with the real thread between.

The text is the generator's, requests go through the real ring and the compiled loop,
and bytes over TCP on loopback. Ranks of other hosts share no memory.
"""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from cuda_emulate import Emulated, aligned
from tests.checking.libraries import lacks
from tests.nightly import nightly
from tests.soon import soon

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.executors.cuda.hosts.layout import FarLayout
from stretto.executors.cuda.hosts.way import Server
from stretto.executors.cuda.words import KINDS
from stretto.fabric import hop
from stretto.program import algorithms
from stretto.program.collectives import Operator

pytest.importorskip("numba")
HOSTS = (0, 0, 1)


class Served:
    """The host's side of one rank: pinned memory, its carrier, and the loop."""

    def __init__(self, rank, hosts, half):
        far = tuple(q for q, h in enumerate(hosts) if h != hosts[rank])
        self.layout = FarLayout(sets=1, half=half, far_ranks=far)
        self.memory = aligned(self.layout.nbytes)
        self.base = self.memory.ctypes.data
        self.server = Server(self.layout, self.base, len(hosts))
        window = hop.Window(
            rank=rank,
            num_ranks=len(hosts),
            address=self.base,
            puts=self.layout.puts,
            words=self.layout.words,
            secret=b"s" * 32,
            towards="127.0.0.1",
        )
        self.hop = hop.get(hop.chosen()).open_hop(window)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.said = ""

    def connect(self, shares):
        self.hop.connect(shares, self.layout.far_ranks, 20.0)
        self.server.use(self.hop)

    def _run(self):
        while (said := self.server.said(self.server.serve())) == "LOOK":
            pass
        self.said = said

    def close(self):
        self.server.stop()
        self.thread.join(10)
        self.hop.close()


def connect(served):
    """Connect ends with one another, each in a thread."""
    shares = [one.hop.share() for one in served]
    ways = [threading.Thread(target=one.connect, args=(shares,)) for one in served]
    for way in ways:
        way.start()
    for way in ways:
        way.join()


class OnHosts(Emulated):
    """All ranks of a plan over hosts, in one launch, and what serves them."""

    def __init__(self, program, plan, folder, **how):
        super().__init__(program, plan, folder, **how)
        self.half = max(4096, -(-self.half // 16) * 16)
        self.stage = [aligned(2 * self.half, 0x5A) for _ in self.stage]
        hosts = plan.hosts
        self.served = [Served(r, hosts, self.half) for r in range(len(hosts))]
        connect(self.served)
        for one in self.served:
            one.thread.start()

    def places(self, rank, fields):
        one, found = self.served[rank], {k: list(v) for k, v in fields.items()}
        for q in range(self.plan.num_ranks):
            if not self.plan.is_far(rank, q):
                continue
            found["control"][q] = found["packets"][q] = 0
            found["input"][q] = found["output"][q] = 0
            found["stage"][q] = one.base + one.layout.mirror(0, q)
        found["far"] = one.base + one.layout.far(0)
        found["inbox"] = one.base + one.layout.inbox(0)
        found["ring"] = one.base + one.layout.ring(0)
        return found

    def close(self):
        for one in self.served:
            one.close()


def lowered(name, hosts, words, **params):
    algorithm = algorithms.get(name)
    if algorithm.knows_hosts:
        params["hosts"] = hosts
    program = verify(algorithm.build(len(hosts), **params))
    plan = lower(program, Schedule.parse(words), in_place=False, hosts=hosts)
    return program.value, verify_plan(plan, program).value


CASES = (
    ("all_reduce/rails", HOSTS, "push packets staged threads=32"),
    ("all_reduce/ring", HOSTS, "push bulk staged threads=32"),
    ("all_gather/rails", (0, 0, 1, 1), "push packets staged threads=32"),
    ("all_to_all/one_shot", HOSTS, "push packets staged threads=32 blocks=2"),
    ("reduce_scatter/rails", HOSTS, "push bulk staged threads=32"),
    ("barrier/closed", HOSTS, "push packets staged threads=32"),
)


@pytest.mark.parametrize(("name", "hosts", "words"), nightly(CASES, 3))
def test_kernels_of_several_hosts_give_the_interpreters_bits(
    name, hosts, words, tmp_path
):
    """Launch after launch, as replayed graphs do, with tiles and epochs."""
    give_the_interpreters_bits(name, hosts, words, tmp_path)


def give_the_interpreters_bits(name, hosts, words, tmp_path):
    """Check three launches, with all that serves them."""
    program, plan = lowered(name, hosts, words)
    how = {"dtype": "float32", "op": Operator.SUM, "counts": 301}
    run = OnHosts(program, plan, tmp_path, **how)
    try:
        rng = np.random.default_rng(7)
        for _ in range(3):
            given, expected = run.draw(rng)
            for mine, wanted in zip(run.launch(given), expected, strict=True):
                np.testing.assert_array_equal(wanted, mine)
        assert all(one.server.served > 0 for one in run.served)
    finally:
        run.close()
    assert ["STOPPED"] * len(hosts) == [one.said for one in run.served]


def test_a_rank_that_stays_away_on_another_host_is_named(tmp_path):
    """At the deadline, from the roll that goes by the carrier."""
    program, plan = lowered("all_reduce/rails", (0, 1), "push bulk staged threads=32")
    how = {"dtype": "float32", "op": Operator.SUM, "counts": 8, "deadline_s": 0.5}
    run = OnHosts(program, plan, tmp_path, **how)
    try:
        given, _ = run.draw(np.random.default_rng(1))
        run.launch(given, absent=1)
        record = run.record(1)
    finally:
        run.close()

    assert "timeout" == KINDS[int(record["kind"])]
    assert 1 == int(record["absent"])


def test_a_rank_that_calls_another_thing_on_another_host_is_found(tmp_path):
    """Its fingerprint comes by the carrier, too."""
    program, plan = lowered("barrier/closed", (0, 1), "push packets staged threads=32")
    how = {"dtype": "uint8", "op": Operator.SUM, "counts": 0, "deadline_s": 5}
    run = OnHosts(program, plan, tmp_path, **how)
    try:
        given, _ = run.draw(np.random.default_rng(1))
        run.launch(given, fingerprints=[7, 9])
        records = [run.record(r) for r in (0, 1)]
    finally:
        run.close()

    assert {"mismatch"} == {KINDS[int(r["kind"])] for r in records}


def test_the_loop_refuses_what_no_kernel_asks(tmp_path):
    """A request outside of staging ends the loop; nothing is sent."""
    half = 4096
    ends = [Served(r, (0, 1), half) for r in (0, 1)]
    connect(ends)
    slot = ends[0].memory[ends[0].layout.ring(0) + 64 :][:64].view(np.uint64)
    slot[1:6] = 1, 2 * half - 4, 8, 0, 0
    slot[0] = 1
    ends[0].thread.start()
    ends[1].thread.start()
    ends[0].thread.join(5)
    for one in ends:
        one.close()

    assert "NONSENSE" == ends[0].said


def test_two_hosts_by_the_carrier_of_this_process(tmp_path):
    """Packets and a range a request; see the next test."""
    words = "push packets staged threads=32"
    give_the_interpreters_bits("all_reduce/rails", (0, 1), words, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("carrier", ["nixl", "ucx"])
def test_kernels_go_by_the_carrier_that_is_asked_for(carrier):
    """In a process of its own: these libraries live with few others."""
    if why := lacks(carrier):
        pytest.skip(why)
    env = {**os.environ, "STRETTO_CARRIER": carrier, "UCX_TLS": "tcp,self"}
    words = [__file__, "-q", "-p", "no:cacheprovider", "-k", "this_process"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *words], env=env, check=False,
        capture_output=True, text=True,
    )  # fmt: skip

    assert 0 == run.returncode, run.stdout[-3000:] + run.stderr[-3000:]
    assert "1 passed" in run.stdout, run.stdout


def test_an_idle_loop_hardly_uses_its_core():
    """After a second without work it sleeps for milliseconds at a time."""
    ends = [Served(r, (0, 1), 4096) for r in (0, 1)]
    connect(ends)
    for one in ends:
        one.thread.start()
    clocks = [time.pthread_getcpuclockid(one.thread.ident) for one in ends]
    before = sum(map(time.clock_gettime, clocks))
    time.sleep(1.0)
    used = sum(map(time.clock_gettime, clocks)) - before
    for one in ends:
        one.close()

    assert used < soon(0.05), "two loops, a second: half a percent and room for noise"
