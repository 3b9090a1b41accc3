"""Calls in place whose parts have unequal sizes: an output part lies over strangers."""

import numpy as np
import pytest

import stretto

SCALES = (1, 30_000)
"""Parts of a few bytes, and of several tiles."""


def circulant(n, scale):
    """Return counts in which what a rank sends and receives add up to the same."""
    few = (2, 5, 1, 3, 4)[:n]
    return np.array([[few[(q - r) % n] for q in range(n)] for r in range(n)]) * scale


def exchanged(comm, counts, pin, given):
    """Return which of several calls in one memory came out wrong."""
    n, r = comm.num_ranks, comm.rank
    wrong = []
    for call in range(2):
        sent = [
            np.arange(counts[q].sum(), dtype=np.int64) + 10**9 * (100 * call + q + 1)
            for q in range(n)
        ]
        starts = np.concatenate([np.zeros((n, 1), int), counts.cumsum(axis=1)], axis=1)
        want = np.concatenate(
            [sent[q][starts[q, r] : starts[q, r + 1]] for q in range(n)]
        )
        x = comm.empty(sent[r].size, "int64") if given == "registered" else sent[r]
        x[...] = sent[r]
        out = np.empty_like(x) if given == "some" and r % 2 else x
        got = comm.all_to_all_v(x, counts, out=out, algorithm=pin)
        if not (got is out and np.array_equal(out, want)):
            wrong.append((call, int((out != want).sum())))
    return wrong


def work(comm, pins):
    wrong = [
        (scale, pin, given, found)
        for scale in SCALES
        for pin in pins
        for given in ("private", "registered", "some")
        if (found := exchanged(comm, circulant(comm.num_ranks, scale), pin, given))
    ]
    shorter = np.array([[1, 4], [2, 1]]) * 5_000
    if comm.num_ranks == 2:  # the output is shorter than the input, or longer
        n, r = 2, comm.rank
        sent = [np.arange(shorter[q].sum()) + 10**6 * q for q in range(n)]
        starts = np.concatenate([np.zeros((n, 1), int), shorter.cumsum(axis=1)], axis=1)
        want = np.concatenate(
            [sent[q][starts[q, r] : starts[q, r + 1]] for q in range(n)]
        )
        room = np.zeros(int(shorter.sum()), np.int64)
        x, out = room[: sent[r].size], room[: want.size]
        x[...] = sent[r]
        comm.all_to_all_v(x, shorter, out=out)
        if not np.array_equal(out, want):
            wrong.append("of two lengths")
    return wrong


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_unequal_parts_in_place_arrive_whole(num_ranks):
    """Parts that begin elsewhere are read from a copy, by whatever algorithm."""
    pins = [None, "all_to_all/one_shot push bulk staged tile_bytes=4096"]
    pins += ["all_to_all/bruck push packets staged"]

    wrong = stretto.spawn(work, pins, num_ranks=num_ranks)

    assert [[]] * num_ranks == wrong
