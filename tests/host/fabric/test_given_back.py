"""Whatever is closed gives back its descriptors, its mappings and its threads.

One test for all nouns of the fabric and of who stands on it: what is left of one use is
left of each, so after several there is more.
"""

import gc
import os
import threading
import uuid

import numpy as np
import pytest
from tests.held import held, left_since
from tests.pure.cpu.test_memory import OneRank

import stretto
from stretto import executors, hop
from stretto.errors import StrettoError
from stretto.fabric.loop import Loop
from stretto.fabric.memory import Mapping, Reservation, Shared, create_file, open_file
from stretto.testing.channels import linked
from stretto.testing.ends import joined
from stretto.trace import record
from stretto.transfer import Engine

pytestmark = [pytest.mark.host, pytest.mark.timeout(170)]
WAIT, TURNS = 60, 4


def left_of(use):
    """Return what is left of several uses, once that has settled."""
    for _ in range(2):  # what is made once for a process is made now
        use()
    gc.collect()
    before = held()
    for _ in range(TURNS):
        use()
    return left_since(before)


def memory(folder):
    """Memory without a name and with one, and addresses that are filled."""
    one = Shared(8192)
    two = Shared.of_peer(8192, os.dup(one.fd))
    named = Shared(4096, open_file(folder / "given-back", 4096))
    place, fd = Reservation(1 << 20), create_file(4096)
    place.append(fd, 4096)
    part = Mapping(fd, 4096)
    for number in (fd,):
        os.close(number)
    one.close()
    named.close()
    del two, part


def loop(folder):
    """A loop that has served something."""
    made, done = Loop("given-back"), threading.Event()
    made.start()
    made.call(done.set)
    assert done.wait(WAIT)
    made.call(made.stop)
    made.join(WAIT)


def a_hop(folder):
    """Two ends of a carrier, connected."""
    with joined(hop.get("tcp")) as pair:
        pair.signal(1)
        pair.comes(1)


def channel(by):
    """Return what uses two ends of a channel."""

    def use(folder):
        with linked(by and hop.get(by)) as (one, other):
            one.say(1)
            one.until(lambda: other.got)

    use.__name__ = f"channel by {by or 'memory'}"
    return use


def session(folder):
    """A session of one rank, with registered memory."""
    made = executors.get("cpu").open_session(OneRank())
    made.empty((1000,), "float32")[:] = 1
    made.close()


def communicator(folder):
    """A group of one rank."""
    with stretto.connect(0, 1) as comm:
        comm.all_reduce(np.ones(10, np.float32))


def recording(folder):
    """A recording of a call's steps."""
    with record(steps=True), stretto.connect(0, 1) as comm:
        comm.all_reduce(np.ones(10, np.float32))


def engine(folder):
    """An engine that has a file and an arena, and was never connected."""
    with Engine(f"given-back-{uuid.uuid4().hex}") as made:
        made.share(made.arena(4096), "arena")
        made.share(made.file(folder / "given-back", 8192), "file")


def peer(far):
    """Return what connects two engines, and moves something both ways."""

    def use(folder):
        job, name = uuid.uuid4().hex, f"given-back-{uuid.uuid4().hex}"
        how = {"job": job, "secret": b"s" * 32}
        with Engine(name, listen="127.0.0.1:0", **how) as there:
            region = there.share(there.arena(1 << 16), "box")
            with Engine(f"{name}-2", **how) as here:
                box = here.connect(there.address if far else name).wait(WAIT)
                box = box.region("box").wait(WAIT)
                with there.lease() as lease:
                    box[:8].put(b"12345678", lease=lease.token).wait(WAIT)
                box[:8].prepare_put(b"abcdefgh")()
                box[:40_000].get(np.zeros(40_000, np.uint8)).wait(WAIT)
                there.unshare(region)
                with pytest.raises(StrettoError):
                    box[:8].put(b"12345678").wait(WAIT)

    use.__name__ = "far peer" if far else "near peer"
    return use


USES = (
    memory, loop, a_hop, channel(None), channel("tcp"), session, communicator,
    recording, engine, peer(False), peer(True),
)  # fmt: skip


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_nothing_is_left_of_what_was_closed(use, tmp_path):
    """Descriptors, mappings of shared memory, and threads."""
    assert [] == left_of(lambda: use(tmp_path))


def groups(comm):
    """Use groups of a rank, its memory and calls, again and again."""

    def use():
        with comm.split(0) as part:
            part.all_reduce(part.empty((100,), "float32"))

    return left_of(use)


def test_nothing_is_left_of_groups_of_two_ranks():
    """On each of both: sub-groups, their slabs, heaps and launches."""
    assert [[], []] == stretto.spawn(groups, num_ranks=2)


def test_what_is_left_is_found():
    """The count sees a descriptor, a mapping and a thread that nobody gave back."""
    kept, over = [], threading.Event()

    def lose():
        kept.append(Shared(4096))
        kept.append(threading.Thread(target=over.wait))
        kept[-1].start()

    before = held()
    lose()
    found = held().more_than(before)
    over.set()
    kept.pop().join()
    kept.pop().close()

    assert ["files", "mappings", "threads"] == [one.split(":")[0] for one in found]
