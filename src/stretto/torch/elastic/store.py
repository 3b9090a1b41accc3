"""The store of a job's process groups, in a process that no rank takes along.

    python -m stretto.torch.elastic.store DESCRIPTOR HOST PORT

Whoever launches a job starts it, once somebody knocks.
"""

from __future__ import annotations

import os
import signal
import sys


def main(argv: list[str]) -> None:
    """Serve the store on a socket that listens already, until we are ended."""
    from stretto.fabric.process import die_with_parent

    die_with_parent(os.getppid())
    import torch.distributed as dist

    number, host, port = int(argv[0]), argv[1], int(argv[2])
    store = dist.TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=number
    )
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        signal.pause()
        del store


if __name__ == "__main__":
    main(sys.argv[1:])
