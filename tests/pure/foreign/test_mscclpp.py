"""MSCCL++ plans are read as programs, and proved like any other."""

from __future__ import annotations

import json

import pytest

from stretto.compiler.verify import verify
from stretto.errors import ParseError, ProgramError
from stretto.program.foreign import from_plan


def local(letter, index, size=1):
    """Name chunks of an own buffer."""
    return {"type": letter, "index": index, "size": size}


def remote(buffer, index, size=1):
    """Name chunks of a peer's buffer."""
    return {"buffer_id": buffer, "index": index, "size": size}


def gpu(rank, blocks, remotes):
    """Return one of two ranks, joined by one memory channel."""
    return {
        "id": rank,
        "input_chunks": 2,
        "output_chunks": 2,
        "scratch_chunks": 2,
        "threadblocks": [
            {
                "id": i,
                "ops": ops,
                "channels": [{"channel_type": "memory", "channel_ids": [0]}],
                "remote_buffer_refs": [
                    {
                        "access_channel_type": "memory",
                        "remote_buffer_ids": list(range(len(remotes))),
                    }
                ],
            }
            for i, ops in enumerate(blocks)
        ],
        "channels": [{"channel_type": "memory", "connected_to": [1 - rank]}],
        "remote_buffers": [{"rank": 1 - rank, "type": t} for t in remotes],
        "semaphores": [],
    }


def move(name, srcs, dsts):
    """Return an operation over the memory channel."""
    return {"name": name, "src_buff": srcs, "dst_buff": dsts, "channel_type": "memory"}


def sync(name):
    """Return a signal or a wait."""
    return {"name": name, "channel_ids": [0], "channel_type": "memory"}


def packets(rank):
    """Exchange halves as packets, add and send on at once, unpack."""
    mine, other = rank, 1 - rank
    return gpu(
        rank,
        [
            [move("ppkt", [local("i", other)], [remote(0, other)])],
            [
                move(
                    "respkt",
                    [local("i", mine), local("s", mine)],
                    [local("i", mine), remote(0, mine)],
                )
            ],
            [move("upkt", [local("s", other)], [local("i", other)])],
        ],
        ["s"],
    )


def signals(rank):
    """Put halves, signal, wait, add and put the sum."""
    mine, other = rank, 1 - rank
    ops = [
        move("put", [local("i", other)], [remote(0, other)]),
        sync("signal"),
        sync("wait"),
        {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2},
        move(
            "res",
            [local("i", mine), local("s", mine)],
            [local("i", mine), remote(1, mine)],
        ),
    ]
    second = [
        {"name": "nop"},
        {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2},
    ]
    return gpu(rank, [ops, second], ["s", "i"])


def plan(make):
    """Return an all_reduce in place between two ranks."""
    return {
        "name": "pair",
        "collective": "allreduce",
        "inplace": True,
        "gpus": [make(0), make(1)],
    }


@pytest.mark.parametrize("make", [packets, signals])
def test_a_plan_becomes_a_proved_program(make):
    """Packets, signals and barriers are followed; what moved is what counts."""
    program = from_plan(json.dumps(plan(make)))

    assert ("all_reduce/pair", 2) == (program.name, program.num_ranks)
    assert verify(program)


def shared(make):
    """Return a maker of ranks whose every block has become a group of two."""

    def make_shared(rank):
        one = make(rank)
        blocks = []
        for block in one["threadblocks"]:
            for turn in range(2):
                mine = json.loads(json.dumps(block)) | {"id": len(blocks)}
                for op in mine["ops"]:
                    op["tbg_info"] = {"tb_id": turn, "tbg_size": 2}
                blocks.append(mine)
        return one | {"threadblocks": blocks}

    return make_shared


def test_blocks_that_share_an_operation_do_a_part_each():
    """A group of two cuts every chunk in two; doing the whole twice would be wrong."""
    program = from_plan(json.dumps(plan(shared(packets))))

    assert 2 == program.split
    assert verify(program)


def relayed(rank):
    """all_gather in place: pack into own scratch, read that and put it at the peer."""
    mine = rank
    blocks = [
        [move("cpkt", [local("o", mine)], [local("s", mine)])],
        [move("rppkt", [local("s", mine)], [remote(0, mine)])],
        [move("upkt", [local("s", 1 - mine)], [local("o", 1 - mine)])],
    ]
    return gpu(rank, blocks, ["s"]) | {"input_chunks": 1}


def test_packing_reads_plain_data_and_unpacking_waits_for_packets():
    """What is packed need not have arrived; what is unpacked must have."""
    gathered = plan(relayed) | {"collective": "allgather"}
    program = from_plan(json.dumps(gathered))

    assert ("all_gather", 1) == (program.collective, program.split)
    assert verify(program)


def test_a_missing_signal_is_named():
    """The block that waits for ever is said, with its operation."""
    broken = plan(signals)
    del broken["gpus"][0]["threadblocks"][0]["ops"][1]

    with pytest.raises(ParseError, match=r"gpu 1, threadblock 0, op 2 \(wait\) waits"):
        from_plan(json.dumps(broken))


def test_a_plan_that_is_not_an_all_reduce_is_not_proved():
    """Copying where it should add is found by verify."""
    wrong = plan(packets)
    wrong["gpus"][0]["threadblocks"][1]["ops"][0]["src_buff"].pop(0)

    with pytest.raises(ProgramError):
        verify(from_plan(json.dumps(wrong)))


def test_in_switch_operations_are_refused():
    """There is no assignment for them, and multicast is never used here."""
    switch = plan(packets)
    switch["gpus"][1]["threadblocks"][0]["ops"][0]["name"] = "glres"

    with pytest.raises(ParseError, match="cannot be expressed"):
        from_plan(json.dumps(switch))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "want JSON"),
        ("{}", "gpus"),
        (json.dumps(plan(packets) | {"collective": "scan"}), "allreduce"),
        (json.dumps(plan(packets)).replace('"type": "s"', '"type": "x"'), "want i, o"),
    ],
)
def test_what_is_no_plan_says_what_is_wanted(text, why):
    """Broken JSON, missing parts, unknown collectives and buffers."""
    with pytest.raises(ParseError, match=why):
        from_plan(text)
