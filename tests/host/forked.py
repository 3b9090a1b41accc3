"""Ranks that are forked from this process, with all that it has imported.

A fresh rank imports Numba and loads compiled code for a second, and PyTorch for two
more: most of what tests of several processes cost. Their subject is what ranks do, and
not how they start. Where it is, a test or a file is marked `fresh`: its ranks are
started as everybody's are.
"""

from __future__ import annotations

import atexit
import faulthandler
import functools
import gc
import json
import logging
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from contextlib import suppress
from pathlib import Path

from tests.soon import soon

from stretto.fabric.meeting.launching import child, launch

OURS = (__file__, str(Path(__file__).with_name("warm.py")))
AT_EXIT = (
    ("stretto.fabric.meeting.join", "_end_all"),
    ("stretto.runtime.calls.precompile", "_end"),
    ("stretto.torch.base", "_end_all"),
)
"""What a rank of ours does when it ends; of all else, this process takes care."""
is_on = True
"""Whether `spawn` forks: always, but in tests that are marked `fresh`."""
GRACE_S = launch.GRACE_S
EXCEED_CORES = launch.exceed_cores
IGNORED = (
    DeprecationWarning,
    PendingDeprecationWarning,
    ImportWarning,
    ResourceWarning,
)
"""Warnings that Python ignores by itself."""


class Forked:
    """Stands for the `Popen` of a process that does some work and nothing else."""

    def __init__(self, work, *, usual, kept, env):
        """Fork; the child has three `usual` descriptors, and those that are kept."""
        self.returncode = None
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads: idle
            self.pid = os.fork()
        if self.pid == 0:
            become(work, usual, set(kept), env)

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


def rank(command, *, stdin, pass_fds, env):
    """Return a rank of `spawn`, by the words that `Popen` would be given."""
    at = command.index("-c") + 2

    def work():
        sys.path[:] = json.loads(command[at])
        child.main(command[at + 1 :])

    null = os.open(os.devnull, os.O_RDONLY)
    try:
        return Forked(work, usual=(null, 1, 2), kept=pass_fds, env=env)
    finally:
        os.close(null)


class Script(Forked):
    """Stands for `python -u -c SCRIPT WORDS...`, with pipes of text; see `Popen`."""

    def __init__(self, script, words, *, env, before=lambda: None):
        """`before` is called first in the new process."""

        def work():
            before()
            sys.argv = ["-c", *words]
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(script, "<string>", "exec"), vars(main))

        pipes = [os.pipe() for _ in range(3)]
        theirs = pipes[0][0], pipes[1][1], pipes[2][1]
        super().__init__(work, usual=theirs, kept=(), env=env)
        for end in theirs:
            os.close(end)
        self.stdin = os.fdopen(pipes[0][1], "w")
        self.stdout, self.stderr = (os.fdopen(pipe[0]) for pipe in pipes[1:])
        self._said = None

    def communicate(self, timeout=None):
        """Return what is left of what it writes to stdout, and to stderr."""
        if self._said is None:
            with suppress(BrokenPipeError):
                self.stdin.close()
            until = None if timeout is None else time.monotonic() + timeout
            found = ["", ""]

            def read(nth, pipe):
                found[nth] = pipe.read()
                pipe.close()

            ends = enumerate((self.stdout, self.stderr))
            readers = [threading.Thread(target=read, args=a, daemon=True) for a in ends]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join(None if until is None else until - time.monotonic())
                if reader.is_alive():
                    raise subprocess.TimeoutExpired("a script", timeout)
            self.wait()
            self._said = found
        return self._said


def load(*, with_torch=False):
    """Import what ranks need, and load what is compiled."""
    from tests.host.cpu.conftest import load_compiled

    load_compiled()
    if with_torch:
        from torch import multiprocessing

        import stretto.torch  # noqa: F401

        fork = functools.partial(multiprocessing.start_processes, start_method="fork")
        multiprocessing.spawn = fork


def begin():
    """Have `spawn` fork its ranks from now on, while `is_on`."""
    stand_in = types.SimpleNamespace(**vars(subprocess))
    stand_in.Popen = lambda *words, **how: (rank if is_on else subprocess.Popen)(
        *words, **how
    )
    launch.subprocess = stand_in
    launch.exceed_cores = lambda num_ranks: not is_on and EXCEED_CORES(num_ranks)
    launch.GRACE_S = soon(GRACE_S)


_never_closed = []
"""Streams whose numbers are closed already."""


def become(work, usual, kept, environment):
    """Become a process that looks like a fresh one, and do its work; never return."""
    status = 1
    try:
        gc.freeze()  # nothing of the parent's is collected, and closes what is ours
        gc.set_threshold(700, 10, 10)  # garbage is found as soon as in users' ranks
        _inherit(usual, kept)
        _forget_pytest()
        os.environ.clear()
        os.environ.update(environment)
        platform._uname_cache = None  # its host may be another
        tempfile.tempdir = None  # so may its TMPDIR
        atexit._clear()
        for module, name in AT_EXIT:
            if module in sys.modules:
                atexit.register(getattr(sys.modules[module], name))
        warnings.resetwarnings()
        for kind in IGNORED:
            warnings.simplefilter("ignore", kind)
        work()
        status = 0
    except SystemExit as e:
        status = _status(e)
    except BaseException as e:
        _tell(e)
        if isinstance(e, KeyboardInterrupt):
            status = -signal.SIGINT
    finally:
        with suppress(BaseException):
            threading._shutdown()
        with suppress(BaseException):
            atexit._run_exitfuncs()
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(status)


def _status(error):
    """Return the status of a process that raised SystemExit; say its text."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    sys.stderr.write(f"{error.code}\n")
    return 1


def _tell(error):
    """Print what ended a process, without our part, and leave it to exit hooks."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in OURS:
        trace = trace.tb_next
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.last_exc = error
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def _print_warning(message, category, filename, lineno, file=None, line=None):
    text = warnings.formatwarning(message, category, filename, lineno, line)
    (file or sys.stderr).write(text)


def _forget_pytest():
    """Do without what pytest put in the way of errors, signals and imports."""
    faulthandler.disable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
    threading.excepthook = threading.__excepthook__
    logging.root.handlers.clear()
    for handler in filter(None, (one() for one in logging._handlerList)):
        if vars(handler).get("stream") is not None:  # its number may be another file's
            _never_closed.append(handler.stream)
            opens = isinstance(handler, logging.FileHandler)
            handler.stream = None if opens else sys.stderr
    warnings.showwarning = _print_warning  # pytest keeps them in a list of its own
    sys.meta_path[:] = [
        one for one in sys.meta_path if "pytest" not in type(one).__module__
    ]


def _inherit(usual, kept):
    """Have the usual three descriptors, and some of the parent's."""
    for number, one in enumerate(usual):
        if number != one:
            os.dup2(one, number)
    for number in [int(one.name) for one in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number not in kept:
            with suppress(OSError):
                os.close(number)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
