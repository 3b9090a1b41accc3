"""A forked child can do nothing with its parent's engine, and does it no harm."""

import asyncio
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import types
import uuid

import numpy as np
import pytest
from tests.host.transfer.conftest import ROOT, SECRET

from stretto.errors import EngineLost
from stretto.transfer import Engine
from stretto.transfer.stores import Files, load, save
from stretto.transfer.ways.gpu import EnqueuedCopies, Passing

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 20
NUMBERS = itertools.count()
SAID = "forked from"


class World:
    """All that a process may have of engines; `far` by TCP, else on one host."""

    def __init__(self, where, folder):
        self.far, self.where, self.folder = where == "tcp", where, folder
        how = {"job": uuid.uuid4().hex, "secret": SECRET}
        self.there = Engine("there", listen="127.0.0.1:0", **how)
        self.here = Engine("here", listen="127.0.0.1:0", **how)
        self.place = self.there.address if self.far else "there"
        self.box = self.there.arena(1 << 20)
        self.there.share(self.box, "box")
        self.peer = self.here.connect(self.place).wait(WAIT)
        self.region, self.ours = self.peer["box"], self.here.arena(4096)
        self.mine = self.here.share(self.ours, "mine")
        self.put = self.region[:8].prepare_put(b"12345678")
        self.notifying = self.region[:8].prepare_put(b"12345678", notify=b"tick")
        self.got = np.zeros(8, np.uint8)
        self.get = self.region[:8].prepare_get(self.got)
        self.large = self.region[:70_000].prepare_put(np.ones(70_000, np.uint8))
        self.local = self.mine[:8].prepare_put(b"12345678")
        self.tick, self.lease = self.there.notified(b"tick"), self.here.lease()
        self.store = Files(folder)
        self.shelf = self.here.stored(self.store, "shelf", "B=4 X=4096 uint8")
        self.kept = self.shelf[[1]].prepare_put(np.ones((1, 4096), np.uint8))
        save(self.here, self.store, "s", {"w": self.got}, {"w": "A=8 uint8"})
        self.wanted = self.peer.region("never")
        self.nobody = self.here.peer("nobody")
        self.waiting = self.here.notified(b"never").pending()
        self.ended = self.region[:8].put(b"12345678")
        self.ended.wait(WAIT)
        self.flying = self.here.batch()  # ended; see `hold`
        self.peer.notify(b"known")
        self.there.notified(b"known").wait(WAIT)

    def hold(self, gate):
        """Have a put be under way until a gate opens."""
        if self.far:
            self.there.loop.call(lambda: gate.wait(WAIT))
            self.flying = self.region[:1_000_000].put(np.zeros(1_000_000, np.uint8))
        else:
            self.later = f"later {next(NUMBERS)}"  # what was withdrawn may be known yet
            self.flying = self.peer.region(self.later)

    def close(self):
        self.here.close()
        self.there.close()
        self.store.close()


async def awaited(one):
    return await one


IN_CHILD = {
    "arena": lambda w: w.here.arena(4096),
    "file": lambda w: w.here.file(w.folder / "file", 4096),
    "stored": lambda w: w.here.stored(w.store, "other", "B=4 X=4096 uint8"),
    "share": lambda w: w.here.share(np.zeros(8), "new"),
    "unshare": lambda w: w.here.unshare(w.mine),
    "lease": lambda w: w.here.lease(),
    "end of a lease": lambda w: w.lease.end(),
    "connect": lambda w: w.here.connect(w.place),
    "connect by metadata": lambda w: w.here.connect(w.there.metadata),
    "peer": lambda w: w.here.peer("there"),
    "peers": lambda w: w.here.peers,
    "explain": lambda w: w.peer.explain(),
    "memory": lambda w: w.peer["box"],
    "memory to come": lambda w: w.peer.region("box").wait(WAIT),
    "notify": lambda w: w.peer.notify(b"tick"),
    "notify a name that is known": lambda w: w.peer.notify(b"known"),
    "notified": lambda w: w.there.notified(b"tick"),
    "wait for a notification": lambda w: w.tick.wait(WAIT),
    "look for a notification": lambda w: w.tick.done(),
    "await a notification": lambda w: asyncio.run(awaited(w.tick)),
    "put": lambda w: w.region[:8].put(b"evilevil"),
    "large put": lambda w: w.region[:500_000].put(bytes(500_000)),
    "get": lambda w: w.region[:8].get(np.zeros(8, np.uint8)),
    "put to itself": lambda w: w.mine[:8].put(b"evilevil"),
    "prepare": lambda w: w.region[:8].prepare_put(b"evilevil"),
    "prepared put": lambda w: w.put(),
    "prepared put with a notification": lambda w: w.notifying(),
    "prepared get": lambda w: w.get(),
    "prepared large put": lambda w: w.large(),
    "prepared put to itself": lambda w: w.local(),
    "prepared put to a store": lambda w: w.kept(),
    "put to a store": lambda w: w.shelf[[1]].put(np.ones((1, 4096), np.uint8)),
    "save": lambda w: save(w.here, w.store, "s", {"w": w.got}, {"w": "A=8 uint8"}),
    "load": lambda w: load(w.here, w.store, "s", {"w": w.got}, {"w": "A=8 uint8"}),
    "batch": lambda w: w.here.batch(w.ended),
    "wait for memory": lambda w: w.wanted.wait(WAIT),
    "wait for a peer": lambda w: w.nobody.wait(WAIT),
    "wait for what is under way": lambda w: w.flying.wait(WAIT),
    "look for what is under way": lambda w: w.flying.done(),
    "await what is under way": lambda w: asyncio.run(awaited(w.flying)),
    "select what is under way": lambda w: w.flying.fileno(),
    "event of what is under way": lambda w: w.flying.event(),
    "cancel what is under way": lambda w: w.flying.cancel(),
    "cancel a wait": lambda w: w.waiting.cancel(),
}  # fmt: skip


def in_child(do):
    """Return what a forked child says of doing something."""
    out, into = os.pipe()
    child = os.fork()
    if not child:
        said = "nothing"
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)
            got = do()
            said = f"returned {got!r:.80}"
        except BaseException as e:
            said = f"{type(e).__name__}: {e}"
        finally:
            os.write(into, said.encode()[:4000])
            os._exit(0)
    os.close(into)
    with os.fdopen(out) as pipe:
        said = pipe.read()
    return os.waitpid(child, 0)[1], said


@pytest.fixture(params=["near", "tcp"], scope="module")
def world(request, tmp_path_factory):
    """Return engines that go on to be used, whatever children try."""
    made = World(request.param, tmp_path_factory.mktemp("store"))
    yield made
    made.close()


@pytest.mark.parametrize("what", IN_CHILD)
def test_whatever_a_child_inherits_refuses_in_words(world, what):
    """At once, with what to do instead; and the parent sees nothing of it."""
    gate = threading.Event()
    world.hold(gate)
    world.box[:8] = 7
    status, said = in_child(lambda: IN_CHILD[what](world))
    gate.set()
    if not world.far:
        world.there.share(np.zeros(8), world.later)
        world.there.unshare(world.there.shelf.regions[world.later])
    world.flying.wait(WAIT)

    assert said.startswith("EngineLost: ")
    assert SAID in said
    assert "make an engine in the child" in said
    assert 0 == status
    assert not world.peer.lost
    assert [7 if not world.far else 0] * 8 == world.box[:8].tolist()
    world.region[:8].put(b"abcdefgh").wait(WAIT)
    assert b"abcdefgh" == world.box[:8].tobytes()
    for prepared in (world.put, world.notifying, world.get, world.large, world.local):
        prepared()
    world.tick.wait(WAIT)
    assert world.ended.done()
    if what == "end of a lease":
        world.region[:1].put(b"x").wait(WAIT)


def test_what_has_ended_before_is_still_there(world):
    """Results are the child's own, as arrays are; nothing of that speaks to anybody."""
    status, said = in_child(
        lambda: (world.ended.wait().nbytes, world.ended.done(), len(world.ours))
    )
    assert (0, "returned (8, True, 4096)") == (status, said)


def left_by_a_child(world):
    """Leave what a child has inherited as programs do that end."""
    with world.lease, world.here:
        pass
    world.here.close()
    world.peer.close()
    del world.put, world.get, world.flying, world.peer


def test_a_child_closes_nothing_of_its_parents(world):
    """Neither by `with`, nor by `close`; and says goodbye to nobody."""
    path = world.here._door.path
    status, said = in_child(lambda: left_by_a_child(world))
    assert (0, "returned None") == (status, said)
    assert path.exists()
    assert not world.peer.lost
    assert not world.there.peer("here").wait(WAIT).lost
    world.put()
    with Engine("other", job=world.here.job, secret=SECRET) as other:
        assert "here" == other.connect("here").wait(WAIT).name
        assert "here" == other.connect(world.here.address).wait(WAIT).name


def work(world, results, nth):
    """Do what a worker of a data loader does: it merely inherits."""
    for _ in range(20):
        results.put(int(world.ours[:8].sum()) + nth)


def test_the_parent_goes_on_while_children_come_and_go(world):
    """Every result is right, whatever kinds of children there are meanwhile."""
    context = multiprocessing.get_context("fork")
    results, wrong, over = context.SimpleQueue(), [], threading.Event()
    world.ours[:] = 1

    def children():
        for turn in range(4):
            some = [
                context.Process(target=work, args=(world, results, n)) for n in (0, 1)
            ]
            for one in some:
                one.start()
            wrong.extend(said for _, said in [in_child(world.put)] if SAID not in said)
            done = subprocess.run(
                [sys.executable, "-c", "pass"], preexec_fn=os.getpid, check=False
            )
            wrong.extend([done.returncode] if done.returncode else [])
            got = sorted(results.get() for _ in range(40))
            wrong.extend([got] if got != [8] * 20 + [9] * 20 else [])
            for one in some:
                one.join(WAIT)
                wrong.extend([(turn, one.exitcode)] if one.exitcode else [])
        over.set()

    thread = threading.Thread(target=children)
    thread.start()
    data = np.zeros(70_000, np.uint8)
    put, turn = world.region[:70_000].prepare_put(data, notify=b"turn"), 0
    while not over.is_set() or turn < 40:
        turn += 1
        data[:] = turn % 251
        put()
        world.there.notified(b"turn").wait(WAIT)
        assert (world.box[:70_000] == turn % 251).all()
        got = np.zeros(70_000, np.uint8)
        world.region[:70_000].get(got).wait(WAIT)
        assert np.array_equal(data, got)
    thread.join(WAIT)
    assert [] == wrong


def test_a_child_makes_an_engine_of_its_own(world):
    """By which it reaches its parent's, and others."""

    def of_its_own():
        with Engine("child", job=world.here.job, secret=SECRET) as own:
            peer = own.connect("here").wait(WAIT)
            peer["mine"][:8].put(b"children").wait(WAIT)
            own.connect(world.there.metadata).wait(WAIT)["box"][:3].put(b"own").wait(
                WAIT
            )
        return "well"

    assert (0, "returned 'well'") == in_child(of_its_own)
    assert b"children" == world.ours[:8].tobytes()
    assert b"own" == world.box[:3].tobytes()
    world.put()


SCRIPT = """
import os, sys
import numpy as np
from stretto.transfer import Engine
with Engine("a", job=JOB, secret=b"s" * 32, listen="127.0.0.1:0") as a:
    box = a.arena(64)
    a.share(box, "box")
    for where in ("a", a.address):
        with Engine("b", job=JOB, secret=b"s" * 32) as b:
            put = b.connect(where).wait(20)["box"][:8].prepare_put(b"12345678")
            with b.lease():
                child = os.fork()
                if not child:
                    sys.exit(0)
                assert os.waitpid(child, 0) == (child, 0)
            put()
            b.connect(where).wait(20)["box"][8:16].put(b"abcdefgh").wait(20)
            assert b.peers and box[:16].tobytes() == b"12345678abcdefgh"
print("well")
"""


def test_a_child_that_ends_as_programs_do_says_nothing():
    """Through `with` and exit hooks: no errors, and the parent is as it was."""
    script = SCRIPT.replace("JOB", repr(uuid.uuid4().hex))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=False,
    )  # fmt: skip
    assert ("well\n", "", 0) == (done.stdout, done.stderr, done.returncode)


@pytest.mark.parametrize("listen", [False, True])
def test_a_process_that_dies_is_gone_though_a_child_of_it_lives(engine, start, listen):
    """What a child has inherited does not keep a connection, or a port, alive."""
    child = start(listen=listen)
    peer = engine.connect(child.address).wait(WAIT)
    grandchild = child.ask("fork")
    try:
        child.process.kill()
        killed = time.monotonic()
        with pytest.raises(EngineLost, match="is gone"):
            peer.region("never").wait(WAIT)
        assert time.monotonic() - killed < 5.0
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_a_prepared_transfer_on_a_gpu_refuses_too(world):
    """Before the GPU is asked for anything."""
    move, mover = (
        types.SimpleNamespace(enqueue=id, by="kernel"),
        types.SimpleNamespace(),
    )
    mover.stream = int
    passing = Passing(lambda stream: world.ended, "stage")
    for made in (EnqueuedCopies([move], mover, None), passing):
        world.here._prepared.add(made)
        for do in (made, lambda made=made: made(5)):
            status, said = in_child(do)
            assert 0 == status
            assert said.startswith("EngineLost: ")
            assert SAID in said
            do()
