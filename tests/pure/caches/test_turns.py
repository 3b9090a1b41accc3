"""One process at a time makes what several want."""

import os
import signal
import threading
import time

from stretto import caches


def test_one_makes_while_the_others_wait(tmp_path):
    """Whoever comes second finds what the first has made."""
    made, order = threading.Event(), []

    def make(name, hold_s):
        with caches.alone(tmp_path / "deep" / "turn.lock"):
            order.append((name, made.is_set()))
            time.sleep(hold_s)
            made.set()

    some = [threading.Thread(target=make, args=(n, 0.2)) for n in "ab"]
    for one in some:
        one.start()
    for one in some:
        one.join()

    assert [False, True] == [seen for _, seen in order]


def test_whoever_has_waited_long_enough_goes_on(tmp_path):
    """A process that hangs costs the others time, never the work."""
    with caches.alone(tmp_path / "turn.lock"):
        start = time.monotonic()
        with caches.alone(tmp_path / "turn.lock", wait_s=0.1):
            assert time.monotonic() - start < 5


def test_where_no_lock_can_be_all_go_on(tmp_path):
    """A folder that cannot be written, say."""
    (tmp_path / "file").write_text("")
    with caches.alone(tmp_path / "file" / "turn.lock"):
        pass


def test_what_several_ask_for_is_made_by_one(tmp_path):
    """The others wait for it, and find it."""
    made, got = [], []

    def make():
        made.append(1)
        time.sleep(0.2)
        return b"made"

    def ask():
        got.append(caches.once(tmp_path / "one", make))

    some = [threading.Thread(target=ask) for _ in range(8)]
    for one in some:
        one.start()
    for one in some:
        one.join()

    assert [1] == made
    assert [b"made"] * 8 == got
    assert ["one"] == [path.name for path in tmp_path.iterdir()]


def test_who_waited_for_one_that_failed_makes_it_beside_the_others(tmp_path):
    """Not one after the other: where nothing can be kept, that would take for ever."""
    together = threading.Barrier(4)
    failing, got = threading.Event(), []

    def fail():
        failing.set()
        time.sleep(0.3)
        raise MemoryError

    def make():
        together.wait(timeout=20)
        return b"made"

    def first():
        try:
            caches.once(tmp_path / "one", fail)
        except MemoryError:
            got.append(None)

    def other():
        failing.wait()
        got.append(caches.once(tmp_path / "one", make))

    some = [threading.Thread(target=first)]
    some += [threading.Thread(target=other) for _ in range(4)]
    for one in some:
        one.start()
    for one in some:
        one.join()

    assert sorted([None, *[b"made"] * 4], key=str) == sorted(got, key=str)


def test_nobody_waits_for_ever_for_who_makes_it(tmp_path):
    """Whoever makes it may be stopped: the others then make it, too."""
    with caches.alone(tmp_path / "one.lock"):
        assert caches.once(tmp_path / "one", lambda: b"made", wait_s=0.1) == b"made"


def test_nobody_waits_for_a_process_that_is_stopped(tmp_path, monkeypatch):
    """Others would wait for whoever waits for it, and hear of nothing meanwhile."""
    monkeypatch.setattr(caches, "_STANDSTILL_S", 0.1)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with caches.alone(tmp_path / "one.lock"):
            os.write(writer, b"x")
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    try:
        os.read(reader, 1)
        start = time.monotonic()
        assert caches.once(tmp_path / "one", lambda: b"made") == b"made"
        assert time.monotonic() - start < 20
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)


def test_where_nothing_can_be_kept_it_is_made(tmp_path):
    """It costs the work, no more."""
    (tmp_path / "file").write_text("")

    assert caches.once(tmp_path / "file" / "one", lambda: b"made") == b"made"


def test_a_folder_keeps_its_youngest(tmp_path):
    """What nobody has asked for any more does not stay for ever."""
    for nth in range(12):
        caches.once(tmp_path / f"{nth:02}", lambda: b"made", most=8)
        os.utime(tmp_path / f"{nth:02}", ns=(nth, nth))

    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len(kept) <= 8
    assert "11" in kept
    assert "00" not in kept
