"""A search in which one candidate hangs, and another ends its process."""

import os
from dataclasses import replace

from stretto.bench.peers._ours import OurCalls
from stretto.bench.tune import job

HANGS, DIES = "all_reduce/ring push packets", "all_reduce/one_shot push bulk"


def work(comm, task, say):
    """Tune on this rank; rank 1 is where they are no good."""
    prepare = OurCalls.prepare

    def spoiling(self, case, x, out):
        prepared = prepare(self, case, x, out)
        if comm.rank == 1 and str(self._pin).startswith(HANGS):
            return replace(prepared, call=lambda: None)  # the other one waits
        if comm.rank == 1 and str(self._pin).startswith(DIES):
            return replace(prepared, call=lambda: os._exit(3))
        return prepared

    OurCalls.prepare = spoiling
    try:
        return job.work(comm, task, say)
    finally:
        OurCalls.prepare = prepare
