"""Run kernels that use channels, and registered kernels, on this CPU.

As emulate.py does: only what is inline assembly is replaced. `__shared__` is not
emulated: such kernels are compiled, and run on GPUs.
"""

import ctypes
import re
from pathlib import Path

import numpy as np
from cuda_emulate import REPLACED, aligned, compiled

from stretto.executors.cuda.codegen.compile import headers
from stretto.executors.cuda.custom.channels import ChannelsLayout
from stretto.executors.cuda.words import CHANNEL, CONTROL, PARAMS, RECORD

HERE = Path(__file__).parent
ASSEMBLY = ("memory.cuh", "remote.cuh")


def build(text, folder, entry):
    """Return a library of a kernel's text and the C function `entry`."""
    for name, header in headers().items():
        for pattern, other in REPLACED:
            header = re.sub(pattern, lambda _, o=other: o, header, flags=re.DOTALL)
        (folder / name).write_text(header)
    for name in ASSEMBLY:
        (folder / name).write_text("#pragma once\n")
    own = (HERE / "emulate_own.hpp").read_text()
    (folder / "own.cpp").write_text("\n".join([own, text, entry]))
    return ctypes.CDLL(str(compiled(folder, "own.cpp")))


def built(text, folder, entry):
    """Return the function `go` of a text."""
    return build(text, folder, entry).go


class Handles:
    """Channels of several ranks in this process's memory."""

    def __init__(self, ranks, nbytes, *, blocks=1, deadline_s=60):
        self.ranks, self.blocks = ranks, blocks
        self.words = ChannelsLayout(blocks=blocks, num_ranks=ranks)
        self.buffers = [aligned(nbytes) for _ in range(ranks)]
        self.own = [aligned(8 * self.words.total) for _ in range(ranks)]
        self.control = [aligned(CONTROL["flags"]) for _ in range(ranks)]
        self.records = [aligned(RECORD.itemsize) for _ in range(ranks)]
        self.homes = [self._home(r, deadline_s) for r in range(ranks)]
        self.memory = [self._memory(r) for r in range(ranks)]

    def _home(self, rank, deadline_s):
        home = np.zeros(1, PARAMS)
        home["control"][0, : self.ranks] = [c.ctypes.data for c in self.control]
        home["record"] = self.records[rank].ctypes.data
        home["deadline_ns"] = int(deadline_s * 1e9)
        return home

    def _memory(self, rank):
        table = np.zeros((self.blocks, self.ranks), CHANNEL)
        for b, q in np.ndindex(self.blocks, self.ranks):
            mine, theirs = self.own[rank].ctypes.data, self.own[q].ctypes.data
            table[b, q] = (
                self.buffers[rank].ctypes.data,
                self.buffers[q].ctypes.data,
                mine + self.words.inbox(b, q),
                theirs + self.words.inbox(b, rank),
                mine + self.words.counts(b, q),
                mine + self.words.calls(b),
                self.homes[rank].ctypes.data,
                rank,
                q,
            )
        return table

    def epochs(self, rank):
        """Return the address of each block's count of calls."""
        return self.own[rank].ctypes.data + self.words.calls(0)

    def record(self, rank):
        """Return what a rank wrote when it gave up."""
        return self.records[rank].view(RECORD)[0]
