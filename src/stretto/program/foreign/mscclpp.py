"""MSCCL++ JSON plans, read as programs.

A plan holds, for every rank, thread blocks of operations that copy, reduce and store
into peers' memory, with signals, waits and barriers between. The blocks run here in
turn, as far as waits allow; what each operation stores becomes one assignment. Reading
packets waits for their arrival. Where a group of blocks shares an operation, each does
its part, so chunks are cut as finely as the groups need. In-switch operations cannot be
expressed and are refused. Numbers are whole and bounded; no key is given twice.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from typing import Any

from stretto.errors import ParseError, reading
from stretto.program.foreign.blocks import MOST_CHUNKS, MOST_RANKS, BufferNames
from stretto.program.ir import Op, Program, Ref

_COLLECTIVES = {
    "allgather": "all_gather",
    "allreduce": "all_reduce",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reducescatter": "reduce_scatter",
}
_COPIES = {"copy", "put", "get", "pws", "pwsf", "ppkt", "rppkt", "upkt", "cpkt"}
_REDUCES = {"re", "res", "rre", "rres", "repkt", "respkt", "recpkt", "recspkt"}
_SIGNALS = {"signal", "rlxsignal", "pws", "pwsf"}
_WAITS = {"wait", "rlxwait"}
_MOST_TOGETHER = 1024
"""Thread blocks of a group."""
_MOST_VALUE = 1 << 20
"""Of anything else that is counted."""
_FREE = {"nop", "flush"}
_ARRIVE = {"ppkt", "rppkt"}
_PACKETS = {"upkt", "rppkt", "repkt", "respkt", "recpkt", "recspkt"}


def from_plan(text: str, *, root: int = 0) -> Program:
    """Return the program that a plan describes."""
    want = (
        f"JSON with gpus, collective (one of {', '.join(sorted(_COLLECTIVES))}), "
        f"input_chunks, output_chunks, threadblocks with ops"
    )
    with reading(ParseError, "MSCCL++ plan", want):
        return _read(json.loads(text, object_pairs_hook=_table), root)


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a table of JSON, in which no key is given twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key is given twice among {[k[:40] for k, _ in pairs][:9]}")
    return found


def _count(value: Any, what: str, most: int = _MOST_VALUE) -> int:
    """Return a whole number from 0 to a limit."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        said = "a number too long" if isinstance(value, int) else repr(value)[:40]
        raise ValueError(f"{what}: got {said}; want a whole number to {most}")
    return value


def _read(plan: dict[str, Any], root: int) -> Program:
    gpus = sorted(plan["gpus"], key=lambda g: _count(g["id"], "id"))
    if not 1 <= len(gpus) <= MOST_RANKS or any(
        gpu["id"] != rank for rank, gpu in enumerate(gpus)
    ):
        raise ValueError(f"gpus {[g['id'] for g in gpus[:16]]}; want each from 0 on")
    collective = _COLLECTIVES[plan["collective"].replace("_", "").lower()]
    chunks = max(
        _count(gpu[key], key, MOST_CHUNKS)
        for gpu in gpus
        for key in ("input_chunks", "output_chunks")
    )
    fine = 1
    for size in _group_sizes(gpus):
        fine = math.lcm(fine, size)
        _count(chunks * fine, "chunks, cut as finely as groups need", MOST_CHUNKS)
    in_place, name = plan.get("inplace", False), plan.get("name", "imported")
    if not isinstance(in_place, bool) or not isinstance(name, str):
        raise ValueError("inplace and name; want true or false, and a text")
    places = BufferNames(
        collective, len(gpus), chunks * fine, in_place=in_place, root=root
    )
    run = _Run(gpus, places, fine)
    run.all()
    return places.program(name, run.ops)


def _group_sizes(value: Any) -> Iterator[int]:
    """Yield how many thread blocks share an operation, wherever a plan says so."""
    if isinstance(value, dict):
        size = _count(value.get("tbg_size", 1), "tbg_size", _MOST_TOGETHER)
        if size < 1:
            raise ValueError("tbg_size 0; want at least 1")
        yield size
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _group_sizes(part)


class _Block:
    """One thread block: what is left, and how it names channels and buffers."""

    def __init__(self, gpu: dict[str, Any], block: dict[str, Any]) -> None:
        self.rank, self.number = gpu["id"], _count(block["id"], "id")
        self.left = deque(_flat(block["ops"]))
        self.done = 0
        self._gpu = gpu
        self._channels = {
            c["channel_type"]: c["channel_ids"] for c in block.get("channels", [])
        }
        self._remotes = {
            r["access_channel_type"]: r["remote_buffer_ids"]
            for r in block.get("remote_buffer_refs", [])
        }

    @property
    def where(self) -> str:
        """Return what errors call the next operation."""
        name = str(self.left[0]["name"])[:40] if self.left else "end"
        return f"gpu {self.rank}, threadblock {self.number}, op {self.done} ({name})"

    def peers(self, op: dict[str, Any]) -> list[tuple[int, str, int]]:
        """Return the peer, kind and ordinal of every channel of an operation."""
        kind = op["channel_type"]
        (joined,) = (
            c["connected_to"]
            for c in self._gpu["channels"]
            if c["channel_type"] == kind
        )
        found = []
        for local in op.get("channel_ids", [0]):
            channel = self._channels[kind][_count(local, "channel_ids")]
            peer = joined[_count(channel, "channel_ids")]
            before = joined[:channel].count(peer)
            found.append((_count(peer, "connected_to"), kind, before))
        return found

    def buffer(self, op: dict[str, Any], at: dict[str, Any]) -> tuple[int, str]:
        """Return the rank and letter of a buffer."""
        if "type" in at:
            return self.rank, at["type"]
        number = _count(at["buffer_id"], "buffer_id")
        shared = self._remotes[op["channel_type"]][number]
        remote = self._gpu["remote_buffers"][_count(shared, "remote_buffer_ids")]
        return _count(remote["rank"], "rank"), remote["type"]


def _flat(ops: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the operations with pipelines unrolled: one turn says what moves."""
    flat: list[dict[str, Any]] = []
    for op in ops:
        flat += _flat(op["ops"]) if op["name"] == "pipeline" else [op]
    return flat


class _Run:
    """The state while blocks take turns."""

    def __init__(
        self, gpus: list[dict[str, Any]], places: BufferNames, fine: int
    ) -> None:
        self._places, self._fine = places, fine
        self.ops: list[Op] = []
        self._blocks = [_Block(g, b) for g in gpus for b in g["threadblocks"]]
        if len({(b.rank, b.number) for b in self._blocks}) < len(self._blocks):
            raise ValueError("two threadblocks of a gpu have one id; want each once")
        self._signals: Counter[tuple[int, int, str, int]] = Counter()
        self._semaphores: Counter[tuple[int, int]] = Counter()
        self._arrived: set[tuple[int, int]] = set()
        self._barrier: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._passed: Counter[tuple[int, int, int]] = Counter()
        for gpu in gpus:
            for number, semaphore in enumerate(gpu.get("semaphores", [])):
                value = _count(semaphore.get("init_value", 0), "init_value")
                self._semaphores[gpu["id"], number] = value

    def all(self) -> None:
        """Run every block to its end, or say which wait for ever."""
        moved = True
        while moved:
            moved = False
            for block in self._blocks:
                while block.left:
                    try:
                        if not self._step(block, block.left[0]):
                            break
                    except (AttributeError, LookupError, TypeError, ValueError) as e:
                        said = f"{type(e).__name__} {str(e)[:200]}"
                        raise ParseError(f"{block.where}: {said} in the plan") from None
                    block.left.popleft()
                    block.done += 1
                    moved = True
        if stuck := [b for b in self._blocks if b.left]:
            raise ParseError(
                f"{stuck[0].where} waits for ever ({len(stuck)} blocks do);"
                " want signals and waits that match"
            )

    def _step(self, block: _Block, op: dict[str, Any]) -> bool:
        """Do one operation; return False when it must wait."""
        name = op["name"]
        if name in _WAITS:
            keys = [(p, block.rank, kind, i) for p, kind, i in block.peers(op)]
            if any(not self._signals[key] for key in keys):
                return False
            self._signals.subtract(keys)
        elif name in _COPIES | _REDUCES:
            if not self._move(block, op):
                return False
        elif name == "barrier":
            return self._meet(block, op)
        elif name == "sem_acquire":
            names = [(block.rank, _count(i, name)) for i in op["semaphore_ids"]]
            if any(self._semaphores[key] < 1 for key in names):
                return False
            self._semaphores.subtract(names)
        elif name == "sem_release":
            self._semaphores.update(
                (block.rank, _count(i, name)) for i in op["semaphore_ids"]
            )
        elif name not in _SIGNALS | _FREE:
            raise ParseError(
                f"{block.where}: cannot be expressed; want one of"
                f" {', '.join(sorted(_COPIES | _REDUCES | _SIGNALS | _WAITS))}"
            )
        if name in _SIGNALS:
            self._signals.update(
                (block.rank, p, kind, i) for p, kind, i in block.peers(op)
            )
        return True

    def _meet(self, block: _Block, op: dict[str, Any]) -> bool:
        """Pass a barrier once all its blocks have come."""
        key = (block.rank, _count(op["barrier_id"], "barrier_id"))
        come = self._barrier[key]
        come.add(block.number)
        if len(come) < _count(op["num_threadblocks"], "num_threadblocks"):
            return False
        passed = (*key, block.number)
        if self._passed[passed]:
            return False
        self._passed[passed] = 1
        if all(self._passed[(*key, b)] for b in come):
            for b in come:
                self._passed[(*key, b)] = 0
            come.clear()
        return True

    def _move(self, block: _Block, op: dict[str, Any]) -> bool:
        """Copy or reduce; packets are read only once they are there."""
        srcs = [self._ref(block, op, at) for at in op["src_buff"]]
        dsts = [self._ref(block, op, at) for at in op["dst_buff"]]
        name = op["name"]
        if not srcs or not dsts:
            raise ValueError("src_buff or dst_buff is empty; want at least one place")
        if name in _PACKETS:
            waited = srcs if name in _COPIES else srcs[1:]
            places = {(r.rank, c) for r in waited for c in range(r.start, r.stop)}
            if not places <= self._arrived:
                return False
        if name in _COPIES:
            self.ops += [Op(d, (s,)) for s, d in zip(srcs, dsts, strict=True)]
        else:
            self.ops.append(Op(dsts[0], tuple(srcs)))
            self.ops += [Op(d, (dsts[0],)) for d in dsts[1:]]
        if name in _ARRIVE or name in ("respkt", "recspkt", "cpkt", "recpkt"):
            self._arrived |= {
                (d.rank, c)
                for d in dsts
                if d.buffer == "scratch"
                for c in range(d.start, d.stop)
            }
        return True

    def _ref(self, block: _Block, op: dict[str, Any], at: dict[str, Any]) -> Ref:
        """Return the chunks of an operand; a block of a group has its share of them."""
        rank, letter = block.buffer(op, at)
        group = op.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
        together = _count(group["tbg_size"], "tbg_size", _MOST_TOGETHER)
        share = _count(at["size"], "size") * self._fine // together
        number = _count(group["tb_id"], "tb_id", together - 1)
        first = _count(at["index"], "index") * self._fine + number * share
        return self._places.ref(rank, letter, first, share, block.where)
