"""Ranks of `spawn` that are forked from this process, with all that it has imported.

A fresh rank imports Numba and loads compiled code for a second, and PyTorch for two
more: most of what tests of several processes cost. Their subject is what ranks do, and
not how they start. Where it is, a test or a file is marked `fresh`: its ranks are
started as everybody's are.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
import types
import warnings
from contextlib import suppress
from pathlib import Path

from tests.soon import soon

from stretto.meeting.launching import child, launch

AT_EXIT = (
    ("stretto.meeting.join", "_end_all"),
    ("stretto.calls.ahead", "_end"),
    ("stretto.torch.base", "_end_all"),
)
"""What a rank of ours does when it ends; of all else, this process takes care."""
is_on = True
"""Whether `spawn` forks: always, but in tests that are marked `fresh`."""
IGNORED = (
    DeprecationWarning,
    PendingDeprecationWarning,
    ImportWarning,
    ResourceWarning,
)
"""Warnings that Python ignores by itself."""


class Forked:
    """Stands for the `Popen` of a rank: what `spawn` uses of it."""

    def __init__(self, command, *, stdin, pass_fds, env):
        del stdin  # it is /dev/null
        at = command.index("-c") + 2
        self.returncode = None
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads: idle
            self.pid = os.fork()
        if self.pid == 0:
            _be_rank(json.loads(command[at]), command[at + 1 :], pass_fds, env)

    def poll(self):
        """Return how it ended, if it has."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=None):
        """Wait until it has ended."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("a rank", timeout)
            time.sleep(0.001)
        return self.returncode

    def kill(self):
        """End it."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def main(program):
    """Run a program whose ranks are forked: `python -m tests.host.forked PROGRAM`."""
    load(with_torch="torch" in Path(program).read_text())
    begin()
    sys.argv = [program]
    sys.path[0] = str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")


def load(*, with_torch=False):
    """Import what ranks need, and load what is compiled."""
    from tests.host.cpu.conftest import load_compiled

    load_compiled()
    if with_torch:
        import stretto.torch  # noqa: F401


def begin():
    """Have `spawn` fork its ranks from now on, while `is_on`."""
    stand_in = types.SimpleNamespace(**vars(subprocess))
    stand_in.Popen = lambda *words, **how: (Forked if is_on else subprocess.Popen)(
        *words, **how
    )
    launch.subprocess = stand_in
    launch.GRACE_S = soon(launch.GRACE_S)


def _be_rank(path, argv, descriptors, environment):
    """Become a rank that looks like a fresh one; never return."""
    status = 1
    try:
        gc.freeze()  # nothing of the parent's is collected, and closes what is ours
        _inherit(set(descriptors))
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path
        atexit._clear()
        for module, name in AT_EXIT:
            if module in sys.modules:
                atexit.register(getattr(sys.modules[module], name))
        warnings.resetwarnings()
        for kind in IGNORED:
            warnings.simplefilter("ignore", kind)
        child.main(argv)
        status = 0
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            atexit._run_exitfuncs()
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _inherit(kept):
    """Keep some descriptors of the parent's, beside the usual three."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number in [int(one.name) for one in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number not in kept:
            with suppress(OSError):
                os.close(number)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


if __name__ == "__main__":
    main(sys.argv[1])
