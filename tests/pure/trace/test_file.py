"""The file of a recording: what is written is read, and no file crashes a reader."""

import json
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples

from stretto.errors import TraceError
from stretto.trace import (
    CALL,
    STEP,
    CallKind,
    Comm,
    Dropped,
    RankInfo,
    Recording,
    Run,
    TraceFile,
    merge,
    read,
    read_all,
    write,
)
from stretto.trace.chunks import CALLS, MAGIC, META


def sample(rank=0, calls=5, steps=7, host="a", seed=0):
    """Return a recording of one rank with values in every column."""
    rng = np.random.default_rng([seed, rank])
    made = []
    for dtype, rows in ((CALL, calls), (STEP, steps)):
        table = np.zeros(rows, dtype)
        for name in dtype.names:
            table[name] = rng.integers(1, 1 << 14, rows)
        table["rank"], table["comm"] = rank, 0
        table["kind"] = rng.integers(0, 2, rows)
        table["seq"] = np.arange(1, rows + 1)
        made.append(table)
    made[0]["state"] = 1
    return Recording(
        calls=made[0],
        steps=made[1],
        ranks=(RankInfo(rank=rank, num_ranks=2, host=host, pid=7),),
        comms=(Comm(name="world", members=(0, 1)),),
        kinds=(
            CallKind(collective="all_reduce", nbytes=64, dtype="float32"),
            CallKind(collective=f"own_{rank}"),
        ),
        run=Run(title="t", command=("python", "x.py"), machine="dgx_h100"),
        dropped=(Dropped(rank=rank, calls=3),),
    )


def same(one, other):
    """Return whether two recordings are equal."""
    return (
        np.array_equal(one.calls, other.calls)
        and np.array_equal(one.steps, other.steps)
        and replace(one, calls=0, steps=0, samples=0)
        == replace(other, calls=0, steps=0, samples=0)
    )


@pytest.mark.parametrize(("calls", "steps"), [(0, 0), (1, 0), (5, 7), (70_000, 3)])
def test_what_is_written_is_read(tmp_path, calls, steps):
    """Every column and every fact comes back, whatever the number of chunks."""
    recording = sample(calls=calls, steps=steps)
    write(tmp_path / "x.trace", recording)

    assert same(recording, read(tmp_path / "x.trace"))
    assert ["x.trace"] == [p.name for p in tmp_path.iterdir()]


def test_a_file_grows_chunk_by_chunk(tmp_path):
    """What was appended is there at once, and facts may come after what names them."""
    recording = sample()
    file = TraceFile(tmp_path / "x.trace")
    file.calls(recording.calls[:2])
    file.facts(ranks=recording.ranks, comms=recording.comms, kinds=recording.kinds)
    file.calls(recording.calls[2:])

    assert np.array_equal(recording.calls, read(tmp_path / "x.trace").calls)
    file.close()


def attempt(path):
    """Return what is read, and why it was refused."""
    try:
        return read(path), ""
    except TraceError as e:
        return None, str(e)


def chunked(tmp_path):
    """Return the bytes of a file and where its chunks end."""
    recording, path = sample(), tmp_path / "whole.trace"
    ends = []
    with TraceFile(path) as file:
        file.facts(ranks=recording.ranks, comms=recording.comms, kinds=recording.kinds)
        ends.append(path.stat().st_size)
        for row in range(len(recording.calls)):
            file.calls(recording.calls[row : row + 1])
            ends.append(path.stat().st_size)
    return path.read_bytes(), ends


def test_a_file_that_was_cut_is_read_to_its_last_whole_chunk(tmp_path):
    """At every length: no error, no row too few or too many, and it says so."""
    data, ends = chunked(tmp_path)
    for size in range(ends[0], len(data) + 1):
        (tmp_path / "cut.trace").write_bytes(data[:size])
        recording = read(tmp_path / "cut.trace")

        assert sum(end <= size for end in ends) - 1 == len(recording.calls)
        assert (size in ends) == (recording.cut == ())


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_any_changed_byte_is_noticed_or_cuts(tmp_path_factory, data):
    """One byte changed anywhere gives an error in one line, or fewer rows."""
    folder = tmp_path_factory.mktemp("x")
    raw, _ = chunked(folder)
    at = data.draw(st.integers(0, len(raw) - 1))
    changed = bytearray(raw)
    changed[at] ^= data.draw(st.integers(1, 255))
    (folder / "y.trace").write_bytes(changed)
    recording, refused = attempt(folder / "y.trace")
    assert "\n" not in refused
    assert refused or (recording.cut and len(recording.calls) < 5)


def chunk(kind, rows, payload):
    """Return a chunk that is whole, whatever it says: an encoder of its own."""
    head = struct.pack(
        "<4sIQQI", b"CHNK", kind, rows, len(payload), zlib.crc32(payload)
    )
    return head + struct.pack("<I", zlib.crc32(head)) + payload


FACTS = {
    "ranks": [{"rank": 0, "num_ranks": 1, "host": "a"}],
    "comms": [{"name": "world", "members": [0]}],
    "kinds": [{"collective": "barrier"}],
}
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["rank", "name", "members", "collective", "host", "nbytes"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
hostile_facts = st.dictionaries(
    st.sampled_from(["ranks", "comms", "kinds", "dropped", "run", "else"]), values
).map(lambda d: json.dumps(d).encode())
columns = st.lists(
    st.tuples(
        st.sampled_from([*CALL.names, "more"]),
        st.sampled_from(
            ["<i4", "<i8", ">i8", "<f8", "|O", "V1000000000", "x", "", "<U9"]
        ),
    ),
    max_size=12,
).map(lambda c: json.dumps(c).encode())


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 9), st.integers(0, 2**64 - 1), st.binary()),
            st.tuples(st.just(META), st.integers(0, 3), hostile_facts),
            st.tuples(
                st.sampled_from([2, 3]),
                st.integers(0, 3),
                st.tuples(columns, st.binary(max_size=300)).map(
                    lambda p: struct.pack("<Q", len(p[0])) + p[0] + p[1]
                ),
            ),
        ),
        max_size=4,
    ),
    st.binary(max_size=40),
)
def test_hostile_files_give_one_clear_line(tmp_path_factory, chunks, tail):
    """Whole chunks with any content, and any bytes after them: read, or refused."""
    path = tmp_path_factory.mktemp("x") / "hostile.trace"
    body = b"".join(chunk(*one) for one in chunks)
    path.write_bytes(MAGIC + body + tail)
    recording, refused = attempt(path)
    assert recording is not None or str(path) in refused
    assert "\n" not in refused
    assert len(refused) < 400


def call_chunk(rows=1, **changed):
    """Return a chunk of calls with other columns than it should have."""
    said = {name: CALL[name].str for name in CALL.names} | changed
    names = json.dumps([[n, t] for n, t in said.items() if t]).encode()
    body = b"".join(bytes(rows * np.dtype(t).itemsize) for t in said.values() if t)
    return chunk(CALLS, rows, struct.pack("<Q", len(names)) + names + body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (chunk(META, 0, b"[1]"), "no JSON object"),
        (chunk(META, 0, b"[" * 100_000), "not JSON"),
        (chunk(META, 0, b'{"ranks": 3}'), "ranks is 3; want a list"),
        (chunk(META, 0, b'{"ranks": [{"rank": "x"}]}'), "want a whole number"),
        (chunk(META, 0, b'{"comms": [{"name": "w"}]}'), "no 'members'"),
        (
            chunk(META, 0, b'{"comms": [{"name": "w", "members": ["a"]}]}'),
            "list of int",
        ),
        (chunk(CALLS, 1 << 60, b""), "rows in 0 bytes"),
        (call_chunk(seq="<i4", more="<i4"), "column 'seq' is of type <i4"),
        (call_chunk(seq="", more="<i8"), "no column 'seq'"),
        (call_chunk(), "call 0 has comm 0; want one of 0"),
        (
            chunk(META, 0, json.dumps(FACTS | {"ranks": []}).encode()) + call_chunk(),
            "call 0 is of rank 0, of which nothing is said",
        ),
    ],
)
def test_what_is_whole_and_wrong_is_refused(tmp_path, body, said):
    """The line says where, and what was wanted."""
    (tmp_path / "x.trace").write_bytes(MAGIC + body)
    with pytest.raises(TraceError, match=said) as caught:
        read(tmp_path / "x.trace")
    assert "x.trace" in str(caught.value)


def test_columns_that_are_not_known_are_passed_over(tmp_path):
    """So are chunks: a later version may write more."""
    facts = chunk(META, 0, json.dumps(FACTS | {"later": 1}).encode())
    body = facts + chunk(77, 5, b"later") + call_chunk(later="<f8")
    (tmp_path / "x.trace").write_bytes(MAGIC + body)

    assert 1 == len(read(tmp_path / "x.trace").calls)


@pytest.mark.parametrize("data", [b"", b"stretto", b"\x7fELF" + bytes(100)])
def test_other_files_are_refused(tmp_path, data):
    """A file that is none of ours is told from one that was cut."""
    (tmp_path / "x.trace").write_bytes(data)
    with pytest.raises(TraceError, match="does not begin as a recording"):
        read(tmp_path / "x.trace")
    with pytest.raises(TraceError, match="No such file"):
        read(tmp_path / "y.trace")
    (tmp_path / "x.trace").unlink()
    with pytest.raises(TraceError, match="no recording"):
        read_all(tmp_path)


def test_ranks_are_merged_by_what_they_name(tmp_path):
    """Equal communicators and kinds become one; others keep what they were."""
    for rank in (1, 0):
        write(tmp_path / f"{rank}.trace", sample(rank))
    merged = read_all(tmp_path)

    assert [0, 1] == [info.rank for info in merged.ranks]
    assert 1 == len(merged.comms)
    assert ["all_reduce", "own_0", "own_1"] == [k.collective for k in merged.kinds]
    for rank in (0, 1):
        own, mine = sample(rank), merged.of_ranks(rank)
        for old, new in zip(own.calls, mine.calls, strict=True):
            assert own.kinds[old["kind"]] == merged.kinds[new["kind"]]
        assert np.array_equal(own.calls["start"], mine.calls["start"])
    write(tmp_path / "merged", merged)
    assert same(merged, read(tmp_path / "merged"))


def test_a_rank_cannot_be_merged_twice():
    """Two recordings of one rank are of two runs."""
    with pytest.raises(TraceError, match="2 recordings have rank 0"):
        merge([sample(0), sample(0, seed=1)])
