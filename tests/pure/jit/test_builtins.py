"""Builtins that are made by many threads at once, and called when all else is gone."""

import gc
import threading

from stretto.fabric.jit import builtins
from stretto.fabric.jit.atomics import compiled

THREADS = 16


@compiled("int64(int64,int64,int64)", nogil=False)
def count_of(held: int, given: int, count: int) -> int:
    """Return how many arguments there are."""
    return builtins.number(count)


def test_builtins_made_at_once_live_on(monkeypatch):
    """Python keeps where a builtin's description lies, not the description."""
    monkeypatch.setattr(builtins, "_methods", {})
    start, made = threading.Barrier(THREADS), []

    def work():
        start.wait()
        made.append(builtins.builtin(count_of, (None,)))

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()

    assert {2} == {one("a", "b") for one in made}
    assert 1 == len({one.__name__ for one in made})
    assert 1 == len(builtins._methods)
