"""Programs as MSCCL XML, and back.

Export gives every rank one thread block for each peer it sends to and each it receives
from; steps wait for one another where they touch the same chunks. `ngpus`, `minBytes`
and `maxBytes` are always written: runtimes ignore files without them. Import runs the
thread blocks until all are done, and writes down what moved. Numbers are read as they
are written here, each gpu, block and step once, and no file has entities of its own.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from stretto.errors import CallError, ParseError, UnknownNameError, reading
from stretto.program import collectives
from stretto.program.collectives import Shape
from stretto.program.foreign.blocks import MOST_CHUNKS, MOST_RANKS, BlockStep, assemble
from stretto.program.ir import INPUT, OUTPUT, Program, Ref, whole

_NAMES = {
    "all_gather": "allgather",
    "all_reduce": "allreduce",
    "all_to_all": "alltoall",
    "broadcast": "broadcast",
    "reduce_scatter": "reduce_scatter",
}
_OFFSETS = ("srcoff", "dstoff", "depid", "deps")
_WORDS = {*_OFFSETS, "cnt", "type", "srcbuf", "dstbuf"}
_BUFFERS = {INPUT: "i", OUTPUT: "o"}


@dataclass(slots=True)
class _Block:
    """A thread block being written."""

    send: int = -1
    recv: int = -1
    steps: list[dict[str, object]] = field(default_factory=list)


class _Writer:
    """Collects the thread blocks of all ranks and what their steps depend on."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.blocks: dict[int, dict[tuple[int, int], _Block]] = defaultdict(dict)
        self._wrote: dict[tuple[int, str, int], tuple[int, int]] = {}
        self._reads: dict[tuple[int, str, int], set[tuple[int, int]]] = defaultdict(set)

    def copy(self, dst: Ref, src: Ref, *, combine: bool) -> None:
        """Write one assignment or combination of one source."""
        if dst.rank == src.rank:
            kind = "re" if combine else "cpy"
            self._step(dst.rank, (-1, -1), kind, src, dst, reads=src, writes=dst)
            return
        self._step(src.rank, (dst.rank, -1), "s", src, src, reads=src)
        kind = "rrc" if combine else "r"
        self._step(dst.rank, (-1, src.rank), kind, dst, dst, writes=dst)

    def _step(
        self,
        rank: int,
        key: tuple[int, int],
        kind: str,
        src: Ref,
        dst: Ref,
        *,
        reads: Ref | None = None,
        writes: Ref | None = None,
    ) -> None:
        blocks = self.blocks[rank]
        block = blocks.setdefault(key, _Block(*key))
        number = list(blocks).index(key)
        needs: dict[int, int] = {}
        touched = [
            (rank, r.buffer, c) for r in (reads, writes) if r for c in _chunks(r)
        ]
        for place in touched:
            earlier = {self._wrote[place]} if place in self._wrote else set()
            if writes is not None:
                earlier |= self._reads[place]
            for tb, step in earlier:
                if tb != number:
                    needs[tb] = max(needs.get(tb, -1), step)
        *nops, last = sorted(needs.items()) or [(-1, -1)]
        for need in nops:
            self._append(block, "nop", src, dst, 0, need)
        self._append(block, kind, src, dst, src.stop - src.start, last)
        mark = (number, len(block.steps) - 1)
        for place in touched:
            if writes is not None and place[1] == writes.buffer:
                self._wrote[place] = mark
                self._reads[place].clear()
            else:
                self._reads[place].add(mark)

    def _append(
        self,
        block: _Block,
        kind: str,
        src: Ref,
        dst: Ref,
        count: int,
        need: tuple[int, int],
    ) -> None:
        block.steps.append(
            {
                "s": len(block.steps),
                "type": kind,
                "srcbuf": _BUFFERS.get(src.buffer, "s"),
                "srcoff": self._offset(src),
                "dstbuf": _BUFFERS.get(dst.buffer, "s"),
                "dstoff": self._offset(dst),
                "cnt": count,
                "depid": need[0],
                "deps": need[1],
                "hasdep": 0,
            }
        )

    def _offset(self, ref: Ref) -> int:
        """Return the first chunk; scratch buffers follow one another by name."""
        if ref.buffer in _BUFFERS:
            return ref.start
        before = sorted(n for n in self._program.scratch if n < ref.buffer)
        return sum(self._program.scratch[n] for n in before) + ref.start


def _chunks(ref: Ref) -> range:
    return range(ref.start, ref.stop)


def to_xml(
    program: Program, *, min_bytes: int, max_bytes: int, protocol: str = "Simple"
) -> str:
    """Return the program as MSCCL XML for sizes from `min_bytes` to `max_bytes`."""
    if program.collective not in _NAMES:
        raise UnknownNameError.among("MSCCL collective", program.collective, _NAMES)
    if "members" in program.params:
        raise CallError(
            f"{program.name}: its members are {program.params['members']}, and MSCCL "
            f"XML knows collectives among all ranks only; synthesise for the group "
            f"alone, without relays, and run that in a communicator of its own"
        )
    writer = _Writer(program)
    for op in program.ops:
        first, *rest = sorted(op.srcs, key=lambda ref: ref != op.dst)
        if first != op.dst:
            writer.copy(op.dst, first, combine=False)
        for src in rest:
            writer.copy(op.dst, src, combine=True)
    kind = collectives.get(program.collective)
    shape = Shape.of(program)
    root = ET.Element(
        "algo",
        {
            "name": program.name.replace("/", "_"),
            "proto": protocol,
            "nchannels": "1",
            "nchunksperloop": str(program.num_ranks * program.split),
            "ngpus": str(program.num_ranks),
            "coll": _NAMES[program.collective],
            "inplace": "0",
            "outofplace": "1",
            "minBytes": str(min_bytes),
            "maxBytes": str(max_bytes),
        },
    )
    for rank in range(program.num_ranks):
        gpu = ET.SubElement(root, "gpu", {"id": str(rank)})
        for name, runs in (
            ("i_chunks", kind.input_runs(shape, rank)),
            ("o_chunks", kind.output_runs(shape, rank)),
        ):
            gpu.set(name, str(runs[-1].stop if runs else 0))
        gpu.set("s_chunks", str(sum(program.scratch.values())))
        _write_blocks(gpu, writer.blocks[rank])
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _write_blocks(gpu: ET.Element, blocks: dict[tuple[int, int], _Block]) -> None:
    ordered = list(blocks.values())
    for block in ordered:
        for step in block.steps:
            tb, at = step["depid"], step["deps"]
            if isinstance(tb, int) and isinstance(at, int) and tb >= 0:
                ordered[tb].steps[at]["hasdep"] = 1
    for number, block in enumerate(ordered):
        tb_element = ET.SubElement(
            gpu,
            "tb",
            {
                "id": str(number),
                "send": str(block.send),
                "recv": str(block.recv),
                "chan": "0",
            },
        )
        for step in block.steps:
            ET.SubElement(tb_element, "step", {k: str(v) for k, v in step.items()})


def from_xml(text: str, *, root: int = 0) -> Program:
    """Return the program that an MSCCL XML file describes."""
    if "<!DOCTYPE" in text:
        raise ParseError("MSCCL XML: got <!DOCTYPE; want a file without entities")
    with reading(ParseError, "MSCCL XML", "a file that is XML"):
        algo = ET.fromstring(text)
    named = {v: k for k, v in _NAMES.items()} | {"reducescatter": "reduce_scatter"}
    collective = named.get(algo.get("coll", ""))
    if algo.tag != "algo" or collective is None:
        raise ParseError(
            f"MSCCL XML: got <{algo.tag[:40]} coll={algo.get('coll', '')[:40]!r}>; "
            f"want <algo> with coll one of {', '.join(sorted(named))}"
        )
    gpus = _by_number(algo, "gpu", "id", "MSCCL XML")
    num_ranks = _number(algo, "ngpus", "MSCCL XML", str(len(gpus)), most=MOST_RANKS)
    if num_ranks < 1 or sorted(gpus) != list(range(num_ranks)):
        raise ParseError(
            f"MSCCL XML: ngpus={num_ranks}, and gpus {sorted(gpus)[:16]}; want each "
            f"from 0 on"
        )
    steps = [step for rank, gpu in gpus.items() for step in _read_gpu(rank, gpu)]
    chunks = [_number(gpu, "i_chunks", "MSCCL XML", "0") for gpu in gpus.values()]
    return assemble(
        name=algo.get("name", "imported").removeprefix(f"{collective}_"),
        collective=collective,
        num_ranks=num_ranks,
        chunks=max(_number(algo, "nchunksperloop", "MSCCL XML", "0"), *chunks),
        in_place=algo.get("outofplace") == "0",
        root=root,
        steps=steps,
    )


def _number(
    element: ET.Element, key: str, where: str, default: str, *, most: int = MOST_CHUNKS
) -> int:
    """Return a number of an element; `-1` says that there is none."""
    text = element.get(key, default)
    try:
        is_none = text == "-1" and default == "-1"
        value = -1 if is_none else whole(text)
    except ValueError as e:
        raise ParseError(f"{where}: {key}: {e}") from None
    if value > most:
        raise ParseError(f"{where}: {key}={value}; want at most {most}")
    return value


def _by_number(
    above: ET.Element, tag: str, key: str, where: str
) -> dict[int, ET.Element]:
    """Return the elements of a tag by their numbers, each of which is there once."""
    found: dict[int, ET.Element] = {}
    for element in above.findall(tag):
        number = _number(element, key, where, "")
        if number in found:
            raise ParseError(f"{where}: {tag} {number} is there twice; want it once")
        found[number] = element
    return found


def _read_gpu(rank: int, gpu: ET.Element) -> Iterator[BlockStep]:
    for block, tb in _by_number(gpu, "tb", "id", f"MSCCL XML, gpu {rank}").items():
        where = f"MSCCL XML, gpu {rank}, tb {block}"
        send, recv = (_number(tb, key, where, "-1") for key in ("send", "recv"))
        channel = _number(tb, "chan", where, "0")
        for number, element in _by_number(tb, "step", "s", where).items():
            if missing := _WORDS - element.attrib.keys():
                raise ParseError(
                    f"{where}, step {number}: no {', '.join(sorted(missing))}; want "
                    f"s, type, srcbuf, srcoff, dstbuf, dstoff, cnt, depid, deps"
                )
            here = f"{where}, step {number}"
            values = {key: _or_none(element, key, here) for key in _OFFSETS}
            yield BlockStep(
                rank=rank,
                block=block,
                number=number,
                kind=element.attrib["type"],
                src=(element.attrib["srcbuf"], values["srcoff"]),
                dst=(element.attrib["dstbuf"], values["dstoff"]),
                count=_number(element, "cnt", here, ""),
                send=send,
                recv=recv,
                channel=channel,
                after=(values["depid"], values["deps"]),
            )


def _or_none(element: ET.Element, key: str, where: str) -> int:
    """Return an offset, or the block or step that comes first; -1 where none does."""
    return -1 if element.get(key) == "-1" else _number(element, key, where, "")
