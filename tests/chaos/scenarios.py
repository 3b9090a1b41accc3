"""What is done to jobs, and what must come of it: one function a kind, seeded.

Each takes a `random.Random` and a folder, and raises AssertionError when a job was
harmed or somebody misled. All stay in this process; others are of real processes.
"""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import numpy as np

import stretto
from stretto import caches, cli
from stretto.errors import StrettoError
from stretto.executors import Group
from stretto.fabric.address import listen
from stretto.fabric.meeting import messages
from stretto.fabric.meeting.greet import greet
from stretto.fabric.meeting.hosting.door import Door, knock
from stretto.fabric.meeting.hosting.hub import Hub
from stretto.fabric.meeting.hosting.rendezvous import Rendezvous
from stretto.fabric.wire import HEADER, MAGIC, Connection
from stretto.fabric.world import World

SECRET = b"a secret of sixteen bytes"
KINDS = messages.Message.__subclasses__()


def odd_value(rng: random.Random, depth: int = 0) -> object:
    """Return something that JSON can write, and that is rarely what is wanted."""
    simple = [
        0,
        -1,
        rng.getrandbits(rng.choice((8, 64, 200))),
        rng.random() * 10.0 ** rng.randint(-300, 300),
        "",
        "\ud800",
        "x" * rng.randint(0, 500),
        None,
        True,
    ]
    if depth > 3 or rng.random() < 0.7:
        return rng.choice(simple)
    inner = [odd_value(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    return inner if rng.random() < 0.5 else {str(i): v for i, v in enumerate(inner)}


def hostile_bytes(rng: random.Random) -> bytes:
    """Return a frame, or what resembles one, or not at all."""
    how = rng.randrange(6)
    if how == 0:
        return rng.randbytes(rng.randint(0, 200))
    if how == 1:
        text = rng.choice((b"[", b'{"a":')) * rng.randint(1, 600)
    elif how == 2:
        text = rng.choice((b'{"mac":"\\udfff"}', b'{"a":NaN}', b"\xff", b"{}", b"1"))
    else:
        kind = rng.choice(KINDS)
        body = {name: odd_value(rng) for name in kind.__slots__}
        body["say"] = kind.__name__ if rng.random() < 0.9 else odd_value(rng)
        text = json.dumps(body).encode()
    length = len(text) if rng.random() < 0.9 else rng.getrandbits(32)
    return HEADER.pack(MAGIC, length, rng.choice((0, 0, 0, 1, 5000))) + text


def stranger(rng: random.Random, family: int, where: object) -> None:
    """Come, say something, and go, or stay a while."""
    with suppress(OSError), socket.socket(family) as sock:
        sock.settimeout(0.2)
        sock.connect(where)
        for _ in range(rng.randint(0, 4)):
            sock.sendall(hostile_bytes(rng))
        if rng.random() < 0.2:
            sock.recv(100)


def flood(rng: random.Random, folder: Path, strangers: int = 6) -> int:
    """Hostile frames at the socket and at the door, while two ranks meet and talk."""
    name = folder / f"{rng.getrandbits(40)}.sock"
    world = World(
        2, deadline=time.monotonic() + 20, timeout_s=20.0, host_rank=0, generation=1
    )
    hub = Hub(Rendezvous(world))
    listener = listen(name)
    hub.serve(listener, lambda fault: name.unlink())
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    Door(hub, ("127.0.0.1", port), os.fspath(name), SECRET)
    ours, theirs = socket.socketpair()
    hub.adopt(theirs, rank=0)
    thread = hub.start()
    heard: dict[int, object] = {}

    def rank(number: int, sock: socket.socket) -> None:
        meeting = greet(
            Connection(sock), rank=number, num_ranks=2, deadline_s=20.0, start_s=20.0
        )
        parts = meeting.world.exchange({"rank": number}, tag="talk")
        heard[number] = [said for said, _ in parts]
        meeting.close()

    zero = threading.Thread(target=rank, args=(0, ours))
    zero.start()
    for _ in range(strangers):
        if rng.random() < 0.5:
            stranger(rng, socket.AF_UNIX, os.fspath(name))
        else:
            stranger(rng, socket.AF_INET, ("127.0.0.1", port))
    until, path = time.monotonic() + 10, None
    while path is None:
        answer = knock(("127.0.0.1", port), SECRET, until)
        path = None if answer is None else answer.path
        assert time.monotonic() < until, "the door let nobody in"
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    rank(1, sock)
    zero.join(10)
    thread.join(10)

    assert thread.is_over, "the hub goes on"
    assert heard == {r: [{"rank": 0}, {"rank": 1}] for r in (0, 1)}, heard
    return strangers


def read_frames(rng: random.Random, folder: Path) -> int:
    """Read hostile bytes in odd portions: frames or a refusal, and never an error."""
    from stretto.fabric.wire import Decoder, Refused, encode

    decoder, count = Decoder(), rng.randint(1, 6)
    data = b"".join(hostile_bytes(rng) for _ in range(count))
    while data:
        cut = rng.randint(1, len(data))
        for found in decoder.feed(data[:cut]):
            message = messages.read(found)
            if not isinstance(message, Refused):
                encode(messages.to_body(message))
        data = data[cut:]
    return count


def spoil_a_cache(rng: random.Random, folder: Path) -> int:
    """Change a kept file in any way: what is loaded is right, or nothing."""
    path = folder / "kept" / str(rng.getrandbits(40))
    data = rng.randbytes(rng.randint(1, 400))
    caches.store(path, data)
    raw = bytearray(path.read_bytes())
    how = rng.randrange(5)
    if how == 0:
        raw = raw[: rng.randrange(len(raw))]
    elif how == 1:
        raw[rng.randrange(len(raw))] ^= rng.randint(1, 255)
    elif how == 2:
        raw += rng.randbytes(rng.randint(1, 9))
    elif how == 3:
        path.chmod(0o666)
    path.write_bytes(raw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = caches.load(path)
    assert found == (data if how == 4 else None), "spoilt bytes were loaded"
    with suppress(OSError):
        path.unlink()
    return 1


class Alone(Group):
    """Rank 0 of 1, which exchanges with itself."""

    rank, num_ranks, deadline_s = 0, 1, 1.0
    broken = np.zeros(1, np.int64)

    def exchange(self, payload, fds=()):
        """Return its own part."""
        return [(payload, ())]

    def split(self, color, key):
        """Return no group."""


_comm: list[stretto.Communicator] = []
VERBS = {
    "all_reduce": ("op", "algorithm", "stream", "dtype", "out"),
    "reduce": ("op", "root", "algorithm", "out"),
    "broadcast": ("root", "out", "dtype"),
    "all_gather": ("out", "algorithm"),
    "gather": ("root", "dtype"),
    "reduce_scatter": ("op", "algorithm"),
    "scatter": ("root", "out"),
    "all_to_all": ("split", "concat", "algorithm"),
    "all_gather_v": ("counts",),
    "reduce_scatter_v": ("counts", "op"),
    "scatter_v": ("counts", "root"),
    "all_to_all_v": ("counts",),
    "empty": (),
    "split": ("key", "deadline_s"),
}


def misuse(rng: random.Random, folder: Path) -> int:
    """Odd arguments: an error of ours, and the communicator works as before."""
    if not _comm:
        _comm.append(stretto.Communicator(Alone(), profiles=None))
    comm = _comm[0]
    verb = rng.choice(list(VERBS))
    options = {name: odd_value(rng) for name in VERBS[verb] if rng.random() < 0.6}
    if verb.endswith("_v"):
        options.setdefault("counts", odd_value(rng))
    if verb == "split":
        options["color"] = odd_value(rng)
        args = ()
    elif verb == "empty":
        args = (rng.choice((-5, 2.5, "x", None, [1 << 50], [-1], {}, 1 << 90)),)
    else:
        args = (np.ones(4, np.float32),)
    with suppress(StrettoError):
        getattr(comm, verb)(*args, **options)
    x = np.full(4, 3.0, np.float32)
    assert comm.all_reduce(x).tolist() == [3.0] * 4, "a wrong value"
    return 1


def misuse_the_command(rng: random.Random, folder: Path) -> int:
    """Malformed files and numbers: status 2 and one line, or what was asked for."""
    path = folder / f"{rng.getrandbits(40)}{rng.choice(('.xml', '.json', '.txt'))}"
    path.write_bytes(rng.randbytes(rng.randint(0, 300)))
    ranks = rng.choice(("\u00b2", "0", "-3", "1-99999999999", "x", "9" * 30, ""))
    argv = rng.choice(
        (
            ["show", str(path)],
            ["show", "all_reduce/ring", f"--ranks={ranks}"],
            ["verify", "all_reduce/ring", f"--ranks={ranks or '0'}"],
            ["simulate", "all_reduce/ring", f"--sizes={ranks}x"],
        )
    )
    said = StringIO()
    with redirect_stderr(said), redirect_stdout(StringIO()):
        try:
            status = cli.main(argv)
        except SystemExit as e:
            status = e.code
    path.unlink()
    assert status == 2, (argv, status, said.getvalue())
    assert "Traceback" not in said.getvalue()
    return 1


CHEAP = {
    "read hostile frames": read_frames,
    "spoil a cache": spoil_a_cache,
    "odd arguments of a call": misuse,
    "malformed command line": misuse_the_command,
    "hostile frames while ranks meet": flood,
}
