"""One process at a time makes what several want."""

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
