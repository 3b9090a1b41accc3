"""Programs go out as MSCCL XML and come back as programs that keep their promise."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from tests.checking.groups import among
from tests.nightly import nightly

from stretto import topology
from stretto.compiler.verify import verify
from stretto.errors import CallError, ParseError, ProgramError, UnknownNameError
from stretto.program import algorithms
from stretto.program.foreign import from_xml, to_xml
from stretto.synth import Budget, from_machine, synthesize

SHIPPED = (
    "all_gather/ring",
    "all_reduce/ring",
    "all_reduce/two_shot",
    "all_reduce/one_shot",
    "all_to_all/hierarchical",
    "broadcast/binomial",
    "reduce_scatter/ring",
)


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("ranks", [2, 4])
def test_shipped_algorithms_survive_the_round_trip(name, ranks):
    """What comes back is proved again, and has the name it went out with."""
    program = algorithms.get(name).build(ranks)
    text = to_xml(program, min_bytes=1024, max_bytes=1 << 20)
    back = from_xml(text)

    assert verify(back)
    assert name == program.name == back.name


@pytest.mark.parametrize(
    "collective",
    nightly(["all_reduce", "all_gather", "all_to_all", "reduce_scatter"], 2),
)
def test_found_programs_survive_the_round_trip(collective):
    """Also with relays and partial sums in scratch."""
    network = from_machine(topology.load("ndv2x2"))
    found = synthesize(
        collective, network, 10**6, splits=(1,), budget=Budget(seconds=0)
    )
    text = to_xml(found.program("it"), min_bytes=0, max_bytes=1 << 30)

    assert verify(from_xml(text))


def test_a_program_among_some_ranks_has_no_xml():
    """MSCCL knows no ranks that only relay, so the message says what to do."""
    program = among(algorithms.get("all_gather/ring").build(3), (0, 1, 3), 4)

    with pytest.raises(CallError, match="among all ranks only; synthesise for the gro"):
        to_xml(program, min_bytes=0, max_bytes=4096)


def test_what_runtimes_need_is_always_written():
    """Without ngpus, minBytes and maxBytes a file is silently ignored."""
    program = algorithms.get("all_gather/ring").build(4)
    root = ET.fromstring(to_xml(program, min_bytes=1024, max_bytes=4096))

    assert ("4", "1024", "4096") == (
        root.get("ngpus"),
        root.get("minBytes"),
        root.get("maxBytes"),
    )
    assert "allgather" == root.get("coll")


def block(rank):
    """Return a rank that sends the other's half, adds its own, gets the sum."""
    steps = [("s", 1 - rank), ("rrcs", rank), ("r", 1 - rank)]
    body = "".join(
        f'<step s="{i}" type="{kind}" srcbuf="i" srcoff="{at}" dstbuf="i"'
        f' dstoff="{at}" cnt="1" depid="-1" deps="-1" hasdep="0"/>'
        for i, (kind, at) in enumerate(steps)
    )
    return (
        f'<gpu id="{rank}" i_chunks="2" o_chunks="0" s_chunks="0">'
        f'<tb id="0" send="{1 - rank}" recv="{1 - rank}" chan="0">{body}</tb></gpu>'
    )


IN_PLACE = (
    '<algo name="pair" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="1"'
    f' outofplace="0">{block(0)}{block(1)}</algo>'
)


def test_an_in_place_file_written_by_hand_is_read():
    """Two ranks exchange halves, add, and exchange the sums."""
    program = from_xml(IN_PLACE)

    assert ("all_reduce", 2, 1) == (
        program.collective,
        program.num_ranks,
        program.split,
    )
    assert verify(program)


def ring(n, channels):
    """Return an in-place ring all_reduce as tools write it: rrc on, rrcs at the turn.

    Each channel has its own block and its own share of the chunks; a copy block waits
    behind a nop, and places that a step does not use are -1.
    """
    gpus = []
    for rank in range(n):
        tbs = []
        for c in range(channels):
            steps = []
            for s in range(2 * n - 1):
                at = c * n + (rank - s) % n
                kinds = {0: "s", n - 1: "rrcs", 2 * n - 2: "r"}
                kind = kinds.get(s, "rrs" if s < n - 1 else "rcs")
                src = -1 if kind in ("r", "rcs") else at
                steps.append(
                    f'<step s="{s}" type="{kind}" srcbuf="i" srcoff="{src}" dstbuf="i"'
                    f' dstoff="{at}" cnt="1" depid="-1" deps="-1" hasdep="0"/>'
                )
            tbs.append(
                f'<tb id="{c}" send="{(rank + 1) % n}" recv="{(rank - 1) % n}"'
                f' chan="{c}">{"".join(steps)}</tb>'
            )
        waits = '<step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1"'
        waits += f' cnt="0" depid="0" deps="{2 * n - 2}" hasdep="0"/>'
        tbs.append(f'<tb id="{channels}" send="-1" recv="-1" chan="0">{waits}</tb>')
        gpus.append(
            f'<gpu id="{rank}" i_chunks="{n * channels}" o_chunks="0" s_chunks="0">'
            f"{''.join(tbs)}</gpu>"
        )
    return (
        "<!-- A comment first, as files have it. -->"
        f'<algo name="ring" proto="LL128" nchannels="{channels}" ngpus="{n}"'
        f' nchunksperloop="{n * channels}" coll="allreduce" inplace="1"'
        f' outofplace="0" minBytes="0" maxBytes="65536">{"".join(gpus)}</algo>'
    )


@pytest.mark.parametrize(("ranks", "channels"), [(4, 2), (8, 3)])
def test_rings_on_several_channels_are_read_as_tools_write_them(ranks, channels):
    """Comments, offsets of -1, nops, one block a channel: read, and proved."""
    program = from_xml(ring(ranks, channels))

    assert (ranks, channels) == (program.num_ranks, program.split)
    assert verify(program)
    assert verify(from_xml(to_xml(program, min_bytes=0, max_bytes=1 << 16)))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('type="rrcs"', 'type="add"', "want one of cpy"),
        ('type="s" srcbuf="i" srcoff="1"', 'type="nop" srcbuf="i" srcoff="1"', "waits"),
        ('srcbuf="i"', 'srcbuf="x"', "want i, o or s"),
        ('cnt="1"', "", "want s, type"),
        ('coll="allreduce"', 'coll="scan"', "allreduce"),
        ("</algo>", "", "MSCCL XML"),
    ],
)
def test_files_that_cannot_be_read_say_why(old, new, why):
    """Each with the rank, the thread block and the step."""
    with pytest.raises(ParseError, match=why):
        from_xml(IN_PLACE.replace(old, new))


def test_a_file_that_computes_something_else_is_not_proved():
    """Importing believes the file; verify does not."""
    wrong = IN_PLACE.replace(
        'type="rrcs" srcbuf="i" srcoff="0"', 'type="rcs" srcbuf="i" srcoff="0"'
    )

    with pytest.raises(ProgramError):
        verify(from_xml(wrong))


def test_collectives_without_an_msccl_name_are_refused():
    """MSCCL has no scatter."""
    with pytest.raises(UnknownNameError, match="no MSCCL collective named 'scatter'"):
        to_xml(algorithms.get("scatter/flat").build(4), min_bytes=0, max_bytes=1)
