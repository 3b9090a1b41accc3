"""Processes that are forked where all is warm end, and say, what fresh ones do."""

import contextlib
import logging
import socket
import subprocess
import sys

import pytest
from tests.host import warm

import stretto

pytestmark = pytest.mark.host
SCRIPTS = {
    "words": "import sys; print(sys.argv, __name__)",
    "folder": "import tempfile; print(tempfile.gettempdir())",
    "place": "import os; print(os.getcwd(), os.environ['ONLY'], len(os.environ) < 9)",
    "input": "print(input()[::-1])",
    "status": "import sys; sys.exit(7)",
    "last words": "raise SystemExit('no more')",
    "error": "def work():\n    return {}['lost']\nwork()",
    "interrupt": (  # also where it was ignored at first, as under nohup
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "os.kill(os.getpid(), signal.SIGINT); input()"
    ),
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "sudden": "import os; os.write(1, b'gone'); os._exit(3)",
    "hooks": "import atexit; atexit.register(print, 'after'); print('before')",
    "threads": (
        "import threading, time\n"
        "def late():\n    time.sleep(0.1); print('late')\n"
        "threading.Thread(target=late).start(); print('main')"
    ),
    "open files": "import os; print(len(os.listdir('/proc/self/fd')))",
    "own warnings": "import warnings; warnings.warn('careful'); print('on')",
}


@pytest.mark.parametrize("as_file", [False, True], ids=["-c", "file"])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_forked_process_does_what_a_fresh_one_does(tmp_path, script, as_file):
    """Its status and every line that it prints."""
    file = tmp_path / "script.py"
    file.write_text(script)
    words = [str(file), "-x", "y"] if as_file else ["-c", script, "-x", "y"]
    ended = []
    for run in (lambda words, **how: subprocess.run([sys.executable, *words], **how),
                warm.run):  # fmt: skip
        with (tmp_path / "in").open("w+") as given:
            given.write("some words\n")
            given.seek(0)
            done = run(
                words, stdin=given, capture_output=True, text=True, cwd=tmp_path,
                env={"ONLY": "this", "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
                check=False, timeout=60,
            )  # fmt: skip
        told = [line for line in done.stderr.splitlines() if "  ^" not in line]
        ended.append((done.returncode, done.stdout, told))

    fresh, forked = ended
    assert fresh[:2] == forked[:2]
    assert fresh[2] == [line for line in forked[2] if "runpy" not in line]


def test_a_process_can_be_killed_and_is_a_child_of_ours():
    """As any that `subprocess` starts; the server is not counted."""
    with warm.Popen(["-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process.pid in warm.children()
        assert process.poll() is None
        process.kill()
    assert -9 == process.returncode
    assert process.pid not in warm.children()


@pytest.mark.parametrize("leads", [True, False])
def test_a_process_leads_a_session_where_it_is_asked_to(leads):
    """Whoever ends a group of processes ends those, and not the tests."""
    words = ["-c", "import os; print(os.getsid(0) == os.getpgid(0) == os.getpid())"]
    with warm.Popen(
        words, stdout=subprocess.PIPE, text=True, start_new_session=leads
    ) as process:
        assert f"{leads}\n" == process.communicate(timeout=60)[0]


def test_processes_compute_by_one_thread():
    """At each end of a small product threads wait in a loop for others of theirs.

    On cores that are busy, a product of 16 rows took 50 ms.
    """
    pytest.importorskip("torch")
    said = "import torch; print(torch.get_num_threads())"
    for start in (subprocess.Popen, warm.Popen):
        words = ["-c", said] if start is warm.Popen else [sys.executable, "-c", said]
        with start(words, stdout=subprocess.PIPE, text=True) as process:
            assert "1\n" == process.communicate(timeout=60)[0]


def heard_while_logging(comm):
    """Return what comes by new sockets while a logger of the parent speaks."""
    pairs = [socket.socketpair() for _ in range(64)]
    logging.getLogger("of the parent").warning("not for sockets")
    heard = []
    for end in (end for pair in pairs for end in pair):
        end.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            heard.append(end.recv(100))
    return heard


def test_what_wrote_to_a_file_of_the_parent_writes_to_no_other(tmp_path):
    """Numbers of its files are others' in a forked rank: once a socket of torch's."""
    logger = logging.getLogger("of the parent")
    with (tmp_path / "log").open("w") as file:
        handler = logging.StreamHandler(file)
        logger.addHandler(handler)
        try:
            assert [[], []] == stretto.spawn(heard_while_logging, num_ranks=2)
        finally:
            logger.removeHandler(handler)
