"""A model of what launches do in the driver, as careless as the real one may be.

Kernels last as long as they like, one that may begin early heeds nothing but the kernel
before it on its stream, and whoever asks anything of a destroyed stream is found out.
"""

from __future__ import annotations

import ctypes
import random
import struct
import threading
import time
from collections import deque

import numpy as np
from cuda_fakes import OK, real

from stretto.executors.cuda.words import PARAMS

GONE = real.CUresult.CUDA_ERROR_INVALID_HANDLE
STATES = real.CUstreamCaptureStatus


class Running:
    """A kernel that holds its set of flags from its begin to its end."""

    def __init__(self, model, control, number):
        self.model, self.control, self.number = model, control, number
        self.left = model.random.randrange(1, 40)
        self.begun = self.done = False

    def step(self):
        """Go on; return whether it has ended."""
        if not self.begun:
            self.begun = True
            holder = self.model.holders.get(self.control)
            if holder is not None:
                self.model.clashes.append((holder.number, self.number))
            self.model.holders[self.control] = self
            self.model.order.setdefault(self.control, []).append(self.number)
        self.left -= 1
        if self.left <= 0 and not self.done:
            self.done = True
            if self.model.holders.get(self.control) is self:
                del self.model.holders[self.control]
        return self.done


class Model:
    """What launches do in the fake driver, and what streams are asked."""

    def __init__(self, fake, monkeypatch):
        self.fake, self.random = fake, random.Random(5)
        self.holders, self.order, self.clashes = {}, {}, []
        self.last, self.issued, self.bad = {}, {}, []
        self.destroyed, self.captures, self.numbers = set(), {}, {}
        self.waits, self.synchronized = [], []
        self.lock = threading.Lock()
        fake._launch = self.launch
        for name in ("cuStreamWaitEvent", "cuEventRecord"):
            self.guard(monkeypatch, name)
        replace = {
            "cuStreamIsCapturing": self.capturing,
            "cuStreamGetCaptureInfo": self.info,
            "cuStreamGetId": self.number,
            "cuCtxSynchronize": self.synchronize,
        }
        for name, function in replace.items():
            monkeypatch.setattr(fake, name, function, raising=False)

    def key(self, stream):
        return self.fake.who.rank, int(stream)

    def guard(self, monkeypatch, name):
        """Find out who asks anything of a stream that is no more."""
        plain = getattr(self.fake, name)

        def ask(one, other, *more):
            stream = one if name == "cuStreamWaitEvent" else other
            if self.key(stream) in self.destroyed:
                self.bad.append((name, int(stream)))
                return (GONE,)
            if name == "cuStreamWaitEvent":
                self.waits.append(int(stream))
            return plain(one, other, *more)

        monkeypatch.setattr(self.fake, name, ask, raising=False)

    def capturing(self, stream):
        if self.key(stream) in self.destroyed:
            return GONE, None
        active = self.key(stream) in self.captures
        return OK, (
            STATES.CU_STREAM_CAPTURE_STATUS_ACTIVE
            if active
            else STATES.CU_STREAM_CAPTURE_STATUS_NONE
        )

    def info(self, stream):
        _, state = self.capturing(stream)
        return OK, state, self.captures.get(self.key(stream), 0), None, [], [], 0

    def number(self, stream):
        if self.key(stream) in self.destroyed:
            return GONE, 0
        return OK, self.numbers.get(self.key(stream), 1)

    def synchronize(self):
        rank = self.fake.who.rank
        self.synchronized.append(rank)
        stop_at = time.monotonic() + 20
        while time.monotonic() < stop_at:
            with self.fake.lock:
                self.fake._pump()
                mine = [q for k, q in self.fake.queues.items() if _of(k, rank)]
                if not any(mine):
                    return (OK,)
        return (real.CUresult.CUDA_ERROR_LAUNCH_TIMEOUT,)

    def destroy(self, stream):
        """Destroy a stream of this rank; what it was given still runs."""
        key = self.key(stream)
        with self.fake.lock:
            queue = self.fake.queues.pop(key, deque())
            self.fake.queues[key[0], f"{stream} no more", len(self.fake.queues)] = queue
        self.destroyed.add(key)
        self.last.pop(key, None)

    def create(self, stream):
        """Let a new stream have a handle."""
        key = self.key(stream)
        self.destroyed.discard(key)
        self.numbers[key] = self.numbers.get(key, 1) + 1

    def launch(self, config, function, arguments, _):
        *_, stream, attrs, count = struct.unpack("7IIQQI", ctypes.string_at(config, 52))
        early = count and struct.unpack("I", ctypes.string_at(attrs, 4))[0] == 6
        where = ctypes.c_void_p.from_address(arguments).value
        head = np.frombuffer(ctypes.string_at(where, PARAMS.itemsize), PARAMS)[0]
        rank = self.fake.who.rank
        with self.fake.lock:
            number = self.issued[rank] = self.issued.get(rank, 0) + 1
            running = Running(self, (rank, int(head["control"][rank])), number)
            key, before = (rank, stream), self.last.get((rank, stream))
            if early:  # it heeds the kernel before it, and nothing in between
                ready = (lambda: before.done) if before else (lambda: True)
                beside = self.fake.queues.setdefault((rank, stream, number), deque())
                beside.extend([ready, running.step])
                step = lambda: running.done  # noqa: E731
            else:
                step = running.step
            self.last[key] = running
            self.fake.queues.setdefault(key, deque()).append(step)
            self.fake.launches.append((function, stream, bool(early), where))
            self.fake._pump()
        return 0


def _of(key, rank):
    return isinstance(key, tuple) and key[0] == rank
