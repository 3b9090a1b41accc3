"""What other tools read: Perfetto's protocol buffers, Inspector's lines, Prometheus."""

import json
import re
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples
from tests.pure.watch.recordings import recording

from stretto.errors import TraceError
from stretto.trace import CallKind, Event, RankInfo
from stretto.watch import (
    flows,
    inspector_lines,
    links,
    prometheus_lines,
    read_inspector,
    simulated,
    summarise,
    write_perfetto,
)
from stretto.watch.wire import nested, varint, whole

# A decoder of protocol buffers, which shares nothing with the writer.


def fields(data):
    """Yield (number, value) of a message: ints, or bytes of what is nested."""
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = number()
        match tag & 7:
            case 0:
                yield tag >> 3, number()
            case 1:
                yield tag >> 3, int.from_bytes(data[at : at + 8], "little")
                at += 8
            case 2:
                size = number()
                assert at + size <= len(data)
                yield tag >> 3, data[at : at + size]
                at += size
            case other:
                raise AssertionError(f"wire type {other}")


def message(data):
    """Return the fields of a message, each with all of its values."""
    found = defaultdict(list)
    for number, value in fields(data):
        found[number].append(value)
    return found


def one(found, number, default=None):
    values = found.get(number, [default])
    assert 1 == len(values)
    return values[0]


class Trace:
    """A file of Perfetto's, by the numbers of its .proto files."""

    def __init__(self, data):
        self.processes, self.tracks, self.slices, self.instants = {}, {}, [], []
        names, is_open = {}, defaultdict(list)
        for number, packet in fields(data):
            assert 1 == number
            said = message(packet)
            if 12 in said:
                for entry in message(said[12][0])[2]:
                    name = message(entry)
                    names[one(name, 1)] = one(name, 2).decode()
            if 60 in said:
                self._track(message(said[60][0]))
            if 11 not in said:
                continue
            at, event = one(said, 8), message(said[11][0])
            assert 1 == one(said, 10), "trusted_packet_sequence_id"
            track, kind = one(event, 11), one(event, 9)
            if kind == 2:
                begin, slice_ = is_open[track].pop()
                assert at >= begin
                self.slices.append(slice_ | {"begin": begin, "end": at})
                continue
            slice_ = {
                "track": track,
                "name": names[one(event, 10)],
                "flow": event.get(47, []),
                "end_flow": event.get(48, []),
                "id": one(event, 52),
                **self._said(event),
            }
            if kind == 3:
                self.instants.append(slice_ | {"at": at})
            else:
                is_open[track].append((at, slice_))
        assert not any(is_open.values())

    def _track(self, track):
        uuid = one(track, 1)
        assert uuid not in self.tracks
        self.tracks[uuid] = (
            one(track, 2, b"").decode(), one(track, 5), one(track, 12)
        )  # fmt: skip
        if 3 in track:
            process = message(track[3][0])
            self.processes[uuid] = one(process, 6).decode()

    def _said(self, event):
        said = {}
        for annotation in event.get(4, []):
            found = message(annotation)
            text = found.get(6)
            value = text[0].decode() if text else found[4][0]
            said[one(found, 10).decode()] = value
        return said


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(1, 2**20), st.binary(max_size=300))
def test_the_wire_is_read_back(value, field, body):
    """Numbers and messages of any size, under any field."""
    data = whole(field, value) + nested(field, body) + whole(1, 3)

    assert [(field, value), (field, body), (1, 3)] == list(fields(data))
    assert 1 <= len(varint(value)) <= 10


def two_ranks():
    """Return two calls of two ranks, with steps; ranks of the part are turned round."""
    calls = [
        (0, 0, 1, 0, "done", 1000, 9000),
        (1, 0, 1, 0, "done", 1500, 9100),
        (0, 1, 1, 1, "done", 9500, 9800),
        (1, 1, 1, 1, "running", 9600, 0),
    ]
    steps = [
        (0, 0, 1, 0, "put", 0, 1, 0, 1000, 0, 2000, 512),
        (0, 0, 1, 0, "signal", 1, 1, 0, 2000, 0, 2100, 0),
        (0, 0, 1, 1, "wait", 0, 1, 0, 1000, 900, 3000, 0),
        (1, 0, 1, 0, "signal", 0, 0, 0, 2500, 0, 2600, 0),
        (1, 0, 1, 0, "wait", 1, 0, 0, 2600, 0, 2700, 0),
        (0, 1, 1, 0, "put_packets", 0, 0, 0, 9500, 0, 9600, 8),
        (1, 1, 1, 0, "read_packets", 0, 1, 0, 9600, 50, 9700, 8),
    ]
    comms = {"world": (0, 1), "part": (1, 0)}
    kinds = [("all_reduce", 1024), ("broadcast", 8)]
    made = recording(calls, comms=comms, kinds=kinds, steps=steps)
    ranks = (RankInfo(rank=0, host="a"), RankInfo(rank=1, host="b", realtime_ns=10**18))
    return replace(made, ranks=ranks)


def test_perfetto_has_a_process_for_each_rank_and_every_event(tmp_path):
    """Tracks under their process, slices with their times and facts."""
    seen = two_ranks()
    assert 0 == write_perfetto(tmp_path / "x.pftrace", seen)
    trace = Trace((tmp_path / "x.pftrace").read_bytes())

    assert ["rank 0 on a", "rank 1 on b"] == list(trace.processes.values())
    names = {
        (trace.processes[parent], name)
        for name, parent, _ in trace.tracks.values()
        if parent
    }
    assert ("rank 0 on a", "world") in names
    assert ("rank 0 on a", "world lane 1") in names
    calls = [s for s in trace.slices if "algorithm" in s]
    assert {("all_reduce", 1000, 9000), ("all_reduce", 1500, 9100)} < {
        (s["name"], s["begin"], s["end"]) for s in calls
    }
    assert {1024, 8} == {s["bytes"] for s in calls}
    assert ["broadcast"] == [s["name"] for s in trace.instants]
    assert "running" == trace.instants[0]["state"]
    assert len(seen.steps) == len(trace.slices) - len(calls)
    (wait,) = [s for s in trace.slices if s.get("wait_ns") == 900]
    assert ("wait", 1000, 3000, 1) == tuple(
        wait[k] for k in ("name", "begin", "end", "peer")
    )


def test_slices_nest_when_a_reader_sorts_them(tmp_path):
    """Steps that take no time end before the next begins, in a stable order."""
    steps = [
        (0, 0, 1, 0, "signal", i, -1, 0, at, 0, end, 0)
        for i, (at, end) in enumerate([(10, 10), (10, 10), (10, 30), (30, 30)])
    ]
    calls = [(0, 0, 1, 0, "done", 10, 30), (0, 0, 2, 0, "done", 30, 30)]
    write_perfetto(tmp_path / "x.pftrace", recording(calls, steps=steps))
    packets = [p for _, p in fields((tmp_path / "x.pftrace").read_bytes())]
    events = [message(p) for p in packets if 11 in message(p)]
    events.sort(key=lambda said: one(said, 8))
    open_on = defaultdict(list)
    spans = []
    for said in events:
        event, at = message(said[11][0]), one(said, 8)
        track = one(event, 11)
        if one(event, 9) == 1:
            open_on[track].append(at)
            assert 1 == len(open_on[track]), "nothing is inside another"
        else:
            spans.append((open_on[track].pop(), at))
    assert [(10, 10), (10, 10), (10, 30), (10, 30), (30, 30), (30, 30)] == sorted(spans)


def test_the_same_call_is_tied_across_ranks(tmp_path):
    """One correlation id for a call of all ranks, another for every other call."""
    write_perfetto(tmp_path / "x.pftrace", two_ranks())
    trace = Trace((tmp_path / "x.pftrace").read_bytes())
    ids = defaultdict(set)
    for slice_ in (*trace.slices, *trace.instants):
        if "algorithm" in slice_:
            ids[slice_["name"]].add(slice_["id"])

    assert {1} == {len(found) for found in ids.values()}
    assert ids["all_reduce"] != ids["broadcast"]


def test_arrows_lead_from_sends_to_those_who_waited(tmp_path):
    """Each has one end, on the other rank; packets go by the part's own ranks."""
    write_perfetto(tmp_path / "x.pftrace", two_ranks())
    trace = Trace((tmp_path / "x.pftrace").read_bytes())
    begun = {f: s for s in trace.slices for f in s["flow"]}
    ended = {f: s for s in trace.slices for f in s["end_flow"]}

    assert 3 == len(begun)
    assert begun.keys() == ended.keys()
    ways = {(begun[f]["name"], begun[f]["begin"], ended[f]["begin"]) for f in begun}
    assert {
        ("signal", 2000, 2600),
        ("signal", 2500, 1000),
        ("put_packets", 9500, 9600),
    } == ways


def test_of_too_many_the_last_are_written(tmp_path):
    """And it is said how many were left out."""
    seen = two_ranks()
    assert 6 == write_perfetto(tmp_path / "x.pftrace", seen, most=5)
    trace = Trace((tmp_path / "x.pftrace").read_bytes())

    assert 5 == len(trace.slices) + len(trace.instants)
    assert flows(seen.comms, seen.steps)[0]


def test_inspectors_lines_are_read_back(tmp_path):
    """With its field names, what it would compute, and the times of a call."""
    seen = two_ranks()
    lines = list(inspector_lines(seen))
    (tmp_path / "x.jsonl").write_text("".join(f"{line}\n" for line in lines))
    first = json.loads(lines[0])
    again = read_inspector(tmp_path / "x.jsonl")

    assert 3 == len(lines)
    assert "AllReduce" == first["coll_perf"]["coll"]
    assert first["coll_perf"]["coll_busbw_gbs"] == pytest.approx(1024 / 8000)
    assert {"id", "rank", "n_ranks", "nnodes"} == set(first["header"])
    assert seen.calls["seq"][:3].tolist() == again.calls["seq"].tolist()
    assert [1024, 1024, 8] == again.calls["nbytes"].tolist()
    spans = (again.calls["end"] - again.calls["start"]).tolist()
    assert [8000, 7600, 300] == spans
    assert {"all_reduce", "broadcast"} == {k.collective for k in again.kinds}
    assert summarise(again).rows


GOOD = json.loads(next(inspector_lines(two_ranks())))
paths = [(a, b) for a in GOOD for b in GOOD[a]]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from([*paths, ("header", None), ("metadata", None), (None, None)]),
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
def test_hostile_lines_give_one_clear_line(tmp_path_factory, path, value):
    """Any value in any place: read, or refused by file and line."""
    said = json.loads(json.dumps(GOOD))
    if path[0] is None:
        said = value
    elif path[1] is None:
        said[path[0]] = value
    else:
        said[path[0]][path[1]] = value
    file = tmp_path_factory.mktemp("x") / "x.jsonl"
    file.write_text(f"{json.dumps(GOOD)}\n{json.dumps(said)}\n")
    try:
        refused = f"x.jsonl: line 2: {read_inspector(file).num_events}"
    except TraceError as e:
        refused = str(e)
    assert "x.jsonl: line 2: " in refused
    assert "\n" not in refused


@pytest.mark.parametrize("line", ["{", "[1]", "x" * (2 << 20), '{"header": 3}'])
def test_what_is_no_line_of_inspectors_is_refused(tmp_path, line):
    """By file and line."""
    (tmp_path / "x.jsonl").write_text(line)
    with pytest.raises(TraceError, match=r"x\.jsonl: line 1"):
        read_inspector(tmp_path / "x.jsonl")


METRIC = re.compile(r'[a-z_]+\{([a-z_]+="(\\.|[^"\\])*",?)+\} -?[0-9.e+-]+')


def test_prometheus_reads_every_line():
    """Each is a comment or a metric with labels; names are told before their values."""
    calls = [(r, 0, 1, 0, "done", 1000 + r, 9000) for r in range(2)]
    kind = CallKind(collective='odd "name"\n', nbytes=64, algorithm="a\\b")
    seen = recording(calls, kinds=[kind])
    told = set()
    for line in prometheus_lines(seen, summarise(seen, model=lambda k, n: 2.0)):
        if line.startswith("# TYPE"):
            told.add(line.split()[2])
        elif not line.startswith("#"):
            assert METRIC.fullmatch(line), line
            assert line.partition("{")[0] in told
    assert len(told) == 7


def test_a_simulation_is_a_recording():
    """Waits wait, moves move, and a call lasts as long as its lanes."""
    events = [
        Event(name="put", rank=0, t0_us=1.0, t1_us=2.5, nbytes=64, peer=1, step=0),
        Event(name="wait", kind="wait", rank=1, t0_us=0.5, t1_us=3.0, peer=0, step=1),
        Event(name="not a step", rank=1, t0_us=0.5, t1_us=3.0),
    ]
    seen = simulated(events, CallKind(collective="broadcast", nbytes=64), 2)

    assert [2500, 3000] == seen.calls["end"].tolist()
    assert [0, 2500] == seen.steps["wait"].tolist()
    assert [(0, 1, 64)] == [(k.src, k.dst, k.nbytes) for k in links(seen)]
